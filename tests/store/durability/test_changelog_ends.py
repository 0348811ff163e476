"""The end of a changelog: what a crash may have left there, and what is damage."""

import dataclasses
import json
import logging
import shutil

import pytest
from typer.testing import CliRunner

from lsmstate.cli.main import app
from lsmstate.errors import CorruptionError
from lsmstate.lsm.wal import replay
from lsmstate.lsm.wal_records import FRAME, SECTOR_BYTES
from lsmstate.tools.repair import repair
from support.changelog_cases import SMALL, UNSYNCED, all_ids, killed, logs, opened
from support.sample_streams import customers, ids, keys_of, returns, scanned

ALWAYS = dataclasses.replace(SMALL, sync="always")


def grown(directory, *sizes, options=UNSYNCED):
    """A store that was killed after one append of a row of about each size; its log, the bytes of
    that, and where each record begins and the last one ends."""
    starts = []
    alive = directory.parent / "alive"
    with opened(alive, options) as store:
        for number, size in enumerate(sizes):
            store.append("customers", customers(number, name="w" * size), keys_of(number))
            (log,) = logs(alive)
            starts.append(log.stat().st_size)
        killed(alive, directory)
    shutil.rmtree(alive)
    (log,) = logs(directory)
    return log, log.read_bytes(), [8, *starts]


def copies(directory, log, contents):
    """The store with each of these contents of its log."""
    for number, data in enumerate(contents):
        copy = directory.parent / f"copy-{number}"
        shutil.copytree(directory, copy)
        (copy / log.name).write_bytes(data)
        yield copy
        shutil.rmtree(copy)


def test_a_flipped_bit_of_the_last_record_is_an_error(memory_path):
    """Nobody may take it for the end of a write that was never acknowledged."""
    log, data, (*_, start, end) = grown(memory_path / "store", 20, 700)
    flipped = [
        data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        for place in range(start, end)
    ]
    for copy in copies(memory_path / "store", log, flipped):
        with pytest.raises(CorruptionError, match=f"{log.name} at offset {start}: .*repair"):
            opened(copy)
    assert (memory_path / "store" / log.name).read_bytes() == data


def test_repair_saves_what_is_before_a_damaged_last_record(tmp_path):
    log, data, (*_, start, end) = grown(tmp_path / "store", 20, 30, 700)
    log.write_bytes(data[: start + 50] + b"\xaa" + data[start + 51 :])
    report = repair(str(tmp_path / "store"), str(tmp_path / "new"))
    assert report.logged_writes == 2
    (loss,) = report.losses
    assert (loss.file, loss.what) == (
        log.name,
        f"{end - start} bytes at offset {start} are damaged",
    )
    assert all_ids(tmp_path / "new") == [0, 1]


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100, 511, 4096, 100_000])
def test_zeros_behind_the_last_record_are_no_write(tmp_path, size, caplog):
    log, data, _ = grown(tmp_path / "store", 20, 30)
    for copy in copies(tmp_path / "store", log, [data + bytes(size)]):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "lsmstate"), opened(copy) as store:
            assert sorted(ids(scanned(store, "customers"))) == [0, 1]
        assert f"{log.name}: the last {size} bytes" in caplog.text
        assert all_ids(copy) == [0, 1]


def test_zeros_from_any_sector_of_the_last_records_on(memory_path, caplog):
    """As a power cut leaves unforced bytes behind a length that was: all before is there."""
    log, data, starts = grown(memory_path / "store", 20, 700, 2000, 300, 900)
    places = range(SECTOR_BYTES, len(data), SECTOR_BYTES)
    zeroed = [data[:place] + bytes(len(data) - place) for place in places]
    # Also where the file grew by less, so that the last sector is a part.
    zeroed += [each[: place + 1 + place % 400] for each, place in zip(zeroed, places, strict=True)]
    for copy, place in zip(
        copies(memory_path / "store", log, zeroed), [*places, *places], strict=True
    ):
        expected = [number for number, end in enumerate(starts[1:]) if end <= place]
        with opened(copy) as store:
            assert sorted(ids(scanned(store, "customers"))) == expected, place
        report = repair(str(copy), str(memory_path / "repaired"))
        assert report.losses == ()
        shutil.rmtree(memory_path / "repaired")
    assert "are ignored" in caplog.text


def test_zeros_from_within_the_frame_of_a_record_on(memory_path):
    """A frame may lie in two sectors, of which one reached the disk."""
    for size in range(300, 800):
        shutil.rmtree(memory_path / "store", ignore_errors=True)
        log, data, starts = grown(memory_path / "store", size, 700)
        place = starts[1] - starts[1] % -SECTOR_BYTES
        if starts[1] < place < starts[1] + FRAME.size:
            break
    else:
        pytest.fail("no frame lies in two sectors")
    for copy in copies(memory_path / "store", log, [data[:place] + bytes(len(data) - place)]):
        assert all_ids(copy) == [0]


def test_a_sector_that_is_missing_from_the_last_record(memory_path):
    log, data, (_, start, end) = grown(memory_path / "store", 20, 3000)
    places = range(SECTOR_BYTES, end, SECTOR_BYTES)
    holed = [
        (data[:place] + bytes(SECTOR_BYTES) + data[place + SECTOR_BYTES :])[:end]
        for place in places
        if place > start
    ]
    assert len(holed) > 4
    for copy in copies(memory_path / "store", log, holed):
        assert all_ids(copy) == [0]


def without_a_sector(data, start):
    """The bytes of a log without the second sector of the record that begins there."""
    place = start - start % -SECTOR_BYTES + SECTOR_BYTES
    return data[:place] + bytes(SECTOR_BYTES) + data[place + SECTOR_BYTES :]


def test_a_sector_that_is_missing_before_a_record_that_was_forced_later_is_damage(memory_path):
    """That one says that the log was on the disk up to where it begins."""
    log, data, (_, start, *_) = grown(memory_path / "store", 20, 3000, 30, options=ALWAYS)
    holed = without_a_sector(data, start)
    # Of the later record the frame says it, whatever became of the rest.
    for copy in copies(memory_path / "store", log, [holed, holed[:-1], holed[:-20] + bytes(20)]):
        with pytest.raises(CorruptionError, match=f"{log.name} at offset {start}"):
            opened(copy)
        repair(str(copy), str(memory_path / "new"))
        assert 0 in all_ids(memory_path / "new")
        assert 1 not in all_ids(memory_path / "new")
        shutil.rmtree(memory_path / "new")


def test_a_sector_that_is_missing_before_a_record_that_nothing_forced(memory_path, caplog):
    """The disk may have taken the later one first."""
    log, data, (_, start, *_) = grown(memory_path / "store", 20, 3000, 30)
    for copy in copies(memory_path / "store", log, [without_a_sector(data, start)]):
        assert repair(str(copy), str(memory_path / "new")).losses == ()
        assert all_ids(memory_path / "new") == [0]
        assert all_ids(copy) == [0]
        assert f"{log.name}: the last {len(data) - start} bytes" in caplog.text


def test_zeros_that_are_a_records_own_hide_no_damage(memory_path):
    """The last bytes of a row may be zeros, and lie alone in the file's last sector."""
    seen = 0
    for size in range(200, 712):
        for left in ("store", "alive"):
            shutil.rmtree(memory_path / left, ignore_errors=True)
        with opened(memory_path / "alive", UNSYNCED) as store:
            store.append("customers", customers(0, name="w" * size), keys_of(0))
            store.append("returns", returns(1), keys_of(1))
            killed(memory_path / "alive", memory_path / "store")
        (log,) = logs(memory_path / "store")
        data = log.read_bytes()
        alone = len(data) % SECTOR_BYTES
        if 0 < alone <= 9:
            seen += 1
            assert data.endswith(bytes(8) + b"\xff")
            log.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
            with pytest.raises(CorruptionError, match=log.name):
                opened(memory_path / "store")
    assert seen


def test_a_log_without_its_first_bytes(tmp_path):
    log, data, _ = grown(tmp_path / "store", 20)
    begun = [b"", data[:5], bytes(8), bytes(4096)]
    for copy in copies(tmp_path / "store", log, begun):
        assert all_ids(copy) == []
    others = [b"x" + data[1:], b"garbage", data[:7] + b"\x04"]
    for copy in copies(tmp_path / "store", log, others):
        with pytest.raises(CorruptionError, match=f"{log.name} at offset 0: not a .*repair"):
            opened(copy)


def test_verify_shows_a_torn_end(tmp_path):
    log, data, _ = grown(tmp_path / "store", 20, 30)
    log.write_bytes(data + bytes(77))
    shown = CliRunner().invoke(app, ["verify", str(tmp_path / "store"), "--json"])
    assert shown.exit_code == 0
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert found[-1]["file"] == log.name
    assert found[-1]["found"] == {"writes": 2, "torn_bytes": 77}


def test_logs_of_the_first_format_are_read(tmp_path):
    """Their records have no byte of their own at the end."""
    log, data, (_, first, _) = grown(tmp_path / "store", 20, 30)
    old = tmp_path / log.name
    old.write_bytes(as_older_format(data, 1))
    assert [write.sequence for write in replay(str(old))] == [1, 2]
    torn = []
    old.write_bytes(as_older_format(data, 1)[:-3])
    assert len(list(replay(str(old), lambda path, size: torn.append(size)))) == 1
    assert torn == [len(data) - first - 1 - 3 - (FRAME.size - 16)]


def test_logs_of_the_second_format_are_read_and_judged_as_before(memory_path):
    """Nothing says up to where they were forced: a whole record behind a damaged one does."""
    log, data, _ = grown(memory_path / "store", 20, 3000, 30)
    old = as_older_format(data, 2)
    start = 8 + 16 + int.from_bytes(old[8:12], "little")
    sector = start - start % -SECTOR_BYTES
    kept = old[:-1], old + bytes(700), old[:-60] + bytes(60), old[:sector] + bytes(len(old))
    for copy, count in zip(
        copies(memory_path / "store", log, [old, *kept]), (3, 2, 3, 2, 1), strict=True
    ):
        assert all_ids(copy) == list(range(count))
    first_sector = bytes(SECTOR_BYTES) + old[SECTOR_BYTES:]
    flipped = [old[:place] + bytes([old[place] ^ 1]) + old[place + 1 :] for place in (12, 40, -9)]
    for copy in copies(
        memory_path / "store", log, [without_a_sector(old, start), first_sector, *flipped]
    ):
        with pytest.raises(CorruptionError, match=log.name):
            opened(copy)


def as_older_format(data, version):
    """The records of a log as earlier releases wrote them."""
    from lsmstate.cython_ext.base.compression import checksum

    old, offset = b"LSMCLOG" + bytes([version]), 8
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + 4], "little")
        payload = data[offset + FRAME.size : offset + FRAME.size + length - (version == 1)]
        size = len(payload).to_bytes(4, "little")
        old += size + checksum(size).to_bytes(8, "little")[:4]
        old += checksum(payload).to_bytes(8, "little") + payload
        offset += FRAME.size + length
    return old
