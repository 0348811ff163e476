"""What an added bucket takes over of a hot key: all of it, once, and within the memory cap."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.joins.routing.skew.spread import Addition, RouteTable, SpreadKey
from lsmstate.options import MIB, Options
from lsmstate.spark_integration.checkpoint.attempt import attempt_store, bucket_files
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.skew.backfill import take_over
from lsmstate.spark_integration.skew.checks import check_memory
from support.skewed_query import BUCKET_IDS, KEY, SkewedQuery

CAP = 6 * MIB
HUGE, OTHER = 7, 8
ROWS = 3000
ROW_BYTES = 4096


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SkewedQuery:
    """Three streams with rows of 4 KiB, under a cap of half of what is to be taken over."""
    found = SkewedQuery(tmp_path, monkeypatch, random.Random(0), "abc")
    wide = pa.schema([("k", pa.int64()), ("row", pa.binary())])
    found.plan = replace(
        found.plan,
        inputs=tuple(replace(source, rows=wide) for source in found.plan.inputs),
        state=tuple(replace(s, rows=wide) if s.name in "abc" else s for s in found.plan.state),
        options=Options(memory_bytes=CAP),
    )
    return found


def test_a_key_larger_than_the_cap_is_taken_over_once(query: SkewedQuery) -> None:
    plan = query.plan
    run, owner, added = query.run_of(3), BUCKET_IDS[1], BUCKET_IDS[2]
    with attempt_store(plan, run, bucket_files(run, owner), None) as store:
        for number in range(0, ROWS, 100):
            for stream, key in (("a", HUGE), ("b", HUGE), ("c", OTHER)):
                store.append(stream, wide_rows(number), keys(key, 100))
        pointer = store.commit()
    one = bytes(keys(HUGE, 1).serialize())
    table = RouteTable((SpreadKey(1, "huge", (1, 2), "b", Addition((2,), pointer, one)),))
    run = query.run_of(4)
    with attempt_store(plan, run, bucket_files(run, added), None) as store:
        assert take_over(plan, run, store, table, 2) == ROWS
        assert take_over(plan, run, store, table, 2) == 0
        later = store.commit()
        assert store.stats().peak_memory_bytes <= CAP
    assert take_over_of_owner(query, run, table) == 0
    run = query.run_of(8)
    with attempt_store(plan, run, bucket_files(run, added), later) as store:
        assert take_over(plan, run, store, table, 2) == 0
        taken = [row for piece in store.scan("a") for row in piece["row"].to_pylist()]
        assert sorted(taken) == sorted(wide_rows(0, ROWS)["row"].to_pylist())
        assert not store.contains("b", [HUGE])
        assert not store.contains("c", [OTHER])


def test_a_cap_for_fewer_stores_than_it_needs_is_refused_at_the_start() -> None:
    check_memory("abc", CAP)
    check_memory("ab", CAP - 1)
    with pytest.raises(InvalidArgumentError, match="give at least 6291456 bytes"):
        check_memory("abc", CAP - 1)


def test_a_bucket_that_should_have_the_rows_and_does_not_is_an_error(query: SkewedQuery) -> None:
    run = query.run_of(9)
    table = RouteTable((SpreadKey(1, "huge", (1, 2), "b"),))
    files = bucket_files(run, BUCKET_IDS[2])
    with (
        attempt_store(query.plan, run, files, None) as store,
        pytest.raises(CorruptionError, match="added to hot key huge before micro-batch 9"),
    ):
        take_over(query.plan, run, store, table, 2)


def take_over_of_owner(query: SkewedQuery, run: TaskRun, table: RouteTable) -> int:
    files = bucket_files(run, BUCKET_IDS[1])
    with attempt_store(query.plan, run, files, None) as store:
        return take_over(query.plan, run, store, table, 1)


def keys(key: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([np.full(count, key)], schema=KEY)


def wide_rows(first: int, count: int = 100) -> pa.RecordBatch:
    """Rows that do not compress."""
    rows = [np.random.default_rng(n).bytes(ROW_BYTES) for n in range(first, first + count)]
    schema = pa.schema([("k", pa.int64()), ("row", pa.binary())])
    return pa.record_batch([np.arange(count), pa.array(rows, pa.binary())], schema=schema)
