"""Zones of row blocks: what is spared, that nothing is missing, and that they are checked."""

import random
from contextlib import closing
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.cython_ext.rows.zone_columns import ZoneColumns
from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.expiry_rules import Expiry
from lsmstate.lsm import version_set
from lsmstate.opening import open_store
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import RangeBounds, StreamSchema
from lsmstate.store_base.null_safe import NullSafeStore, null_safe_streams
from lsmstate.tools.inspection import find_state
from lsmstate.tools.repair import repair
from lsmstate.tools.verify import verify
from support.contract_zones import KEY, ZONED, ZoneModel

ROWS = pa.schema([("v", pa.int64()), ("text", pa.string())])
TIMED = pa.schema([("t", pa.int64())])


def small_store(path, streams, **options):
    """A store with small blocks and files."""
    settings = {"block_bytes": 1 * KIB, "file_bytes": 64 * KIB, "memory_bytes": 8 * MIB}
    return open_store(str(path), streams, options=Options(**(settings | options)))


def stairs(store, count=20_000, *, key=lambda n: n):
    """Store rows whose zone column follows the key, and flush them."""
    numbers = np.arange(count)
    rows = pa.record_batch([pa.array(numbers), pa.array(["x" * 20] * count)], schema=ROWS)
    store.append("zoned", rows, {"t": key(numbers)})
    store.flush()


def read(store, low, high, least, greatest):
    """The values of the zone column that are given, by range."""
    bounds = RangeBounds(low=low, high=high, zones={"v": (least, greatest)})
    found = {row: [] for row in range(len(low))}
    for piece in store.probe_ranges("zoned", bounds, 10_000):
        values = piece.rows.column("v").to_numpy()
        for row, first, stop in zip(piece.ranges, piece.first, piece.stop, strict=True):
            found[row] += values[first:stop].tolist()
    return found


def values_of(pieces):
    """The values of the zone column."""
    return [value for piece in pieces for value in piece.rows.column("v").to_pylist()]


@pytest.mark.parametrize("seed", range(6))
def test_random_writes_and_reads(tmp_path, seed):
    rng = random.Random(seed)
    model = ZoneModel(rng.choice(list(ZONED)))
    others = pa.schema([("n", pa.int64())])
    streams = [
        StreamSchema("before", KEY, others),
        StreamSchema("zoned", KEY, model.schema, zones=rng.choice([("u", "v"), ("v", "u")])),
        StreamSchema("other", KEY, others, zones=("n",)),
    ]
    with closing(small_store(tmp_path, streams)) as store:
        given = wanted = 0
        for step in range(40):
            model.change(store, "zoned", rng, step)
            for name in ("before", "other"):
                store.append(name, {"n": range(30)}, {"k": [step] * 30, "t": range(30)})
            if step % 9 == 8:
                store.flush()
            if step % 13 == 12:
                store.compact()
            zones = rng.choice([("u", "v"), ("u",), ("v",)])
            found = model.check(store, "zoned", rng, zones=zones, max_bytes=rng.choice([200, 9000]))
            given, wanted = given + found[0], wanted + found[1]
        assert given >= wanted > 0
        store.flush()
        store.check()
        assert store.stats().probes.blocks_spared > 0
        store.commit()
    with closing(small_store(tmp_path, streams)) as store:
        for _ in range(10):
            model.check(store, "zoned", rng)


def test_blocks_outside_are_not_read(tmp_path):
    stream = StreamSchema("zoned", TIMED, ROWS, zones=("v",))
    with closing(small_store(tmp_path, [stream])) as store:
        stairs(store)
        for levels in range(2):
            before = store.stats()
            found = read(store, [0, 10_000], [19_999, 19_999], [5000, 5000], [5020, 5020])
            after = store.stats()
            spared = after.probes.blocks_spared - before.probes.blocks_spared
            assert set(range(5000, 5021)) <= set(found[0])
            assert found[1] == []
            assert len(found[0]) < 100, levels
            # Half a KiB of rows has about 17 of them.
            assert 20_000 // 20 < spared < 20_000 // 10
            store.compact()


def test_each_range_has_bounds_of_its_own(tmp_path):
    """One pair of bounds for all ranges would spare nothing here."""
    stream = StreamSchema("zoned", TIMED, ROWS, zones=("v",))
    with closing(small_store(tmp_path, [stream])) as store:
        stairs(store)
        low = list(range(0, 20_000, 1000))
        high = [start + 999 for start in low]
        around = [start + 500 for start in low]
        found = read(store, low, high, around, around)
        assert all(value in found[row] and len(found[row]) < 40 for row, value in enumerate(around))
        # Each is in the range before, or after, its own: nothing at all is read.
        blocks = store.stats().cache.misses
        found = read(store, low, high, around[1:] + around[:1], around[1:] + around[:1])
        assert not any(found.values())
        assert store.stats().cache.misses == blocks


def test_rows_of_one_key_that_span_blocks(tmp_path):
    stream = StreamSchema("zoned", TIMED, ROWS, zones=("v",))
    with closing(small_store(tmp_path, [stream])) as store:
        stairs(store, key=lambda n: n // 7000)
        for least, greatest in (([10], [12]), ([6990], [7010]), ([19_999], None), (None, [0])):
            found = read(store, [0], [5], least, greatest)[0]
            wanted = range((least or [0])[0], (greatest or [19_999])[0] + 1)
            assert set(wanted) <= set(found)
            assert len(found) < len(wanted) + 100
            assert found == sorted(found)
        # Two stretches of one key, for two ranges that hold it.
        found = read(store, [0, 0], [0, 1], [10, 6000], [20, 6010])
        assert found[0] == found[1]
        assert {*range(10, 21), *range(6000, 6011)} <= set(found[0])
        assert len(found[0]) < 150


def test_many_ranges_over_many_portions(tmp_path):
    rng = np.random.default_rng(3)
    stream = StreamSchema("zoned", TIMED, ROWS, zones=("v",))
    with closing(small_store(tmp_path, [stream], memory_bytes=6 * MIB)) as store:
        count = 60_000
        for _ in range(3):
            values = rng.integers(0, count, count)
            rows = pa.record_batch([pa.array(values), pa.array(["y"] * count)], schema=ROWS)
            store.append("zoned", rows, {"t": values // 2 + rng.integers(0, 50, count)})
            store.flush()
        low = rng.integers(0, count // 2, 300)
        high = low + rng.integers(0, 9000, 300)
        least = rng.integers(0, count, 300)
        found = read(store, low.tolist(), high.tolist(), least.tolist(), (least + 100).tolist())
        given = {row: np.sort(values) for row, values in found.items()}
        every = read(store, low.tolist(), high.tolist(), None, None)
        for row in range(300):
            whole = np.sort(every[row])
            wanted = whole[(whole >= least[row]) & (whole <= least[row] + 100)]
            inside = given[row][(given[row] >= least[row]) & (given[row] <= least[row] + 100)]
            assert inside.tolist() == wanted.tolist()
        assert store.stats().probes.blocks_spared > 100


def test_files_without_the_zone_are_read_whole(tmp_path):
    plain = StreamSchema("zoned", TIMED, ROWS)
    zoned = StreamSchema("zoned", TIMED, ROWS, zones=("v",))
    with closing(small_store(tmp_path, [plain])) as store:
        stairs(store, 2000)
        store.commit()
    with closing(small_store(tmp_path, [zoned])) as store:
        assert len(read(store, [0], [1999], [5], [5])[0]) == 2000
        assert store.stats().probes.blocks_spared == 0
        stairs(store, 2000)
        assert 2000 < len(read(store, [0], [1999], [5], [5])[0]) < 2040
        store.compact()
        assert 2 <= len(read(store, [0], [1999], [5], [5])[0]) < 80
        store.commit()
    with closing(small_store(tmp_path, [plain])) as store:
        store.check()
        assert sum(rows.num_rows for rows in store.scan("zoned")) == 4000


def test_nulls_and_nan_have_no_zone_or_the_greatest(tmp_path):
    rows = pa.schema([("v", pa.float64())])
    stream = StreamSchema("zoned", TIMED, rows, zones=("v",))
    with closing(small_store(tmp_path, [stream])) as store:
        values = [None] * 1000 + [float("nan")] * 1000 + [-0.0] * 1000
        store.append("zoned", {"v": pa.array(values)}, {"t": range(3000)})
        store.flush()
        store.check()

        def count(*sides):
            bounds = RangeBounds(low=[0], zones={"v": sides})
            return sum(piece.rows.num_rows for piece in store.probe_ranges("zoned", bounds))

        assert 1000 <= count([float("nan")], None) < 1200
        assert 2000 <= count([0.0], None) < 2200
        assert 1000 <= count([0.0], [0.0]) < 1200
        assert count([1.0], [2.0]) < 200  # the block with both NaN and 0.0
        assert count(pa.array([None], pa.float64()), None) == 0


def test_retractions_and_deletes_count_as_without_zones(tmp_path):
    stream = StreamSchema("zoned", TIMED, ROWS, zones=("v",))
    with closing(small_store(tmp_path, [stream])) as store:
        stairs(store, 3000, key=lambda n: n // 300)
        store.retract("zoned", {"v": [450, 2999], "text": ["x" * 20] * 2}, {"t": [1, 9]})
        store.flush()
        store.delete("zoned", {"t": [3]})
        store.append("zoned", {"v": [950], "text": ["new"]}, {"t": [3]})
        store.flush()
        found = read(store, [0], [9], [440], [460])[0]
        assert [value for value in found if 440 <= value <= 460] == [
            value for value in range(440, 461) if value != 450
        ]
        assert 2999 not in read(store, [0], [9], [2990], None)[0]
        found = read(store, [3], [3], [940], [960])[0]
        assert found == [950]
        assert read(store, [3], [3], [10], [20])[0] == []


def test_a_wrong_zone_is_found(tmp_path, monkeypatch):
    """The writer takes the zones of the column from another column's place."""
    stream = StreamSchema("zoned", TIMED, ROWS, zones=("v",))
    other = RowCodec(pa.schema([("v", pa.int32()), ("w", pa.int64())]))
    values = [2**40 + n for n in range(99)]
    with monkeypatch.context() as patch:
        patch.setattr(version_set, "zone_columns", lambda _: {0: ZoneColumns(other, [0])})
        with closing(small_store(tmp_path / "state", [stream])) as store:
            store.append("zoned", {"v": values, "text": [""] * 99}, {"t": range(99)})
            store.flush()
            with pytest.raises(CorruptionError, match="key block is damaged"):
                store.check()
            store.commit()
    damage = [found.damage for found in verify(find_state(str(tmp_path / "state")))]
    assert sum("key block is damaged" in (what or "") for what in damage) == 1
    report = repair(str(tmp_path / "state"), str(tmp_path / "whole"))
    assert (report.rebuilt_files, report.losses) == (1, ())
    with closing(small_store(tmp_path / "whole", [stream])) as store:
        store.check()
        assert store.stats().probes.blocks_spared == 0
        assert read(store, [0], [98], [2**40 + 5], [2**40 + 5])[0]
        assert read(store, [0], [98], [5], [5])[0] == []
        assert store.stats().probes.blocks_spared > 0


def test_zones_of_a_stream_that_forgets_and_of_a_null_safe_one(tmp_path):
    rows = pa.schema([("at", pa.timestamp("us")), ("v", pa.int64())])
    stream = StreamSchema("zoned", TIMED, rows, Expiry("at", timedelta(hours=1)), ("v",))
    second = 1_000_000
    with closing(small_store(tmp_path / "forgets", [stream])) as store:
        times = [second * n for n in range(5000)]
        store.append("zoned", {"at": times, "v": range(5000)}, {"t": range(5000)})
        store.advance("zoned", 4000 * second)
        store.flush()  # the rows that moved meanwhile, too
        bounds = RangeBounds(low=[0], zones={"v": ([390], [410])})
        found = values_of(store.probe_ranges("zoned", bounds))
        assert set(range(401, 411)) <= set(found) <= set(range(401, 1000))
        assert len(found) < 100
        assert store.stats().probes.blocks_spared > 50
        for refused in (
            lambda: store.probe_ranges("zoned", bounds, last=True),
            lambda: store.count_ranges("zoned", bounds),
        ):
            with pytest.raises(InvalidArgumentError, match="leave zones out"):
                refused()
        with store.snapshot() as snapshot:
            assert values_of(snapshot.probe_ranges("zoned", bounds)) == found
    stream = StreamSchema("zoned", TIMED, ROWS, zones=("v",))
    below = small_store(tmp_path / "null_safe", null_safe_streams([stream]))
    with closing(NullSafeStore([stream], below)) as store:
        keys = [None, *range(1, 2000)]
        store.append("zoned", {"v": range(2000), "text": ["x"] * 2000}, {"t": keys})
        below.flush()
        for null, bounds in (
            (True, RangeBounds({"t": [None]}, zones={"v": ([0], [0])})),
            (False, RangeBounds(high=[3000], zones={"v": (None, [9])})),
        ):
            found = values_of(store.probe_ranges("zoned", bounds))
            if null:
                assert found == [0]
            else:
                assert set(range(1, 10)) <= set(found)
                assert len(found) < 100
        bounds = RangeBounds({"t": [None]}, zones={"v": ([1999], None)})
        assert list(store.probe_ranges("zoned", bounds)) == []
