"""Attempts whose files lie elsewhere: nothing acknowledged is lost, whatever fails on the way."""

import os
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lsmstate.errors import CorruptionError, InvalidArgumentError, StoreClosedError
from lsmstate.lsm.file_names import parse_attempt_file
from lsmstate.opening import open_attempt, open_commit
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.remote import retries
from support.durable_cases import (
    OPTIONS,
    append,
    attempt,
    bucket_at,
    expected,
    held,
    rows_of,
    run_batch,
)
from support.flaky_filesystem import flaky


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(retries, "PAUSES", (0.0, 0.0, 0.0))


def durable_files(root: Path) -> list[str]:
    return sorted(os.listdir(root / "q" / "bucket-000000"))


def copies(bucket) -> list[Path]:
    return sorted(Path(bucket.directory).iterdir())


def test_the_durable_files_alone_are_enough(tmp_path):
    filesystem, _ = flaky(tmp_path / "far")
    pointer = None
    for batch in range(12):
        bucket = bucket_at(filesystem, tmp_path / f"cache{batch % 3}")
        pointer = run_batch(bucket, batch, pointer)
        if batch % 4 == 3:
            shutil.rmtree(bucket.directory)
    assert held(bucket_at(filesystem, tmp_path / "another machine"), pointer) == expected(range(12))


def test_a_commit_sends_one_file_in_three_requests_and_opening_it_makes_none(tmp_path):
    filesystem, handler = flaky(tmp_path / "far")
    bucket = bucket_at(filesystem, tmp_path / "cache")
    pointer = run_batch(bucket, 0, None)
    handler.calls.clear()
    pointer = run_batch(bucket, 1, pointer)
    # "open", "write" and "close" are one request where a file system takes small files whole.
    assert [operation for operation, _ in handler.calls] == ["open", "write", "close", "info"]
    handler.calls.clear()
    assert held(bucket, pointer) == expected(range(2))
    assert handler.calls == []


def test_flushed_and_merged_runs_are_sent_with_the_commit_and_before_it(tmp_path):
    filesystem, handler = flaky(tmp_path / "far")
    bucket = bucket_at(filesystem, tmp_path / "cache")
    pointer = None
    for batch in range(6):
        handler.calls.clear()
        pointer = run_batch(bucket, batch, pointer, count=20_000)
    sent = [path for operation, path in handler.calls if operation == "open"]
    kinds = [parse_attempt_file(os.path.basename(path)).kind for path in sent]
    assert kinds.count("commit") == 1
    assert kinds[-1] == "commit"
    assert len(kinds) > 1, "the test flushes nothing on the way"
    other = bucket_at(filesystem, tmp_path / "other")
    assert held(other, pointer) == expected(range(6), 20_000)


@pytest.mark.parametrize(("share", "seed"), [(0.05, 1), (0.2, 2), (0.5, 3)])
def test_requests_that_fail_now_and_then_are_made_again(tmp_path, share, seed):
    filesystem, handler = flaky(tmp_path / "far", share=share, seed=seed)
    pointer, done = None, []
    for batch in range(20):
        bucket = bucket_at(filesystem, tmp_path / f"cache{batch // 4}")
        with suppress(OSError):  # all tries failed: the previous commit counts
            pointer = run_batch(bucket, batch, pointer)
            done.append(batch)
    handler.share = 0
    assert held(bucket_at(filesystem, tmp_path / "other"), pointer) == expected(done)
    assert len(done) == 20 or share > 0.1
    assert len(done) > 0


def test_a_slow_place_is_asked_no_more_often_and_nothing_gives_up(tmp_path, caplog):
    """Every other micro-batch is on a machine without copies, which fetches the files in use."""
    asked = {}
    for name, wait_seconds in (("quick", 0), ("slow", 0.02)):
        filesystem, handler = flaky(tmp_path / name, wait_seconds=wait_seconds)
        began, pointer = time.monotonic(), None
        for batch in range(6):
            bucket = bucket_at(filesystem, tmp_path / f"{name} {batch // 2}")
            pointer = run_batch(bucket, batch, pointer, 3000)
        other = bucket_at(filesystem, tmp_path / f"{name} other")
        assert held(other, pointer) == expected(range(6), 3000)
        asked[name] = Counter(operation for operation, _ in handler.calls)
        assert time.monotonic() - began >= wait_seconds * len(handler.calls)
    assert asked["slow"] == asked["quick"]
    assert sum(asked["slow"].values()) <= 60
    assert "tried again" not in caplog.text


def test_a_commit_that_fails_at_any_request_leaves_the_previous_one(tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "PAUSES", ())
    filesystem, handler = flaky(tmp_path / "far")
    bucket = bucket_at(filesystem, tmp_path / "cache")
    before = run_batch(bucket, 0, None)
    handler.calls.clear()
    run_batch(bucket, 1, before, count=10_000)
    for place in range(len(handler.calls)):
        handler.calls.clear()
        handler.fail_at = place
        with pytest.raises(
            OSError, match=r"the previous commit is still valid: .* flaky:q/bucket-000000/"
        ):
            run_batch(bucket, 1, before, count=10_000)
        handler.fail_at = -1
        assert held(bucket, before) == expected([0])
    assert place >= 3
    after = run_batch(bucket, 1, before, count=10_000)
    assert held(bucket_at(filesystem, tmp_path / "other"), after) == sorted(
        rows_of(0) + rows_of(1, 10_000)
    )
    # What failed attempts wrote here is gone, but for what the last one sealed.
    assert all(not os.stat(path).st_mode & 0o200 for path in copies(bucket))


def test_an_upload_that_is_cut_short_in_silence_is_no_commit(tmp_path):
    filesystem, handler = flaky(tmp_path / "far", torn=7)
    bucket = bucket_at(filesystem, tmp_path / "cache")
    with pytest.raises(OSError, match=r"failed 4 times: .* bytes arrived"):
        run_batch(bucket, 0, None)
    handler.torn = 0
    assert held(bucket, run_batch(bucket, 0, None)) == expected([0])


def test_a_pointer_that_was_never_handed_over_is_collected(tmp_path):
    filesystem, _ = flaky(tmp_path / "far")
    bucket = bucket_at(filesystem, tmp_path / "cache")
    options = Options(memory_bytes=5 << 20, retained_batches=4)
    pointer = run_batch(bucket, 0, None, options=options)
    lost = run_batch(bucket, 1, pointer, options=options)  # its worker died right after
    for batch in range(1, 30):
        pointer = run_batch(bucket, batch, pointer, options=options)
    assert lost.partition(":")[0] not in durable_files(tmp_path / "far")
    assert held(bucket_at(filesystem, tmp_path / "other"), pointer) == expected(range(30))
    kept = [parse_attempt_file(name) for name in durable_files(tmp_path / "far")]
    assert len([file for file in kept if file.kind == "commit"]) < 15
    assert {path.name for path in copies(bucket)} <= set(durable_files(tmp_path / "far"))


def test_collecting_without_copies_reads_the_end_of_each_commit_once(tmp_path):
    filesystem, handler = flaky(tmp_path / "far")
    options = Options(memory_bytes=5 << 20, retained_batches=8)
    pointer = None
    for batch in range(11):
        pointer = run_batch(
            bucket_at(filesystem, tmp_path / "cache"), batch, pointer, 3000, options
        )
    bucket = bucket_at(filesystem, tmp_path / "other")
    listed, fetched = [], []
    for batch in range(11, 15):
        handler.calls.clear()
        pointer = run_batch(bucket, batch, pointer, 3000, options)
        listed.append(sum(operation == "list" for operation, _ in handler.calls))
        fetched.append(sum(operation == "read" for operation, _ in handler.calls))
    # A file that is opened and a commit whose end is looked at are one request each.
    assert listed.count(1) == 2
    assert listed.count(0) == 2
    assert max(fetched) <= 16
    assert fetched[-1] <= 2
    assert held(bucket_at(filesystem, tmp_path / "third"), pointer) == expected(range(15), 3000)


# Damage -----------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    """In place, as a disk does it."""
    if how == "missing":
        path.unlink()
        return
    size = path.stat().st_size
    path.chmod(0o644)
    with open(path, "r+b") as file:
        if how == "cut":
            file.truncate(size // 2)
        else:
            place = size - 20 if how == "end" else size // 3
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
    path.chmod(0o444)


def forget_blocks() -> None:
    process_memory().cache.clear()


@pytest.mark.parametrize("how", ["byte", "end", "cut", "missing"])
def test_a_damaged_copy_is_fetched_again_once(tmp_path, how):
    filesystem, handler = flaky(tmp_path / "far")
    pointer = run_batch(bucket_at(filesystem, tmp_path / "cache"), 0, None, count=3000)
    bucket = bucket_at(filesystem, tmp_path / "other")
    bucket.bring(pointer.split(":")[0], int(pointer.split(":")[1]))
    (copy,) = copies(bucket)
    damage(copy, how)
    forget_blocks()
    handler.calls.clear()
    assert held(bucket, pointer) == expected([0], 3000)
    assert [operation for operation, _ in handler.calls] == ["read"]


@pytest.mark.parametrize("how", ["byte", "cut"])
def test_so_is_one_that_is_damaged_while_it_is_open(tmp_path, how):
    filesystem, handler = flaky(tmp_path / "far")
    bucket = bucket_at(filesystem, tmp_path / "cache")
    pointer = run_batch(bucket, 0, None, count=3000)
    with attempt(bucket, 1, pointer) as store:
        (copy,) = copies(bucket)
        damage(copy, how)
        forget_blocks()
        handler.calls.clear()
        rows = [row for piece in store.scan("s") for row in piece.to_pylist()]
        assert sorted((row["k"], row["v"]) for row in rows) == expected([0], 3000)
        assert [operation for operation, _ in handler.calls] == ["read"]


def test_damage_at_the_durable_place_names_its_file(tmp_path):
    filesystem, _ = flaky(tmp_path / "far")
    pointer = run_batch(bucket_at(filesystem, tmp_path / "cache"), 0, None, count=3000)
    (name,) = durable_files(tmp_path / "far")
    for how in ("missing", "cut", "end", "byte"):
        path = tmp_path / "far" / "q" / "bucket-000000" / name
        whole = path.read_bytes()
        damage(path, how)
        forget_blocks()
        with pytest.raises(CorruptionError, match=f"^flaky:q/bucket-000000/{name} at offset"):
            held(bucket_at(filesystem, tmp_path / how), pointer)
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
        assert held(bucket_at(filesystem, tmp_path / f"{how} 2"), pointer) == expected([0], 3000)


def test_damage_of_an_open_copy_and_of_its_original_says_what_was_found_first(tmp_path):
    filesystem, _ = flaky(tmp_path / "far")
    bucket = bucket_at(filesystem, tmp_path / "cache")
    pointer = run_batch(bucket, 0, None, count=3000)
    (name,) = durable_files(tmp_path / "far")
    with attempt(bucket, 1, pointer) as store:
        (copy,) = copies(bucket)
        for path in (copy, tmp_path / "far" / "q" / "bucket-000000" / name):
            damage(path, "byte")
        forget_blocks()
        keys = pa.RecordBatch.from_arrays([pa.array(range(3000))], names=["k"])
        with pytest.raises(CorruptionError, match="not only in its copy") as caught:
            store.get_many("s", keys)
        assert isinstance(caught.value.__cause__, CorruptionError)


@pytest.mark.parametrize("how", ["end", "cut"])
def test_what_damaged_copies_of_commits_say_is_not_collected_by(tmp_path, how):
    """Of each micro-batch two attempts commit; Spark may come back with the pointer of either."""
    filesystem, _ = flaky(tmp_path / "far")
    options = replace(OPTIONS, retained_batches=4)
    pointer, committed = None, []
    for batch in range(12):
        bucket = bucket_at(filesystem, tmp_path / "cache")  # as another worker has it
        for copy in copies(bucket):
            if parse_attempt_file(copy.name).kind == "commit":
                damage(copy, how)
        late = run_batch(bucket, batch, pointer, 2000, options)
        pointer = run_batch(bucket, batch, pointer, 2000, options)
        committed.append((late, pointer))
    assert committed[0][0].partition(":")[0] not in durable_files(tmp_path / "far")
    other = bucket_at(filesystem, tmp_path / "another machine")
    for batch in range(8, 12):
        for kept in committed[batch]:
            assert held(other, kept) == expected(range(batch + 1), 2000)


# Reading only, and refusals -----------------------------------------------------------------


def test_a_commit_is_opened_to_be_read(tmp_path):
    filesystem, _ = flaky(tmp_path / "far")
    bucket = bucket_at(filesystem, tmp_path / "cache")
    first = run_batch(bucket, 0, None)
    run_batch(bucket, 1, first)
    before = durable_files(tmp_path / "far")
    reader = bucket_at(filesystem, tmp_path / "other")
    with open_commit(reader, first, options=Options()) as store:
        rows = [row for piece in store.scan("s") for row in piece.to_pylist()]
        assert sorted((row["k"], row["v"]) for row in rows) == expected([0])
        with pytest.raises(StoreClosedError, match="read-only"):
            append(store, 5)
    assert durable_files(tmp_path / "far") == before


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_other_backends_say_that_they_cannot(tmp_path, backend):
    filesystem, _ = flaky(tmp_path / "far")
    with pytest.raises(InvalidArgumentError, match=f"backend='{backend}' keeps .* flaky:q"):
        open_attempt(
            bucket_at(filesystem, tmp_path / "cache"),
            [],
            backend=backend,
            batch_id=0,
            attempt_id="a",
            options=Options(),
        )
