"""The files in which Spark's state store keeps the changes of one partition, read without Spark.

The store of a partition writes one file per micro-batch, and a complete one now and then. The files
of the HDFS-backed provider (``.delta``, ``.snapshot``) and the changelogs of the RocksDB provider
are one compressed stream of records.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

from lsmstate.errors import CorruptionError, FormatVersionError
from lsmstate.spark_integration.checkpoint.compression import REMEDY, decompressed

_END, _PUT, _DELETE = 0x00, 0x01, 0x10
_CHANGELOG: Final = b"\x00\x02v"


class StateFile:
    """One file of changes, or a complete one: (key, value) in the order in which they were
    written."""

    def __init__(self, data: bytes, path: str) -> None:
        self._data = decompressed(data, path)
        self._path = path
        self._at = 0
        #: What came before, as (version, unique id), where Spark gives its files ids.
        self.lineage: tuple[tuple[int, str], ...] = ()
        self._is_typed = False
        version = self._changelog_version()
        if version >= 3:
            self.lineage = self._read_lineage()
        self._is_typed = version in (2, 4)

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The changes, to be read once. The value None deletes the key."""
        while (kind := self._kind()) != _END:
            if kind not in (_PUT, _DELETE):
                raise self._damaged(f"holds a record of kind {kind:#x}")
            key = self._take(self._number(">i"))
            size = self._number(">i")
            if size == -1:
                yield key, None
            elif kind == _DELETE:
                raise self._damaged("a deletion has a value")
            else:
                yield key, self._take(size)
        if self._at != len(self._data):
            raise self._damaged("goes on after its end")

    def _kind(self) -> int:
        if self._is_typed:
            return self._number(">B")
        if self._number(">i") == -1:
            return _END
        self._at -= 4
        return _PUT

    def _changelog_version(self) -> int:
        """The version; 1 if none is written, because a small key size is at the front then."""
        if not self._data.startswith(_CHANGELOG):
            return 1
        version = self._data[3:4]
        if version not in (b"2", b"3", b"4"):
            raise FormatVersionError(
                f"{self._path} is a changelog of version {version.decode('latin-1')!r}; versions 1 "
                "to 4 can be read here"
            )
        self._at = 4
        return int(version)

    def _read_lineage(self) -> tuple[tuple[int, str], ...]:
        text = self._take(self._number(">H"))
        try:
            items: list[dict[str, Any]] = json.loads(text)
            return tuple((int(i["version"]), str(i["checkpointUniqueId"])) for i in items)
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(
                "its lineage is not a JSON list of versions with checkpointUniqueId"
            ) from error

    def _number(self, form: str) -> int:
        data = self._take(struct.calcsize(form))
        return int(struct.unpack(form, data)[0])

    def _take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + max(0, size)]
        if len(found) != size:
            raise self._damaged(f"the next field has {size} bytes, and {len(found)} are left")
        self._at += size
        return found

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(f"{what}; {REMEDY}", self._path, self._at)
