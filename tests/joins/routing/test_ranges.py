"""Range routing: pairs that match meet exactly once, whatever tables follow each other, and a row
is sent to few units."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.protocols import Role
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.ranges.positions import Bounded, positions
from lsmstate.joins.routing.ranges.range_router import RangeRouting
from lsmstate.joins.routing.ranges.range_sample import SeenRanges
from lsmstate.joins.routing.ranges.range_table import MOST_CLOSED, RangeTable
from support.examples import examples

ROWS = pa.schema([("id", pa.int64())])
CODEC = RowCodec(ROWS)


@dataclass
class Rows:
    """Some rows: an id each, and the three keys."""

    ids: list[int]
    keys: pa.RecordBatch

    @property
    def rows(self) -> pa.RecordBatch:
        return pa.record_batch([pa.array(self.ids, pa.int64())], schema=ROWS)

    def shuffled(self, rng: random.Random) -> "Rows":
        order = list(range(len(self.ids)))
        rng.shuffle(order)
        return Rows([self.ids[n] for n in order], self.keys.take(pa.array(order, pa.int64())))


@dataclass
class Buckets:
    """Buckets that store what they are sent, and meet what they have."""

    routing: RangeRouting
    table: RangeTable
    batch: int = 0
    met: Counter[tuple[int, int]] = field(default_factory=Counter)
    messages: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        self.stored: list[dict[str, list[tuple[int, int]]]] = [
            {stream: [] for stream in self.routing.streams} for _ in range(self.routing.buckets)
        ]
        self.kept: dict[int, Any] = {}
        self.seen: list[SeenRanges] = []

    def micro_batch(self, arriving: Mapping[str, Rows], rng: random.Random) -> None:
        observers: dict[int, Any] = {}
        for stream, mine in arriving.items():
            # A retried task sees its rows in another order.
            again = self.routed(stream, mine.shuffled(rng))
            sent = self.routed(stream, mine)
            assert sorted(again) == sorted(sent)
            self.messages += len(sent)
            self.rows += len(mine.ids)
            by_id = dict(zip(mine.ids, content_hashes(mine.rows, CODEC).tolist(), strict=True))
            for role in (Role.STORE, Role.PROBE):
                for row, bucket, its in sent:
                    if its == role:
                        self.handle(stream, row, by_id, bucket, role)
            for bucket in {b for _, b, _ in sent}:
                if bucket not in observers:
                    observers[bucket] = self.routing.observer(
                        bucket, self.table, self.kept.get(bucket), is_last=True
                    )
                ids = {row for row, b, its in sent if b == bucket and its == Role.STORE}
                places = pa.array([n for n, i in enumerate(mine.ids) if i in ids], pa.int64())
                if len(places):
                    observers[bucket].add(stream, mine.rows.take(places), mine.keys.take(places))
        self.seen = [observer.observed() for observer in observers.values()]
        self.kept |= {bucket: observer.kept() for bucket, observer in observers.items()}
        self.batch += 1

    def routed(self, stream: str, mine: Rows) -> list[tuple[int, int, int]]:
        router = self.routing.router(stream, ROWS, mine.keys.schema, self.table)
        found = router.route(mine.rows, mine.keys)
        assert list(found.positions) == sorted(found.positions)
        assert found.roles is not None
        ids = [mine.ids[place] for place in found.positions]
        sent = list(zip(ids, found.buckets.tolist(), found.roles.tolist(), strict=True))
        assert len(set(sent)) == len(sent)
        return sent

    def handle(
        self, stream: str, row: int, hashes: Mapping[int, int], bucket: int, role: Role
    ) -> None:
        for other in self.routing.others[stream]:
            for stored, at in self.stored[bucket][other]:
                is_earlier = at < self.batch or role == Role.STORE or other != stream
                if is_earlier or hashes[row] > hashes[stored]:
                    self.met[min(row, stored), max(row, stored)] += 1
        if role == Role.STORE:
            self.stored[bucket][stream].append((row, self.batch))

    def next_table(self, rng: random.Random | None = None) -> None:
        told = [
            self.routing.observed_from_json(seen.bucket, seen.to_json())
            for seen in self.seen
            if rng is None or rng.random() < 0.8
        ]
        table = self.routing.next_table(self.table, told, self.batch)
        self.table = self.routing.table_from_json(table.to_json())
        assert self.table == table


def keys_of(values: list[Any], lows: list[Any], highs: list[Any], kind: pa.DataType) -> Any:
    columns = [pa.array(column, kind) for column in (values, lows, highs)]
    return pa.record_batch(columns, names=["value", "low", "high"])


def matches(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether each lies between the other's bounds."""

    def rank(value: Any) -> Any:
        return np.inf if isinstance(value, float) and np.isnan(value) else value

    for mine, (low, high) in ((one[0], other[1:]), (other[0], one[1:])):
        if mine is None:
            return False
        if low is not None and rank(mine) < rank(low):
            return False
        if high is not None and rank(mine) > rank(high):
            return False
    return all(
        low is None or high is None or rank(low) <= rank(high) for low, high in (one[1:], other[1:])
    )


def number(rng: random.Random) -> float:
    return rng.choice([rng.uniform(-50, 50), rng.randrange(-5, 5), rng.gauss(0, 3)])


def band(rng: random.Random, batch: int) -> tuple[Any, ...]:
    at = number(rng) + 10 * batch
    return at, at - 2.5, at + 2.5


def interval(rng: random.Random, batch: int) -> tuple[Any, ...]:
    at, length = number(rng), rng.choice([1, 1, 1, 1, 40])
    return at, at, at + length


def point(rng: random.Random, batch: int) -> tuple[Any, ...]:
    at = number(rng)
    return at, None, at


def anything(rng: random.Random, batch: int) -> tuple[Any, ...]:
    special = [None, np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308]
    return tuple(rng.choice([*special, number(rng), number(rng)]) for _ in range(3))


def whole(rng: random.Random, batch: int) -> tuple[Any, ...]:
    at = rng.choice([rng.randrange(1 << 53, (1 << 53) + 9), rng.randrange(20), -(1 << 63)])
    return at, max(at - 1, -(1 << 63)), at + 1


def text(rng: random.Random, batch: int) -> tuple[Any, ...]:
    found = ["".join(rng.choices("ab\0é", k=rng.randrange(9))) for _ in range(3)]
    return tuple(rng.choice([each, each, None]) for each in found)


Kind = Callable[[random.Random, int], tuple[Any, ...]]
KINDS: dict[str, tuple[Kind, Kind, pa.DataType]] = {
    "band": (band, band, pa.float64()),
    "intervals": (interval, point, pa.float64()),
    "anything": (anything, anything, pa.float64()),
    "whole numbers": (whole, whole, pa.int64()),
    "texts": (text, text, pa.string()),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_pairs_that_match_meet_once(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    first, second, values = KINDS[kind]
    streams = rng.choice([("a",), ("a", "b")])
    routing = RangeRouting.of(streams, rng.choice([1, 2, 3, 7]))
    had: dict[int, tuple[Any, ...]] = {}
    buckets: Buckets | None = None
    for batch in range(rng.randrange(1, 7)):
        arriving: dict[str, Rows] = {}
        for stream in streams:
            make = second if stream == "b" else first
            rows = [make(rng, batch) for _ in range(rng.randrange(12))]
            ids = [len(had) + place for place in range(len(rows))]
            had |= {i: (stream, *row) for i, row in zip(ids, rows, strict=True)}
            if rows:
                lows, highs, own = ([row[n] for row in rows] for n in (1, 2, 0))
                arriving[stream] = Rows(ids, keys_of(own, lows, highs, values))
        if buckets is None and arriving:
            stream, mine = next(iter(arriving.items()))
            table = routing.sampled_table(stream, mine.rows, mine.keys, batch)
            table = rng.choice([table, routing.initial_table])
            buckets = Buckets(routing, table, batch)
        if buckets is not None:
            buckets.micro_batch(arriving, rng)
            if rng.random() < 0.7:
                buckets.next_table(rng)
    if buckets is None:
        return
    expected = {
        (i, j)
        for i, one in had.items()
        for j, other in had.items()
        if i < j and (len(streams) == 1 or one[0] != other[0]) and matches(one[1:], other[1:])
    }
    for pair in expected:
        assert buckets.met[pair] == 1, (pair, had[pair[0]], had[pair[1]])
    assert max(buckets.met.values(), default=1) == 1


def floats(values: Any, lows: Any, highs: Any) -> pa.RecordBatch:
    return keys_of(values, lows, highs, pa.float64())


def rows_of(keys: pa.RecordBatch, first: int = 0) -> Rows:
    return Rows(list(range(first, first + keys.num_rows)), keys)


def sent(routing: RangeRouting, table: RangeTable, stream: str, keys: pa.RecordBatch) -> Any:
    """The messages a row, and what each unit stores."""
    routed = routing.router(stream, ROWS, keys.schema, table).route(rows_of(keys).rows, keys)
    assert routed.roles is not None
    own = routed.buckets[routed.roles == Role.STORE]
    return len(routed.positions) / keys.num_rows, np.bincount(own, minlength=routing.buckets)


def watched(
    routing: RangeRouting, table: RangeTable, arriving: Mapping[str, pa.RecordBatch], kept: Any
) -> list[SeenRanges]:
    """What buckets have seen after one micro-batch; ``kept`` is theirs."""
    observers = {
        bucket: routing.observer(bucket, table, kept.get(bucket), is_last=True)
        for bucket in range(routing.buckets)
    }
    for stream, keys in arriving.items():
        rows = rows_of(keys).rows
        routed = routing.router(stream, ROWS, keys.schema, table).route(rows, keys)
        for bucket, observer in observers.items():
            is_own = (routed.buckets == bucket) & (routed.roles == Role.STORE)
            places = pa.array(routed.positions[is_own])
            observer.add(stream, rows.take(places), keys.take(places))
    kept |= {bucket: observer.kept() for bucket, observer in observers.items()}
    return [observer.observed() for observer in observers.values()]


RNG = np.random.default_rng(7)
AB = RangeRouting.of(("a", "b"), 16)


def narrow_band(low: float, high: float, rows: int = 4000) -> pa.RecordBatch:
    values = RNG.uniform(low, high, rows)
    return floats(values, values - (high - low) / 2e5, values + (high - low) / 2e5)


def test_rows_of_a_narrow_band_go_to_one_unit() -> None:
    keys = narrow_band(0, 1e6)
    table = AB.sampled_table("a", rows_of(keys).rows, keys, 0)
    for stream in ("a", "b"):
        messages, stored = sent(AB, table, stream, narrow_band(0, 1e6))
        assert messages < 1.01
        assert stored.max() < 1.4 * stored.mean()


def test_keys_that_rise_go_to_few_units_after_twenty_tables() -> None:
    kept: dict[int, Any] = {}
    table, counted = AB.initial_table, []
    for batch in range(20):
        arriving = {stream: narrow_band(1e6 * batch, 1e6 * batch + 1.5e6) for stream in "ab"}
        if batch > 1:
            messages, stored = sent(AB, table, "a", arriving["a"])
            counted.append(messages)
            assert stored.max() < 2.5 * stored.mean()
        table = AB.next_table(table, watched(AB, table, arriving, kept), batch + 1)
    assert max(counted) < 1.5
    assert len(table.closed) <= MOST_CLOSED


@pytest.mark.parametrize(("first", "most"), [("a", 2.1), ("b", 3.0)])
def test_points_and_intervals_are_sent_twice_though_some_intervals_are_long(
    first: str, most: float
) -> None:
    """From points alone nobody knows how long intervals are, so the first table is a guess."""

    def intervals() -> pa.RecordBatch:
        lows = RNG.uniform(0, 1e6, 8000)
        long = RNG.random(8000) < 0.001
        return floats(lows, lows, lows + RNG.uniform(0, 200, 8000) * np.where(long, 1000, 1))

    def points() -> pa.RecordBatch:
        values = RNG.uniform(0, 1e6, 8000)
        return keys_of(list(values), [None] * 8000, list(values), pa.float64())

    routing = RangeRouting.of(("a", "b"), 16, one_sided=["b"])
    kept: dict[int, Any] = {}
    sample = intervals() if first == "a" else points()
    table = routing.sampled_table(first, rows_of(sample).rows, sample, 0)
    for batch in range(4):
        arriving = {"a": intervals(), "b": points()}
        counted = [sent(routing, table, stream, keys)[0] for stream, keys in arriving.items()]
        assert max(counted) < most
        assert sent(routing, table, "a", arriving["a"])[1].max() < 700
        table = routing.next_table(table, watched(routing, table, arriving, kept), batch + 1)


@pytest.mark.parametrize(
    ("kind", "ordered"),
    [
        (pa.int8(), [-128, 0, 127]),
        (pa.uint64(), [0, 1 << 63, (1 << 64) - 1]),
        (pa.float32(), [-np.inf, -1.5, 0.0, np.inf]),
        (pa.decimal128(38, 3), [-(10**30), 0, 1, 10**30]),
        (pa.date32(), [-3, 0, 20000]),
        (pa.timestamp("us", "UTC"), [-(10**15), 0, 10**15]),
        (pa.string(), ["", "A", "a", "ab", "é"]),
        (pa.binary(), [b"", b"\0\1", b"\xff"]),
        (pa.bool_(), [False, True]),
    ],
    ids=str,
)
def test_positions_rise_with_values(kind: pa.DataType, ordered: list[Any]) -> None:
    found = positions(pa.array([*ordered, None], kind), np.nan)
    assert np.isnan(found[-1])
    assert (np.diff(found[:-1]) > 0).all()


def test_nan_is_the_greatest_and_zeros_are_equal() -> None:
    found = positions(pa.array([np.nan, np.inf, 0.0, -0.0]), np.nan)
    assert found.tolist() == [np.inf, np.inf, 0.0, 0.0]


def test_rows_that_match_nothing_go_nowhere() -> None:
    keys = floats([None, 1.0, 1.0], [None, 2.0, 0.0], [None, 1.0, 2.0])
    table = AB.sampled_table("a", rows_of(keys).rows, keys, 0)
    routed = AB.router("a", ROWS, keys.schema, table).route(rows_of(keys).rows, keys)
    assert set(routed.positions.tolist()) == {2}


def test_a_unit_that_has_said_nothing_is_probed_as_its_layout_has_it() -> None:
    keys = narrow_band(0, 1e6)
    table = AB.sampled_table("a", rows_of(keys).rows, keys, 0)
    kept: dict[int, Any] = {}
    seen = watched(AB, table, {"a": keys, "b": keys}, kept)
    crowded = narrow_band(4e5, 4.01e5)
    told = watched(AB, table, {"a": crowded, "b": crowded}, {})
    samples = [
        SeenRanges(each.bucket, each.samples, own.held)
        for each, own in zip(told, seen, strict=True)
    ]
    silent = AB.next_table(table, samples[1:], 4)
    assert silent.closed[0].held["a"][0] is None
    assert AB.next_table(table, samples, 4).closed[0].held["a"][0] is not None
    # It is filled in by what the bucket says later.
    later = AB.next_table(silent, [SeenRanges(0, held=seen[0].held)], 8)
    assert later.closed[0].held["a"][0] == AB.next_table(table, samples, 4).closed[0].held["a"][0]
    beyond = narrow_band(5e6, 6e6)
    assert sent(AB, silent, "a", beyond)[0] > sent(AB, later, "a", beyond)[0] + 0.03


def test_a_sample_is_the_same_in_any_order() -> None:
    keys = narrow_band(0, 1e6)
    mine = rows_of(keys)
    other = mine.shuffled(random.Random(1))
    parts = [
        Rows(other.ids[n::3], other.keys.take(pa.array(range(n, len(other.ids), 3))))
        for n in range(3)
    ]
    found = []
    for pieces in ([mine], [other], parts):
        observer = AB.observer(0, AB.initial_table, None, is_last=True)
        for piece in pieces:
            observer.add("a", piece.rows, piece.keys)
        found.append(observer.observed().to_json())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("streams", [(), ("a", "b", "c")])
def test_one_or_two_streams_have_ranges(streams: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{len(streams)} streams"):
        RangeRouting.of(streams)


def test_a_type_without_order_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="have no ranges"):
        Bounded.of(keys_of([[1]], [[1]], [[1]], pa.list_(pa.int64())))
