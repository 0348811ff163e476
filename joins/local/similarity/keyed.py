"""The index by generated keys: an equi-join of keys gives the numbers of rows that may be close."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.distinct import distinct
from lsmstate.joins.local.similarity.generated_keys import EditKeys, Keys, Ranking, SetKeys
from lsmstate.joins.local.similarity.homes import Homes, placed
from lsmstate.joins.local.similarity.stretches import Groups, Numbers, Orders, Stretches
from lsmstate.joins.specs.similarity import (
    HOME,
    KEY,
    LEVENSHTEIN,
    PLACE,
    RANKINGS,
    SIZE,
    SimilaritySpec,
    keys_stream,
)
from lsmstate.schema.arrow_sizes import pieces_of
from lsmstate.store import MultimapStore, Mutation

#: A new ranking of members begins when so many rows came.
_RANKED_ROWS: Final = (0, 2_000, 50_000)
#: Members that a ranking knows.
_RANKED_MEMBERS: Final = 4096
#: Pairs of a row and a stored row that share a key, at once.
_STEP_PAIRS: Final = 1 << 19


class Keyed:
    """Each row has a home of its own, which is its number, and lies under its keys in a second
    stream."""

    compared: int = 0
    pairs: int = 0

    def __init__(self, spec: SimilaritySpec, store: MultimapStore, arrived: int) -> None:
        self._spec = spec
        self._store = store
        self._seen = arrived
        self._is_text = spec.metric == LEVENSHTEIN
        self._codec = KeyCodec(pa.schema([*spec.key_schema, (KEY, pa.int64())]))
        self._new: Mutation | None = None
        if self._is_text:
            self._keys: EditKeys | SetKeys = EditKeys(int(spec.threshold))
        else:
            self._keys = SetKeys(1 - spec.threshold, self._rankings())

    def _rankings(self) -> list[Ranking]:
        found: dict[int, dict[int, int]] = {}
        for keys, rows in self._store.iterate(RANKINGS.name):
            numbers = keys.column(0).to_pylist()
            members, counts = (column.to_pylist() for column in rows.columns)
            for number, member, count in zip(numbers, members, counts, strict=True):
                found.setdefault(number, {})[member] = count
        return [Ranking.of(found[at], found[at].values()) for at in range(len(found))]

    def forget(self, horizon_us: int) -> None:
        """Rankings know no times."""

    def homes(self, values: Any, arrivals: Numbers, times: Numbers | None) -> tuple[Homes, Orders]:
        """Each row's own number."""
        if isinstance(self._keys, SetKeys):
            self._rank(self._keys, values, len(arrivals))
        self._seen += len(arrivals)
        return arrivals.astype(np.int64), np.zeros(len(arrivals))

    def _rank(self, keys: SetKeys, values: Any, count: int) -> None:
        at = len(keys.rankings)
        if at == len(_RANKED_ROWS) or self._seen + count < _RANKED_ROWS[at]:
            return
        members, counts = keys.begin(values, _RANKED_MEMBERS)
        if not len(members):
            members, counts = _NOBODY
        numbers = pa.array(np.full(len(members), at), pa.int64())
        columns = [pa.array(members), pa.array(counts)]
        self._new = Mutation(
            "append",
            RANKINGS.name,
            pa.RecordBatch.from_arrays([numbers], schema=RANKINGS.key),
            pa.RecordBatch.from_arrays(columns, schema=RANKINGS.rows),
        )

    def writes(self) -> Sequence[Mutation]:
        """A new ranking."""
        found, self._new = self._new, None
        return () if found is None else (found,)

    def added(
        self,
        stream: str,
        values: Any,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch,
        homes: Homes,
        part: slice,
    ) -> Sequence[Mutation]:
        """The keys of rows."""
        found = self._keys_of(values[part], is_stored=True)
        owners = found.owners + part.start
        if not len(owners):
            return ()
        under = self._under(keys, owners, found.keys)
        schema = keys_stream(self._spec, stream).rows
        columns = [pa.array(homes[owners])]
        columns += [pa.array(each, pa.int64()) for each in found[2:] if each is not None]
        times = list(schema)[len(columns) :]
        columns += [rows.column(field.name).take(pa.array(owners)) for field in times]
        stored = pa.RecordBatch.from_arrays(columns, schema=schema)
        return [Mutation("append", keys_stream(self._spec, stream).name, under, stored)]

    def _keys_of(self, values: Any, *, is_stored: bool) -> Keys:
        """The keys of rows."""
        make: Any = self._keys.stored if is_stored else self._keys.asked
        found: Keys = make(values.tolist() if self._is_text else values)
        return found

    def _under(self, keys: pa.RecordBatch, owners: Numbers, numbers: Numbers) -> pa.RecordBatch:
        columns = keys.take(pa.array(owners)).columns if keys.num_columns else []
        schema = pa.schema([*self._spec.key_schema, (KEY, pa.int64())])
        return pa.RecordBatch.from_arrays([*columns, pa.array(numbers)], schema=schema)

    def near(
        self,
        stream: str,
        values: Any,
        keys: pa.RecordBatch,
        max_bytes: int,
        arrivals: Numbers | None,
    ) -> Iterator[tuple[Groups, Iterator[Stretches]]]:
        """The rows that share a key, each once for each arriving row."""
        asked = self._keys_of(values, is_stored=False)
        owners = asked.owners
        if not len(owners):
            return
        encoded = self._codec.encode(self._under(keys, owners, asked.keys))
        keyed, starts = encoded.distinct()
        of_key = np.empty(len(owners), np.int64)
        order = encoded.order.astype(np.int64)
        of_key[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        name = keys_stream(self._spec, stream).name
        probe = self._store.probe(name, keyed)
        counts = np.asarray(probe.counts)[of_key]
        totals = np.bincount(owners, counts, len(values)).astype(np.int64)
        for part in pieces_of(totals, _STEP_PAIRS):
            wanted = (owners >= part.start) & (owners < part.stop) & (counts > 0)
            if not wanted.any():
                continue
            pairs = self._pairs(probe, asked.at(wanted), of_key[wanted], len(values), max_bytes)
            if len(pairs[0]):
                yield self._fetched(stream, keys, pairs, max_bytes)

    def _pairs(
        self, probe: Any, asked: Keys, of_key: Numbers, count: int, max_bytes: int
    ) -> tuple[Numbers, Numbers]:
        """Arriving rows of ``count``, and beside each the number of a stored row: every pair once,
        by number."""
        order = np.argsort(of_key, kind="stable")
        asked, of_key = asked.at(order), of_key[order]
        pairs = [np.empty(0, np.int64)]
        askers = np.bincount(of_key)
        before = np.cumsum(askers) - askers
        for found in probe.fetch(np.flatnonzero(askers), max_bytes):
            positions = np.asarray(found.positions)
            at, sizes = before[positions], askers[positions]
            stored = np.arange(len(sizes))
            if sizes.max(initial=1) > 1:
                stored = np.repeat(stored, sizes)
                begins = np.cumsum(sizes) - sizes
                at = at[stored] + np.arange(len(stored)) - begins[stored]
            if isinstance(self._keys, SetKeys) and asked.sizes is not None:
                assert asked.places is not None
                theirs = [found.rows.column(name).to_numpy()[stored] for name in (SIZE, PLACE)]
                near = self._keys.may_match(asked.sizes[at], asked.places[at], *theirs)
                at, stored = at[near], stored[near]
            pairs.append(found.rows.column(HOME).to_numpy()[stored] * count + asked.owners[at])
        homes, places = np.divmod(distinct(np.concatenate(pairs)), count)
        return places, homes

    def _fetched(
        self,
        stream: str,
        keys: pa.RecordBatch,
        pairs: tuple[Numbers, Numbers],
        max_bytes: int,
    ) -> tuple[Groups, Iterator[Stretches]]:
        members, homes = pairs
        starts = np.flatnonzero(np.diff(homes, prepend=homes[:1] - 1))
        numbers = homes[starts]
        equal = keys.take(pa.array(members[starts])) if keys.num_columns else keys
        places = placed(self._spec.place_schema, equal, numbers, np.zeros(len(numbers)))
        groups = Groups(members, np.append(starts, len(members)))
        return groups, self._rows(stream, places, max_bytes)

    def _rows(self, stream: str, places: pa.RecordBatch, max_bytes: int) -> Iterator[Stretches]:
        probe = self._store.probe(stream, places)
        for found in probe.fetch(np.flatnonzero(probe.counts), max_bytes):
            ends = np.arange(found.rows.num_rows)
            yield Stretches(found.rows, np.asarray(found.positions), ends, ends + 1)


#: Stands in a ranking of no members.
_NOBODY: Final = (np.zeros(1, np.int64), np.zeros(1, np.int64))
