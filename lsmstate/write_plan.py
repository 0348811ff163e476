"""From what is asked of a store to the numbered writes that do it, keys and rows encoded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cython_ext.key_codec import KeyBatch, KeyCodec
from cython_ext.row_codec import RowBatch, RowCodec
from lsmstate.changelog import DELETE, DELETE_RANGE, RETRACT, Write
from lsmstate.key_range import KeyRange
from lsmstate.lsm_reader import Tiers, hidden_number
from lsmstate.options import Options
from lsmstate.row_parts import parts_of
from lsmstate.store import Mutation, StreamSchema
from lsmstate.store_checks import encoded_keys
from lsmstate.write_steps import KINDS


@dataclass(frozen=True, slots=True)
class WritePlanner:
    """Plans for one store's streams. Writes are numbered from ``sequence`` on."""

    streams: Mapping[str, StreamSchema]
    key_codecs: Mapping[str, KeyCodec]
    row_codecs: Mapping[str, RowCodec]

    def stored(
        self, kind: int, stream: str, sequence: int, keys: KeyBatch, rows: RowBatch
    ) -> Write:
        """An append or a retraction of encoded rows."""
        number = list(self.streams).index(stream)
        if kind == RETRACT:
            number = hidden_number(number, self.streams)
        return Write(kind, number, sequence, keys, rows)

    def encoded(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch, options: Options
    ) -> Iterator[tuple[KeyBatch, RowBatch]]:
        """A batch in parts of bounded size."""
        for part, part_keys in parts_of(rows, keys, options):
            encoded = encoded_keys(self.streams[stream], self.key_codecs[stream], part_keys)
            yield encoded, self.row_codecs[stream].encode(part)

    def mutations(self, mutations: Sequence[Mutation], sequence: int, tiers: Tiers) -> list[Write]:
        """Several writes that are made as one."""
        writes: list[Write] = []
        for kind, name, keys, rows in mutations:
            encoded = encoded_keys(self.streams[name], self.key_codecs[name], keys)
            encoded_rows = None if rows is None else self.row_codecs[name].encode(rows)
            number = list(self.streams).index(name)
            if kind != "append":
                writes += self._forgetting(DELETE, number, encoded, sequence + len(writes), tiers)
            write = Write(KINDS[kind], number, sequence + len(writes), encoded, encoded_rows)
            writes.append(write)
        return writes

    def deleted_range(
        self, stream: str, wanted: KeyRange, sequence: int, tiers: Tiers
    ) -> list[Write]:
        """The deletion of a range of keys."""
        bounds = KeyBatch.from_bytes(list(wanted))
        number = list(self.streams).index(stream)
        writes = self._forgetting(DELETE_RANGE, number, bounds, sequence, tiers)
        return [*writes, Write(DELETE_RANGE, number, sequence + len(writes), bounds, None)]

    def _forgetting(
        self, kind: int, number: int, keys: KeyBatch, sequence: int, tiers: Tiers
    ) -> list[Write]:
        """Where rows are deleted, their retractions go too, if there ever were any."""
        hidden = hidden_number(number, self.streams)
        return [Write(kind, hidden, sequence, keys, None)] if tiers.may_hold(hidden) else []
