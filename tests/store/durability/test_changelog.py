"""The standalone store: whatever it acknowledged is there again, exactly once, however it ended."""

import os
import random
import shutil
import signal
import struct

import pytest

from lsmstate.errors import CorruptionError, LsmStateError, StoreClosedError
from lsmstate.lsm.wal import replay
from lsmstate.options import MIB, Options
from lsmstate.process.background_worker import worker
from lsmstate.store import Mutation
from support.changelog_cases import SMALL, UNSYNCED, all_ids, killed, logs, manifests, opened
from support.child_process import in_child
from support.faults import Faults, faults
from support.sample_streams import RETURNS, customers, fetched, ids, keys_of, scanned
from support.sampling import some_or_every


def wide(*numbers):
    """Rows of about 1000 bytes each, under 250 keys."""
    return customers(*numbers, name="w" * 1000), keys_of(*[n % 250 for n in numbers])


def test_everything_acknowledged_is_replayed(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
        store.delete("customers", keys_of(1))
        store.append("customers", customers(4), keys_of(1))
        store.append("returns", returns(5), keys_of(2))
    with opened(tmp_path) as store:
        assert ids(fetched(store.probe("customers", keys_of(1)), [0])[0]) == [4]
        assert sorted(ids(scanned(store, "customers"))) == [2, 4]
        assert ids(scanned(store, "returns")) == [5]
        store.append("customers", customers(6), keys_of(1))
    with opened(tmp_path) as store:
        assert sorted(ids(scanned(store, "customers"))) == [2, 4, 6]
        before = store.commit()
        assert logs(tmp_path) == []
        assert store.commit() == before  # nothing new: nothing is written
    assert all_ids(tmp_path) == [2, 4, 6]


def returns(*numbers):
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(
        [{"id": n, "price": None, "day": None} for n in numbers], schema=RETURNS.rows
    )


def test_a_commit_after_a_replay_holds_what_was_replayed(tmp_path):
    with opened(tmp_path) as store:
        store.commit()
        store.append("customers", customers(1), keys_of(1))
    with opened(tmp_path) as store:
        store.commit()
    for log in logs(tmp_path):
        log.unlink()
    assert all_ids(tmp_path) == [1]


@pytest.mark.parametrize(
    "last",
    [
        [Mutation("append", "customers", keys_of(2), customers(2))],
        [
            Mutation("append", "customers", keys_of(2), customers(2)),
            Mutation("delete", "customers", keys_of(1)),
        ],
    ],
    ids=["one", "group"],
)
def test_a_tail_torn_at_any_byte_costs_the_last_record_only(memory_path, last):
    with opened(memory_path / "alive") as store:
        store.append("customers", customers(1), keys_of(1))
        (log,) = logs(memory_path / "alive")
        before = log.stat().st_size
        store.write(last)
        killed(memory_path / "alive", memory_path / "store")
    (log,) = logs(memory_path / "store")
    data = log.read_bytes()
    assert len(data) > before + 50
    for size in range(before, len(data)):
        shutil.rmtree(memory_path / "copy", ignore_errors=True)
        shutil.copytree(memory_path / "store", memory_path / "copy")
        (memory_path / "copy" / log.name).write_bytes(data[:size])
        with opened(memory_path / "copy") as store:
            assert ids(scanned(store, "customers")) == [1]
            store.append("customers", customers(3), keys_of(3))
        assert all_ids(memory_path / "copy") == [1, 3]


def test_damage_before_the_last_record_is_an_error(tmp_path):
    """Also in a length: it would otherwise look like a torn end, and the rest be forgotten."""
    with opened(tmp_path / "alive") as store:
        for number in range(4):
            store.append("customers", customers(number), keys_of(number))
            if number == 2:
                (log,) = logs(tmp_path / "alive")
                end = log.stat().st_size
        killed(tmp_path / "alive", tmp_path / "store")
    (log,) = logs(tmp_path / "store")
    data = log.read_bytes()
    chance = random.Random(1)
    places = {*range(30), *chance.sample(range(30, end), 60)}
    for place in sorted(places):
        for bit in {0, 7, chance.randrange(8)}:
            wrong = bytearray(data)
            wrong[place] ^= 1 << bit
            log.write_bytes(wrong)
            with pytest.raises((CorruptionError, LsmStateError), match=log.name):
                opened(tmp_path / "store")
    log.write_bytes(data)
    assert all_ids(tmp_path / "store") == [0, 1, 2, 3]


def test_a_missing_or_shortened_older_log_is_an_error(tmp_path):
    for number in range(3):
        with opened(tmp_path, UNSYNCED) as store:
            store.append("customers", customers(2 * number), keys_of(1))
            store.append("customers", customers(2 * number + 1), keys_of(1))
    first, second, _ = logs(tmp_path)
    for log in (first, second):
        data = log.read_bytes()
        log.unlink()
        with pytest.raises(CorruptionError):
            opened(tmp_path)
        log.write_bytes(data[:-1])
        with pytest.raises(CorruptionError):
            opened(tmp_path)
        log.write_bytes(data)
    assert all_ids(tmp_path) == list(range(6))


def test_a_store_killed_in_the_middle_of_an_append_that_flushed_twice(tmp_path):
    """What one append flushed on the way is in the runs, the rest in the log; no row is in both."""

    def work():
        store = opened(tmp_path)
        store.append("customers", *wide(*range(100)))
        store.delete("customers", keys_of(*range(50)))
        store.append("customers", *wide(*range(100, 800)))  # several memtables
        store.append("customers", *wide(*range(800, 810)))
        assert store.stats().counters["flushes"] + len(manifests(tmp_path)) >= 1

    in_child(work)
    expected = [*range(50, 100), *range(100, 810)]
    assert all_ids(tmp_path) == expected
    assert all_ids(tmp_path, options=Options(memory_bytes=64 * MIB)) == expected


@some_or_every
def test_killed_at_a_file_operation_of_one_large_append(memory_path, every):
    """The append is a write or it is none, wherever in it the process ends; earlier ones stay."""
    was_killed, kill_at = True, 0
    while was_killed:
        was_killed = killed_in_a_large_append(memory_path / f"{kill_at}", kill_at)
        kill_at += 1 if every else 3
    assert kill_at > 20


def killed_in_a_large_append(directory, kill_at):
    """Whether there were as many file operations before the end."""

    def work():
        store = opened(directory)
        store.append("customers", *wide(*range(20)))

        def kill(operation, path, offset, size):
            kill.seen += 1
            if kill.seen > kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        kill.seen = 0
        with faults(kill):
            store.append("customers", *wide(*range(20, 270)))
            store.delete("customers", keys_of(*range(0, 250, 2)))
            store.append("customers", *wide(*range(270, 500)))
            store.commit()

    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    was_killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    odd = [n for n in range(270) if n % 250 % 2]
    states = [
        list(range(20)),
        list(range(270)),
        odd,
        [*odd, *range(270, 500)],
    ]
    found = all_ids(directory)
    assert found in states
    assert all_ids(directory) == found
    with opened(directory) as store:
        store.append("customers", customers(1000), keys_of(1000))
        store.commit()
        store.check()
    assert all_ids(directory) == [*found, 1000]
    shutil.rmtree(directory)
    return was_killed


@some_or_every
def test_replaying_more_than_a_memtable_keeps_the_logs_it_still_needs(tmp_path, every):
    large = Options(memory_bytes=64 * MIB, sync="never")
    for start in range(0, 900, 300):
        with opened(tmp_path, large) as store:
            store.append("customers", *wide(*range(start, start + 300)))
    assert len(logs(tmp_path)) == 3
    # It is killed while it replays, after the first flushes of the replay.
    for limit in range(1, 40, 1 if every else 4):

        def work(limit=limit):
            def kill(operation, path, offset, size):
                kill.creates += operation == "create"
                if kill.creates > limit:
                    os._exit(0)

            kill.creates = 0
            with faults(kill):
                opened(tmp_path, UNSYNCED)

        in_child(work)
    assert all_ids(tmp_path) == list(range(900))


@pytest.mark.parametrize("tear", [None, 0.3, 1.0])
def test_after_an_error_while_logging_the_store_refuses(tmp_path, tear):
    """Whether the write is in the log nobody can tell: a second try could double it."""
    store = opened(tmp_path)
    store.append("customers", customers(1), keys_of(1))
    with faults(Faults(0, tear=tear)), pytest.raises(OSError, match=r"injected|Injected"):
        store.append("customers", customers(2), keys_of(1))
    for call in (
        lambda: store.append("customers", customers(2), keys_of(1)),
        lambda: store.delete("customers", keys_of(1)),
        lambda: store.probe("customers", keys_of(1)),
        store.commit,
        store.stats,
    ):
        with pytest.raises(StoreClosedError, match="open it again"):
            call()
    store.close()
    found = all_ids(tmp_path)
    assert found == ([1, 2] if tear == 1.0 else [1])
    with opened(tmp_path) as store:
        store.append("customers", customers(3), keys_of(1))
    assert all_ids(tmp_path) == [*found, 3]


def test_files_of_older_commits_and_logs_are_deleted(tmp_path):
    with opened(tmp_path) as store:
        for number in range(30):
            store.append("customers", *wide(*range(50 * number, 50 * number + 50)))
            store.commit()
        runs = store.stats().counters["files"]
        store.commit()
    assert len(list(tmp_path.glob("run-*"))) <= runs + 2
    assert len(manifests(tmp_path)) == 1
    assert logs(tmp_path) == []
    assert all_ids(tmp_path) == list(range(1500))


def test_records_of_an_unknown_kind_are_refused(tmp_path):
    from lsmstate.cython_ext.base.compression import checksum

    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        (log,) = logs(tmp_path)
        writes = list(replay(str(log)))
        assert [(w.kind, w.stream) for w in writes] == [(1, 0)]
    data = log.read_bytes()
    start = data.index(struct.pack("<BHQ", 1, 0, writes[0].sequence), 8)
    payload = bytes([9]) + data[start + 1 :]
    # The same record with another kind and a right checksum, in whatever frame it has.
    framed = data[:start].replace(
        checksum(data[start:]).to_bytes(8, "little"), checksum(payload).to_bytes(8, "little")
    )
    assert framed != data[:start]
    log.write_bytes(framed + payload)
    with pytest.raises(LsmStateError, match=log.name):
        opened(tmp_path)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(2, 6))]
)
def test_random_work_equals_the_model_whenever_it_is_killed(tmp_path, seed):
    """A copy of the directory between two calls is what a killed process leaves behind."""
    chance = random.Random(seed)
    model = {}
    number = 0
    directory = tmp_path / "0"
    store = opened(directory)
    for step in range(60):
        what = chance.choices(
            ["append", "large", "delete", "flush", "commit", "kill"], [6, 3, 3, 1, 2, 3]
        )[0]
        if what in ("append", "large"):
            count = chance.randrange(1, 20) if what == "append" else chance.randrange(250, 700)
            rows, keys = wide(*range(number, number + count))
            store.append("customers", rows, keys)
            for each in range(number, number + count):
                model.setdefault(each % 250, []).append(each)
            number += count
        elif what == "delete":
            some = chance.sample(range(250), chance.choice([1, 5, 200]))
            store.delete("customers", keys_of(*some))
            for key in some:
                model.pop(key, None)
        elif what == "flush":
            store.flush()
        elif what == "commit":
            store.commit()
        else:
            killed = directory
            directory = tmp_path / str(step + 1)
            with worker().standing:
                shutil.copytree(killed, directory)
            store.close()
            shutil.rmtree(killed)
            store = opened(directory, chance.choice([SMALL, Options(memory_bytes=16 * MIB)]))
        if chance.random() < 0.2:
            probe = store.probe("customers", keys_of(*range(250)))
            found = fetched(probe, range(250), 50_000)
            assert {key: ids(rows) for key, rows in found.items()} == {
                key: rows for key, rows in model.items() if rows
            }
    assert sorted(ids(scanned(store, "customers"))) == sorted(
        each for rows in model.values() for each in rows
    )
    store.check()
    store.close()


def test_damaged_records_are_refused_and_never_read_beyond():
    """Without the checksum's help: what a record says of itself is checked."""
    from lsmstate.cython_ext.wal.wal_record import unpack_write, write_pieces
    from support.faults import key_batch, row_batch

    chance = random.Random(4)
    keys, rows = key_batch(b"a", None, b"ccc", b"a"), row_batch(b"1", b"", b"x" * 40, b"4")
    for with_rows in (True, False):
        record = b"".join(write_pieces(keys, rows if with_rows else None))
        found_keys, found_rows = unpack_write(record, with_rows)
        assert found_keys.to_pylist() == [b"a", None, b"ccc", b"a"]
        assert found_keys.order.tolist() == keys.order.tolist()
        assert found_keys.hashes.tolist() == keys.hashes.tolist()
        assert with_rows == (found_rows is not None)
        if with_rows:
            assert found_rows.to_pylist() == rows.to_pylist()
        for size in range(len(record)):
            with pytest.raises(CorruptionError):
                unpack_write(record[:size], with_rows)
        with pytest.raises(CorruptionError):
            unpack_write(record + b"\0", with_rows)
        with pytest.raises(CorruptionError):
            unpack_write(record, not with_rows)
        refused = 0
        for place in range(len(record)):
            for value in (0, 1, 0x7F, 0xFF, chance.randrange(256)):
                wrong = record[:place] + bytes([value]) + record[place + 1 :]
                try:
                    some_keys, some_rows = unpack_write(wrong, with_rows)
                except CorruptionError:
                    refused += 1
                else:
                    some_keys.to_pylist()
                    assert len(some_keys) == 4
                    assert some_rows is None or len(some_rows.to_pylist()) == 4
        assert refused > 200
