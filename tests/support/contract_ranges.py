"""The contract of a store, reads of many ranges at once; the model is a list that is searched."""

import math
import random
from contextlib import closing
from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError, StoreClosedError
from lsmstate.lsm.store import LsmStore
from lsmstate.store import KeyBounds, Mutation, RangeBounds, StreamSchema
from support.contract_base import BackendTests

ROWS = pa.schema([("id", pa.int64()), ("text", pa.string())])
DAY = date(2026, 1, 1)
NOON = datetime(2026, 1, 1, 12)

#: Arrow type -> value of a small number; values repeat.
VALUES = {
    pa.int64(): lambda n: n,
    pa.int16(): lambda n: -n,
    pa.float64(): lambda n: {3: math.nan, 5: -0.0, 6: math.inf, 7: -math.inf}.get(n, n / 2 - 4),
    pa.string(): lambda n: ["", "a", "a\0", "ab", "b", "ä"][n % 6] * (n % 4),
    pa.timestamp("us"): lambda n: NOON + timedelta(microseconds=n - 9),
    pa.decimal128(9, 2): lambda n: Decimal(n - 9) / 4,
    pa.date32(): lambda n: DAY - timedelta(days=n),
    pa.bool_(): lambda n: n % 2 == 1,
}


def ordered(value):
    """A value that Python orders as keys are: NaN is the greatest, and -0.0 equals 0.0."""
    if not isinstance(value, float):
        return value
    return (True, 0.0) if math.isnan(value) else (False, value)


class RangeModel:
    """Entries (key, id, text) in arrival order; a key is a tuple of values."""

    def __init__(self):
        self.entries = []

    def sorted(self):
        return sorted(self.entries, key=lambda entry: tuple(map(ordered, entry[0])))

    def found(self, equal, low, high, includes_low, includes_high):
        """The entries in one range; ``low`` and ``high`` are None or a 1-tuple."""
        if None in (*equal, *(low or ()), *(high or ())):
            return []
        return [
            entry
            for entry in self.sorted()
            if tuple(map(ordered, entry[0]))[: len(equal)] == tuple(map(ordered, equal))
            and _is_inside(entry[0][len(equal) :], low, high, includes_low, includes_high)
        ]


def _is_inside(rest, low, high, includes_low, includes_high):
    if low is not None:
        value, bound = ordered(rest[0]), ordered(low[0])
        if value < bound or (value == bound and not includes_low):
            return False
    if high is not None:
        value, bound = ordered(rest[0]), ordered(high[0])
        if value > bound or (value == bound and not includes_high):
            return False
    return True


def read_ranges(store, stream, bounds, n, **options):
    """The ids of each range's rows, after checking what every piece must keep."""
    found = {row: [] for row in range(n)}
    schema = store.streams[stream]
    for piece in store.probe_ranges(stream, bounds, **options):
        count = piece.rows.num_rows
        assert count > 0
        assert piece.rows.schema == schema.rows
        assert len(piece.ranges) == len(piece.first) == len(piece.stop) > 0
        assert {piece.ranges.dtype, piece.first.dtype, piece.stop.dtype} == {np.dtype(np.int64)}
        assert len(set(piece.ranges.tolist())) == len(piece.ranges)
        assert bool(np.all(np.diff(piece.first) >= 0))
        assert bool(np.all(piece.first < piece.stop))
        covered = np.zeros(count, dtype=bool)
        ids = piece.rows.column("id").to_pylist()
        for row, first, stop in zip(
            piece.ranges.tolist(), piece.first.tolist(), piece.stop.tolist(), strict=True
        ):
            assert 0 <= first < stop <= count
            covered[first:stop] = True
            found[row] += ids[first:stop]
        assert covered.all()  # no row that lies in no range
        if options.get("with_keys"):
            assert piece.keys.schema == schema.key
            assert piece.keys.num_rows == count
        else:
            assert piece.keys is None
    return found


def check_ranges(store, model, stream, queries, includes=(True, True), max_bytes=1 << 20):
    """Ask for ranges in all ways, and compare with the model. A query is (equal, low, high)."""
    key = store.streams[stream].key
    width = len(queries[0][0])
    equal = None
    if width:
        columns = [
            pa.array([query[0][at] for query in queries], key.types[at]) for at in range(width)
        ]
        equal = pa.RecordBatch.from_arrays(columns, names=key.names[:width])
    sides = [None, None]
    for at in (0, 1):
        if queries[0][1 + at] is not None:
            values = [query[1 + at][0] for query in queries]
            sides[at] = pa.array(values, key.types[width])
    bounds = RangeBounds(equal, *sides, *includes)
    wanted = [model.found(*query, *includes) for query in queries]
    ids = {row: [entry[1] for entry in entries] for row, entries in enumerate(wanted)}
    n = len(queries)
    found = read_ranges(store, stream, bounds, n, max_bytes=max_bytes, with_keys=True)
    assert found == ids
    assert store.count_ranges(stream, bounds).tolist() == [len(entries) for entries in wanted]
    for option, place in (("first", 0), ("last", -1)):
        ends = {row: found[place:][:1] for row, found in ids.items()}
        assert read_ranges(store, stream, bounds, n, max_bytes=max_bytes, **{option: True}) == ends
    return ids


class RangeTests(BackendTests):
    def filled(self, directory, kind, seed, columns=2):
        """A store and a model with random rows, written by all kinds of writes."""
        rng = random.Random(seed)
        names = [f"k{at}" for at in range(columns - 1)]
        key = pa.schema([*((name, pa.int32()) for name in names), ("value", kind)])
        store = self.owned(directory, streams=[StreamSchema("timed", key, ROWS)])
        model = RangeModel()

        def some_key():
            return (*(rng.randrange(3) for _ in names), VALUES[kind](rng.randrange(20)))

        def batch(entries):
            keys = [dict(zip(key.names, entry[0], strict=True)) for entry in entries]
            rows = [{"id": entry[1], "text": entry[2]} for entry in entries]
            return (
                pa.RecordBatch.from_pylist(rows, schema=ROWS),
                pa.RecordBatch.from_pylist(keys, schema=key),
            )

        for step in range(12):
            fresh = [(some_key(), step * 100 + at, "x" * rng.randrange(9)) for at in range(25)]
            action = rng.choice(["append", "append", "append", "delete", "retract", "flush"])
            if action == "append":
                store.append("timed", *batch(fresh))
                model.entries += fresh
            elif action == "delete":
                gone = fresh[:3]
                store.delete("timed", batch(gone)[1])
                names_gone = {tuple(map(ordered, entry[0])) for entry in gone}
                model.entries = [
                    entry
                    for entry in model.entries
                    if tuple(map(ordered, entry[0])) not in names_gone
                ]
            elif action == "retract" and model.entries:
                gone = rng.sample(model.entries, min(4, len(model.entries)))
                store.retract("timed", *batch(gone))
                model.entries = [entry for entry in model.entries if entry not in gone]
            elif isinstance(store, LsmStore):
                store.flush()
        return store, model, some_key

    @pytest.mark.parametrize("kind", list(VALUES), ids=str)
    def test_ranges_of_values_of_every_type(self, tmp_path, kind):
        store, model, some_key = self.filled(tmp_path, kind, seed=len(str(kind)))
        with closing(store):
            draws = [(some_key(), some_key()) for _ in range(20)]
            both = [(a[:1], a[1:], b[1:]) for a, b in draws]
            check_ranges(store, model, "timed", both, (True, True), max_bytes=300)
            check_ranges(store, model, "timed", both, (False, False), max_bytes=300)
            check_ranges(store, model, "timed", [(e, low, None) for e, low, _ in both])
            check_ranges(
                store, model, "timed", [(e, low, None) for e, low, _ in both], (False, True)
            )
            check_ranges(store, model, "timed", [(e, None, high) for e, _, high in both])
            check_ranges(
                store, model, "timed", [(e, None, high) for e, _, high in both], (True, False)
            )
            check_ranges(store, model, "timed", [(e, None, None) for e, _, _ in both])
            check_ranges(store, model, "timed", [((*e, *low), None, None) for e, low, _ in both])

    def test_ranges_of_the_first_of_several_columns(self, tmp_path):
        store, model, some_key = self.filled(tmp_path, pa.float64(), 5, columns=3)
        with closing(store):
            draws = [(some_key(), some_key()) for _ in range(30)]
            check_ranges(store, model, "timed", [((), a[:1], b[:1]) for a, b in draws])
            check_ranges(
                store, model, "timed", [((), a[:1], b[:1]) for a, b in draws], (False, False)
            )
            check_ranges(
                store, model, "timed", [((), a[:1], None) for a, b in draws], (False, True)
            )
            check_ranges(store, model, "timed", [(a[:1], a[1:2], b[1:2]) for a, b in draws])
            check_ranges(store, model, "timed", [(a[:2], a[2:], b[2:]) for a, b in draws])
            check_ranges(store, model, "timed", [(a[:2], None, None) for a, b in draws])

    def test_a_null_anywhere_makes_a_range_empty(self, tmp_path):
        store, model, _ = self.filled(tmp_path, pa.int64(), 1)
        with closing(store):
            queries = [((1,), (0,), (20,)), ((None,), (0,), (20,)), ((1,), (None,), (20,))]
            queries.append(((1,), (0,), (None,)))
            found = check_ranges(store, model, "timed", queries)
            assert [bool(found[row]) for row in range(4)] == [True, False, False, False]

    def test_no_ranges_and_no_rows(self, tmp_path):
        key = pa.schema([("k", pa.int64())])
        with closing(self.owned(tmp_path, streams=[StreamSchema("timed", key, ROWS)])) as store:
            none = RangeBounds(low=pa.array([], pa.int64()))
            assert list(store.probe_ranges("timed", none)) == []
            assert store.count_ranges("timed", none).tolist() == []
            all_keys = RangeBounds(low=[-(2**63)], high=[2**63 - 1])
            for options in ({}, {"first": True}, {"last": True}):
                assert list(store.probe_ranges("timed", all_keys, **options)) == []
            assert store.count_ranges("timed", all_keys).tolist() == [0]

    def test_a_snapshot_and_a_reopened_store_read_ranges(self, tmp_path):
        store, model, some_key = self.filled(tmp_path, pa.timestamp("us"), 3)
        draws = [(some_key(), some_key()) for _ in range(20)]
        queries = [(a[:1], a[1:], b[1:]) for a, b in draws]
        with closing(store):
            with store.snapshot() as snapshot:
                bounds = KeyBounds(low=(0,), high=(2,))
                store.write([Mutation("delete_range", "timed", bounds)])
                check_ranges(snapshot, model, "timed", queries)
            model.entries = [entry for entry in model.entries if entry[0][0] == 2]
            check_ranges(store, model, "timed", queries)
            store.commit()
            streams = list(store.streams.values())
        with closing(self.owned(tmp_path, streams=streams)) as store:
            check_ranges(store, model, "timed", queries)

    def test_a_write_ends_the_read_of_ranges(self, tmp_path):
        store, _, _ = self.filled(tmp_path, pa.int64(), 1)
        with closing(store):
            pieces = store.probe_ranges("timed", RangeBounds(low=pa.array([0], pa.int32())), 10)
            next(pieces)
            store.delete("timed", {"k0": [1], "value": [1]})
            with pytest.raises(InvalidArgumentError, match="probe or iterate again"):
                list(pieces)

    def test_ranges_that_cover_everything_come_in_bounded_pieces(self, tmp_path):
        key = pa.schema([("k", pa.int64()), ("t", pa.int64())])
        with closing(self.owned(tmp_path, streams=[StreamSchema("timed", key, ROWS)])) as store:
            count = 5_000 if self.backend == "memory" else 40_000
            text = "x" * 60
            for start in range(0, count, 1000):
                numbers = np.arange(start, start + 1000)
                rows = pa.record_batch([pa.array(numbers), pa.array([text] * 1000)], schema=ROWS)
                # One key has half of the rows, under a quarter as many times.
                keys = {"k": np.where(numbers % 2, 7, numbers), "t": numbers // 4}
                store.append("timed", rows, keys)
            whole = RangeBounds(low=[0, 0, 5], high=[count, count, 7])
            counts = np.zeros(3, dtype=np.int64)
            for piece in store.probe_ranges("timed", whole, 20_000):
                assert piece.rows.nbytes < 40_000
                counts[piece.ranges] += piece.stop - piece.first
            assert counts.tolist() == store.count_ranges("timed", whole).tolist()
            assert counts.tolist() == [count, count, count // 2 + 1]
            hot = RangeBounds({"k": [7]}, low=[10], high=[12])
            assert store.count_ranges("timed", hot).tolist() == [6]
            found = read_ranges(store, "timed", hot, 1)[0]
            assert found == [41, 43, 45, 47, 49, 51]
            assert store.stats().peak_memory_bytes <= self.memory_bytes

    def test_bounds_that_do_not_fit_are_refused(self, tmp_path):
        store, _, _ = self.filled(tmp_path, pa.float64(), 1)
        with closing(store):
            for bounds, said in (
                (None, "bounds of stream 'timed' are a NoneType"),
                (RangeBounds(), "neither equal nor low nor high"),
                (RangeBounds(low=["x"]), "low bounds of stream 'timed'"),
                (RangeBounds({"k0": [1]}, low=[1], high=[1, 2]), "1 in low, 2 in high"),
                (RangeBounds({"k0": [1, 2]}, low=[1.0]), "2 in equal, 1 in low"),
                (RangeBounds({"k0": [1], "value": [1.5]}, high=[2]), "no column is left for low"),
                (RangeBounds({"a": [1], "b": [1], "c": [2]}), "3 columns, but the key has 2"),
                (RangeBounds({"k0": [2**40]}), "equal bounds of stream 'timed'"),
                (RangeBounds(low=pa.array([1.5])), "low bounds of stream 'timed'"),
            ):
                for call in (store.probe_ranges, store.count_ranges):
                    with pytest.raises(InvalidArgumentError, match=said):
                        call("timed", bounds)
            with pytest.raises(InvalidArgumentError, match="no stream 'time'; did you mean"):
                store.probe_ranges("time", RangeBounds(low=[1]))
            with pytest.raises(InvalidArgumentError, match="max_bytes=-1: give the most bytes"):
                store.probe_ranges("timed", RangeBounds(low=[1]), -1)
            with pytest.raises(InvalidArgumentError, match="first=True and last=True"):
                store.probe_ranges("timed", RangeBounds(low=[1]), first=True, last=True)

    def test_a_closed_store_reads_no_ranges(self, tmp_path):
        store, _, _ = self.filled(tmp_path, pa.int64(), 1)
        bounds = RangeBounds(low=[1])
        pieces = store.probe_ranges("timed", bounds)
        store.close()
        for call in (
            lambda: list(pieces),
            lambda: store.probe_ranges("timed", bounds),
            lambda: store.count_ranges("timed", bounds),
        ):
            with pytest.raises(StoreClosedError, match="closed"):
                call()
