"""One partition of Spark's state store, read without Spark: micro-batch -> bucket -> pointer."""

import json
import os
import re
import struct
import tempfile
import zipfile
from collections.abc import Iterable
from functools import partial
from io import BytesIO
from typing import Final

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.remote.directory import DurableDir
from lsmstate.remote.retries import retried
from lsmstate.spark_integration.checkpoint.commit_pointer import check_version
from lsmstate.spark_integration.checkpoint.compression import LARGEST_BYTES, REMEDY
from lsmstate.spark_integration.checkpoint.state_files import StateFile

#: A state as of a version: its number, and its unique id where Spark gives ids.
Version = tuple[int, str | None]
Changes = Iterable[tuple[bytes, bytes | None]]

_NAME: Final = re.compile(r"(\d+)(?:_([0-9A-Za-z-]+))?\.(snapshot|zip|delta|changelog)")
#: Of the files inside a RocksDB snapshot, and of those it names.
_SAFE_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*")
#: Rows of the RocksDB provider begin with the version of their encoding.
_ROW_VERSION: Final = b"\x00"

# Spark's UnsafeRow: a word of null bits, then a word per field; text and structs are named by
# offset and size and stand behind.
_KEY: Final = struct.Struct("<Qq")
_VALUE: Final = struct.Struct("<QII")
_STATE: Final = struct.Struct("<Qi4xII")


class StatePartition:
    """The files of a partition, as they were listed at the start."""

    def __init__(self, place: DurableDir, tables: DurableDir) -> None:
        """``tables`` is the directory of RocksDB's tables: SSTs in ``place``."""
        self._place = place
        self._tables = tables
        self._sizes = listed(place)
        self._kinds: dict[Version, set[str]] = {}
        for name in self._sizes:
            parts = _NAME.fullmatch(name)
            if parts is not None:
                self._kinds.setdefault((int(parts[1]), parts[2]), set()).add(parts[3])

    def pointers(self, batch: int, unique_id: str | None) -> dict[int, str]:
        """Bucket -> commit pointer after a micro-batch. InvalidArgumentError if a file is gone,
        CorruptionError if one is damaged. Cost: the newest complete file and all later ones."""
        rows: dict[bytes, bytes] = {}
        for changes in reversed(self._history(batch, unique_id)):
            for key, value in changes:
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value
        where = self._place.where
        found = {_bucket(key, where): _pointer(value, where) for key, value in rows.items()}
        return {bucket: pointer for bucket, pointer in found.items() if pointer is not None}

    def _history(self, batch: int, unique_id: str | None) -> list[Changes]:
        """The changes of each version, newest first, down to a complete one."""
        found: list[Changes] = []
        ids: dict[int, str | None] = {batch + 1: unique_id}
        for version in range(batch + 1, 0, -1):
            at = (version, ids.get(version))
            kinds = self._kinds.get(at)
            if kinds is None:
                raise InvalidArgumentError(
                    f"batch {batch} cannot be read: {self._place.where} has no file of version "
                    f"{version}{f' {at[1]}' if at[1] else ''} any more; read a newer batch"
                )
            if "zip" in kinds:
                return [*found, self._rocksdb(at).items()]
            kind = "snapshot" if "snapshot" in kinds else next(iter(kinds))
            name = _file_name(at, kind)
            file = StateFile(self._read(name), f"{self._place.where}/{name}")
            found.append(_unversioned(file.changes()) if kind == "changelog" else file.changes())
            if kind == "snapshot":
                break
            ids.update(file.lineage)
        return found

    def _rocksdb(self, at: Version) -> dict[bytes, bytes]:
        """A RocksDB snapshot: a zip file of small files, which names the tables."""
        try:
            from lsmstate.rocksdb_backend.files import read_entries
        except ModuleNotFoundError as error:
            raise InvalidArgumentError(
                f"{self._place.where} has snapshots of RocksDB; to read them, run: "
                "pip install 'lsmstate[rocksdb]'"
            ) from error
        name = _file_name(at, "zip")
        path = f"{self._place.where}/{name}"
        with tempfile.TemporaryDirectory(prefix="lsmstate-") as directory:
            metadata = _unzip(self._read(name), directory, path)
            sizes = listed(self._tables)
            for local, durable in _tables(metadata, path).items():
                if durable not in sizes:
                    raise CorruptionError(f"names {durable}, which is gone; {REMEDY}", path, 0)
                with open(os.path.join(directory, local), "wb") as file:
                    file.write(small_file(self._tables, durable, sizes[durable]))
            return dict(_unversioned(read_entries(directory, LARGEST_BYTES).items()))  # type: ignore[arg-type]

    def _read(self, name: str) -> bytes:
        return small_file(self._place, name, self._sizes[name])


def listed(place: DurableDir) -> dict[str, int]:
    """The files of a directory with their sizes in bytes. OSError after several tries."""
    return retried(place.sizes, f"listing {place.where}")


def small_file(place: DurableDir, name: str, size: int) -> bytes:
    """The whole file. CorruptionError if it is larger than any of ours can be, or cut short;
    InvalidArgumentError if it has been deleted since it was listed; OSError after several tries."""
    path = f"{place.where}/{name}"
    if size > LARGEST_BYTES:
        raise CorruptionError(f"{size} bytes long, at most {LARGEST_BYTES} are expected", path, 0)
    try:
        data = retried(partial(place.read, name, 0, size), f"reading {path}")
    except FileNotFoundError as error:
        raise InvalidArgumentError(
            f"{path} was deleted while the checkpoint was read; read a newer batch"
        ) from error
    if len(data) != size:
        raise CorruptionError(f"{len(data)} of {size} bytes could be read; {REMEDY}", path, 0)
    return data


def _file_name(at: Version, kind: str) -> str:
    version, unique_id = at
    return f"{version}.{kind}" if unique_id is None else f"{version}_{unique_id}.{kind}"


def _unzip(data: bytes, directory: str, path: str) -> bytes:
    """The files of a RocksDB snapshot except its tables; returns the one that names these."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            infos = archive.infolist()
            names = [info.filename for info in infos]
            if sum(info.file_size for info in infos) > LARGEST_BYTES or not all(
                map(_SAFE_NAME.fullmatch, names)
            ):
                raise CorruptionError(f"is not a snapshot of RocksDB; {REMEDY}", path, 0)
            archive.extractall(directory)  # checks the checksum of each
            return archive.read("metadata")
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise CorruptionError(f"{error}; {REMEDY}", path, 0) from error


def _tables(metadata: bytes, path: str) -> dict[str, str]:
    """Name of a table inside the database -> name of its file beside the snapshots."""
    try:
        found = {
            str(table["localFileName"]): str(table["dfsSstFileName"])
            for table in json.loads(metadata.partition(b"\n")[2])["sstFiles"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"its metadata makes no sense; {REMEDY}", path, 0) from error
    if not all(map(_SAFE_NAME.fullmatch, [*found, *found.values()])):
        raise CorruptionError(f"its tables have invalid names; {REMEDY}", path, 0)
    return found


def _unversioned(changes: Changes) -> Changes:
    """The same rows, as the HDFS-backed provider has them."""
    for key, value in changes:
        for row in (key, value):
            if row is not None and row[:1] != _ROW_VERSION:
                raise CorruptionError(f"a row has encoding {row[:1].hex()}, 00 can be read")
        yield key[1:], None if value is None else value[1:]


def _bucket(key: bytes, where: str) -> int:
    if len(key) != _KEY.size:
        raise CorruptionError(f"a key of {len(key)} bytes, {_KEY.size} are expected", where)
    nulls, bucket = _KEY.unpack(key)
    if nulls or bucket < 0:
        raise CorruptionError(f"a key that is not a bucket number: {key.hex()}", where)
    return int(bucket)


def _pointer(value: bytes, where: str) -> str | None:
    """The pointer; None if the function left the bucket without one."""
    if len(value) % 8:
        raise InvalidArgumentError(
            f"{where} has rows of {len(value)} bytes, as Spark writes them with "
            "spark.sql.streaming.stateStore.rowChecksum.enabled; they cannot be read here"
        )
    try:
        nulls, size, offset = _VALUE.unpack_from(value)
        if nulls & 1:
            return None
        state = value[offset : offset + size]
        nulls, version, size, offset = _STATE.unpack_from(state)
        text = state[offset : offset + size]
        if nulls or len(text) != size:
            raise ValueError("a field is null or cut short")
        check_version(version)
        return text.decode("ascii")
    except (struct.error, ValueError) as error:
        raise CorruptionError(
            f"a state of {len(value)} bytes makes no sense: {error}", where
        ) from error
