"""Which rows a slot of a stream with an expiry holds, which a retraction must know first."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.expiry.time_buckets import Lane
from lsmstate.store import KeyBounds, Mutation, StoreReader
from lsmstate.store_base.checks import encoded_keys
from lsmstate.store_base.key_range import key_range

_PIECE_BYTES = 256 << 10

#: A key (null or encoded) and an encoded row.
_Row = tuple[bytes | None, bytes]


def held_rows(
    store: StoreReader,
    lane: Lane,
    slot: str,
    keys: KeyBatch,
    rows: pa.RecordBatch,
    earlier: Sequence[Mutation],
) -> npt.NDArray[np.bool_]:
    """Return which of the rows a slot holds after ``earlier`` changes; of equal rows as many as it
    holds. Rows with null keys, which are never stored, do not matter. Cost: the rows of the keys
    are read, one piece at a time."""
    asked = list(zip(keys.to_pylist(), lane.row_codec.encode(rows).to_pylist(), strict=True))
    distinct, _ = keys.distinct()
    names = distinct.to_pylist()
    stored: Counter[_Row] = Counter(dict.fromkeys(asked, 0))
    probe = store.probe(slot, distinct)
    for found in probe.fetch(np.flatnonzero(probe.counts), _PIECE_BYTES):
        encoded = lane.row_codec.encode(found.rows).to_pylist()
        here = zip((names[place] for place in found.positions.tolist()), encoded, strict=True)
        stored.update(row for row in here if row in stored)
    for mutation in earlier:
        if mutation.stream == slot:
            _replay(mutation, lane, stored)
    held = np.zeros(len(asked), dtype=np.bool_)
    for place, row in enumerate(asked):
        held[place] = row[0] is None or stored[row] > 0
        stored[row] -= 1
    return held


def _replay(mutation: Mutation, lane: Lane, stored: Counter[_Row]) -> None:
    """Apply a change of a slot to the counts of some rows in it."""
    kind, _, keys, rows = mutation
    if isinstance(keys, KeyBounds):
        low, high = key_range(lane.schema, *keys)
        for row in stored:
            if row[0] is not None and low <= row[0] and (high is None or row[0] < high):
                stored[row] = 0
        return
    names = encoded_keys(lane.schema, lane.codec, keys).to_pylist()
    if rows is None:
        gone = set(names)
        stored.update({row: -count for row, count in stored.items() if row[0] in gone})
        return
    step = 1 if kind == "append" else -1
    for row in zip(names, lane.row_codec.encode(rows).to_pylist(), strict=True):
        if row in stored:
            stored[row] += step
