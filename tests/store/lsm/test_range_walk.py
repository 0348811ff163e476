"""Walks over many ranges in states of several runs, files and key blocks, under a small cap."""

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import CorruptionError
from lsmstate.opening import open_store
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import RangeBounds, StreamSchema
from support.resealing import blocks_of

ROWS = pa.schema([("id", pa.int64())])
OPTIONS = Options(memory_bytes=5 * MIB, memtable_bytes=256 * KIB)
BATCH = 15_000
#: In these states a walk has lost entries: it took the end of the restarts for that of the block.
SEEDS = (14, 39, 55, 111, 151, 269, 271, 276)


def numbers(rng, count, domain):
    return rng.integers(-domain, domain, count)


def floats(rng, count, domain):
    return np.round(rng.normal(0, domain, count), 1)


def texts(rng, count, domain):
    """Longer than a word behind what they have in common."""
    return np.array([f"common prefix {n:d} {n % 7:d}" for n in rng.integers(0, domain, count)])


@pytest.mark.parametrize("domain", [60, 10**6])
@pytest.mark.parametrize(
    ("make", "kind"), [(numbers, pa.int64()), (floats, pa.float64()), (texts, pa.string())]
)
def test_walks_find_what_a_sorted_array_has(tmp_path, make, kind, domain):
    rng = np.random.default_rng(domain)
    key = pa.schema([("k", kind)])
    with open_store(str(tmp_path), [StreamSchema("a", key, ROWS)], options=OPTIONS) as store:
        known = []
        for batch in range(4):
            known.append(make(rng, BATCH, domain))
            ids = np.arange(batch * BATCH, (batch + 1) * BATCH)
            rows = pa.record_batch([ids], schema=ROWS)
            store.append("a", rows, pa.record_batch([pa.array(known[-1], kind)], schema=key))
            if batch % 2:
                store.flush()
        values = np.concatenate(known)
        order = np.argsort(values, kind="stable")
        ascending = values[order]
        low = make(rng, 1_500, domain)
        high = make(rng, 1_500, domain) if make is texts else low + domain // 500
        high = np.where(high < low, low, high)
        bounds = RangeBounds(low=pa.array(low, kind), high=pa.array(high, kind))
        first = np.searchsorted(ascending, low, "left")
        stop = np.searchsorted(ascending, high, "right")
        assert store.count_ranges("a", bounds).tolist() == (stop - first).tolist()
        held = np.flatnonzero(first < stop)
        for option, places in (("first", first), ("last", stop - 1)):
            found = {}
            for piece in store.probe_ranges("a", bounds, **{option: True}):
                ids = piece.rows.column("id").to_numpy()[piece.first]
                found.update(zip(piece.ranges.tolist(), ids.tolist(), strict=True))
            ends = order[places[held]].tolist()
            assert found == dict(zip(held.tolist(), ends, strict=True))
        few = held[:3]
        some = RangeBounds(low=pa.array(low[few], kind), high=pa.array(high[few], kind))
        read = {at: [] for at in range(len(few))}
        for piece in store.probe_ranges("a", some, 10_000):
            ids = piece.rows.column("id").to_numpy()
            for at, start, end in zip(piece.ranges, piece.first, piece.stop, strict=True):
                read[int(at)] += ids[start:end].tolist()
        for at, row in enumerate(few):
            assert read[at] == order[first[row] : stop[row]].tolist()
        assert store.stats().peak_memory_bytes <= OPTIONS.memory_bytes


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_meet_in_the_last_group_of_a_key_block(tmp_path, seed):
    """Behind the last restart lie keys of the next stream, which begin as no restart does."""
    rng = np.random.default_rng(seed)
    key = pa.schema([("k", pa.int64())])
    most = {"a": 60, "b": 16, "c": 8}
    streams = [StreamSchema(name, key, ROWS) for name in most]
    with open_store(str(tmp_path), streams, options=OPTIONS) as store:
        known = {}
        for name, count in most.items():
            known[name] = rng.integers(0, 100, rng.integers(1, count))
            ids = pa.record_batch([known[name]], schema=ROWS)
            store.append(name, ids, pa.record_batch([known[name]], schema=key))
        store.commit()
        for name, values in known.items():
            low = rng.integers(0, 100, 6)
            high = low + 5
            order = np.sort(values)
            expected = np.searchsorted(order, high, "right") - np.searchsorted(order, low)
            bounds = RangeBounds(low=pa.array(low), high=pa.array(high))
            assert store.count_ranges(name, bounds).tolist() == expected.tolist()
            found = np.zeros(6, np.int64)
            for piece in store.probe_ranges(name, bounds, 1000):
                ids = piece.rows.column("id").to_numpy()
                for at, start, end in zip(piece.ranges, piece.first, piece.stop, strict=True):
                    assert ((ids[start:end] >= low[at]) & (ids[start:end] <= high[at])).all()
                    found[at] += end - start
            assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("options", [{}, {"first": True}, {"last": True}], ids=str)
@pytest.mark.parametrize("kind", ["key", "row"])
def test_a_damaged_block_in_the_middle_of_a_walk_is_an_error_that_names_the_file(
    tmp_path, kind, options
):
    key = pa.schema([("k", pa.int64())])
    values = np.arange(20_000)
    with open_store(str(tmp_path), [StreamSchema("a", key, ROWS)], options=OPTIONS) as store:
        rows = pa.record_batch([values], schema=ROWS)
        store.append("a", rows, pa.record_batch([values], schema=key))
        store.commit()
    path = max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    places = blocks_of(data, kind)
    offset, size = places[len(places) // 2]
    data[offset + size // 2] ^= 1
    path.write_bytes(data)
    bounds = RangeBounds(low=pa.array(values - 1), high=pa.array(values))
    with open_store(str(tmp_path), [StreamSchema("a", key, ROWS)], options=OPTIONS) as store:
        found = np.zeros(len(values), np.int64)

        def read() -> None:
            for piece in store.probe_ranges("a", bounds, 10_000, **options):
                ids = piece.rows.column("id").to_numpy()
                assert (ids[piece.first] >= piece.ranges - 1).all()
                assert (ids[piece.stop - 1] <= piece.ranges).all()
                found[piece.ranges] += piece.stop - piece.first

        with pytest.raises(CorruptionError, match=f"{path.name} at offset {offset}"):
            read()
        assert found.max() <= 2
        if kind == "key":
            with pytest.raises(CorruptionError, match=f"{path.name} at offset {offset}"):
                store.count_ranges("a", bounds)


@pytest.mark.parametrize("option", ["first", "last"])
def test_the_end_of_a_range_is_a_key_of_several_key_blocks(tmp_path, option):
    """Its rows lie in several blocks and runs; keys beside it are deleted."""
    key = pa.schema([("k", pa.int64())])
    rows = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with open_store(str(tmp_path), [StreamSchema("a", key, rows)], options=OPTIONS) as store:
        count = 6_000
        for start in range(0, count, 1_000):
            ids = np.arange(start, start + 1_000)
            keys = np.where(ids % 50 == 0, ids % 7, 3)
            texts = pa.array([f"{number:0900}" for number in ids])
            store.append("a", pa.record_batch([ids, texts], schema=rows), {"k": keys})
        store.delete("a", {"k": [2, 4]})
        store.flush()
        ids = np.arange(count)
        keys = np.where(ids % 50 == 0, ids % 7, 3)
        bounds = RangeBounds(low=pa.array([0, 2, 3, 2, 4]), high=pa.array([6, 4, 3, 3, 4]))
        place = {"first": 0, "last": -1}[option]
        wanted = {
            row: int(ids[keys == at][place])
            for row, at in enumerate({"first": [0, 3, 3, 3], "last": [6, 3, 3, 3]}[option])
        }
        for _ in range(2):
            found = {}
            for piece in store.probe_ranges("a", bounds, 10_000, **{option: True}):
                numbers = piece.rows.column("id").to_numpy()[piece.first]
                found.update(zip(piece.ranges.tolist(), numbers.tolist(), strict=True))
            assert found == wanted
            store.compact()
