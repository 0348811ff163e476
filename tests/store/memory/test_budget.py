"""Budget, arena and block cache, through the structures that use them."""

import gc
import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lsmstate.cython_ext.iterators.backward_iter import BackwardMemtableSource, BackwardSstSource
from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.iterators.row_fetch import Cursor
from lsmstate.cython_ext.iterators.scanner import Scanner
from lsmstate.cython_ext.memory.budget import Budget, Holding
from lsmstate.cython_ext.memtable.memtable import Memtable
from lsmstate.cython_ext.sstable.block_cache import BlockCache
from lsmstate.cython_ext.sstable.sst_source import SstSource
from lsmstate.errors import InvalidArgumentError
from support.faults import (
    CODEC,
    filled,
    in_use,
    key_batch,
    memory,
    opened,
    row_batch,
    stored,
    write_sst,
)

#: Of a memtable, where its limit is no reason for smaller ones.
SLAB = 2 << 20


def in_threads(work: Callable[[int], None]) -> None:
    """Call it with 0 to 3, in a thread each; an error in one of them raises."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_counters():
    budget = Budget(1000)
    budget.hold("frames", 300)
    budget.hold("probe", 100)
    assert budget.total_bytes == 400 == sum(budget.usage().values())
    budget.hold("frames", -300)
    assert (budget.total_bytes, budget.peak_bytes) == (100, 400)
    budget.reset_peak()
    assert budget.peak_bytes == 100
    budget.limit = 50
    assert budget.limit == 50
    for wrong in (0, -5):
        with pytest.raises(InvalidArgumentError, match=str(wrong)):
            budget.limit = wrong
        with pytest.raises(InvalidArgumentError):
            Budget(wrong)
    with pytest.raises(ValueError, match="not in tuple"):
        budget.hold("component", 1)
    assert budget.total_bytes == 100


def test_the_reserve_is_for_flushes_and_merges_alone():
    budget = Budget(1000)
    budget.reserve = 300
    for component in ("memtable", "tables", "probe", "frames"):
        assert budget.try_hold(component, 700)
        assert budget.firm_bytes == 700
        assert not budget.try_hold(component, 1)
        assert not budget.try_hold("merge", 1)  # who can do without
        budget.hold("merge", 300)
        assert budget.total_bytes == budget.peak_bytes == 1000
        budget.hold("merge", -300)
        assert budget.try_hold("cache", 300)  # it can be taken back
        assert not budget.try_hold("cache", 1)
        budget.hold("cache", -300)
        budget.hold(component, -700)
    budget.hold("merge", 500)
    assert budget.try_hold("merge", 200)
    assert not budget.try_hold("merge", 1)
    assert budget.try_hold("frames", 300)
    assert not budget.try_hold("frames", 1)
    holding = Holding(budget, "frames")
    assert not holding.try_grow_last(1)
    budget.hold("merge", -300)
    assert holding.try_grow_last(300)  # nothing else was left
    assert not holding.try_grow_last(1)
    assert holding.nbytes == 300
    holding.release()
    budget.hold("merge", -400)
    budget.hold("frames", 600)  # what is promised, whatever there is
    assert not budget.try_hold("frames", 1)
    budget.hold("frames", -900)
    assert budget.total_bytes == budget.firm_bytes == 0
    with pytest.raises(InvalidArgumentError, match="reserve -1"):
        budget.reserve = -1
    assert budget.reserve == 300


def test_a_spare_slab_is_not_taken_over_into_the_reserve():
    budget = Budget(64 << 20)
    table = Memtable(budget, 16 << 20)
    table.append(key_batch(b"a"), row_batch(b"b"), 1, 0)
    table.clear()
    assert budget.usage()["spare"] == SLAB
    budget.reserve = budget.limit - SLAB // 2
    table.append(key_batch(b"a"), row_batch(b"b"), 1, 0)
    assert 0 < budget.usage()["memtable"] < SLAB
    table.clear()
    budget.reserve = 0
    table.append(key_batch(b"a"), row_batch(b"b"), 1, 0)
    assert (budget.usage()["memtable"], budget.usage()["spare"]) == (SLAB, 0)


def test_an_arena_charges_its_slabs_and_gives_them_back():
    budget = Budget(1 << 20)
    table = Memtable(budget, 512 << 10)
    assert budget.total_bytes == 0  # not before the first row
    table.append(key_batch(b"a"), row_batch(b"b"), 1, 0)
    assert table.nbytes == budget.usage()["memtable"] > 0
    table.append(key_batch(b"c"), row_batch(b"x" * 300_000), 1, 0)
    assert table.nbytes == budget.total_bytes > 300_000
    assert table.nbytes % 4096 == 0
    table.clear()
    assert (table.nbytes, budget.total_bytes) == (0, 0)
    table.append(key_batch(b"a"), row_batch(b"b"), 1, 0)
    del table
    gc.collect()
    assert budget.total_bytes == 0


def test_what_a_table_was_granted_serves_where_there_is_no_room():
    budget = Budget(1 << 20)
    granted = 200_000 + 16 * 1024
    holding = Holding(budget, "memtable")
    assert holding.try_grow(granted)
    assert not holding.try_grow(budget.limit)
    budget.hold("probe", budget.limit)
    table = Memtable(budget, 512 << 10)
    assert table.append(key_batch(b"a"), row_batch(b"x" * 200_000), 1, 0) == 0
    table.clear()
    table.grant(holding)
    assert holding.nbytes == 0
    assert table.append(key_batch(b"a"), row_batch(b"x" * 200_000), 1, 0) == 1
    assert table.append(key_batch(b"b"), row_batch(b"x" * 200_000), 1, 0) == 0
    assert budget.usage()["memtable"] == granted
    table.give_back(holding)
    assert holding.nbytes == granted - table.nbytes > 0
    holding.release()
    table.clear()
    holding.grow(5000)
    table.grant(holding)
    table.clear()
    table.give_back(holding)
    assert budget.usage()["memtable"] == holding.nbytes == 0
    for other in (Holding(budget, "frames"), Holding(Budget(1 << 20), "memtable")):
        with pytest.raises(ValueError, match="own budget"):
            table.grant(other)


def test_what_is_held_goes_with_the_holding():
    budget = Budget(1 << 20)
    holding = Holding(budget, "probe")
    holding.grow(700)
    holding.grow(2 << 20)  # promised, whatever there is
    assert budget.usage()["probe"] == budget.firm_bytes == holding.nbytes == 700 + (2 << 20)
    del holding
    assert budget.total_bytes == budget.firm_bytes == 0
    with pytest.raises(ValueError, match="not in tuple"):
        Holding(budget, "component")
    with pytest.raises(TypeError):
        Holding(None, "probe")


def test_the_last_slab_is_kept_for_the_next_memtable():
    budget = Budget(64 << 20)
    table = Memtable(budget, 16 << 20)
    for start in range(3):
        table.append(key_batch(b"%d" % start), row_batch(b"x" * (1500 << 10)), 1, 0)
    assert budget.usage()["memtable"] == 3 * SLAB
    table.clear()
    assert table.nbytes == budget.usage()["memtable"] == 0
    assert budget.usage()["spare"] == budget.total_bytes == SLAB
    table.append(key_batch(b"a", b"b"), row_batch(b"1", b"2"), 2, 0)
    assert (budget.usage()["memtable"], budget.usage()["spare"]) == (SLAB, 0)
    assert table.source().entries() == stored({b"a": [b"1"], b"b": [b"2"]})
    assert budget.peak_bytes == 3 * SLAB
    del table
    gc.collect()
    assert budget.usage()["spare"] == budget.total_bytes == SLAB


@pytest.mark.parametrize("need", ["room", "a smaller cap"])
def test_the_kept_slab_is_given_up_for(need):
    budget = Budget(64 << 20)
    table = Memtable(budget, 16 << 20)
    table.append(key_batch(b"a"), row_batch(b"1"), 1, 0)
    table.clear()
    assert budget.usage()["spare"] == SLAB
    if need == "room":
        assert budget.try_hold("frames", (64 << 20) - 1)
        assert not budget.try_hold("frames", 2)
    else:
        budget.limit = 16 << 20
    assert budget.usage()["spare"] == 0
    assert budget.total_bytes == budget.usage()["frames"]
    # Under a small cap none is kept.
    budget.limit = 16 << 20
    table.append(key_batch(b"a"), row_batch(b"1"), 1, 0)
    table.clear()
    assert budget.usage()["spare"] == 0


def test_threads_hand_the_slab_on():
    budget = Budget(64 << 20)
    wrong = []

    def work(number):
        for turn in range(200):
            table = Memtable(budget, 16 << 20)
            row = b"%d-%d" % (number, turn)
            table.append(key_batch(b"a"), row_batch(row), 1, 0)
            if table.source().entries() != stored({b"a": [row]}):
                wrong.append(row)
            table.clear()

    in_threads(work)
    assert wrong == []
    assert budget.usage()["spare"] == budget.total_bytes == SLAB


def test_what_does_not_fit_is_refused_and_not_charged():
    budget = Budget(100_000)
    table = Memtable(budget, 1 << 20)
    assert table.append(key_batch(b"a"), row_batch(b"x" * 200_000), 1, 0) == 0
    assert budget.total_bytes <= 100_000
    assert budget.peak_bytes <= 100_000
    table.clear()
    assert budget.total_bytes == 0


@pytest.fixture
def table_of(tmp_path):
    def make(count=600, limit=64 << 20):
        budget, cache = memory(limit)
        writing, _ = memory()
        path = str(tmp_path / "sst")
        entries = {b"%05d" % i: [b"%05d" % i * 30] for i in range(count)}
        write_sst(path, writing, filled(writing, entries).source(), codec="none", filter_bits=0)
        return budget, cache, opened(path, cache), entries

    return make


def read(budget, sst, keys):
    lookup = Lookup(key_batch(*keys), 0, None, CODEC, budget, 1)
    lookup.search_run([sst])
    lookup.count()
    cursor = Cursor(lookup, np.arange(len(keys)))
    found = []
    while (piece := cursor.next_piece(1 << 12)) is not None:
        found += [row["v"] for row in piece[1].to_pylist()]
    return found


def test_blocks_are_kept_and_found_again(table_of):
    budget, cache, sst, entries = table_of()
    keys = list(entries)
    for _ in range(2):  # the first time rows are read past the cache
        assert read(budget, sst, keys) == [row for rows in entries.values() for row in rows]
    blocks, misses = len(cache), cache.misses
    assert blocks > 50
    loaded = sst.counters()["blocks_read"]
    read(budget, sst, keys)
    assert (len(cache), cache.misses, sst.counters()["blocks_read"]) == (blocks, misses, loaded)
    assert budget.usage()["cache"] > 600 * 150
    assert budget.usage()["probe"] == 0
    freed = cache.clear()
    assert (len(cache), budget.usage()["cache"]) == (0, 0)
    assert freed == cache.evicted_bytes > 600 * 150
    read(budget, sst, keys)
    assert len(cache) == blocks


def test_a_small_budget_evicts_and_stays_within(table_of):
    budget, cache, sst, entries = table_of(limit=48 << 10)
    keys = list(entries)
    chance = random.Random(3)
    for _ in range(200):
        some = sorted(chance.sample(keys, 5))
        assert read(budget, sst, some) == [entries[key][0] for key in some]
    assert cache.evicted_bytes > 100_000
    assert budget.usage()["cache"] <= 48 << 10
    assert budget.peak_bytes <= (48 << 10) + (8 << 10)
    # What is asked for again and again has got in.
    for _ in range(100):
        read(budget, sst, some)
    before = sst.counters()["blocks_read"]
    read(budget, sst, some)
    assert sst.counters()["blocks_read"] == before


def test_part_of_a_sweep_over_more_than_the_cache_stays_for_the_next(table_of):
    budget, cache, sst, entries = table_of(limit=48 << 10)
    keys = sorted(entries)[::10]  # one for each block of rows

    def sweep():
        """Blocks read from the file."""
        before = sst.counters()["blocks_read"]
        for start in range(0, len(keys), 5):
            read(budget, sst, keys[start : start + 5])
        return sst.counters()["blocks_read"] - before

    blocks = sweep()
    sweep()  # rows are kept from the second time on
    assert cache.evicted_bytes > 0, "the table must be larger than the cache"
    for _ in range(5):
        # An LRU would read every block again.
        assert sweep() < 0.8 * blocks


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_leaves_the_probes_their_blocks(table_of, reverse):
    budget, cache, sst, entries = table_of(limit=48 << 10)
    chance = random.Random(7)
    working_set = sorted(chance.sample(sorted(entries), 10))
    for _ in range(100):
        read(budget, sst, working_set)
    hits, misses = cache.hits, cache.misses
    for _ in range(3):
        source = BackwardSstSource(sst) if reverse else SstSource(sst, True)
        assert len(source.entries(b"\xff" if reverse else b"")) == len(entries)
    assert (cache.hits, cache.misses) == (hits, misses), "only probes are counted"
    before = sst.counters()["blocks_read"]
    read(budget, sst, working_set)
    assert sst.counters()["blocks_read"] == before
    assert cache.misses == misses
    assert budget.peak_bytes <= (48 << 10) + (8 << 10)


def test_a_scan_of_a_short_range_finds_its_blocks_again(table_of):
    budget, cache, sst, entries = table_of()
    start = b"\0\0" + sorted(entries)[-30]
    assert len(SstSource(sst, True).entries(start)) == 30
    before = sst.counters()["blocks_read"]
    assert len(SstSource(sst, True).entries(start)) == 30
    assert sst.counters()["blocks_read"] == before
    # A merge keeps nothing.
    cache.clear()
    SstSource(sst).entries(start)
    assert len(cache) == 0
    assert budget.usage()["cache"] == 0


def test_blocks_of_a_merge_are_not_of_what_reads_may_take(table_of):
    budget, _, sst, entries = table_of(limit=1)
    merged = Scanner(SstSource(sst), b"", None, CODEC, Budget(1 << 20))
    assert merged.next_piece(1).num_rows == 1
    usage = budget.usage()
    assert usage["merge"] > 1000
    assert usage["cache"] == usage["probe"] == 0
    rows = 1
    while (piece := merged.next_piece(1 << 12)) is not None:
        rows += piece.num_rows
    assert rows == len(entries)
    del merged
    assert in_use(budget) == {"tables": usage["tables"]}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_piece_takes_no_more_than_it_may_or_its_only_row(reverse):
    """Else a read would need far more of the cap than its largest row."""
    sizes = [100, 900_000, 1_000_000, 1_100_000, 90_000, 90_000, 90_000, 200_000, 1_400_000, 10]
    budget, _ = memory(8 << 20)
    table = filled(budget, {b"%02d" % i: [bytes(size)] for i, size in enumerate(sizes)})
    source = BackwardMemtableSource(table) if reverse else table.source()
    reading = Budget(8 << 20)
    scanner = Scanner(source, b"", b"\xff" * 8 if reverse else None, CODEC, reading, reverse)
    found, before = [], 0
    while (piece := scanner.next_piece(200_000)) is not None:
        found.append([len(row["v"]) for row in piece.to_pylist()])
        held = reading.usage()["probe"]
        assert held <= max(before, 200_000 * 3 // 2, sum(found[-1])) + 1000
        before = held
    assert [size for piece in found for size in piece] == (sizes[::-1] if reverse else sizes)
    assert all(len(piece) == 1 or sum(piece) <= 200_000 for piece in found)
    assert max(len(piece) for piece in found) == 2


def test_a_budget_without_any_room_still_reads(table_of):
    """Blocks are handed out as transient ones, charged while they are pinned."""
    budget, cache, sst, entries = table_of(limit=1)
    keys = list(entries)
    assert read(budget, sst, keys[:50]) == [entries[key][0] for key in keys[:50]]
    assert len(cache) == 0
    assert budget.usage()["probe"] == 0
    assert budget.peak_bytes > 1000


def test_a_merge_leaves_the_cache_alone(table_of):
    budget, cache, sst, entries = table_of()
    assert len(SstSource(sst).entries()) == len(entries)
    assert len(cache) == 0
    assert budget.usage()["cache"] == 0


def test_a_budget_has_one_cache():
    budget, cache = memory()
    with pytest.raises(ValueError, match="already"):
        BlockCache(budget)
    del cache
    gc.collect()
    BlockCache(budget)  # the first is gone


def test_a_table_outlives_whoever_made_its_cache(tmp_path):
    budget, cache = memory()
    path = str(tmp_path / "sst")
    entries = {b"a": [b"1"]}
    write_sst(path, budget, filled(budget, entries).source())
    sst = opened(path, cache)
    del cache
    gc.collect()
    assert read(budget, sst, [b"a"]) == [b"1"]


def test_threads_share_a_cache(table_of):
    budget, cache, sst, entries = table_of(limit=64 << 10)
    keys = list(entries)
    wrong = []

    def work(seed):
        chance = random.Random(seed)
        for _ in range(60):
            some = sorted(chance.sample(keys, 20))
            if read(budget, sst, some) != [entries[key][0] for key in some]:
                wrong.append(seed)

    in_threads(work)
    assert wrong == []
    assert budget.usage()["probe"] == 0
    cache.clear()
    assert budget.usage()["cache"] == 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_cycle_of_garbage_is_collected(tmp_path, order):
    """The collector clears attributes before it frees: what a destructor needs must stay."""
    budget, cache = memory()
    entries = {b"%03d" % i: [b"%03d" % i * 100] for i in range(100)}
    path = str(tmp_path / "sst")
    write_sst(path, budget, filled(budget, entries).source())
    table = filled(budget, entries)

    def holders():
        sst = opened(path, cache)
        lookup = Lookup(key_batch(*entries), 0, None, CODEC, budget, 1)
        lookup.search_run([sst])
        lookup.search_memtable(table)
        lookup.count()
        cursor = Cursor(lookup, np.arange(100))
        cursor.next_piece(100)
        source = SstSource(sst)
        source.entries()
        made = [cursor, Scanner(source, b"\0\0", b"\0\1", CODEC, budget), Memtable(budget, 1 << 20)]
        made[2].append(key_batch(b"a"), row_batch(b"b"), 1, 0)
        return made

    gc.collect()
    gc.disable()
    try:
        made = holders()
        cycle = [made[i] for i in order]
        cycle.append(cycle)
        del made, cycle
    finally:
        gc.enable()
    gc.collect()
    table.clear()
    cache.clear()
    assert in_use(budget) == {}
