"""SSTables: what is written comes back, by scanning, seeking and probing; damage is noticed."""

import bisect
import gc
import os
import random
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lsmstate.cython_ext.iterators.backward_iter import BackwardMemtableSource
from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.iterators.merging_iter import MergingSource
from lsmstate.cython_ext.iterators.row_fetch import Cursor
from lsmstate.cython_ext.sstable.salvage import block_bytes, block_rows, find_blocks
from lsmstate.cython_ext.sstable.sst_check import verify
from lsmstate.cython_ext.sstable.sst_source import SstSource
from lsmstate.errors import CorruptionError, FormatVersionError
from support.examples import examples
from support.faults import CODEC, filled, in_use, key_batch, memory, opened, stored, write_sst
from support.sst_reads import probed, scanned

#: The kind of a row block, in docs/design/disk-format.md.
ROW_BLOCK = 1

RELAXED = settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

KEYS = st.one_of(
    st.binary(min_size=1, max_size=14),
    st.binary(min_size=1, max_size=6).map(lambda end: b"a common prefix of keys" + end),
    st.binary(min_size=1, max_size=2).map(lambda end: end * 700),
)
ROWS = st.lists(
    st.one_of(st.binary(max_size=8), st.binary(min_size=1, max_size=3).map(lambda b: b * 500)),
    min_size=1,
    max_size=12,
)
ENTRIES = st.dictionaries(KEYS, ROWS, max_size=40)


@RELAXED
@given(
    entries=ENTRIES,
    codec=st.sampled_from(["lz4", "zstd", "none"]),
    block_bytes=st.sampled_from([1 << 10, 4 << 10, 256 << 10]),
    filter_bits=st.sampled_from([0, 1, 10, 32]),
    asked=st.lists(KEYS, max_size=6),
)
def test_what_is_written_is_read_back(tmp_path, entries, codec, block_bytes, filter_bits, asked):
    budget, cache = memory()
    path = str(tmp_path / os.urandom(8).hex())
    table = filled(budget, entries)
    _, facts = write_sst(
        path, budget, table.source(), codec=codec, block_bytes=block_bytes, filter_bits=filter_bits
    )
    assert (facts["keys"], facts["rows"]) == (len(entries), sum(map(len, entries.values())))
    sst = opened(path, cache)
    everything = stored(entries)
    assert SstSource(sst).entries() == everything
    assert verify(sst) == {"keys": facts["keys"], "rows": facts["rows"]}
    assert (sst.section("edit"), sst.section("properties")) == (b"edit", b"properties")
    keys = [key for key, _, _ in everything]
    for key in [*asked, *entries]:
        place = bisect.bisect_left(keys, b"\0\0" + key)
        assert SstSource(sst).entries(b"\0\0" + key) == everything[place:]
    wanted = sorted({*asked, *entries})
    random.Random(len(wanted)).shuffle(wanted)
    wanted += wanted[:3]
    found = probed(budget, [[sst]], wanted, max_bytes=300)
    assert found == [entries.get(key, []) for key in wanted]


SEGMENTED = {b"before": [b"1"], b"hot": [b"%06d" % i * 160 for i in range(2600)], b"later": [b"2"]}


@pytest.fixture(scope="module")
def segmented(tmp_path_factory):
    """A key whose rows fill more than two tables of 1024 row blocks, so it has three segments."""
    budget, cache = memory()
    path = str(tmp_path_factory.mktemp("sst") / "segmented")
    table = filled(budget, SEGMENTED)
    write_sst(path, budget, table.source(), codec="none")
    return budget, opened(path, cache)


def test_a_key_of_several_segments_is_one_entry(segmented):
    _, sst = segmented
    assert SstSource(sst).entries() == stored(SEGMENTED)
    assert verify(sst) == {"keys": 3, "rows": 2602}


@pytest.mark.parametrize("start", [b"\0\0h", b"\0\0hot", b"\0\0before", b"\0\0hou", b"\0\0zz"])
def test_seeking_to_a_key_of_several_segments_loses_no_row(segmented, start):
    _, sst = segmented
    assert SstSource(sst).entries(start) == [e for e in stored(SEGMENTED) if e[0] >= start]


def test_probing_a_key_of_several_segments_twice_in_a_batch(segmented):
    budget, sst = segmented
    keys = [b"later", b"hot", b"hot", b"before", b"hotter", b"hot", b"a"]
    found = probed(budget, [[sst]], keys, max_bytes=50_000)
    assert found == [SEGMENTED.get(key, []) for key in keys]


def test_a_scan_that_begins_with_a_key_of_several_segments(tmp_path):
    budget, cache = memory()
    path = str(tmp_path / "sst")
    rows = {b"hot": SEGMENTED[b"hot"]}
    write_sst(path, budget, filled(budget, rows).source(), codec="none")
    assert scanned(budget, SstSource(opened(path, cache))) == rows[b"hot"]


def test_leaving_a_segmented_key_before_its_rows_are_read(segmented):
    """next_key without next_row: the merge of a key whose newer run resets it does that."""
    from lsmstate.cython_ext.iterators.merging_iter import MergingSource

    budget, sst = segmented
    newer = filled(budget, {b"hot": [b"new"]}, deleted=(b"hot",))
    found = MergingSource([SstSource(sst), newer.source()]).entries()
    assert [(key[2:], flags, len(rows)) for key, flags, rows in found] == [
        (b"before", 0, 1),
        (b"hot", 1, 1),
        (b"later", 0, 1),
    ]


def test_a_segmented_key_with_a_reset_hides_older_runs(tmp_path):
    budget, cache = memory()
    table = filled(budget, {b"hot": SEGMENTED[b"hot"]}, deleted=(b"hot", b"gone"))
    old = filled(budget, {b"hot": [b"old"], b"gone": [b"old"], b"kept": [b"old"]})
    write_sst(str(tmp_path / "new"), budget, table.source(), codec="none")
    write_sst(str(tmp_path / "old"), budget, old.source())
    runs = [[opened(str(tmp_path / name), cache)] for name in ("old", "new")]
    keys = [b"gone", b"hot", b"kept"]
    assert probed(budget, runs, keys) == [[], SEGMENTED[b"hot"], [b"old"]]
    assert SstSource(runs[1][0]).entries()[0] == (b"\0\0gone", 1, [])


def test_marks_of_deletion_go_at_the_bottom(tmp_path):
    budget, cache = memory()
    table = filled(budget, {b"b": [b"1"]}, deleted=(b"a", b"b"))
    _, facts = write_sst(str(tmp_path / "sst"), budget, table.source(), bottom=True)
    assert facts["keys"] == 1
    assert SstSource(opened(str(tmp_path / "sst"), cache)).entries() == stored({b"b": [b"1"]})


def test_many_partitions(tmp_path):
    budget, cache = memory()
    entries = {b"%08d" % i: [b"%d" % i] for i in range(0, 40_000, 2)}
    path = str(tmp_path / "sst")
    write_sst(path, budget, filled(budget, entries).source(), block_bytes=4096)
    sst = opened(path, cache)
    keys = [b"%08d" % i for i in range(40_000)]
    lookup = Lookup(key_batch(*keys), 0, None, CODEC, budget, 1)
    lookup.search_run([sst])
    counts, _ = lookup.count()
    assert counts.tolist() == [1, 0] * 20_000
    counters = sst.counters()
    assert counters["filter_checks"] == 39_999  # the last one lies behind the last key
    assert 19_999 - counters["filter_negatives"] < 0.02 * 19_999  # at 10 bits a key
    assert [k for k, _, _ in SstSource(sst).entries(b"\0\x0000020001")] == [
        b"\0\0" + key for key in entries if key > b"00020001"
    ]


@pytest.mark.parametrize(("bits", "most"), [(4, 0.25), (10, 0.02), (20, 0.002)])
def test_filters_pass_few_absent_keys_and_every_present_one(tmp_path, bits, most):
    budget, cache = memory()
    entries = {b"key %d" % i: [b""] for i in range(8000)}
    path = str(tmp_path / "sst")
    write_sst(path, budget, filled(budget, entries).source(), filter_bits=bits)
    sst = opened(path, cache)
    lookup = Lookup(key_batch(*entries), 0, None, CODEC, budget, 1)
    assert lookup.search_run([sst]) == 8000
    assert sst.counters()["filter_negatives"] == 0
    absent = [b"key %dx" % i for i in range(8000)]
    Lookup(key_batch(*absent), 0, None, CODEC, budget, 1).search_run([sst])
    counters = sst.counters()
    asked = counters["filter_checks"] - 8000
    assert asked > 7000
    assert 1 - counters["filter_negatives"] / asked < most


# Damage ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A small file with every kind of block, its bytes, and what is right."""
    budget, _ = memory()
    random_bytes = random.Random(5)
    entries = {
        b"key %03d" % i: [random_bytes.randbytes(i % 40) for _ in range(1 + i % 3)]
        for i in range(60)
    }
    entries[b"large"] = [b"x" * 3000, b"", b"y" * 10]
    directory = tmp_path_factory.mktemp("damage")
    path = directory / "whole"
    write_sst(str(path), budget, filled(budget, entries).source(), codec="zstd")
    return directory, path.read_bytes(), entries


def every_path(path, entries):
    """Probe, scan, verify, read sections; each right, or an error of the right kind."""
    budget, cache = memory()
    errors = []
    try:
        sst = opened(path, cache)
    except (CorruptionError, FormatVersionError):
        return 4
    keys = [*entries, b"absent", b"", b"zzz"]

    def probe():
        assert probed(budget, [[sst]], keys) == [entries.get(key, []) for key in keys]

    def scan():
        assert SstSource(sst).entries() == stored(entries)

    def verified():
        assert verify(sst)["keys"] == len(entries)

    def sections():
        assert (sst.section("edit"), sst.section("properties")) == (b"edit", b"properties")

    for check in (probe, scan, verified, sections):
        try:
            check()
        except (CorruptionError, FormatVersionError) as error:
            errors.append(str(error))
    assert all(path in error for error in errors)
    return len(errors)


def test_the_whole_file_is_right(damaged, tmp_path):
    _, data, entries = damaged
    (tmp_path / "sst").write_bytes(data)
    assert every_path(str(tmp_path / "sst"), entries) == 0


def test_flipped_bits_are_errors_or_do_not_matter(damaged, tmp_path):
    _, data, entries = damaged
    path = tmp_path / "sst"
    chance = random.Random(11)
    unnoticed = []
    places = {*chance.sample(range(len(data)), 500), *range(len(data) - 100, len(data))}
    for place in sorted(places):
        wrong = bytearray(data)
        wrong[place] ^= 1 << chance.randrange(8)
        path.write_bytes(wrong)
        if every_path(str(path), entries) == 0:
            unnoticed.append(place)
    # Only the front says nothing that the footer does not say.
    assert [place for place in unnoticed if place >= 16] == []


def test_shortened_and_lengthened_files_are_errors(damaged, tmp_path):
    _, data, entries = damaged
    path = tmp_path / "sst"
    for size in [*range(0, len(data), 37), *range(len(data) - 90, len(data))]:
        path.write_bytes(data[:size])
        assert every_path(str(path), entries) == 4
    path.write_bytes(data + b"\0")
    assert every_path(str(path), entries) == 4


def test_blocks_that_lie_elsewhere_are_not_taken(damaged, tmp_path):
    """Two row blocks of equal length change places: each checksum covers its block's place."""
    budget, _ = memory()
    entries = {b"k": [bytes([i]) * 1000 for i in range(4)]}
    path = tmp_path / "sst"
    write_sst(str(path), budget, filled(budget, entries).source(), codec="none")
    data = bytearray(path.read_bytes())
    first, second = data.find(b"\0" * 900), data.find(b"\2" * 900)
    begin = 16
    length = (second - first) // 2
    left, right = data[begin : begin + length], data[begin + length : begin + 2 * length]
    data[begin : begin + 2 * length] = right + left
    path.write_bytes(data)
    assert every_path(str(path), entries) >= 2


def test_verify_reads_the_filters_too(tmp_path):
    budget, cache = memory()
    entries = {b"%d" % i: [b""] for i in range(500)}
    path = tmp_path / "sst"
    write_sst(str(path), budget, filled(budget, entries).source(), codec="none")
    data = path.read_bytes()
    # Filters alone are written without compression in the middle of a file: flip all its bytes
    # one after the other, verify has to notice each that is not in the header.
    chance = random.Random(3)
    for place in chance.sample(range(16, len(data)), 150):
        wrong = bytearray(data)
        wrong[place] ^= 0x40
        path.write_bytes(wrong)
        _, cache = memory()
        with pytest.raises((CorruptionError, FormatVersionError)):
            verify(opened(str(path), cache))


def test_errors_in_the_middle_of_a_probe_release_everything(tmp_path):
    """A damaged row block behind good ones: what was pinned and charged is given back."""
    budget, cache = memory()
    entries = {b"%03d" % i: [b"%03d" % i * 100] for i in range(300)}
    path = tmp_path / "sst"
    write_sst(str(path), budget, filled(budget, entries).source(), codec="none")
    data = bytearray(path.read_bytes())
    place = data.find(b"200200200200")
    data[place] ^= 1
    path.write_bytes(data)
    sst = opened(str(path), cache)
    with pytest.raises(CorruptionError, match="row block"):
        probed(budget, [[sst]], list(entries))
    with pytest.raises(CorruptionError, match="row block"):
        SstSource(sst).entries()
    with pytest.raises(CorruptionError, match="row block"):
        scanned(budget, SstSource(sst))
    del sst
    gc.collect()
    cache.clear()
    assert in_use(budget) == {}


def test_a_cursor_refuses_positions_that_are_none(segmented):
    budget, _ = segmented
    lookup = Lookup(key_batch(b"a", b"b"), 0, None, CODEC, budget, 0)
    lookup.count()
    for positions, error in (([2], IndexError), ([-1], IndexError), ([1, 0], ValueError)):
        with pytest.raises(error):
            Cursor(lookup, np.array(positions))


def test_blocks_of_equal_rows_hold_whole_vectors(tmp_path):
    """Shuffling takes 32 rows at a time; what is over would go byte by byte."""
    budget, _ = memory()
    path = tmp_path / "sst"
    entries = {number.to_bytes(4, "big"): [bytes(38)] * 5 for number in range(200)}
    write_sst(str(path), budget, filled(budget, entries).source(), block_bytes=4096)
    data = path.read_bytes()
    rows = [
        len(block_rows(block_bytes(data, offset, size)))
        for offset, size, kind in find_blocks(data)
        if kind == ROW_BLOCK
    ]
    assert sum(rows) == 1000
    assert len(rows) > 5
    assert {count % 32 for count in rows[:-1]} == {0}


def test_what_is_asked_for_again_outlives_a_sweep(tmp_path):
    """Under a budget of a fraction of the file, the blocks of a few keys stay cached while others
    are read twice; and a block is right however often the cache's table grew and moved slots."""
    budget, cache = memory(1 << 20)
    path = str(tmp_path / "sst")
    rng = random.Random(7)
    entries = {number.to_bytes(4, "big"): [rng.randbytes(500)] for number in range(4000)}
    write_sst(path, memory()[0], filled(memory()[0], entries).source(), uid=7)
    sst = opened(path, cache)
    keys = sorted(entries)
    hot = keys[:20]
    for start in range(20, 3900, 200):
        others = keys[start : start + 200]
        for _ in range(2):
            assert probed(budget, [[sst]], others) == [entries[key] for key in others]
        before = cache.misses
        assert probed(budget, [[sst]], hot) == [entries[key] for key in hot]
        assert start < 2000 or cache.misses == before
    assert cache.evicted_bytes > 1 << 20


def test_a_row_block_is_kept_when_it_is_missed_again(tmp_path):
    budget, cache = memory()
    path = str(tmp_path / "sst")
    entries = {number.to_bytes(4, "big"): [bytes(100)] for number in range(2000)}
    write_sst(path, memory()[0], filled(memory()[0], entries).source(), uid=7)
    sst = opened(path, cache)
    keys = sorted(entries)
    seen = []
    for _ in range(3):
        misses = cache.misses
        probed(budget, [[sst]], keys)
        seen.append((cache.misses - misses, len(cache)))
    (first, kept), second, third = seen
    assert first > kept > 0, "keys and filters are kept, rows are not"
    assert second == (first - kept, first), "the rows are missed again, and kept now"
    assert third == (0, first)


@pytest.mark.parametrize("width", [1, 16, 88, 240, 300, None])
def test_rows_read_past_the_cache(tmp_path, width):
    """Few or many rows of a key, of one width or of any (a block with rows of one width up to 255
    bytes is read as it was shuffled), from blocks that are passed over and that are kept."""
    budget, cache = memory()
    path = str(tmp_path / "sst")
    rng = random.Random(5)
    entries = {
        number.to_bytes(2, "big"): [
            bytes([number & 0xFF, copy & 0xFF] * 150)[: width or rng.randrange(1, 300)]
            for copy in range(rng.choice((1, 5, 17, 200)))
        ]
        for number in range(80)
    }
    write_sst(path, memory()[0], filled(memory()[0], entries).source(), block_bytes=8192)
    sst = opened(path, cache)
    keys = sorted(entries)
    for asked in (keys[::3], keys, keys):
        assert probed(budget, [[sst]], asked) == [entries[key] for key in asked]


def test_blocks_of_dropped_files_leave_the_cache(tmp_path):
    budget, cache = memory()
    ssts = []
    for uid, name in enumerate(("one", "other")):
        path = str(tmp_path / name)
        entries = {number.to_bytes(4, "big"): [bytes(100)] for number in range(500)}
        write_sst(path, memory()[0], filled(memory()[0], entries).source(), uid=uid + 1)
        ssts.append(opened(path, cache))
    keys = sorted(entries)
    for _ in range(2):
        probed(budget, [ssts[:1], ssts[1:]], keys)
    both, misses = len(cache), cache.misses
    cache.drop(np.array([ssts[0].uid], dtype=np.uint64))
    assert len(cache) == both // 2
    probed(budget, [ssts[1:]], keys)
    assert cache.misses == misses, "the other file's are still there"
    assert probed(budget, [ssts[:1]], keys) == [entries[key] for key in keys]


def test_a_build_with_assertions_has_them(tmp_path):
    """Builds that are said to have them, as by `make debug`; else that tests nothing more."""
    budget, _ = memory()
    table = filled(budget, {b"a": [b"1"], b"b": [b"2"]})
    try:
        write_sst(str(tmp_path / "x.sst"), budget, BackwardMemtableSource(table))
        has_assertions = False
    except AssertionError as error:
        has_assertions = "keys must ascend" in str(error)
    assert has_assertions or os.environ.get("LSMSTATE_DEBUG") != "1"


@RELAXED
@given(older=ENTRIES, newer=ENTRIES, slice_bytes=st.integers(1, 3000))
def test_a_file_is_the_same_however_often_its_writing_pauses(tmp_path, older, newer, slice_bytes):
    """In the middle of a key, too, whose rows come from several sources."""
    paths = [str(tmp_path / name) for name in ("paused", "at-once")]
    budget, _ = memory()
    tables = [filled(budget, older), filled(budget, newer, sequence=100)]
    for path, most in zip(paths, (slice_bytes, 1 << 40), strict=True):
        source = MergingSource([table.source() for table in tables])
        write_sst(path, budget, source, uid=7, slice_bytes=most)
    contents = [Path(path).read_bytes() for path in paths]
    assert contents[0] == contents[1]
    for path in paths:
        os.unlink(path)  # the next example's have these names
