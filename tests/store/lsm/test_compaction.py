"""compaction_picker.pick: properties over random runs, and what it costs in writes."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.lsm.compaction_picker import Task, deleted_bytes, pick, pick_beside, pick_for_reading
from lsmstate.lsm.version import NOTHING, FileMeta, Run, Version
from lsmstate.options import Options
from support.examples import examples

MERGING = ("lazy", "leveled", "tiered")
OPTIONS = st.builds(
    Options,
    fanout=st.integers(2, 16),
    max_runs=st.integers(2, 32),
    merging=st.sampled_from(MERGING),
)


def meta(name, size, *, keys=1, tombstones=0, bounds=(b"", b"")):
    return FileMeta(
        name=name,
        size=size,
        checksum=0,
        uid=0,
        keys=keys,
        rows=1,
        tombstones=tombstones,
        raw_bytes=size,
        min_key=bounds[0],
        max_key=bounds[1],
        min_sequence=0,
        max_sequence=0,
    )


def run(number, level, size):
    return Run(number, level, (meta(str(number), size),))


def settled(version, options, shrink=1.0, bounds=(b"", b"")):
    """Do what pick asks for until it is content: (version, bytes written)."""
    written = 0
    for _ in range(1000):
        task = pick(version.runs, options)
        if task is None:
            return version, written
        assert 0 <= task.start < task.end <= len(version.runs)
        assert task.end - task.start >= 2 or task.level > version.runs[task.start].level
        assert task.bottom == (task.start == 0)
        size = int(sum(r.size for r in version.runs[task.start : task.end]) * shrink)
        written += size
        taken = [file for r in version.runs[task.start : task.end] for file in r.files]
        tombstones = 0 if task.bottom else sum(file.tombstones for file in taken)
        keys = sum(file.keys for file in taken)
        made = meta(f"m{version.next_run}", size, keys=keys, tombstones=tombstones, bounds=bounds)
        files = (made,) if size else ()
        deleted = NOTHING
        for each in version.runs[task.start : task.end]:
            deleted = deleted.joined(each.deleted)
        version = version.replaced(task.start, task.end, files, task.level, deleted)
        version.check()
    raise AssertionError("the merging never ends")


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(
    OPTIONS,
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 10**9)), max_size=50),
    st.sampled_from([1.0, 0.5, 0.0]),
)
def test_merging_ends_with_few_runs_in_order(options, found, shrink):
    levels = sorted((level for level, _ in found), reverse=True)
    runs = tuple(
        run(i, level, size) for i, (level, (_, size)) in enumerate(zip(levels, found, strict=True))
    )
    version, _ = settled(Version(runs, 1, len(runs)), options, shrink)
    assert len(version.runs) <= options.max_runs
    assert pick(version.runs, options) is None
    levels = [r.level for r in version.runs]
    assert levels == sorted(levels, reverse=True)
    full = [0] if options.merging == "leveled" else levels
    most = max(options.fanout, options.max_runs - 1)
    bound = most if options.merging == "lazy" else options.fanout  # levels that are small
    assert all(levels.count(level) < bound for level in full)


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(OPTIONS, st.lists(st.integers(1, 10**8), min_size=1, max_size=80))
def test_a_store_that_grows_flush_by_flush(options, sizes):
    version = Version()
    for size in sizes:
        place = len(version.runs)
        version = version.replaced(place, place, (meta(f"f{version.next_run}", size),), 0)
        version, _ = settled(version, options)
    assert version.size == sum(sizes)
    assert len(version.runs) <= options.max_runs


@pytest.mark.parametrize(
    ("fanout", "flushes", "most"),
    [(4, 200, 6), (4, 1000, 7), (4, 3000, 8), (8, 200, 5.2), (2, 200, 9)],
)
def test_write_amplification(fanout, flushes, most, record_property):
    options = Options(fanout=fanout)
    version, written = Version(), 0
    for _ in range(flushes):
        place = len(version.runs)
        version = version.replaced(place, place, (meta(f"f{version.next_run}", 10**6),), 0)
        written += 10**6
        version, merged = settled(version, options)
        written += merged
    amplification = written / version.size
    record_property("write_amplification", amplification)
    print(f"fanout {fanout}, {flushes} flushes: {amplification:.2f}, {len(version.runs)} runs")
    assert amplification < most


def test_policies_trade_writing_for_reading():
    """16 MB flushes up to 5.6 GB. Reading: in how many runs a key of 5 rows has any."""
    written, visited = {}, {}
    for merging in MERGING:
        options = Options(merging=merging, background=True)
        version, total, runs = Version(), 0, 0.0
        for _ in range(350):
            place = len(version.runs)
            version = version.replaced(place, place, (meta(f"f{version.next_run}", 16 << 20),), 0)
            version, merged = settled(version, options)
            total += (16 << 20) + merged
            runs += sum(1 - (1 - r.size / version.size) ** 5 for r in version.runs)
        written[merging], visited[merging] = total / version.size, runs / 350
    print({m: (round(written[m], 1), round(visited[m], 1)) for m in MERGING})
    assert written["tiered"] < 5 < written["lazy"] < 6.5 < written["leveled"] < 8
    assert visited["lazy"] < visited["leveled"] < 1.55 < visited["tiered"] < 2.5


@pytest.mark.parametrize("background", [True, False])
def test_what_memory_does_not_hold_lies_mostly_in_the_bottom_run(background):
    """As far as that is, each run above it would cost probes a read. With a worker all that lies
    above it counts, else the level next to it."""
    options = Options(memory_bytes=64 << 20, background=background)
    version, most, levels = Version(), 0.0, set()
    for _ in range(1000):
        place = len(version.runs)
        version = version.replaced(place, place, (meta(f"f{version.next_run}", 37 << 17),), 0)
        version, _ = settled(version, options)
        if version.size > options.memory_bytes:
            above = [r for r in version.runs[1:] if background or r.level == version.runs[1].level]
            most = max(most, sum(r.size for r in above) / version.runs[0].size)
            levels.add(len({r.level for r in version.runs}))
    assert (0.2 if background else 0.25) < most < (0.25 if background else 0.34)
    assert max(levels) >= 3


def test_small_commits_do_not_rewrite_a_large_bottom_run():
    """The bottom run was once merged together with any four runs, however small, of its level."""
    version, written = Version(), 0
    for count, size in ((11, 80 * 10**6), (20, 10**6)):
        written = 0
        for _ in range(count):
            place = len(version.runs)
            version = version.replaced(place, place, (meta(f"f{version.next_run}", size),), 0)
            version, merged = settled(version, Options())
            written += merged
    assert written <= 20 * 10**6


def test_merging_for_reading():
    """All runs into one, but for what lies above it and is small."""
    even = (run(0, 3, 10**6), run(1, 1, 10**6))
    task = pick_for_reading(even)
    assert (task.start, task.end) == (0, 2)
    assert task.level > 3
    assert pick_for_reading((run(0, 3, 10**6), run(1, 1, 10**4))) is None
    assert pick_for_reading(even[:1]) is None
    # Rows that were retracted cost reads, whatever the sizes of runs are.
    assert pick_for_reading(even[:1], has_pairs=True).end == 1
    assert pick_for_reading((run(0, 3, 10**6), run(1, 1, 10**4)), has_pairs=True).end == 2
    assert pick_for_reading(()) is None


@pytest.mark.parametrize("merging", MERGING)
def test_runs_of_a_merge_under_way_are_left_alone(merging):
    options = Options(merging=merging, max_runs=4)
    runs = tuple(run(i, level, 10**6) for i, level in enumerate([2, 2, 1, 0, 0, 0, 0]))
    task = pick(runs, options, busy=3)
    assert (task.start, task.end) == (3, 7)
    assert 1 <= task.level <= runs[2].level
    assert pick(runs[:3], options, busy=3) is None


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.data())
def test_runs_beside_a_merge_under_way(sizes, data):
    busy = data.draw(st.integers(0, len(sizes)))
    runs = [run(i, 0, size) for i, size in enumerate(sizes)]
    task = pick_beside(runs, busy)
    if len(sizes) - busy < 2:
        assert task is None
        return
    assert busy <= task.start < task.end - 1 < len(sizes)

    def cost(start, end):
        found = [max(1, size) for size in sizes[start:end]]
        return sum(found) / (sum(found) - max(found))

    places = range(busy, len(sizes))
    least = min(cost(a, b + 1) for a in places for b in places if b > a)
    assert cost(task.start, task.end) == least


def test_deleted_ranges_take_no_more_than_a_small_part_of_the_memory():
    """They vanish in the bottom run only, so a run with too many is merged into it."""
    options = Options(memory_bytes=8 << 20)
    version = Version((run(0, 8, 10**9),), 1, 1)
    most = 0
    for flush in range(200):
        place = len(version.runs)
        low = flush.to_bytes(4, "big")
        ranges = KeyRanges([(low + bytes([i]), low + bytes([i, 0])) for i in range(250)])
        assert ranges.nbytes > 30_000
        version = version.replaced(place, place, (meta(f"f{flush}", 10**5),), 0, ranges)
        version, _ = settled(version, options)
        version.check()
        most = max(most, sum(each.deleted.nbytes for each in version.runs))
    assert most <= 8 << 15


WIDE = (b"\0\1\x10", b"\0\1\x90")


def deleting(number, size, tombstones=0, ranges=(), bounds=WIDE):
    file = meta(f"d{number}", size, keys=max(1, tombstones), tombstones=tombstones, bounds=bounds)
    return Run(number, 0, (file,), KeyRanges(ranges))


@pytest.mark.parametrize("merging", MERGING)
def test_what_is_deleted_is_freed_when_it_is_half_and_an_eighth_was_written(merging):
    options = Options(merging=merging)
    older = Run(0, 5, (meta("r0", 10**7, keys=10**5, bounds=WIDE),))
    for run_of, most, least in (
        (lambda part, size: deleting(1, size, int(part * 10**5)), 0.4, 0.7),
        (
            lambda part, size: deleting(
                1, size, ranges=[(b"", b"\0\1" + bytes([16 + int(part * 128)]))]
            ),
            0.4,
            0.7,
        ),
    ):
        few, many = run_of(most, 2 * 10**6), run_of(least, 2 * 10**6)
        assert pick([older, few], options) is None
        assert pick([older, many], options) == Task(0, 2, 5)
        assert pick([older, many], options, busy=1) is None
        early = [older, run_of(least, 10**6)]
        assert pick(early, options) is None
        # Whatever comes behind pays as well, and goes with them.
        assert pick([*early, run(2, 0, 10**5)], options) is None
        assert pick([*early, run(2, 0, 3 * 10**5)], options) == Task(0, 3, 5)
        small = [older, run_of(0.01, 10)]
        assert pick(small, options) is None
        assert pick_for_reading(small).end == 2  # compact frees whatever there is
        assert pick_for_reading([older]) is None
        assert pick_for_reading([small[1]]).end == 1  # of a single run, too


def test_what_is_deleted_elsewhere_or_again_counts_for_nothing():
    """As keys of another stream, or a range that the run before deletes already."""
    older = Run(0, 5, (meta("r0", 10**7, keys=1000, bounds=WIDE),))
    other = deleting(1, 10**6, 10**6, bounds=(b"\0\1\xa0", b"\0\1\xb0"))
    assert deleted_bytes([older, other]) == 0
    half = [deleting(n, 10**6, ranges=[(b"\0\1\x10", b"\0\1\x50")]) for n in range(1, 5)]
    assert deleted_bytes([older, half[0]]) == pytest.approx(5 * 10**6, rel=0.01)
    again = deleted_bytes([older, *half])
    assert 5 * 10**6 < again < 5 * 10**6 + 3.1 * 10**6  # of the runs that repeat it, too
    whole = [deleting(n, 10**6, 10**6) for n in range(1, 4)]
    assert deleted_bytes([older, *whole]) <= 10**7 + 2 * 10**6


def stored(stream, key):
    """As KeyCodec has a key of one integer."""
    return stream.to_bytes(2, "big") + (2**63 + key).to_bytes(8, "big")


@pytest.mark.parametrize("files", [1, 3, 100])
def test_what_is_deleted_of_several_streams_counts_in_each(files):
    """Whose keys are a small part of all that there could be between the first and the last."""
    keys = 30_000 // files
    places = [stored(place // 10_000, place % 10_000) for place in range(30_000)]
    older = Run(
        0,
        5,
        tuple(
            meta(
                f"r{i}",
                300_000 // files,
                keys=keys,
                bounds=(places[keys * i], places[keys * i + keys - 1]),
            )
            for i in range(files)
        ),
    )
    bounds = places[0], places[-1]
    for part in (0.3, 0.9):
        by_key = deleting(1, 10**5, int(part * 30_000), bounds=bounds)
        assert deleted_bytes([older, by_key]) == pytest.approx(part * 300_000, rel=0.01)
        end = int(part * 10_000)
        ranges = [(stored(stream, 0), stored(stream, end)) for stream in range(3)]
        by_range = deleted_bytes([older, deleting(1, 10**5, 0, ranges)])
        # One file for all three does not say where those between begin and end.
        expected = 0 if files == 1 else part * 300_000
        assert by_range == pytest.approx(expected, rel=0.05)
    whole = deleting(1, 10**5, 0, [(stored(1, 0)[:2], stored(2, 0)[:2])])
    assert deleted_bytes([older, whole]) == pytest.approx(10**5, rel=0.05)


@pytest.mark.parametrize("merging", MERGING)
@pytest.mark.parametrize("ranges", [(), ((b"\0\1\x11", b"\0\1\x90"),)], ids=["keys", "a range"])
def test_deletions_that_free_nothing_rewrite_no_more_than_is_written(merging, ranges):
    """What they delete is not there, which the manifest does not say."""
    options = Options(merging=merging)
    version = Version((Run(0, 8, (meta("r0", 10**8, keys=1000, bounds=WIDE),)),), 1, 1)
    arrived = written = 0
    for _ in range(2000):
        place = len(version.runs)
        new = deleting(version.next_run, 10**5, 1000 * (not ranges), ranges)
        version = version.replaced(place, place, new.files, 0, new.deleted)
        arrived += 10**5
        version, merged = settled(version, options, bounds=WIDE)
        written += merged
    print(f"{merging}: {written / arrived:.1f} bytes merged for each that arrived")
    assert written / arrived < 16


def test_tiny_flushes_do_not_rewrite_a_large_bottom(record_property):
    """A large state that takes small commits: what is merged is in proportion to the commits."""
    options = Options()
    version = Version((run(0, 8, 10**10),), 1, 1)
    chance = random.Random(3)
    written = arrived = 0
    for _ in range(500):
        place = len(version.runs)
        size = chance.randrange(10**4, 10**5)
        arrived += size
        version = version.replaced(place, place, (meta(f"f{version.next_run}", size),), 0)
        version, merged = settled(version, options)
        written += merged
    print(f"{written / arrived:.2f} bytes merged for each that arrived")
    assert version.runs[0].size == 10**10
    assert written / arrived < 8
