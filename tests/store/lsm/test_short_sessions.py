"""Short sessions: a store that is opened, written a little and closed, again and again, is merged
as if it had stayed open."""

import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.expiry_rules import Expiry
from lsmstate.join import MultiwayJoin, State
from lsmstate.lsm.file_names import parse_numbered
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.version_set import RunSet
from lsmstate.opening import open_checkpoint, open_store
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import StreamSchema
from support.sampling import each_value

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("k", pa.int64()), ("text", pa.string())])
TIMED = pa.schema([("k", pa.int64()), ("at", pa.int64())])
STREAMS = [StreamSchema(name, KEY, ROWS) for name in "ab"]
SESSIONS = 40
SMALL = Options(memory_bytes=5 * MIB)


def one_row(number: int, text: str = "a row") -> pa.RecordBatch:
    return pa.record_batch([pa.array([number]), pa.array([text])], schema=ROWS)


def files_in(directory: Path, kind: str) -> list[str]:
    found = [(name, parse_numbered(name)) for name in os.listdir(directory)]
    return [name for name, parsed in found if parsed is not None and parsed[0] == kind]


def check_kept(directory: Path, options: Options, sessions: int = SESSIONS) -> None:
    keys = pa.record_batch([pa.array(range(sessions))], schema=KEY)
    with LsmStore.open(str(directory), STREAMS, options=options) as store:
        assert store.stats().counters["runs"] <= options.max_runs
        assert store.probe("a", keys).counts.tolist() == [1] * sessions
        store.check()


@each_value(sync=["always", "commit", "never"], background=[True, False])
def test_sessions_that_commit_one_row_leave_few_runs(tmp_path, sync, background):
    options = Options(memory_bytes=5 * MIB, sync=sync, background=background)
    for session in range(SESSIONS):
        with LsmStore.open(str(tmp_path), STREAMS, options=options) as store:
            row = one_row(session)
            store.append("a", row, row.select(["k"]))
            store.commit()
            assert store.stats().counters["runs"] <= options.max_runs
    assert len(files_in(tmp_path, "run")) <= options.max_runs + 2
    check_kept(tmp_path, options)


@pytest.mark.parametrize(
    "sync", ["always", *(pytest.param(s, marks=pytest.mark.stress) for s in ("commit", "never"))]
)
def test_sessions_that_do_not_commit_leave_few_runs_and_logs(tmp_path, sync):
    options = Options(memory_bytes=5 * MIB, sync=sync)
    for session in range(SESSIONS):
        with LsmStore.open(str(tmp_path), STREAMS, options=options) as store:
            row = one_row(session)
            store.append("a", row, row.select(["k"]))
        assert len(files_in(tmp_path, "run")) <= options.max_runs + 2
        assert len(files_in(tmp_path, "changelog")) <= options.max_runs + 1
    check_kept(tmp_path, options)


@each_value(merging=["lazy", "leveled", "tiered"], most=[2, 32])
def test_every_strategy_and_limit_holds(tmp_path, merging, most):
    options = Options(memory_bytes=5 * MIB, merging=merging, max_runs=most, fanout=2 + most // 4)
    for session in range(SESSIONS):
        with LsmStore.open(str(tmp_path), STREAMS, options=options) as store:
            row = one_row(session)
            store.append("a", row, row.select(["k"]))
            store.commit()
            assert store.stats().counters["runs"] <= most
    check_kept(tmp_path, options)


def test_a_store_with_too_many_runs_works_its_way_down(tmp_path, monkeypatch):
    """Such a store was left by a release that merged only what stayed open."""
    sessions = 150
    options = Options(memory_bytes=5 * MIB, max_runs=2, fanout=2, block_bytes=64 * KIB)
    with monkeypatch.context() as patched:
        patched.setattr(RunSet, "keep_up", lambda *_, **__: None)
        patched.setattr(RunSet, "merge_tiny_runs", lambda _: None)
        patched.setattr(RunSet, "compact_for", lambda *_: None)
        for session in range(sessions):
            with LsmStore.open(str(tmp_path), STREAMS, options=options) as store:
                row = one_row(session)
                store.append("a", row, row.select(["k"]))
                if session == 40:
                    store.checkpoint("early")
                store.commit()
        assert len(files_in(tmp_path, "run")) > sessions / 2  # the worker has merged some
    check_kept(tmp_path, options, sessions)
    check_kept(tmp_path, options, sessions)
    with open_checkpoint(tmp_path, "early", options=SMALL) as store:
        assert len(store.get("a", 40)) == 1
        assert len(store.get("a", 41)) == 0


@pytest.mark.parametrize(
    "merging", ["lazy", *(pytest.param(m, marks=pytest.mark.stress) for m in ("leveled", "tiered"))]
)
def test_a_store_that_is_opened_with_a_smaller_limit_holds_it(tmp_path, merging):
    large = Options(memory_bytes=8 * MIB, max_runs=32, fanout=16, merging=merging)
    small = Options(memory_bytes=5 * MIB, max_runs=2, fanout=2, merging=merging)
    most = 0
    for session in range(SESSIONS):
        with LsmStore.open(str(tmp_path), STREAMS, options=large) as store:
            row = one_row(session)
            store.append("a", row, row.select(["k"]))
            store.retract("a", one_row(session // 2), one_row(session // 2).select(["k"]))
            store.commit()
            most = max(most, store.stats().counters["runs"])
    assert most > small.most_runs
    with LsmStore.open(str(tmp_path), STREAMS, options=small) as store:
        assert store.stats().counters["runs"] <= small.most_runs
        keys = pa.record_batch([pa.array(range(SESSIONS))], schema=KEY)
        expected = [0] * (SESSIONS // 2) + [1] * (SESSIONS - SESSIONS // 2)
        assert store.probe("a", keys).counts.tolist() == expected
        store.compact()
        store.check()


@pytest.mark.parametrize("backend", [pytest.param("rocksdb", marks=pytest.mark.stress), "memory"])
@pytest.mark.parametrize("commits", [pytest.param(True, marks=pytest.mark.stress), False])
def test_the_other_backends_leave_few_files(tmp_path, backend, commits):
    sessions = 2 * SESSIONS
    for session in range(sessions):
        with open_store(tmp_path, STREAMS, backend=backend, options=SMALL) as store:
            row = one_row(session)
            store.append("a", row, row.select(["k"]))
            if commits or backend == "memory":  # which keeps commits only
                store.commit()
    files = sum(len(names) for _, _, names in os.walk(tmp_path))
    assert files < 80
    with open_store(tmp_path, STREAMS, backend=backend, options=SMALL) as store:
        keys = pa.record_batch([pa.array(range(sessions))], schema=KEY)
        assert store.probe("a", keys).counts.tolist() == [1] * sessions


@pytest.mark.parametrize("algorithm", ["umjoin", "tree"])
def test_a_join_that_is_reopened_for_each_row_leaves_few_runs(tmp_path, algorithm):
    tables = {"a": ROWS, "b": ROWS}

    def opened() -> MultiwayJoin:
        return MultiwayJoin(
            tables,
            "a.k = b.k",
            algorithm=algorithm,
            state=State(state_dir=str(tmp_path), memory="6m"),
        )

    for session in range(SESSIONS):
        with opened() as join:
            assert sum(piece.num_rows for piece in join.process("a", one_row(session))) == 0
            join.commit()
    assert len(files_in(tmp_path, "run")) <= SMALL.max_runs + 2
    with opened() as join:
        batch = pa.Table.from_batches(map(one_row, range(SESSIONS))).combine_chunks()
        (batch,) = batch.to_batches()
        assert sum(piece.num_rows for piece in join.process("b", batch)) == SESSIONS


def test_an_expiring_store_that_is_reopened_leaves_few_runs(tmp_path):
    stream = StreamSchema("timed", KEY, TIMED, expiry=Expiry("at", 20))
    for session in range(SESSIONS):
        rows = pa.record_batch([pa.array([session]), pa.array([session])], schema=TIMED)
        with open_store(str(tmp_path), [stream], options=SMALL) as store:
            store.append("timed", rows, rows.select(["k"]))
            store.advance("timed", session)
            store.commit()
            assert store.stats().counters["runs"] <= SMALL.max_runs
    with open_store(str(tmp_path), [stream], options=SMALL) as store:
        assert sum(piece.num_rows for piece in store.scan("timed")) in (20, 21)


def test_few_sessions_wait_for_a_merge_of_the_whole_state(tmp_path):
    """A large merge is done file by file, by one session after another."""
    options = Options(
        memory_bytes=8 * MIB, fanout=2, max_runs=6, file_bytes=2 * MIB, background=False
    )
    seeded = random.Random(1)
    expected, merged, whole, merges = 0, [], [], []
    for _ in range(100):
        keys = np.arange(expected, expected + 400)
        texts = [seeded.randbytes(500).hex() for _ in keys]
        batch = pa.record_batch([keys, texts], schema=ROWS)
        expected += len(keys)
        with LsmStore.open(str(tmp_path), STREAMS, options=options) as store:
            store.append("a", batch, batch.select(["k"]))
            store.commit()
            found = store.stats()
            assert found.counters["runs"] <= options.most_runs
            merged.append(found.writes.merged_bytes)
            whole.append(found.disk_bytes)
            merges.append(store._runs._merge)
    assert whole[-1] > 18 * MIB
    assert sum(each > whole[60] / 3 for each in merged[60:]) <= 2
    assert sum(merge is not None and merge.recorded > 0 for merge in merges) > 2
    with LsmStore.open(str(tmp_path), STREAMS, options=options) as store:
        assert sum(piece.num_rows for piece in store.scan("a")) == expected
        store.check()
