"""Hot keys over several buckets: rows that match meet once, whatever the tables were before."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.protocols import Role
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.hash import NO_BUCKET, bucket_of_hashes
from lsmstate.joins.routing.skew.heavy_hitters import Hashes, HeavyHitters
from lsmstate.joins.routing.skew.respread import LEAST_ROWS, Seen, respread
from lsmstate.joins.routing.skew.spread import Addition, Numbers, RouteTable, SpreadKey
from support.join_cases import QUICK

Row = tuple[int, int]
"""(key, number)"""


def contents_of(rows: list[Row]) -> Callable[[Numbers], Hashes]:
    """What a row holds is its number."""
    numbers = np.array([number for _, number in rows], np.int64).view(np.uint64)
    return lambda positions: numbers[positions]


def owner(key: int, buckets: int) -> int:
    return int(bucket_of_hashes(np.array([key], np.uint64), np.array([True]), buckets)[0])


class Buckets:
    """A join in buckets, told row by row what happens in each."""

    def __init__(self, count: int, streams: str) -> None:
        self.count, self.streams = count, streams
        self.stored: list[dict[str, list[Row]]] = [
            {stream: [] for stream in streams} for _ in range(count)
        ]
        self.found: Counter[tuple[int, ...]] = Counter()

    def take_over(self, table: RouteTable) -> None:
        """Before the first micro-batch of a table."""
        for key in table.keys:
            if key.addition is None:
                continue
            for stream in set(self.streams) - {key.stream}:
                rows = [row for row in self.stored[key.buckets[0]][stream] if row[0] == key.hash]
                for bucket in key.addition.buckets:
                    self.stored[bucket][stream] += rows

    def arrive(self, stream: str, rows: list[Row], table: RouteTable) -> None:
        hashes = np.array([key for key, _ in rows], np.uint64)
        valid = np.ones(len(rows), np.bool_)
        owners = bucket_of_hashes(hashes, valid, self.count)
        routed = table.route(stream, hashes, owners, contents_of(rows))
        roles = np.full(len(routed.positions), Role.STORE)
        if routed.roles is not None:
            roles = routed.roles
        for position, bucket, role in zip(*routed[:2], roles, strict=True):
            key, number = rows[position]
            if role != Role.PROBE:
                self.stored[bucket][stream].append((key, number))
            here = {
                other: [n for k, n in mine if k == key]
                for other, mine in self.stored[bucket].items()
            }
            here[stream] = [number]
            self.found.update((key, *numbers) for numbers in product(*here.values()))


@QUICK
@given(st.integers(0, 10_000), st.integers(2, 4))
def test_every_combination_is_found_once_while_keys_are_spread_further(
    seed: int, width: int
) -> None:
    rng = random.Random(seed)
    streams = "abcd"[:width]
    count = rng.randint(1, 6)
    buckets, table = Buckets(count, streams), RouteTable()
    arrived: dict[str, list[Row]] = {stream: [] for stream in streams}
    for _ in range(5):
        buckets.take_over(table)
        for _ in range(2):  # micro-batches
            for stream in rng.sample(streams, width):
                rows = [(rng.randrange(3), rng.getrandbits(30)) for _ in range(rng.randrange(4))]
                buckets.arrive(stream, rows, table)
                arrived[stream] += rows
            table = without_additions(table)
        table = spread_further(rng, table, count, streams)
    expected: Counter[tuple[int, ...]] = Counter()
    for key in range(3):
        numbers = [[n for k, n in arrived[stream] if k == key] for stream in streams]
        expected.update((key, *found) for found in product(*numbers))
    assert buckets.found == expected
    for key in range(3):
        known = table[key]
        for stream, rows in arrived.items():
            mine = Counter(row for row in rows if row[0] == key)
            lie = [Counter(row for row in each[stream] if row[0] == key) for each in buckets.stored]
            if known is None or known.stream in (None, stream):
                assert sum(lie, Counter()) == mine, "stored once"
            else:
                old = {*known.buckets} - {*(known.addition.buckets if known.addition else ())}
                assert all(lie[bucket] == mine for bucket in old), "stored in all its buckets"


def spread_further(rng: random.Random, table: RouteTable, count: int, streams: str) -> RouteTable:
    """Some keys get more buckets, chosen at random."""
    has = {key.hash: key for key in table.keys}
    for number in rng.sample(range(3), rng.randrange(3)):
        stream = None if len(streams) == 2 else rng.choice(streams)
        key = has.get(number, SpreadKey(number, str(number), (owner(number, count),), stream))
        free = [bucket for bucket in range(count) if bucket not in key.buckets]
        more = tuple(rng.sample(free, rng.randint(0, len(free))))
        addition = None if key.stream is None else Addition(more, "pointer", b"key")
        has[number] = replace(key, buckets=(*key.buckets, *more), addition=addition)
    return RouteTable(tuple(has.values()))


def without_additions(table: RouteTable) -> RouteTable:
    """What was taken over is taken over."""
    return RouteTable(tuple(replace(key, addition=None) for key in table.keys))


def test_rows_are_stored_by_their_content_and_copied_to_the_others() -> None:
    table = RouteTable((SpreadKey(7, "seven", (1, 0, 3)),))
    rows = [(7, 1), (5, 0), (7, 2), (7, 4), (9, 0)]
    hashes = np.array([key for key, _ in rows], np.uint64)
    owners = np.array([1, 2, 1, 1, NO_BUCKET])
    routed = table.route("a", hashes, owners, contents_of(rows))
    assert routed.positions.tolist() == [0, 0, 0, 1, 2, 2, 2, 3, 3, 3]
    assert routed.buckets.tolist() == [0, 3, 1, 2, 3, 1, 0, 0, 3, 1]
    assert routed.roles is not None
    assert np.flatnonzero(routed.roles == Role.STORE).tolist() == [0, 3, 4, 7]
    assert Role.COPY not in routed.roles
    assert "hot key seven: spread over buckets 1, 0, 3" in table.explain()


def test_of_three_streams_one_is_spread_and_the_others_are_stored_in_all_buckets() -> None:
    table = RouteTable((SpreadKey(7, "seven", (1, 0), "b", Addition((0,), "p", b"")),))
    rows = [(7, 1), (5, 0), (7, 2)]
    hashes, owners = np.array([key for key, _ in rows], np.uint64), np.array([1, 2, 1])
    spread, copied = (table.route(s, hashes, owners, contents_of(rows)) for s in "bc")
    assert spread.roles is None
    assert copied.roles is not None
    assert np.flatnonzero(copied.roles == Role.COPY).tolist() == [1, 4]
    assert Role.PROBE not in copied.roles
    assert spread.buckets.tolist() == [0, 2, 1]
    assert list(zip(*copied[:2], strict=True)) == [(0, 1), (0, 0), (1, 2), (2, 1), (2, 0)]
    assert table.called == (0,)
    assert "rows of b spread over buckets 1, 0, rows of the other streams" in table.explain()


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
    found = respread(
        RouteTable(), [seen(home, a={hot: 1000}, b={hot: 1000}), *quiet], buckets, "ab"
    )
    spread = {key.hash: key.buckets for key in found.keys}
    assert spread[hot][0] == home
    assert sorted(spread[hot]) == [0, 1, 2, 3]
    again = respread(
        found, [seen(b, a={mild: 9}, b={200 + b: 900}) for b in range(4)], buckets, "ab"
    )
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
    assert respread(RouteTable(), [seen(owner(1, 4), **streams)], 4, "ab") == RouteTable(), why


def test_of_three_streams_the_largest_is_spread_where_the_owner_can_be_read() -> None:
    hot, home = 1, owner(1, 4)
    mine = seen(home, a={hot: 100}, b={hot: 1500}, c={hot: 50})
    rest = [seen(b, a={100 + b: 300}) for b in range(4) if b != home]
    assert respread(RouteTable(), [mine, *rest], 4, "abc") == RouteTable()
    mine = replace(mine, pointer="pointer", keys={hot: b"key"})
    (key,) = respread(RouteTable(), [mine, *rest], 4, "abc").keys
    assert (key.buckets[0], key.stream, len(key.buckets)) == (home, "b", 4)
    assert key.addition == Addition(key.buckets[1:], "pointer", b"key")
    # An added bucket that was called has taken over; until all were, all are called.
    (again,) = respread(RouteTable((key,)), [mine, *rest], 4, "abc").keys
    assert again == replace(key, addition=None)
    (waiting,) = respread(RouteTable((key,)), [mine, *rest[1:]], 4, "abc").keys
    assert waiting == key


@pytest.mark.parametrize("streams", ["bc", "abc"])
def test_a_stream_without_a_row_yet_means_no_results(streams: str) -> None:
    mine = replace(seen(owner(1, 2), a={1: 90}, b={1: 1500}), pointer="p", keys={1: b"key"})
    mine = replace(mine, sketches={s: mine.sketches[s] for s in mine.sketches if s in streams})
    assert respread(RouteTable(), [mine], 2, streams) == RouteTable()


def test_an_even_stream_and_a_single_bucket_spread_nothing() -> None:
    many = [seen(b, a={b * 1000 + i: 20 for i in range(60)}, b={}) for b in range(4)]
    assert respread(RouteTable(), many, 4, "ab") == RouteTable()
    one = seen(0, a={1: int(LEAST_ROWS)}, b={1: int(LEAST_ROWS)})
    assert respread(RouteTable(), [one], 1, "ab") == RouteTable()
    assert respread(RouteTable(), [], 4, "ab") == RouteTable()
