"""Files of the memory backend: one per commit, with only what that commit added.

    file := magic part* footer(JSON) length(u64) digest(16) magic
    part := Arrow IPC stream; the footer lists its offset, length and digest

- Files with appends and deletes only have format 1, which older releases read.
- The footer names the predecessor's pointer, so a state is a chain of files. It also names the
  parent: the pointer at which its attempt was opened.
- A pointer is ``name#digest``, with the digest of the footer. A named file never changes.
- To keep chains short, a commit copies the parts of predecessors that are no larger than its own
  into its file, and names the file before them. The length of a chain is about the logarithm of the
  number of commits, and a byte is copied about as often.
"""

import hashlib
import json
import os
import re
import struct
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.lsm.file_names import OtherFile
from lsmstate.lsm.recovery import Named
from lsmstate.store import Positions, StreamSchema
from lsmstate.store_base.checks import check_same_streams, pack_schemas, unpack_schemas

FORMAT_VERSION = 2
SUFFIX = ".mem"

_MAGIC = b"LSMSTmem"
_DIGEST_BYTES = 16
_TRAILER = struct.Struct(f"<Q{_DIGEST_BYTES}s{len(_MAGIC)}s")
_FIRST_KINDS = {"append", "delete"}
_NAME = re.compile(r"(\d{12})-[\w-]*-[0-9a-f]{32}\.mem(\.open)?")
_KEYS = pa.schema([("key", pa.binary()), ("count", pa.int64())])


class Change(NamedTuple):
    """One write: ``append``, ``put`` or ``retract`` (rows grouped by key, ``counts[g]`` each),
    ``delete``, or ``delete_range`` (the keys are the bounds; None: no bound)."""

    kind: str
    stream: str
    keys: list[bytes | None]
    counts: Positions
    rows: pa.RecordBatch | None


class Link(NamedTuple):
    """A file of a chain: its pointer, its bytes without the footer, and all its bytes."""

    pointer: str
    data_bytes: int
    size: int


class LogWriter:
    """Writes the file of the next commit. Changes are written as they are made, so none is held in
    memory."""

    def __init__(self, directory: str, batch_id: int, attempt_id: str, sync: bool) -> None:
        safe = "".join(c if c.isalnum() or c in "_-" else "_" for c in attempt_id)
        self.name = f"{batch_id:012d}-{safe}-{uuid.uuid4().hex}{SUFFIX}"
        self._directory = Path(directory)
        self._sync = sync
        self.size = 0
        #: Whether the file has its name; it is then no longer discarded.
        self.is_finished = False
        self._parts: list[dict[str, Any]] = []
        self._kinds: set[str] = set()
        self._file = open(self._directory / f"{self.name}.open", "xb")  # noqa: SIM115
        self._file.write(_MAGIC)

    def write(self, change: Change) -> None:
        """Add a change. OS errors pass through."""
        keys = pa.RecordBatch.from_arrays(
            [pa.array(change.keys, pa.binary()), pa.array(change.counts)], schema=_KEYS
        )
        part = {"kind": change.kind, "stream": change.stream, "keys": self._write_batch(keys)}
        if change.rows is not None:
            part["rows"] = self._write_batch(change.rows)
        self._parts.append(part)
        self._kinds.add(change.kind)

    def absorb(self, file: "LogFile") -> None:
        """Insert the changes of another file before all changes."""
        parts = []
        for part, batches in file.raw_parts():
            places = {}
            for what, data in batches.items():
                places[what] = {**part[what], "offset": self._file.tell()}
                self._file.write(data)
            parts.append({**part, **places})
            self._kinds.add(kind_of(part))
        self._parts = parts + self._parts

    @property
    def data_bytes(self) -> int:
        """Bytes of changes so far."""
        return self._file.tell()

    def finish(
        self, predecessor: str | None, parent: str | None, streams: Mapping[str, StreamSchema]
    ) -> "Link":
        """Seal the file, give it its name, and return its link in the chain."""
        data_bytes = self.data_bytes
        footer = json.dumps(
            {
                "format": 1 if self._kinds <= _FIRST_KINDS else FORMAT_VERSION,
                "predecessor": predecessor,
                "parent": parent,
                "streams": pack_schemas(streams),
                "parts": self._parts,
            }
        ).encode()
        digest = _digest(footer)
        self._file.write(footer + _TRAILER.pack(len(footer), digest, _MAGIC))
        self._file.flush()
        self.size = self._file.tell()
        if self._sync:
            os.fsync(self._file.fileno())
        self._file.close()
        # The name is new: no file is replaced.
        os.rename(self._file.name, self._directory / self.name)
        self.is_finished = True
        if self._sync:
            _sync_directory(self._directory)
        return Link(f"{self.name}#{digest.hex()}", data_bytes, self.size)

    def discard(self) -> None:
        """Remove the unfinished file. Does nothing after ``finish``."""
        if self.is_finished:
            return
        try:
            self._file.close()
        finally:
            with suppress(FileNotFoundError):  # another owner has deleted it
                os.unlink(self._file.name)

    def _write_batch(self, batch: pa.RecordBatch) -> dict[str, Any]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = sink.getvalue()
        offset = self._file.tell()
        self._file.write(data)
        return {"offset": offset, "length": data.size, "digest": _digest(data).hex()}


class LogFile:
    """A committed file: its footer is checked and parsed, its changes are read on demand."""

    def __init__(self, directory: str, pointer: str) -> None:
        name, _, digest = pointer.partition("#")
        if not name.endswith(SUFFIX) or os.path.basename(name) != name:
            raise InvalidArgumentError(
                f"pointer {pointer!r} is not one that a memory store's commit returned"
            )
        self.path = Path(directory) / name
        with open(self.path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            footer, found, footer_bytes = _read_footer(file, str(self.path), self.size)
        if digest and found.hex() != digest:
            raise CorruptionError(f"not the file that {pointer} names", str(self.path), 0)
        self.pointer = f"{name}#{found.hex()}"
        self.link = Link(self.pointer, self.size - footer_bytes, self.size)
        if footer["format"] not in range(1, FORMAT_VERSION + 1):
            raise FormatVersionError(
                f"{self.path}: format {footer['format']}, this release reads up to {FORMAT_VERSION}"
            )
        self.predecessor: str | None = footer["predecessor"]
        #: Earlier releases copied no parts and named no parent.
        self.parent: str | None = footer.get("parent", self.predecessor)
        self.streams = unpack_schemas(footer["streams"])
        self._parts = footer["parts"]

    def changes(self) -> Iterator[Change]:
        """Yield the changes in order. CorruptionError names a damaged part."""
        with open(self.path, "rb") as file:
            for part in self._parts:
                keys = self._read_batch(file, part["keys"])
                rows = self._read_batch(file, part["rows"]) if "rows" in part else None
                counts = keys.column(1).to_numpy().astype(np.int64)
                yield Change(
                    kind_of(part), part["stream"], keys.column(0).to_pylist(), counts, rows
                )

    def raw_parts(self) -> Iterator[tuple[dict[str, Any], dict[str, bytes]]]:
        """Yield each part as in the footer, with the bytes of its batches, in order."""
        with open(self.path, "rb") as file:
            for part in self._parts:
                batches = [what for what in ("keys", "rows") if what in part]
                yield part, {what: self._read(file, part[what]) for what in batches}

    def _read(self, file: Any, place: Mapping[str, Any]) -> bytes:
        file.seek(place["offset"])
        data: bytes = file.read(place["length"])
        if len(data) != place["length"] or _digest(data).hex() != place["digest"]:
            raise CorruptionError(
                "checksum does not match; restore the file or start from another checkpoint",
                str(self.path),
                place["offset"],
            )
        return data

    def _read_batch(self, file: Any, place: Mapping[str, Any]) -> pa.RecordBatch:
        return pa.ipc.open_stream(self._read(file, place)).read_next_batch()


def kind_of(part: Mapping[str, Any]) -> str:
    """Return the kind of a part; format 1 had two kinds and did not name them."""
    return str(part.get("kind", "append" if "rows" in part else "delete"))


def read_chain(directory: str, pointer: str, streams: Mapping[str, StreamSchema]) -> list[LogFile]:
    """Return the files of a state, oldest first."""
    chain = _chain(directory, pointer)
    check_same_streams(f"{directory} at {pointer}", chain[0].streams, streams)
    chain.reverse()
    return chain


def _chain(directory: str, pointer: str) -> list[LogFile]:
    """Return the files of a state, newest first."""
    chain: list[LogFile] = []
    at: str | None = pointer
    while at is not None:
        chain.append(LogFile(directory, at))
        at = chain[-1].predecessor
    return chain


class LogFiles:
    """The attempts' files of one bucket; an ``obsolete_files.AttemptFiles``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        return os.listdir(self._directory)

    def parse(self, name: str) -> OtherFile | None:
        name = name.partition("#")[0]
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return OtherFile("open" if found[2] else "commit", int(found[1]), name)

    def named_by(self, commit: str) -> Named:
        chain = _chain(self._directory, commit)
        return Named(frozenset(file.path.name for file in chain), chain[0].parent)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):  # another attempt may delete files too
            os.unlink(os.path.join(self._directory, name))

    def remove_all_but(self, pointer: str) -> None:
        """Delete what the state of a pointer does not need."""
        needed = self.named_by(pointer).files
        for name in self.names():
            if self.parse(name) is not None and name not in needed:
                self.remove(name)


def newest_pointer(directory: str) -> tuple[int, str | None]:
    """Return (number, pointer) of the last commit in a directory that one process owns; (0, None)
    if there is none."""
    names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    return (int(names[-1].split("-")[0]), names[-1]) if names else (0, None)


def _read_footer(file: Any, path: str, size: int) -> tuple[dict[str, Any], bytes, int]:
    """Return the footer, its digest, and the bytes from its start to the end of the file."""
    remedy = "restore the file or start from another checkpoint"
    if size < _TRAILER.size + len(_MAGIC):
        raise CorruptionError(f"only {size} bytes long; {remedy}", path, 0)
    file.seek(size - _TRAILER.size)
    length, digest, magic = _TRAILER.unpack(file.read(_TRAILER.size))
    start = size - _TRAILER.size - length
    if magic != _MAGIC or start < len(_MAGIC):
        raise CorruptionError(f"no valid trailer; {remedy}", path, size - _TRAILER.size)
    file.seek(start)
    footer = file.read(length)
    if _digest(footer) != digest:
        raise CorruptionError(f"checksum of the footer does not match; {remedy}", path, start)
    parsed: dict[str, Any] = json.loads(footer)
    return parsed, digest, size - start


def _digest(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
