"""Table writer: makes sealed files and their descriptions from any source of entries."""

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import msgpack

from lsmstate.cython_ext.base.compression import codec_number
from lsmstate.cython_ext.base.file import AppendFile, remove
from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.rows.zone_columns import ZoneColumns
from lsmstate.cython_ext.sstable.sst_writer import SstWriter
from lsmstate.lsm.version import FileMeta
from lsmstate.options import Options
from lsmstate.process.background_worker import SLICE_BYTES
from lsmstate.schema.codecs import codecs_of
from lsmstate.store import StreamSchema

#: Results of SstWriter.consume.
_PAUSED = 1
_FILE_FULL = 2
_STREAM_ENDS = 3

_EVERYTHING = 1 << 62
#: A file also ends when its top index takes this part of the cap, since readers and merges hold it.
#: Only long keys with long common prefixes reach it.
_TOPS_IN_CAP = 64


@dataclass(frozen=True, slots=True)
class UnsealedTable:
    """A file that is being written; without a footer it is never read."""

    file: AppendFile
    writer: SstWriter
    name: str

    def described(self, size: int = 0, footer: int = 0) -> FileMeta:
        """Return the file's description; size and checksum are known only after sealing."""
        return FileMeta(name=self.name, size=size, checksum=footer, **self.writer.facts())


def zone_columns(streams: Iterable[StreamSchema]) -> dict[int, ZoneColumns]:
    """Return the zone columns of the streams that have some, by number."""
    return {
        number: ZoneColumns(codecs_of(stream).rows, map(stream.rows.names.index, stream.zones))
        for number, stream in enumerate(streams)
        if stream.zones
    }


class FileNames(Protocol):
    """Gives files their names, and keeps unfinished files from being taken for leftovers."""

    def new_name(self, kind: str) -> str:
        """Return a new unique name."""
        ...

    def forget(self, name: str) -> None:
        """Note that no file of that name exists or will exist."""
        ...


@dataclass(frozen=True, slots=True)
class TableWriter:
    """Makes files in one directory."""

    directory: str
    options: Options
    budget: Budget
    names: FileNames
    #: Of the streams that have zones, by number.
    zones: Mapping[int, ZoneColumns]

    def write_slices(
        self,
        source: EntrySource,
        base_sequence: int,
        files: list[FileMeta],
        names: list[str],
        *,
        bottom: bool,
        file_bytes: int | None = None,
    ) -> Generator[int, None, None]:
        """Write all entries of the source as the files of one run, and yield the bytes of rows of
        each slice.

        Sealed files are added to ``files``, all names to ``names``. A file of some size ends with
        its stream, so that emptying a stream empties files. Each sealed file also ends a slice.
        ``file_bytes`` replaces the size in the options. An error, or closing the generator, removes
        what was written.
        """
        state = _FILE_FULL
        limit = file_bytes or self.options.file_bytes
        with self._removing(names):
            while state in (_FILE_FULL, _STREAM_ENDS):
                table = self.begin_table("run", base_sequence, bottom=bottom, names=names)
                consume = table.writer.consume
                state = consume(source, SLICE_BYTES, limit, bottom, state == _STREAM_ENDS)
                said = 0
                while state == _PAUSED:
                    said += SLICE_BYTES
                    yield SLICE_BYTES
                    is_full = table.writer.top_bytes >= self.options.memory_bytes // _TOPS_IN_CAP
                    # At the end of the key, if the writer paused inside one.
                    state = consume(source, SLICE_BYTES, 0 if is_full else limit, bottom)
                if table.described().keys == 0:
                    self.remove([table.name])
                    break
                file = self.seal(table, b"")
                files.append(file)
                yield max(1, file.entry_bytes - said)

    def write_unsealed(
        self, source: EntrySource, base_sequence: int, kind: str, names: list[str]
    ) -> Generator[int, None, UnsealedTable]:
        """Write all entries into one file that the caller seals; otherwise as ``write_slices``."""
        with self._removing(names):
            table = self.begin_table(kind, base_sequence, names=names)
            while table.writer.consume(source, SLICE_BYTES, _EVERYTHING, False) == _PAUSED:
                yield SLICE_BYTES
            if self.options.syncs_commits and self.options.background:
                table.file.sync()  # most of the file, so that sealing it waits only briefly
        return table

    def begin_table(
        self,
        kind: str,
        base_sequence: int,
        *,
        bottom: bool = False,
        names: list[str] | None = None,
    ) -> UnsealedTable:
        """Begin a new file without entries. Its name is added to ``names`` before the file exists,
        so that every file is known."""
        name = self.names.new_name(kind)
        if names is not None:
            names.append(name)
        path = os.path.join(self.directory, name)
        file = AppendFile(path, to_be_synced=self.options.syncs_commits)
        codec = self.options.bottom_compression if bottom else self.options.compression
        writer = SstWriter(
            file,
            self.budget,
            codec=codec_number(codec),
            block_bytes=self.options.block_limit_bytes,
            filter_bits=self.options.filter_bits_per_key,
            uid=int.from_bytes(os.urandom(8), "little"),
            base_sequence=base_sequence,
            zones=self.zones,
        )
        return UnsealedTable(file, writer, name)

    def remove(self, names: Iterable[str]) -> None:
        """Delete files; absent files are no error."""
        for name in names:
            remove(os.path.join(self.directory, name))
            self.names.forget(name)

    @contextmanager
    def _removing(self, names: list[str]) -> Iterator[None]:
        """Context of writing: an error, or closing the generator, removes the files. A forked child
        that drops its copy of the generator leaves them, since its parent continues."""
        process = os.getpid()
        try:
            yield
        except BaseException:
            if os.getpid() == process:
                self.remove(names)
            raise

    def seal(self, table: UnsealedTable, edit: bytes) -> FileMeta:
        """Seal a file and return its description for the manifest."""
        meta = table.described()
        properties = {
            field: getattr(meta, field)
            for field in FileMeta._fields
            if field not in ("name", "size", "checksum")
        }
        footer = table.writer.finish(msgpack.packb(properties), edit, self.options.syncs_commits)
        return table.described(table.writer.size, footer)
