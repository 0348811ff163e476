"""Whatever a power cut leaves of the sectors of a log: what was forced is found, and no more is
needed to open the store."""

import dataclasses
import random
import shutil

import pytest

from lsmstate.cython_ext.base.file import set_fault_hook
from lsmstate.errors import CorruptionError
from lsmstate.lsm.wal import replay
from lsmstate.options import Options
from lsmstate.store import Mutation
from support.changelog_cases import SMALL, all_ids, killed, logs, opened
from support.log_crashes import SECTORS, LogTrace, states
from support.sample_streams import customers, ids, keys_of, scanned
from support.sampling import each_value

#: Sizes of the rows of each write; a list is one write of several parts.
WORK = {
    "small": [20, 30, 20, 40, 25, 20],
    "one": [20],
    "one large": [3000],
    "large": [900, 2000, 700, 6000],
    "mixed": [20, 3000, 30, 30, [20, 1200], 500, 10],
    "zeros": ["\0" * 1500, 20, "\0" * 600, 40],
}


def write(store, number, size):
    if isinstance(size, list):
        store.write(
            [
                Mutation("append", "customers", keys_of(number), customers(number, name="w" * each))
                for each in size
            ]
        )
        return
    row = size if isinstance(size, str) else "w" * size
    store.append("customers", customers(number, name=row), keys_of(number))


def traced(directory, sync, work):
    """A store that was killed after some writes: its directory, its log's bytes and moments."""
    trace = LogTrace()
    alive = directory.parent / "alive"
    with opened(alive, dataclasses.replace(SMALL, sync=sync, background=False)) as store:
        set_fault_hook(trace)
        try:
            for number, size in enumerate(work):
                write(store, number, size)
        finally:
            set_fault_hook(None)
        killed(alive, directory)
    shutil.rmtree(alive)
    (log,) = logs(directory)
    return log, log.read_bytes(), trace.moments


def record_ends(log):
    """Of each write its sequence and where its record ends."""
    starts = [(write.sequence, write.place[1]) for write in replay(str(log))]
    size = log.stat().st_size
    return [
        (number, min((place for _, place in starts if place > start), default=size))
        for number, start in starts
    ]


@each_value(times=2, work=WORK, sync=["always", "commit", "never"], sector_bytes=SECTORS)
def test_any_sectors_that_were_not_forced(memory_path, sync, work, sector_bytes):
    log, data, moments = traced(memory_path / "store", sync, WORK[work])
    ends = record_ends(log)
    seen = set()
    for left, forced, end in states(data, moments, sector_bytes, 250, random.Random(work)):
        if left in seen:
            continue
        seen.add(left)
        log.write_bytes(left)
        found = [write.sequence for write in replay(str(log), lambda path, size: None)]
        written = [number for number, until in ends if until <= end]
        kept = [number for number, until in ends if until <= forced]
        assert found == written[: len(found)], (len(left), forced, end)
        assert found[: len(kept)] == kept, (len(left), forced, end)
    assert len(seen) > 5


@each_value(sync=["always", "commit"], sector_bytes=SECTORS)
def test_a_store_goes_on_after_any_of_it(memory_path, sync, sector_bytes):
    log, data, moments = traced(memory_path / "store", sync, WORK["mixed"])
    chance = random.Random(5)
    found_states = [*states(data, moments, sector_bytes, 30, chance)]
    for left, forced, end in chance.sample(found_states, 60):
        shutil.rmtree(memory_path / "copy", ignore_errors=True)
        shutil.copytree(memory_path / "store", memory_path / "copy")
        (memory_path / "copy" / log.name).write_bytes(left)
        before = all_ids(memory_path / "copy")
        with opened(memory_path / "copy") as store:
            store.append("customers", customers(100), keys_of(100))
            store.check()
            assert sorted(ids(scanned(store, "customers"))) == [*before, 100], (forced, end)
        assert all_ids(memory_path / "copy") == [*before, 100]


def as_before(data, end, sector_bytes):
    """A log whose sector in which a forced record ends is still as it was forced."""
    behind = end - end % -sector_bytes
    return data[:end] + bytes(min(behind, len(data)) - end) + data[behind:]


@pytest.mark.parametrize("sector_bytes", SECTORS)
def test_the_record_before_is_found_wherever_in_a_sector_it_ends(memory_path, sector_bytes):
    """It was forced; of the one that was being appended there is all but the sector they share."""
    alive = memory_path / "alive"
    ends = []
    with opened(alive, Options(sync="always")) as store:
        for number, size in enumerate(range(1, 1025)):
            write(store, number, size % 512 + 1)
            (log,) = logs(alive)
            ends.append(log.stat().st_size)
        killed(alive, memory_path / "store")
    (log,) = logs(memory_path / "store")
    data = log.read_bytes()
    assert len({end % 512 for end in ends}) > 400
    for number in range(0, len(ends) - 1, 3 if sector_bytes == 512 else 17):
        log.write_bytes(as_before(data[: ends[number + 1]], ends[number], sector_bytes))
        found = list(replay(str(log), lambda path, size: None))
        # At the beginning of a sector nothing is missing.
        assert len(found) == number + 1 + (ends[number] % sector_bytes == 0)


def test_the_first_sector_of_a_log_of_which_nothing_was_forced(memory_path, caplog):
    log, data, _ = traced(memory_path / "store", "commit", [3000, 20])
    for zeros in (512, 4096):
        log.write_bytes(bytes(min(zeros, len(data))) + data[zeros:])
        assert list(replay(str(log))) == []
        assert f"{log.name}: the last {len(data)} bytes" in caplog.text
        caplog.clear()
    assert all_ids(memory_path / "store") == []
    log, data, _ = traced(memory_path / "forced", "always", [3000, 20])
    for zeros in (512, 2048):  # the second record says that the first one was on the disk
        log.write_bytes(bytes(zeros) + data[zeros:])
        with pytest.raises(CorruptionError, match=f"{log.name} at offset 0"):
            list(replay(str(log)))


def test_the_first_of_two_unforced_appends_lacks_a_sector(memory_path):
    for sync in ("commit", "never"):
        log, data, _ = traced(memory_path / sync, sync, [20, 3000, 20])
        _, first, _ = (until for _, until in record_ends(log))
        for sector in range(first - first % 512, len(data) - 1024, 512):
            log.write_bytes(data[:sector] + bytes(512) + data[sector + 512 :])
            found = [write.sequence for write in replay(str(log), lambda path, size: None)]
            assert found == ([1] if sector >= first else [])


@pytest.mark.parametrize("work", WORK)
def test_a_damaged_record_that_was_forced_is_an_error_where_a_later_one_confirms_it(
    memory_path, work
):
    """Zeros in any sector of either size, of all records but the last that was forced."""
    log, data, _ = traced(memory_path / "store", "always", [*WORK[work], 20])
    ends = [8, *dict.fromkeys(until for _, until in record_ends(log))]
    last = ends[-2]  # where the last record begins, which says that all before it was forced
    for sector_bytes in SECTORS:
        for start in range(0, last, sector_bytes):
            end = min(start + sector_bytes, last)
            if not data[start:end].strip(b"\0"):
                continue
            log.write_bytes(data[:start] + bytes(end - start) + data[end:])
            with pytest.raises(CorruptionError, match=log.name):
                list(replay(str(log)))
    chance = random.Random(work)
    for place in chance.sample(range(last), min(last, 300)):
        wrong = bytearray(data)
        wrong[place] ^= 1 << chance.randrange(8)
        log.write_bytes(wrong)
        with pytest.raises(CorruptionError, match=log.name):
            list(replay(str(log)))


def test_a_row_that_holds_a_log_is_no_proof_of_anything(memory_path):
    """What is looked for behind a torn record may be in its rows."""
    log, data, _ = traced(memory_path / "first", "always", [20, 30, 40])
    text = data.hex()
    rows = [data.decode("latin-1"), text, 20]
    log, data, moments = traced(memory_path / "store", "commit", rows)
    ends = record_ends(log)
    for left, _, end in states(data, moments, 512, 300, random.Random(3)):
        log.write_bytes(left)
        found = [write.sequence for write in replay(str(log), lambda path, size: None)]
        assert found == [number for number, until in ends if until <= end][: len(found)]
