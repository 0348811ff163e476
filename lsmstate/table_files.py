"""Writing runs: from any source of entries to sealed files with their description."""

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass

import msgpack

from cython_ext.budget import Budget
from cython_ext.codec import codec_number
from cython_ext.entries import EntrySource
from cython_ext.file import AppendFile, remove
from cython_ext.sst_writer import SstWriter
from lsmstate.options import Options
from lsmstate.version import FileMeta

#: Bytes of rows written between two looks at Python.
SLICE_BYTES = 512 << 10
#: What SstWriter.consume answers.
_PAUSED = 1
_FILE_FULL = 2
_STREAM_ENDS = 3

_EVERYTHING = 1 << 62


@dataclass(frozen=True, slots=True)
class TableWriter:
    """Makes files in one directory under names that ``new_name(kind)`` gives once each."""

    directory: str
    options: Options
    budget: Budget
    new_name: Callable[[str], str]

    def write_run(self, source: EntrySource, base_sequence: int) -> tuple[FileMeta, ...]:
        """All entries of a memtable as a run of one file; none if nothing is left of them."""
        files: list[FileMeta] = []
        slices = self.write_slices(source, base_sequence, files, [], bottom=False, cut=False)
        for _ in slices:
            pass
        return tuple(files)

    def write_slices(
        self,
        source: EntrySource,
        base_sequence: int,
        files: list[FileMeta],
        names: list[str],
        *,
        bottom: bool,
        cut: bool = True,
    ) -> Generator[int, None, None]:
        """Write all entries of the source as the files of one run, and stop after each slice to
        say how many bytes of rows it had. Sealed files go to ``files``, all names to ``names``.
        A file of some size ends with its stream: so a stream that is emptied takes files along.

        An error, or closing the generator, removes what was written."""
        state = _FILE_FULL
        try:
            while state in (_FILE_FULL, _STREAM_ENDS):
                name = self.new_name("run")
                names.append(name)
                writer = self._start(name, base_sequence, bottom)
                limit = self.options.file_bytes if cut else _EVERYTHING
                standing = state == _STREAM_ENDS
                state = writer.consume(source, SLICE_BYTES, limit, bottom, standing)
                while state == _PAUSED:
                    yield SLICE_BYTES
                    state = writer.consume(source, SLICE_BYTES, limit, bottom)
                if writer.facts()["keys"] == 0:
                    remove(os.path.join(self.directory, name))
                    break
                files.append(self.seal(writer, name, b""))
        except BaseException:
            for name in names:
                remove(os.path.join(self.directory, name))
            raise

    def start_commit(self, source: EntrySource, base_sequence: int) -> tuple[SstWriter, str]:
        """A commit's file with the entries of the memtable in it, still to be sealed."""
        name = self.new_name("commit")
        try:
            writer = self._start(name, base_sequence, False)
            writer.consume(source, _EVERYTHING, _EVERYTHING, False)
        except BaseException:
            remove(os.path.join(self.directory, name))
            raise
        return writer, name

    def seal(self, writer: SstWriter, name: str, edit: bytes) -> FileMeta:
        """Finish a file; its description for the manifest."""
        meta = described(writer, name)
        properties = {
            field: getattr(meta, field)
            for field in FileMeta.__slots__
            if field not in ("name", "size", "checksum")
        }
        footer = writer.finish(msgpack.packb(properties), edit, self.options.syncs_commits)
        return described(writer, name, writer.size, footer)

    def _start(self, name: str, base_sequence: int, bottom: bool) -> SstWriter:
        codec = self.options.bottom_compression if bottom else self.options.compression
        return SstWriter(
            AppendFile(os.path.join(self.directory, name)),
            self.budget,
            codec=codec_number(codec),
            block_bytes=self.options.block_bytes,
            filter_bits=self.options.filter_bits_per_key,
            uid=int.from_bytes(os.urandom(8), "little"),
            base_sequence=base_sequence,
        )


def described(writer: SstWriter, name: str, size: int = 0, footer: int = 0) -> FileMeta:
    """What is known of a file; size and checksum only when it is sealed."""
    return FileMeta(name=name, size=size, checksum=footer, **writer.facts())
