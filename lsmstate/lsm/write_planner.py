"""Write planner: turns calls of a store into numbered writes with encoded keys and rows."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowBatch, RowCodec
from lsmstate.cython_ext.wal.wal_record import largest_entry, largest_row
from lsmstate.lsm.memtable_writes import KINDS
from lsmstate.lsm.reader import Tiers, hidden_number
from lsmstate.lsm.wal import DELETE, DELETE_RANGE, RETRACT, Write
from lsmstate.options import Options
from lsmstate.schema.codecs import codecs_of
from lsmstate.schema.entry_sizes import EntrySizes
from lsmstate.store import KeyBounds, Mutation, StreamSchema
from lsmstate.store_base.batch_limits import check_largest_row, parts_of
from lsmstate.store_base.checks import encoded_keys
from lsmstate.store_base.key_limits import check_largest_key
from lsmstate.store_base.key_range import key_range


class WritePlanner:
    """Plans the writes of one store's streams, numbered from ``sequence`` on."""

    def __init__(self, streams: Mapping[str, StreamSchema]) -> None:
        codecs = {name: codecs_of(stream) for name, stream in streams.items()}
        self.streams = streams
        self.key_codecs: Mapping[str, KeyCodec] = {name: c.key for name, c in codecs.items()}
        self.row_codecs: Mapping[str, RowCodec] = {name: c.rows for name, c in codecs.items()}
        self.sizes: Mapping[str, EntrySizes] = {name: c.sizes for name, c in codecs.items()}

    def stored(
        self, kind: int, stream: str, sequence: int, keys: KeyBatch, rows: RowBatch
    ) -> Write:
        """Plan an append or a retraction of encoded rows."""
        number = list(self.streams).index(stream)
        if kind == RETRACT:
            number = hidden_number(number, self.streams)
        return Write(kind, number, sequence, keys, rows)

    def encoded(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch, options: Options
    ) -> Iterator[tuple[KeyBatch, RowBatch]]:
        """Encode a batch in parts of bounded size."""
        for part, part_keys in parts_of(rows, keys, options, self.sizes[stream]):
            yield self.encoded_part(stream, part, part_keys)

    def measured(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch, options: Options
    ) -> tuple[int, int, int]:
        """Return the number of parts, the size of the largest entry of a key and a row, and of the
        largest part. MemoryLimitError if an entry is too large. Cost: everything is encoded, part
        by part."""
        parts = largest = held = 0
        for part in self.encoded(stream, rows, keys, options):
            parts += 1
            largest = max(largest, checked_entry(*part, options))
            held = max(held, encoded_bytes(*part))
        return parts, largest, held

    def encoded_part(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch
    ) -> tuple[KeyBatch, RowBatch]:
        """Encode a whole batch."""
        encoded = encoded_keys(self.streams[stream], self.key_codecs[stream], keys)
        return encoded, self.row_codecs[stream].encode(rows)

    def mutations(self, mutations: Sequence[Mutation], sequence: int, tiers: Tiers) -> list[Write]:
        """Plan several atomic writes."""
        writes: list[Write] = []
        for mutation in mutations:
            writes += self._planned(mutation, sequence + len(writes), tiers, writes)
        return writes

    def _planned(
        self, mutation: Mutation, sequence: int, tiers: Tiers, before: Sequence[Write]
    ) -> list[Write]:
        """Plan one of them, after those ``before`` it."""
        kind, name, keys, rows = mutation
        if isinstance(keys, KeyBounds):
            encoded = KeyBatch.from_bytes([*key_range(self.streams[name], *keys)])
        else:
            encoded = encoded_keys(self.streams[name], self.key_codecs[name], keys)
        encoded_rows = None if rows is None else self.row_codecs[name].encode(rows)
        if encoded_rows is not None and kind != "put":
            return [self.stored(KINDS[kind], name, sequence, encoded, encoded_rows)]
        number = list(self.streams).index(name)
        hidden = hidden_number(number, self.streams)
        writes: list[Write] = []
        if tiers.may_hold(hidden) or any(write.stream == hidden for write in before):
            # A deletion of rows also deletes their retractions, if there ever were any.
            forgetting = DELETE_RANGE if kind == "delete_range" else DELETE
            writes.append(Write(forgetting, hidden, sequence, encoded, None))
        at = sequence + len(writes)
        return [
            *writes,
            Write(KINDS[kind], number, at, encoded, encoded_rows),
        ]


def encoded_bytes(keys: KeyBatch, rows: RowBatch | None) -> int:
    """Return the memory of a write's encoded keys and rows."""
    return keys.nbytes + (rows.nbytes if rows is not None else 0)


def held_bytes(writes: Sequence[Write]) -> int:
    """Return the memory of atomic writes: shared keys count once, and one copy with a stream's
    number, which the log or the memtable has for one write at a time."""
    keys = {id(write.keys): write.keys.nbytes for write in writes}
    rows = sum(write.rows.nbytes for write in writes if write.rows is not None)
    return sum(keys.values()) + rows + (max(keys.values()) if len(writes) > 1 else 0)


def checked_entry(keys: KeyBatch, rows: RowBatch | None, options: Options) -> int:
    """Return the size of the largest entry; raise MemoryLimitError if a row or a
    key is too large."""
    if rows is not None:
        check_largest_row(largest_row(rows), options)
    largest = largest_entry(keys, rows)
    check_largest_key(keys, largest, options)
    return largest
