"""The contract of a store, reads of ranges with zones: rows outside may be missing, others not."""

import math
import random
from contextlib import closing
from datetime import date, datetime, timedelta

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.lsm.store import LsmStore
from lsmstate.store import RangeBounds, StreamSchema
from support.contract_base import BackendTests
from support.contract_ranges import read_ranges

KEY = pa.schema([("k", pa.int32()), ("t", pa.int32())])
#: Type of a zone column -> value of a number from 0 to 39; None is a null.
ZONED = {
    pa.int8(): lambda n: n - 20,
    pa.uint64(): lambda n: 2**64 - 40 + n if n > 20 else n,
    pa.int64(): lambda n: (n - 20) * 2**58,
    pa.float16(): lambda n: float("nan") if n == 39 else n - 20.5,
    pa.float32(): lambda n: {39: math.nan, 38: -math.nan, 37: math.inf}.get(n, (n - 20) / 4),
    pa.float64(): lambda n: {39: math.nan, 0: -math.inf, 20: -0.0, 21: 0.0}.get(n, n - 20),
    pa.date32(): lambda n: date(1970, 1, 10) - timedelta(days=n),
    pa.date64(): lambda n: date(1970, 1, 10) + timedelta(days=n),
    pa.time32("s"): lambda n: (datetime(2026, 1, 1, 5) + timedelta(seconds=n)).time(),
    pa.timestamp("us"): lambda n: datetime(1970, 1, 1) + timedelta(microseconds=n - 9),
    pa.timestamp("s", "UTC"): lambda n: n,
    pa.duration("ms"): lambda n: timedelta(milliseconds=n - 9),
}


def row_schema(kind):
    """Rows with two zone columns, on both sides of a column of variable width."""
    return pa.schema([("id", pa.int64()), ("u", kind), ("text", pa.string()), ("v", kind)])


def is_within(value, least, greatest):
    """Whether a value lies in a zone that is wanted; None is a bound that was not given, and [] a
    null. NaN is the greatest value."""
    if value is None or [] in (least, greatest):
        return False
    placed = _placed(value)
    return (least is None or _placed(least) <= placed) and (
        greatest is None or placed <= _placed(greatest)
    )


def _placed(value):
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return (False, value)


class ZoneModel:
    """Entries ((k, t), row) in arrival order."""

    def __init__(self, kind):
        self.kind = kind
        self.schema = row_schema(kind)
        self.entries = []

    def value(self, number):
        """The value of a number; every tenth is a null."""
        return None if number % 10 == 7 else ZONED[self.kind](number)

    def rows(self, rng, first, count):
        """Random entries whose zone columns depend on the key, as they do where zones pay."""
        found = []
        for at in range(first, first + count):
            key = (rng.randrange(3), rng.randrange(30))
            u, v = (min(39, max(0, key[1] + rng.randrange(-3, 8))) for _ in range(2))
            row = {"id": at, "u": self.value(u), "text": "x" * rng.randrange(9), "v": self.value(v)}
            found.append((key, row))
        return found

    def batch(self, entries):
        """Rows and keys as batches."""
        rows = pa.RecordBatch.from_pylist([row for _, row in entries], schema=self.schema)
        keys = [dict(zip(KEY.names, key, strict=True)) for key, _ in entries]
        return rows, pa.RecordBatch.from_pylist(keys, schema=KEY)

    def change(self, store, stream, rng, step):
        """Make one random write."""
        fresh = self.rows(rng, step * 1000, rng.randrange(1, 120))
        action = rng.choice(["append", "append", "append", "delete", "retract", "flush"])
        if action == "append" or not self.entries:
            store.append(stream, *self.batch(fresh))
            self.entries += fresh
        elif action == "delete":
            gone = {key for key, _ in fresh[:4]}
            store.delete(stream, self.batch(fresh[:4])[1])
            self.entries = [entry for entry in self.entries if entry[0] not in gone]
        elif action == "retract":
            gone = rng.sample(range(len(self.entries)), min(5, len(self.entries)))
            store.retract(stream, *self.batch([self.entries[at] for at in gone]))
            self.entries = [entry for at, entry in enumerate(self.entries) if at not in gone]
        elif isinstance(store, LsmStore):
            store.flush()

    def check(self, store, stream, rng, *, zones=("u", "v"), max_bytes=1 << 20):
        """Read random ranges with random zones; return the rows given and those wanted."""
        n = rng.randrange(1, 20)
        queries = []
        for _ in range(n):
            low = rng.randrange(30)
            bounds = {}
            for name in zones:
                least = rng.randrange(40)
                ends = [least, min(39, least + rng.randrange(6))]
                bounds[name] = [[] if self.value(end) is None else self.value(end) for end in ends]
            queries.append((rng.randrange(3), low, low + rng.randrange(12), bounds))
        sides = {name: rng.choice([(True, True), (True, False), (False, True)]) for name in zones}
        given = {
            name: tuple(
                pa.array(
                    [None if query[3][name][at] == [] else query[3][name][at] for query in queries],
                    self.kind,
                )
                if sides[name][at]
                else None
                for at in range(2)
            )
            for name in zones
        }
        bounds = RangeBounds(
            {"k": [query[0] for query in queries]},
            [query[1] for query in queries],
            [query[2] for query in queries],
            zones=given,
        )
        found = read_ranges(store, stream, bounds, n, max_bytes=max_bytes)
        given_rows = wanted_rows = 0
        for at, (k, low, high, zone) in enumerate(queries):
            held = [e for e in self.entries if e[0][0] == k and low <= e[0][1] <= high]
            within = [row["id"] for key, row in held if self._is_wanted(row, zone, sides)]
            ids = [row["id"] for _, row in sorted(held, key=lambda entry: entry[0])]
            places = {number: place for place, number in enumerate(ids)}
            assert set(within) <= set(found[at]) <= set(ids)
            assert len(set(found[at])) == len(found[at])
            if store.streams[stream].expiry is None:
                assert found[at] == sorted(found[at], key=places.get)
            given_rows += len(found[at])
            wanted_rows += len(within)
        return given_rows, wanted_rows

    def _is_wanted(self, row, zone, sides):
        return all(
            is_within(
                row[name],
                least if sides[name][0] else None,
                greatest if sides[name][1] else None,
            )
            for name, (least, greatest) in zone.items()
        )


class ZoneTests(BackendTests):
    @pytest.mark.parametrize("kind", list(ZONED), ids=str)
    def test_rows_within_the_zones_are_found(self, tmp_path, kind):
        rng, model = random.Random(str(kind)), ZoneModel(kind)
        plain = StreamSchema("plain", KEY, pa.schema([("n", pa.int64())]))
        zoned = StreamSchema("zoned", KEY, model.schema, zones=("v", "u"))
        with closing(self.owned(tmp_path, streams=[plain, zoned])) as store:
            wanted = 0
            for step in range(12):
                model.change(store, "zoned", rng, step)
                store.append("plain", {"n": [step]}, {"k": [1], "t": [step]})
                for zones in (("u", "v"), ("u",), ("v",)):
                    wanted += model.check(store, "zoned", rng, zones=zones, max_bytes=500)[1]
            assert wanted > 0
            with store.snapshot() as snapshot:
                model.check(snapshot, "zoned", rng)

    def test_a_state_is_opened_with_other_zones(self, tmp_path):
        rng, model = random.Random(7), ZoneModel(pa.int64())
        for step, zones in enumerate(((), ("u",), ("v", "u"), ("v",), ())):
            stream = StreamSchema("zoned", KEY, model.schema, zones=zones)
            with closing(self.owned(tmp_path, streams=[stream])) as store:
                assert store.streams["zoned"].zones == zones
                for round_ in range(4):
                    model.change(store, "zoned", rng, 10 * step + round_)
                    model.check(store, "zoned", rng, zones=zones)
                store.commit()

    def test_zones_that_are_none_are_refused(self, tmp_path):
        rows = row_schema(pa.int64())
        stream = StreamSchema("zoned", KEY, rows, zones=("u",))
        with closing(self.owned(tmp_path, streams=[stream])) as store:
            for zones, said in (
                ({"v": ([1], [2])}, "'v' is no zone of the stream, which has u"),
                ({"u": [1]}, r"give the pair \(least, greatest\)"),
                ({"u": ([1, 2], None)}, "1 in low, 2 in zone 'u'"),
                ({"u": (["x"], None)}, "least 'u' bounds of stream 'zoned'"),
                ([("u", 1)], "zones of bounds of stream 'zoned' are a list"),
            ):
                for call in (store.probe_ranges, store.count_ranges):
                    with pytest.raises(InvalidArgumentError, match=said):
                        call("zoned", RangeBounds(low=[1], zones=zones))
            bounds = RangeBounds(low=[1], zones={"u": ([1], None)})
            for read in (
                lambda: store.count_ranges("zoned", bounds),
                lambda: store.probe_ranges("zoned", bounds, first=True),
                lambda: store.probe_ranges("zoned", bounds, last=True),
            ):
                with pytest.raises(InvalidArgumentError, match="leave zones out, or read the rows"):
                    read()
        for zones, said in (
            (("w",), "the rows have no column 'w'; name some of id, u, text, v"),
            (("text",), "column 'text' is a string and can have no zones"),
            (("u", "u"), "column 'u' is named twice"),
            ("u", "give a tuple of names"),
            (["u"], "give a tuple of names"),
            ((1,), "give a tuple of names"),
        ):
            with pytest.raises(InvalidArgumentError, match=said):
                StreamSchema("zoned", KEY, rows, zones=zones)
