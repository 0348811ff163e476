"""Writing runs: from any source of entries to sealed files with their description."""

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import msgpack

from lsmstate.cython_ext.base.compression import codec_number
from lsmstate.cython_ext.base.file import AppendFile, remove
from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.sstable.sst_writer import SstWriter
from lsmstate.lsm.version import FileMeta
from lsmstate.options import Options
from lsmstate.process.background_worker import SLICE_BYTES

#: What SstWriter.consume answers.
_PAUSED = 1
_FILE_FULL = 2
_STREAM_ENDS = 3

_EVERYTHING = 1 << 62
#: A file ends, too, when its top index takes such a share of the cap: who reads or merges it holds
#: that. Only long keys that begin alike for long come to it.
_TOPS_IN_CAP = 64


@dataclass(frozen=True, slots=True)
class UnsealedTable:
    """A file that is being written; without a footer it is never read."""

    file: AppendFile
    writer: SstWriter
    name: str

    def described(self, size: int = 0, footer: int = 0) -> FileMeta:
        """What is known of the file; size and checksum only when it is sealed."""
        return FileMeta(name=self.name, size=size, checksum=footer, **self.writer.facts())


class FileNames(Protocol):
    """Who names the files, and keeps them from being taken for left behind."""

    def new_name(self, kind: str) -> str:
        """A name never given before."""
        ...

    def forget(self, name: str) -> None:
        """There is no file of that name, and will be none."""
        ...


@dataclass(frozen=True, slots=True)
class TableWriter:
    """Makes files in one directory."""

    directory: str
    options: Options
    budget: Budget
    names: FileNames

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
        """Write all entries of the source as the files of one run, and stop after each slice to
        say how many bytes of rows it had. Sealed files go to ``files``, all names to ``names``.
        A file of some size ends with its stream: so a stream that is emptied takes files along.
        After each sealed file it stops too. ``file_bytes``: instead of the options'.

        An error, or closing the generator, removes what was written."""
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
                    # At the end of the key, if it paused in the middle of one.
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
        """Write all entries into one file and leave it to the caller to seal; else as above."""
        with self._removing(names):
            table = self.begin_table(kind, base_sequence, names=names)
            while table.writer.consume(source, SLICE_BYTES, _EVERYTHING, False) == _PAUSED:
                yield SLICE_BYTES
            if self.options.syncs_commits and self.options.background:
                table.file.sync()  # most of it, so that whoever seals it waits for little
        return table

    def begin_table(
        self,
        kind: str,
        base_sequence: int,
        *,
        bottom: bool = False,
        names: list[str] | None = None,
    ) -> UnsealedTable:
        """A new file without entries. Its name goes to ``names`` before the file exists, so that
        who looks there knows of every file."""
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
        )
        return UnsealedTable(file, writer, name)

    def remove(self, names: Iterable[str]) -> None:
        """Delete files; absent ones are no error."""
        for name in names:
            remove(os.path.join(self.directory, name))
            self.names.forget(name)

    @contextmanager
    def _removing(self, names: list[str]) -> Iterator[None]:
        """Around writing: an error, or closing the generator, removes the files. A forked child
        that drops its copy of the generator leaves them: its parent goes on writing."""
        process = os.getpid()
        try:
            yield
        except BaseException:
            if os.getpid() == process:
                self.remove(names)
            raise

    def seal(self, table: UnsealedTable, edit: bytes) -> FileMeta:
        """Finish a file; its description for the manifest."""
        meta = table.described()
        properties = {
            field: getattr(meta, field)
            for field in FileMeta._fields
            if field not in ("name", "size", "checksum")
        }
        footer = table.writer.finish(msgpack.packb(properties), edit, self.options.syncs_commits)
        return table.described(table.writer.size, footer)
