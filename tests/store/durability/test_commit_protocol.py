"""The commit protocol of a bucket under everything Spark may do with its attempts, without Spark.

Whatever fails, is repeated, comes twice or too late: what is shown is the join of what came in.
"""

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from lsmstate.errors import FormatVersionError, LsmStateError
from lsmstate.lsm import manifest
from lsmstate.lsm.file_names import parse_attempt_file
from lsmstate.lsm.jobs import Merge
from lsmstate.lsm.recovery import needed_files
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.table_cache import table_cache
from lsmstate.lsm.version_set import RunSet
from lsmstate.lsm.write_path import WritePath
from lsmstate.options import KIB, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.spark_integration.checkpoint import attempt
from lsmstate.spark_integration.metrics.call import CallMetrics
from lsmstate.spark_integration.stateful_operator import body as stateful_body
from lsmstate.spark_integration.stateful_operator.frames import FrameSpool
from support.examples import examples
from support.faults import Faults, faults
from support.sampling import each_value
from support.simulated_spark import NAMES, Attempt, Rows, SimulatedSpark, State, buckets_of, newest

RETAINED = 3
KEYS = 6
OPERATIONS = ("create", "append", "sync", "remove", "open", "read")


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedSpark:
    return simulated(tmp_path, monkeypatch)


def simulated(root: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedSpark:
    spark = SimulatedSpark(root, RETAINED)
    monkeypatch.setattr(stateful_body, "current_run", lambda _plan: spark.current_run)
    return spark


def rows_of(batch_id: int, count: int = 12) -> Rows:
    """Some rows of every stream, for both buckets; no two are equal."""
    numbers = range(batch_id * count, (batch_id + 1) * count)
    return [(NAMES[n % 3], n // 3 * 5 % KEYS, n) for n in numbers]


def goes_on_exactly(spark: SimulatedSpark) -> None:
    """What is shown is right now and later; files nobody can need are collected."""
    spark.check()
    for _ in range(3 * RETAINED):
        spark.batch(rows_of(1000 + spark.next_batch))
    assert any(spark.shown), "nothing was joined"
    spark.check()
    for bucket in {bucket for pointers in spark.in_memory for bucket in pointers}:
        assert_only_needed_files(spark, bucket)


def assert_only_needed_files(spark: SimulatedSpark, bucket: int) -> None:
    directory = spark.root / f"bucket-{bucket:06d}"
    tables = table_cache(process_memory())
    last = spark.next_batch - 1
    states = [
        newest(pointers[: batch_id + 1], bucket)
        for batch_id in range(last - RETAINED, last + 1)
        for pointers in (spark.in_memory, spark.on_disk)
    ]
    needed = {file.name for s in states for file in needed_files(tables, str(directory), s[1])}
    for name in os.listdir(directory):
        file = parse_attempt_file(name)
        assert file is not None, f"{name} is nobody's"
        # Those of batches as young as the kept ones go later.
        assert name in needed or file.batch_id >= last - RETAINED, f"{name} was left behind"


def failing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, call: int, after: bool
) -> Callable[[], bool]:
    """Let one call of a function fail, before or after it did its work; whether it came to it."""
    original = getattr(owner, name)
    calls = 0

    def wrapped(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise OSError(errno.EIO, f"injected before {name}")
        result = original(*args, **options)
        if calls == call:
            raise OSError(errno.EIO, f"injected after {name}")
        return result

    monkeypatch.setattr(owner, name, wrapped)
    return lambda: calls >= call


STEPS: dict[str, tuple[Any, str, int]] = {
    "spool": (FrameSpool, "add", 1),
    "order": (FrameSpool, "in_order", 1),
    "open": (attempt, "open_attempt", 1),
    "append-1": (LsmStore, "append", 1),
    "append-3": (LsmStore, "append", 3),
    "flush": (WritePath, "flush", 1),
    "flushed": (RunSet, "add", 1),
    "merge": (Merge, "step", 1),
    "commit": (LsmStore, "commit", 1),
    "seal": (RunSet, "commit", 1),
    "collect": (LsmStore, "_collect", 1),
    "metrics": (CallMetrics, "result", 1),
    "close": (LsmStore, "close", 1),
    "pointer": (State, "update", 1),
}


@each_value(step=STEPS, after=[False, True])
def test_a_failure_at_any_step_costs_nothing(
    spark: SimulatedSpark, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    owner, name, call = STEPS[step]
    for batch_id in range(4):
        spark.batch(rows_of(batch_id))
    # So many rows that the memtable is full in mid-batch; their keys match nothing.
    many = 1_000 if name in ("flush", "add") else 0
    rows = rows_of(4) + [(n, 10_000 + 2 * i, i) for i in range(many) for n in NAMES]
    monkeypatch.setattr(Options, "memtable_limit_bytes", 32 * KIB)
    with monkeypatch.context() as patch:
        came_to_it = failing(patch, owner, name, call=call, after=after)
        with pytest.raises(OSError, match="injected"):
            spark.attempt(rows, 0).run()
        assert came_to_it()
    spark.batch(rows)
    goes_on_exactly(spark)


@pytest.mark.parametrize(
    ("tear", "operations"), [(None, OPERATIONS), (0.5, ("append",))], ids=["whole", "torn"]
)
def test_a_failure_at_any_file_operation_costs_nothing(
    spark: SimulatedSpark,
    caplog: pytest.LogCaptureFixture,
    tear: float | None,
    operations: tuple[str, ...],
) -> None:
    """The first one, the second, and so on until an attempt comes to none that is to fail, in a
    process that knows no file; over micro-batches in which runs are merged and files collected."""
    for batch_id in range(6):
        spark.batch(rows_of(batch_id))
    failed: set[tuple[str, str]] = set()
    for batch_id in range(6, 12):
        rows = rows_of(batch_id)
        for number in count():
            caplog.clear()
            hook = Faults(number, tear=tear, operations=operations)
            ended = attempt_under(spark, rows, hook)
            if not hook.failed:
                break
            operation, path = hook.seen[number]
            failed.add((operation, Path(path).name.partition("-")[0]))
            # Old files may stay a while; all else is an error.
            assert ended == ("were not deleted" in caplog.text), hook.seen[number]
        assert ended, "the attempt to which nothing happened"
        spark.batch(rows)
    assert {operation for operation, _ in failed} == {*operations} - {"sync"}
    assert {("append", "commit"), ("append", "run")} <= failed
    goes_on_exactly(spark)


def attempt_under(spark: SimulatedSpark, rows: Rows, hook: Faults) -> bool:
    """Whether bucket 0's attempt came to its end; then all is put back as it was before."""
    directory = spark.root / "bucket-000000"
    before = {path: path.read_bytes() for path in directory.iterdir()}
    for path in before:
        table_cache(process_memory()).forget(str(directory), path.name)
    process_memory().cache.clear()
    with faults(hook):
        ended = ends(spark.attempt(rows, 0))
    if ended:
        for path in set(directory.iterdir()) - before.keys():
            path.unlink()
        for path in before.keys() - set(directory.iterdir()):
            path.write_bytes(before[path])
    return ended


def test_the_process_that_dies_with_the_pointer_in_its_hands(spark: SimulatedSpark) -> None:
    """Sealed and handed over, but the task failed after: Spark keeps neither rows nor pointer."""
    for batch_id in range(8):
        rows = rows_of(batch_id)
        for bucket in buckets_of(rows):
            spark.attempt(rows, bucket).run()
        spark.batch(rows)
    goes_on_exactly(spark)


def test_two_attempts_of_a_batch_and_the_pointer_of_either(spark: SimulatedSpark) -> None:
    """Two actions in foreachBatch, or a speculative task: interleaved, and both to their end."""
    for batch_id in range(8):
        rows = rows_of(batch_id)
        first = {bucket: spark.attempt(rows, bucket) for bucket in buckets_of(rows)}
        second = {bucket: spark.attempt(rows, bucket) for bucket in buckets_of(rows)}
        for bucket in first:
            running = [first[bucket], second[bucket]]
            while running:
                running = [each for each in running if each.step()]
            assert sorted(first[bucket].rows) == sorted(second[bucket].rows)
        spark.accept(rows, first)
        for late in second.values():
            spark.overwrite(late)
        if batch_id % 3 == 2:
            spark.restart()
    goes_on_exactly(spark)


def test_a_generator_that_is_closed_early_leaves_the_old_pointer(spark: SimulatedSpark) -> None:
    for batch_id in range(6):
        rows = rows_of(batch_id, 36)
        before = spark.memory_pointer(0, batch_id)
        files = spark.files()
        cut_short = spark.attempt(rows, 0)
        assert cut_short.step()
        cut_short.close()
        assert cut_short.pointer == before
        assert spark.files() == files, "what it wrote is deleted at once"
        spark.batch(rows)
    goes_on_exactly(spark)


def test_a_zombie_of_long_ago_commits_and_collects_in_the_end(spark: SimulatedSpark) -> None:
    zombies = []
    for batch_id in range(6 * RETAINED):
        rows = rows_of(batch_id)
        zombies.append(spark.attempt(rows, batch_id % 2))
        zombies[-1].step()
        if batch_id >= 4 * RETAINED:
            # Its files may be gone by now, which is an error; it may also commit.
            ends(zombies[batch_id - 4 * RETAINED])
        spark.batch(rows)
        spark.check()
    spark.restart()
    goes_on_exactly(spark)


def test_a_bucket_idle_for_hundreds_of_batches(spark: SimulatedSpark) -> None:
    """Bucket 1 has rows in the first and last batches only; in one of those it had an attempt
    that did not count, as the batch was repeated without it."""
    for batch_id in range(5):
        spark.batch(rows_of(batch_id))
    even = [("a", 2, 1), ("b", 2, 1), ("c", 4, 1)]
    for batch_id in range(5, 305):
        if batch_id == 20:
            spark.attempt([("a", 1, 77)], 1).run()
        spark.batch(even if batch_id % 50 == 0 else [])
    spark.check()
    for batch_id in range(305, 305 + 2 * RETAINED):
        spark.batch(rows_of(batch_id, 6))
        spark.check()
        spark.restart(spark.next_batch - 2)
    goes_on_exactly(spark)


@pytest.mark.parametrize(
    "back", [RETAINED, *(pytest.param(back, marks=pytest.mark.stress) for back in (0, 1))]
)
def test_set_back_to_an_older_batch(spark: SimulatedSpark, back: int) -> None:
    """The future that is given up stands in the way of nothing, however far the query had come."""
    for batch_id in range(9):
        spark.batch(rows_of(batch_id))
    spark.restart(8 - back)
    spark.check()
    for batch_id in range(12):
        spark.batch(rows_of(500 + batch_id) if batch_id % 3 else [("b", 2, batch_id)])
        if batch_id < 2 * RETAINED:
            spark.check()
    goes_on_exactly(spark)


def test_a_checkpoint_of_a_later_release_is_refused_with_a_sentence(
    spark: SimulatedSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.batch(rows_of(0))
    version, pointer = spark.memory_pointer(0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "_format_of", lambda version, streams: 3)
        later = spark.attempt(rows_of(1), 0).run()
    for kept, words in [
        ((version + 1, pointer), "commit pointers of version 2, this release reads version 1"),
        (later.pointer, "manifest format 3, this release reads up to 2; open it with the release"),
    ]:
        spark.in_memory[0][0] = kept
        with pytest.raises(FormatVersionError, match=words):
            spark.attempt(rows_of(1), 0).run()
    spark.in_memory[0][0] = (version, pointer)
    spark.batch(rows_of(1))
    goes_on_exactly(spark)


FATES = ("fails", "closed", "zombie", "completes")


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_any_history_shows_the_join_of_what_came_in(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        spark = simulated(tmp_path_factory.mktemp("history"), patch)
        zombies: list[tuple[int, Attempt]] = []
        history = 0
        for turn in range(data.draw(st.integers(1, 14), label="batches")):
            rows = data.draw(some_rows(turn), label="rows")
            main = {}
            for bucket in buckets_of(rows):
                for fate in data.draw(st.lists(st.sampled_from(FATES), max_size=2)):
                    other = spark.attempt(rows, bucket)
                    suffer(fate, other, data)
                    zombies += [(history, other)] if fate == "zombie" else []
                main[bucket] = spark.attempt(rows, bucket).run()
            spark.accept(rows, main)
            spark.check()
            while zombies and data.draw(st.booleans(), label="a zombie goes on"):
                of, late = zombies.pop(data.draw(st.integers(0, len(zombies) - 1)))
                if ends(late) and of == history and data.draw(st.booleans()):
                    spark.overwrite(late)
            match data.draw(st.sampled_from(["", "", "restart", "back"])):
                case "restart":
                    spark.restart()
                case "back":
                    spark.restart(data.draw(st.integers(spark.oldest, spark.next_batch - 1)))
                    history += 1
        for _, late in zombies:
            ends(late)
        goes_on_exactly(spark)


def some_rows(turn: int) -> st.SearchStrategy[Rows]:
    pair = st.tuples(st.sampled_from(NAMES), st.integers(0, KEYS - 1))
    pairs = st.lists(pair, max_size=10)
    return pairs.map(lambda found: [(s, k, 100 * turn + i) for i, (s, k) in enumerate(found)])


def suffer(fate: str, attempt: Attempt, data: st.DataObject) -> None:
    if fate == "completes":
        attempt.run()
    elif fate == "fails":
        with faults(Faults(data.draw(st.integers(0, 15), label="operation"))):
            ends(attempt)
    else:
        for _ in range(data.draw(st.integers(0, 4), label="steps")):
            attempt.step()
        if fate == "closed":
            attempt.close()


def ends(attempt: Attempt) -> bool:
    """Whether the attempt came to its end; files it needs may be gone, or be refused to it."""
    try:
        attempt.run()
    except (LsmStateError, OSError):
        return False
    return True
