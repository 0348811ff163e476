"""A join with hot keys is exact, whatever of it runs twice, too late or not at all."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.joins.routing.skew import respread
from lsmstate.joins.routing.skew.spread import RouteTable
from lsmstate.spark_integration.checkpoint.attempt import attempt_store, bucket_files
from lsmstate.spark_integration.metrics.hottest_keys import hottest_keys
from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
from lsmstate.spark_integration.skew.key_watch import OBSERVE, KeyWatch, skew_streams
from lsmstate.spark_integration.tables.versioned_tables import PERIOD, newest_table
from lsmstate.state_location import StatePlace
from support import skewed_query
from support.skewed_query import (
    BUCKET_IDS,
    RETAINED,
    Elsewhere,
    SkewedQuery,
    arriving,
    spread_keys,
    table_of,
)

TWO = {"a": 9, "b": 9}
THREE = {"a": 1, "b": 16, "c": 2}
OTHERS = {"a": 24, "b": 24}
OTHERS_OF_THREE = {"a": 10, "b": 15, "c": 10}


@pytest.fixture(autouse=True)
def few_rows_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respread, "LEAST_ROWS", 50.0)


@pytest.mark.parametrize(
    ("seed", "backend"),
    [
        (1, "lsm"),
        *(pytest.param(seed, "lsm", marks=pytest.mark.stress) for seed in range(2, 7)),
        pytest.param(0, "memory", marks=pytest.mark.stress),
        pytest.param(7, "rocksdb", marks=pytest.mark.stress),
    ],
)
def test_results_are_exact_while_keys_are_spread_and_batches_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, backend: str
) -> None:
    rng = random.Random(seed)
    query = SkewedQuery(tmp_path, monkeypatch, rng, "ab", backend)
    for batch_id in range(2 * PERIOD + 2):
        hot = {5000: TWO} if batch_id < PERIOD else {5000: TWO, 6000: TWO}
        query.batch(arriving(rng, hot, OTHERS))
        if rng.random() < 0.4:
            query.repeat_last()
    query.check()
    assert {key.key for key in spread_keys(tmp_path)} == {"5000", "6000"}


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.stress) for seed in (2, 3, 5, 6, 7, 8))]
)
def test_of_three_streams_results_are_exact_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    query = SkewedQuery(tmp_path, monkeypatch, rng, "abc")
    oldest = 0
    for turn in range(3 * PERIOD):
        hot = {5000: THREE} if turn < PERIOD else {5000: THREE, 6000: THREE}
        match rng.choice([*["rows"] * 8, "little", "nothing"]):
            case "rows":
                query.batch(arriving(rng, hot, OTHERS_OF_THREE))
            case "little":
                query.batch(arriving(rng, {5000: {**THREE, "b": 0}}, dict.fromkeys("abc", 0)))
            case "nothing":
                for _ in range(rng.choice([1, PERIOD + 1])):
                    query.batch({name: [] for name in "abc"})
        batches = len(query.shown)
        oldest = max(oldest, batches - RETAINED)
        match rng.choice([*[""] * 4, "repeat", "back", "zombie", "torn"]):
            case "repeat":
                query.repeat_last()
            case "back":
                query.set_back(rng.randint(1, batches - oldest))
            case "zombie":
                query.zombie(rng.choice([*query.ran, *query.given_up]))
            case "torn":
                for seen in (tmp_path / "routes").glob("seen-*"):
                    if rng.random() < 0.3:
                        seen.write_bytes(seen.read_bytes()[: rng.randrange(200)])
    query.check()
    spread = {key.key: key for key in spread_keys(tmp_path)}
    assert spread["5000"].stream == "b"
    assert len(spread["5000"].buckets) > 1


class RemoteQuery(SkewedQuery):
    """The same, with its state where no file is created exclusively."""

    def place_of(self, home: Path) -> StatePlace:
        return Elsewhere(home)


@pytest.mark.parametrize("names", [pytest.param("ab", marks=pytest.mark.stress), "abc"])
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(2, 10))]
)
def test_results_are_exact_with_the_state_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, seed: int
) -> None:
    """All attempts of a bucket count alike, so it does not matter who makes a table."""
    rng = random.Random(seed)
    query = RemoteQuery(tmp_path, monkeypatch, rng, names)
    one = THREE if len(names) > 2 else TWO
    others = OTHERS_OF_THREE if len(names) > 2 else OTHERS
    oldest, made = 0, dict[str, bytes]()
    for turn in range(3 * PERIOD):
        hot = {5000: one} if turn < PERIOD else {5000: one, 6000: one}
        is_nothing = rng.random() < 0.15
        rows = {name: [] for name in names} if is_nothing else arriving(rng, hot, others)
        query.batch(rows)
        batches = len(query.shown)
        oldest = max(oldest, batches - RETAINED)
        match rng.choice([*[""] * 4, "repeat", "back", "zombie"]):
            case "repeat":
                query.repeat_last()
            case "back":
                query.set_back(rng.randint(1, batches - oldest))
                made.clear()
            case "zombie":
                query.zombie(rng.choice(query.ran))
        for table in (tmp_path / "state" / "routes").glob("table-*"):
            assert made.setdefault(table.name, table.read_bytes()) == table.read_bytes()
    while len(query.shown) <= 2 * PERIOD:  # it may have been set back just now
        query.batch(arriving(rng, {5000: one, 6000: one}, others))
    query.check()
    found = newest_table(query.place, query.plan.routing)
    assert isinstance(found, RouteTable)
    spread = {key.key: key for key in found.keys}
    assert len(spread["5000"].buckets) > 1
    assert spread["5000"].stream == ("b" if len(names) > 2 else None)


def test_all_attempts_count_alike_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more rows than a sample holds, cut into other batches, in another order."""
    query = RemoteQuery(tmp_path, monkeypatch, random.Random(0), "abc")
    run = query.run_of(PERIOD - 1)
    bucket = Bucket(BUCKET_IDS[0], run.batch_id, query.plan.output, None)
    rng, told = random.Random(3), []
    rows = [(7, n) for n in range(3000)] + [(rng.randrange(900), n) for n in range(6000)]
    for _ in range(3):
        rng.shuffle(rows)
        with attempt_store(query.plan, run, bucket_files(run, BUCKET_IDS[0]), None) as store:
            watch = KeyWatch(query.plan, store, run, bucket)
            step = rng.randrange(500, 3000)
            parts = [rows[at : at + step] for at in range(0, len(rows), step)]
            batches = [table_of(part, query.schemas["a"]).to_batches()[0] for part in parts]
            for _ in watch.passing(InputBatch("a", b, b.select(["k"])) for b in batches):
                pass
            watch.keep()
            watch.publish("pointer")
        (seen,) = (tmp_path / "state" / "routes").glob("seen-*")
        told.append(json.loads(seen.read_text())["settings"])
        seen.unlink()
        (hottest,) = watch._sketches["a"].hottest(1)
        assert hottest.key == "7"
        assert 2500 < hottest.rows < 3700
        assert watch.rows == 9000
    assert told[0] == told[1] == told[2]


def test_a_bucket_tells_of_no_key_that_it_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = SkewedQuery(tmp_path, monkeypatch, random.Random(0), "abc")
    run = query.run_of(PERIOD - 1)
    files = bucket_files(run, BUCKET_IDS[0])
    bucket = Bucket(BUCKET_IDS[0], run.batch_id, query.plan.output, None)
    rows = query.schemas["a"]
    clusters = [
        table_of([(40 * cluster + n, 0) for n in range(40) for _ in range(n + 1)], rows)
        for cluster in range(10)
    ]
    with attempt_store(query.plan, run, files, None) as store:
        watch = KeyWatch(query.plan, store, run, bucket)
        batches = [cluster.to_batches()[0] for cluster in clusters]
        passed = watch.passing(InputBatch("a", rows, rows.select(["k"])) for rows in batches)
        assert sum(batch.rows.num_rows for batch in passed) == 8200
        watch.publish("pointer")
    (told,) = (tmp_path / "routes").glob("seen-*")
    found = json.loads(told.read_text())["settings"]
    counted = np.array(found["sketches"]["a"]["hashes"]).view(np.uint64).tolist()
    assert counted
    assert {number for number, _ in found["keys"]} == set(counted)


TEXT = pa.array([b"a\xff", b"\0"]).view(pa.string())
DAY = pa.array([2**30, 0], pa.date32())
INSTANT = pa.array([2**62, 0]).view(pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (TEXT, "a\ufffd"),
        (DAY, str(2**30)),
        (INSTANT, str(2**62)),
        (pa.ListArray.from_arrays([0, 1, 2], TEXT), "['a\ufffd']"),
    ],
    ids=lambda given: str(given.type) if isinstance(given, pa.Array) else "",
)
def test_keys_that_python_has_no_value_for_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: pa.Array, shown: str
) -> None:
    query = SkewedQuery(tmp_path, monkeypatch, random.Random(0))
    rows = pa.record_batch({"k": values.take(pa.array([0] * 60 + [1]))})
    inputs = tuple(replace(source, key=rows.schema) for source in query.plan.inputs)
    plan = replace(query.plan, inputs=inputs, state=tuple(skew_streams(OBSERVE, 2)), skew=OBSERVE)
    run = query.run_of(0)
    files = bucket_files(run, BUCKET_IDS[0])
    with attempt_store(plan, run, files, None) as store:
        watch = KeyWatch(plan, store, run, Bucket(BUCKET_IDS[0], 0, plan.output, None))
        assert len(list(watch.passing(iter([InputBatch("a", rows, rows)])))) == 1
        watch.keep()
        hottest = watch.hottest()
    (key,) = hottest_keys([hottest], 61)
    assert key.key == shown
    assert key.rows == 60


@pytest.mark.stress
def test_tasks_of_a_given_up_future_that_end_late_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skewed_query, "RETAINED", 4 * PERIOD)
    rng = random.Random(0)
    query = SkewedQuery(tmp_path, monkeypatch, rng, "abc")

    def run(batches: int, *hot: int) -> None:
        for _ in range(batches):
            query.batch(arriving(rng, dict.fromkeys(hot, THREE), OTHERS_OF_THREE))

    run(PERIOD, 5000)
    query.set_back(1)
    query.zombie(query.given_up[-1])  # tells of rows that never came, before the first table
    run(2 * PERIOD + 2, 5000)
    query.set_back(PERIOD + 2)
    assert len(query.shown) == 2 * PERIOD - 1
    query.zombie(query.given_up[-1])  # makes the third table, while there is no second
    run(2 * PERIOD, 5000, 6000)
    query.check()
    assert {key.key for key in spread_keys(tmp_path)} == {"5000", "6000"}
