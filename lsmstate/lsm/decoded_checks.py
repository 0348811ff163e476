"""Check that rows and keys in table files decode by the schemas of their streams.

Checksums show that a block is the one that was written. ``sst_check`` shows that the blocks of a
file fit together. Neither knows columns. A read that meets an undecodable row has gathered it
together with rows of other files. This module finds the row, so that the error names file and
block.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from lsmstate.cython_ext.iterators.scanner import Scanner
from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.sstable.sst_reader import Sst
from lsmstate.cython_ext.sstable.sst_source import SstSource
from lsmstate.errors import CorruptionError
from lsmstate.lsm.wal import Write
from lsmstate.schema.codecs import codecs_of
from lsmstate.store import StreamSchema
from lsmstate.store_base.key_range import KeyRange

_PIECE_BYTES = 1 << 18

_WRITE = "a logged write is none of the store's streams"


def check_rows(table: Sst, streams: Sequence[StreamSchema], budget: Budget) -> None:
    """Decode every key and every row of a file, retracted ones too.

    ``streams`` are in the order of their numbers. CorruptionError names the block. Cost: the file
    is read, about 256 KiB of rows at a time.
    """
    # The hidden streams, which hold the retractions of each stream, follow in the same order.
    for number, stream in enumerate(chain(streams, streams)):
        try:
            _decode(table, number, stream, budget, _PIECE_BYTES, with_keys=True)
        except CorruptionError as error:
            if error.path:
                raise
            # Decoding one row at a time, and keys separately from rows, shows which one is damaged.
            _decode(table, number, stream, budget, 1, with_keys=False)
            _decode(table, number, stream, budget, 1, with_keys=True)
            raise  # the bytes changed meanwhile


def check_write(write: Write, streams: Sequence[StreamSchema]) -> None:
    """Decode the rows of a logged write; CorruptionError names its record. Text is not checked, the
    same as when it was stored."""
    assert write.place is not None
    if write.stream >= 2 * len(streams):
        raise CorruptionError(f"{_WRITE}: stream number {write.stream}", *write.place)
    if write.rows is not None:
        stream = streams[write.stream % len(streams)]
        try:
            codecs_of(stream).rows.decode(write.rows.to_pylist())
        except CorruptionError as error:
            raise CorruptionError(
                f"{_WRITE}: stream {stream.name!r}: {error}", *write.place
            ) from error


def find_damaged_row(
    tables: Iterable[Callable[[], Sst]], streams: Sequence[StreamSchema], budget: Budget
) -> CorruptionError | None:
    """Return the error of the first damaged file, or None. Cost: all files are read."""
    for open_table in tables:
        try:
            check_rows(open_table(), streams, budget)
        except CorruptionError as error:
            return error
    return None


def _decode(
    table: Sst,
    number: int,
    stream: StreamSchema,
    budget: Budget,
    max_bytes: int,
    *,
    with_keys: bool,
) -> None:
    """Raise CorruptionError, which names the place if one row is decoded at a time."""
    source = SstSource(table, True)
    decoder = KeyDecoder(stream.key) if with_keys else None
    low, high = KeyRange().in_stream(number)
    scanner = Scanner(source, low, high, codecs_of(stream).rows, budget, False, decoder)
    try:
        while scanner.next_piece(max_bytes) is not None:
            if with_keys:
                scanner.keys_of_piece()
    except CorruptionError as error:
        if error.path or max_bytes > 1:
            raise
        block = source.key_block_offset if with_keys else source.row_block_offset
        raise CorruptionError(f"stream {stream.name!r}: {error}", table.path, block) from error
