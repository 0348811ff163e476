"""What a store would find if one stream had other rows: those that a batch brings or takes."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.rooted.search import Probed
from lsmstate.joins.specs.multi_key import GraphSpec, Index
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes
from lsmstate.store import Matches, Positions, Probe


class RowsInstead:
    """``store`` with ``rows`` in all of the stream's ``indexes``. Memory: the keys of the rows."""

    def __init__(
        self,
        store: Probed,
        graph: GraphSpec,
        indexes: Sequence[Index],
        stream: str,
        rows: pa.RecordBatch,
    ) -> None:
        self._store = store
        self._graph = graph
        self._classes = {index.name: index.classes for index in indexes if index.stream == stream}
        self._stream = stream
        self._rows = rows
        self._sizes = row_sizes(rows)
        self._by_key: dict[str, _ByKey] = {}

    def probe(self, stream: str, keys: KeyBatch) -> Probe:
        """Look up keys, in the given rows for their own stream. Cost: vector operations."""
        if stream not in self._classes:
            return self._store.probe(stream, keys)
        if stream not in self._by_key:
            named = self._graph.key_batch(self._stream, self._rows, self._classes[stream])
            encoded = KeyCodec(named.schema).encode(named)
            self._by_key[stream] = _ByKey(self._rows, self._sizes, encoded)
        return _RowsProbe(self._by_key[stream], keys)


class _ByKey:
    """Rows in the order of their keys."""

    def __init__(self, rows: pa.RecordBatch, sizes: Numbers, keys: KeyBatch) -> None:
        distinct, starts = keys.distinct()
        self.rows = rows
        self.sizes = sizes
        self.order = np.asarray(keys.order, dtype=np.int64)
        self.distinct = pa.array(distinct.to_pylist(), pa.large_binary())
        self.starts = np.asarray(starts, dtype=np.int64)


class _RowsProbe:
    """A ``Probe`` of the given rows: how many each key has, and how many bytes they take."""

    def __init__(self, found: _ByKey, keys: KeyBatch) -> None:
        asked = pa.array(keys.to_pylist(), pa.large_binary())
        at = pc.fill_null(pc.index_in(asked, value_set=found.distinct), -1)
        at = at.to_numpy(zero_copy_only=False).astype(np.int64)
        self._found = found
        self._first = np.append(found.starts[:-1], 0)[at]
        self.counts = np.append(np.diff(found.starts), 0)[at]
        ends = np.append(0, np.cumsum(found.sizes[found.order]))
        self.row_bytes = ends[self._first + self.counts] - ends[self._first]

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """Read the rows of some keys, in pieces of about ``max_bytes``."""
        counts = self.counts[positions]
        ends = np.cumsum(counts)
        within = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
        places = self._found.order[np.repeat(self._first[positions], counts) + within]
        of = np.repeat(positions, counts)
        for piece in pieces_of(self._found.sizes[places], max_bytes):
            yield Matches(of[piece], self._found.rows.take(pa.array(places[piece])))
