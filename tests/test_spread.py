"""Hot keys over several buckets: each pair of rows meets once, whatever the tables were before."""

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from join_cases import QUICK

from cython_ext.row_codec import RowCodec
from joins.routing.hash import NO_BUCKET, bucket_of_hashes
from joins.routing.heavy_hitters import Hashes, HeavyHitters
from joins.routing.spread import (
    LEAST_ROWS,
    Numbers,
    RouteTable,
    Seen,
    SpreadKey,
    content_hashes,
    respread,
)

Row = tuple[int, int]
"""(key, number)"""


def contents_of(rows: list[Row]) -> Callable[[Numbers], Hashes]:
    """What a row holds is its number."""
    numbers = np.array([number for _, number in rows], np.int64).view(np.uint64)
    return lambda positions: numbers[positions]


def owner(key: int, buckets: int) -> int:
    return int(bucket_of_hashes(np.array([key], np.uint64), np.array([True]), buckets)[0])


class Buckets:
    """A join of two streams in buckets, told row by row what happens in each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.stored: list[dict[str, list[Row]]] = [{"a": [], "b": []} for _ in range(count)]
        self.found: Counter[tuple[int, int, int]] = Counter()

    def arrive(self, stream: str, rows: list[Row], table: RouteTable) -> None:
        hashes = np.array([key for key, _ in rows], np.uint64)
        valid = np.ones(len(rows), np.bool_)
        owners = bucket_of_hashes(hashes, valid, self.count)
        routed = table.route(hashes, owners, contents_of(rows))
        other = "b" if stream == "a" else "a"
        stored = np.ones(len(routed.positions), np.bool_)
        if routed.is_stored is not None:
            stored = routed.is_stored
        for position, bucket, is_stored in zip(*routed[:2], stored, strict=True):
            key, number = rows[position]
            if is_stored:
                self.stored[bucket][stream].append((key, number))
            for k, n in self.stored[bucket][other]:
                if k == key:
                    pair = (number, n) if stream == "a" else (n, number)
                    self.found[(key, *pair)] += 1


@QUICK
@given(st.integers(0, 10_000))
def test_every_pair_is_found_once_while_keys_are_spread_further(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    buckets, table = Buckets(count), RouteTable()
    arrived: dict[str, list[Row]] = {"a": [], "b": []}
    for _ in range(5):
        for stream in "ab":
            rows = [(rng.randrange(4), rng.random().__hash__()) for _ in range(rng.randrange(6))]
            buckets.arrive(stream, rows, table)
            arrived[stream] += rows
        has = {key.hash: key.buckets for key in table.keys}
        for key in rng.sample(range(4), rng.randrange(3)):
            before = has.get(key, (owner(key, count),))
            free = [bucket for bucket in range(count) if bucket not in before]
            has[key] = (*before, *rng.sample(free, rng.randint(0, len(free))))
        table = RouteTable(tuple(SpreadKey(k, str(k), b) for k, b in has.items()))
    expected = Counter((k, n, m) for k, n in arrived["a"] for j, m in arrived["b"] if k == j)
    assert buckets.found == expected
    for stream, rows in arrived.items():
        assert Counter(r for each in buckets.stored for r in each[stream]) == Counter(rows)


def test_rows_are_stored_by_their_content_and_copied_to_the_others() -> None:
    table = RouteTable((SpreadKey(7, "seven", (1, 0, 3)),))
    rows = [(7, 1), (5, 0), (7, 2), (7, 4), (9, 0)]
    hashes = np.array([key for key, _ in rows], np.uint64)
    owners = np.array([1, 2, 1, 1, NO_BUCKET])
    routed = table.route(hashes, owners, contents_of(rows))
    assert routed.positions.tolist() == [0, 0, 0, 1, 2, 2, 2, 3, 3, 3]
    assert routed.buckets.tolist() == [0, 3, 1, 2, 3, 1, 0, 0, 3, 1]
    assert routed.is_stored is not None
    assert np.flatnonzero(routed.is_stored).tolist() == [0, 3, 4, 7]
    assert "hot key seven: spread over buckets 1, 0, 3" in table.explain()


def test_a_row_has_its_bucket_wherever_it_stands() -> None:
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
    rows = pa.RecordBatch.from_pylist(
        [{"k": 1, "x": i / 4, "s": None if i % 3 else f"{i}"} for i in range(20)], schema
    )
    codec = RowCodec(schema)
    hashes = content_hashes(rows, codec)
    assert len(set(hashes.tolist())) == 20
    backwards = pa.array(range(19, -1, -1))
    assert content_hashes(rows.take(backwards), codec).tolist() == hashes[::-1].tolist()
    assert content_hashes(rows.slice(7, 5), codec).tolist() == hashes[7:12].tolist()


def seen(bucket: int, **streams: dict[int, int]) -> Seen:
    sketches = {}
    for name, counts in streams.items():
        sketch = sketches[name] = HeavyHitters()
        keys = [key for key, rows in counts.items() for _ in range(rows)]
        sketch.add(np.array(keys, np.uint64), lambda i, keys=keys: str(keys[i]))
    return Seen(bucket, sketches)


def test_hot_keys_get_buckets_by_their_rows_and_never_lose_one() -> None:
    buckets, hot, mild = 4, 1, 5
    home = owner(hot, buckets)
    rest = [b for b in range(buckets) if b != home]
    quiet = [seen(b, a={100 + b: 500}, b={100 + b: 500}) for b in rest]
    found = respread(RouteTable(), [seen(home, a={hot: 1000}, b={hot: 1000}), *quiet], buckets)
    spread = {key.hash: key.buckets for key in found.keys}
    assert spread[hot][0] == home
    assert sorted(spread[hot]) == [0, 1, 2, 3]
    again = respread(found, [seen(b, a={mild: 9}, b={200 + b: 900}) for b in range(4)], buckets)
    assert set(found.keys) <= set(again.keys)


@pytest.mark.parametrize(
    ("streams", "why"),
    [
        ({"a": {1: 3000}, "b": {2: 3000}}, "nothing matches: copies would be sent for nothing"),
        ({"a": {1: 3000}, "b": {1: 2}}, "two matches a row are not worth three copies of each"),
        ({"a": {1: 30}, "b": {1: 30}}, "a handful of rows says nothing"),
    ],
)
def test_a_key_is_left_where_it_is(streams: dict[str, dict[int, int]], why: str) -> None:
    assert respread(RouteTable(), [seen(owner(1, 4), **streams)], 4) == RouteTable(), why


def test_an_even_stream_and_a_single_bucket_spread_nothing() -> None:
    many = [seen(b, a={b * 1000 + i: 20 for i in range(60)}, b={}) for b in range(4)]
    assert respread(RouteTable(), many, 4) == RouteTable()
    one = seen(0, a={1: int(LEAST_ROWS)}, b={1: int(LEAST_ROWS)})
    assert respread(RouteTable(), [one], 1) == RouteTable()
    assert respread(RouteTable(), [], 4) == RouteTable()
