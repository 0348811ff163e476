"""The index by codes: all stored rows are compared by codes, and few of them are read.

- Each row has a home of its own, which follows from its number. Its code lies in a second stream,
  with those of its neighbours in one chunk.
- A basis of codes is made from what was seen, and kept. Later ones are made where the data drifts;
  stored codes stay as they are, and name their basis.
- Rows that came before the first basis have no code: every row looks at them.
- Where pivots leave few enough pairs, rows that come from then on lie with those instead.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.cython_ext.distances import code_tiles
from lsmstate.joins.local.similarity.codes import Basis, Chunks
from lsmstate.joins.local.similarity.homes import Homes, placed
from lsmstate.joins.local.similarity.pivots import Pivots
from lsmstate.joins.local.similarity.spaces import Space
from lsmstate.joins.local.similarity.stretches import Groups, Numbers, Orders, Stretches
from lsmstate.joins.local.similarity.vectors import Matrix, matrix, vector_type
from lsmstate.joins.specs.similarity import (
    BASES,
    CODE,
    VERSION,
    SimilaritySpec,
    codes_stream,
)
from lsmstate.store import MultimapStore, Mutation

#: The home of the first row; those of pivots' worksets are not negative.
_FIRST_HOME: Final = -(1 << 62)
#: The basis of rows that have no code.
_NO_BASIS: Final = -1
#: Rows that must have come before there is a basis, and so many times more for the next one.
_FIRST_ROWS: Final = 256
_AGAIN: Final = 4
_MOST_BASES: Final = 6
#: Points from which a basis is made.
_SAMPLE: Final = 2048
#: Candidates whose rows are read at once.
_STEP_PAIRS: Final = 1 << 16
#: Numbers of components that are kept from storing to looking for partners.
_KEPT_NUMBERS: Final = 1 << 21
_SAMPLE_BYTES: Final = 1 << 20

Components = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


class Coded:
    """The index by codes, perhaps with pivots."""

    def __init__(
        self,
        spec: SimilaritySpec,
        store: MultimapStore,
        space: Space,
        arrived: int,
        pivots: Pivots | None,
    ) -> None:
        self._spec = spec
        self._store = store
        self._space = space
        self._pivots = pivots
        self._seen = arrived
        self._bases: list[Basis] = []
        self._tried = 0
        self._new: list[Mutation] = []
        self._load()
        #: The batch that was placed last: its points, its number, and its components.
        self._points: Matrix = np.empty((0, 0))
        self._first = 0
        self._components: Components | None = None
        self._compared = 0

    @property
    def compared(self) -> int:
        """Distances from pivots."""
        return 0 if self._pivots is None else self._pivots.compared

    @property
    def pairs(self) -> int:
        """Pairs that were compared by codes."""
        return self._compared

    def _load(self) -> None:
        found: dict[int, dict[int, Any]] = {}
        for keys, rows in self._store.iterate(BASES.name):
            places = zip(*(column.to_pylist() for column in keys.columns), strict=True)
            for (version, part), numbers in zip(places, rows.column(0).to_pylist(), strict=True):
                found.setdefault(version, {})[part] = np.array(numbers, np.float64)
        for version in sorted(found):
            parts = found[version]
            self._tried = int(parts.pop(0)[0])
            if parts:
                self._bases.append(Basis.from_numbers([parts[at] for at in sorted(parts)]))

    def forget(self, horizon_us: int) -> None:
        """Codes are forgotten by the store."""
        if self._pivots is not None:
            self._pivots.forget(horizon_us)

    def homes(
        self, values: Matrix, arrivals: Numbers, times: Numbers | None
    ) -> tuple[Homes, Orders]:
        """A home for each row, or what the pivots say."""
        points = self._space.points(values)
        rows = len(arrivals)
        self._points, self._first = points, int(arrivals[0]) if rows else 0
        self._components = None
        if self._pivots is not None:
            found = self._pivots.homes_of(points, arrivals, times)
            if self._pivots.count:
                self._seen += rows
                return found
        self._learn(points)
        self._seen += rows
        if self._bases and points.size <= _KEPT_NUMBERS:
            self._components = self._bases[-1].components(points)
        return _FIRST_HOME + arrivals, np.zeros(rows)

    def _learn(self, points: Matrix) -> None:
        """Make a basis when enough rows came, and again when many more came since."""
        coming = self._seen + len(points)
        is_time = coming >= max(_FIRST_ROWS, _AGAIN * self._tried)
        if not is_time or len(self._bases) == _MOST_BASES or not len(points):
            return
        some = points[:: -(-len(points) // _SAMPLE)]
        if len(some) < _FIRST_ROWS:
            some = np.concatenate([some, self._stored(points.shape[1])])
        if len(some) < _FIRST_ROWS // 2:
            return
        self._tried = coming
        last = self._bases[-1] if self._bases else None
        made = Basis.of(some, self._space.reach, last)
        numbers = [np.array([coming], np.float64)]
        version = max(0, len(self._bases) - 1)
        if made is not None:
            version = len(self._bases)
            self._bases.append(made)
            numbers += made.to_numbers()
        parts = np.arange(len(numbers))
        keys = [pa.array(np.full(len(parts), version)), pa.array(parts)]
        self._new.append(
            Mutation(
                "put",
                BASES.name,
                pa.RecordBatch.from_arrays(keys, schema=BASES.key),
                pa.RecordBatch.from_arrays(
                    [pa.array(numbers, BASES.rows.field(0).type)], schema=BASES.rows
                ),
            )
        )

    def _stored(self, width: int) -> Matrix:
        """Some of the rows that are stored."""
        found = [np.empty((0, width))]
        kind = vector_type(self._spec)
        for stream, column in self._spec.columns.items():
            for rows in self._store.scan(stream, _SAMPLE_BYTES):
                values = matrix(rows.column(column), width, kind)
                found.append(self._space.points(values))
                break
        return np.concatenate(found)[:_SAMPLE]

    def writes(self) -> Sequence[Mutation]:
        """A new basis, and what pivots changed."""
        found, self._new = self._new, []
        return found if self._pivots is None else [*found, *self._pivots.writes()]

    def added(
        self,
        stream: str,
        values: Any,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch,
        homes: Homes,
        part: slice,
    ) -> Sequence[Mutation]:
        """The codes of rows, unless they lie with pivots."""
        if part.start == part.stop or homes[part.start] >= 0:
            return ()
        numbers = (homes[part] - _FIRST_HOME).astype(np.int64)
        if not self._bases:
            chunks = _uncoded(numbers, part.start)
        elif self._components is not None:
            some = (self._components[0][part], self._components[1][part])
            chunks = self._bases[-1].chunks(some, numbers, part.start)
        else:
            some = self._bases[-1].components(self._points[part])
            chunks = self._bases[-1].chunks(some, numbers, part.start)
        begins = np.array(chunks.starts[:-1])
        kept = codes_stream(self._spec, stream)
        versions = np.full(len(begins), len(self._bases) - 1)
        columns = [pa.array(versions, pa.int64()), pa.array(chunks.codes, pa.binary())]
        for field in list(kept.rows)[len(columns) :]:
            times = rows.column(field.name)
            latest = [
                pc.max(times.slice(one, two - one))
                for one, two in zip(chunks.starts, chunks.starts[1:], strict=False)
            ]
            columns.append(pa.array([time.as_py() for time in latest], field.type))
        under = pa.RecordBatch.from_arrays([pa.array(homes[begins])], schema=kept.key)
        return [
            Mutation(
                "append",
                kept.name,
                under,
                pa.RecordBatch.from_arrays(columns, schema=kept.rows),
            )
        ]

    def near(
        self,
        stream: str,
        values: Matrix,
        keys: pa.RecordBatch,
        max_bytes: int,
        arrivals: Numbers | None,
    ) -> Iterator[tuple[Groups, Iterator[Stretches]]]:
        """The rows whose codes say that they may be close, and what the pivots say."""
        points, components = self._again(values, arrivals)
        if self._pivots is not None and self._pivots.count:
            yield from self._pivots.near_points(stream, points, keys, max_bytes, arrivals)
        panels: dict[int, code_tiles.CodePanels] = {}
        kept: list[tuple[Numbers, Numbers]] = []
        count = 0
        for rows in self._store.scan(codes_stream(self._spec, stream).name, max_bytes):
            versions = rows.column(VERSION).to_numpy(zero_copy_only=False)
            for version in np.unique(versions).tolist():
                some = rows
                if version != versions[0] or version != versions[-1]:
                    some = rows.filter(pa.array(versions == version))
                codes = some.column(CODE)
                if version == _NO_BASIS:
                    found = self._all_pairs(codes, len(points))
                else:
                    if version not in panels:
                        basis = self._bases[version]
                        if components is None or version != len(self._bases) - 1:
                            own = basis.components(points)
                        else:
                            own = components
                        panels[version] = basis.panels(own, self._space.reach)
                    found = self._left(panels[version], codes)
                for pairs in found:
                    kept.append(pairs)
                    count += len(pairs[0])
                    if count >= _STEP_PAIRS:
                        yield self._fetched(stream, keys, kept, max_bytes)
                        kept, count = [], 0
        if count:
            yield self._fetched(stream, keys, kept, max_bytes)

    def _again(self, values: Matrix, arrivals: Numbers | None) -> tuple[Matrix, Components | None]:
        """Points and their components, which may be those of rows that were placed just now."""
        if arrivals is not None and len(arrivals):
            at = int(arrivals[0]) - self._first
            if at >= 0 and at + len(values) <= len(self._points):
                part = slice(at, at + len(values))
                if self._components is None:
                    return self._points[part], None
                return self._points[part], (self._components[0][part], self._components[1][part])
        return self._space.points(values), None

    def _left(
        self, panels: code_tiles.CodePanels, codes: pa.Array
    ) -> Iterator[tuple[Numbers, Numbers]]:
        _, ends, data = codes.buffers()
        stops = np.frombuffer(ends, np.int32)[codes.offset : codes.offset + len(codes) + 1]
        chunks = np.frombuffer(data, np.uint8)
        at = 0
        while at < len(codes):
            queries, numbers, at, looked = panels.candidates(chunks, stops, at)
            self._compared += looked * panels.count
            if len(queries):
                yield queries.astype(np.int64), numbers.copy()

    def _all_pairs(self, codes: pa.Array, count: int) -> Iterator[tuple[Numbers, Numbers]]:
        for code in codes.to_pylist():
            first, rows = np.frombuffer(code, np.int64).tolist()
            self._compared += rows * count
            numbers = np.repeat(first + np.arange(rows), count)
            yield np.tile(np.arange(count), rows), numbers

    def _fetched(
        self,
        stream: str,
        keys: pa.RecordBatch,
        pairs: list[tuple[Numbers, Numbers]],
        max_bytes: int,
    ) -> tuple[Groups, Iterator[Stretches]]:
        queries = np.concatenate([some for some, _ in pairs])
        numbers = np.concatenate([some for _, some in pairs])
        order = np.lexsort((queries, numbers))
        queries, numbers = queries[order], numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        own = _FIRST_HOME + numbers[starts]
        places = placed(self._spec.place_schema, keys, own, np.zeros(len(own)))
        groups = Groups(queries, np.append(starts, len(queries)), is_compared=True)
        return groups, self._rows(stream, places, max_bytes)

    def _rows(self, stream: str, places: pa.RecordBatch, max_bytes: int) -> Iterator[Stretches]:
        probe = self._store.probe(stream, places)
        for found in probe.fetch(np.flatnonzero(probe.counts), max_bytes):
            ends = np.arange(found.rows.num_rows)
            yield Stretches(found.rows, np.asarray(found.positions), ends, ends + 1)


def _uncoded(numbers: Numbers, first: int) -> Chunks:
    """Chunks that only say which rows there are."""
    starts = list(range(0, len(numbers), code_tiles.MOST_ROWS))
    ends = [*starts[1:], len(numbers)]
    codes = [
        np.array([numbers[begin], end - begin], np.int64).tobytes()
        for begin, end in zip(starts, ends, strict=True)
    ]
    return Chunks([first + start for start in [*starts, len(numbers)]], codes)
