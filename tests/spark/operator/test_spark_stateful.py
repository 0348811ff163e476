"""stateful_batches end to end: functions of the user's over a store that commits with Spark."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import types as T

from lsmstate import InvalidArgumentError, StreamSchema
from lsmstate.spark import QueryState, State, multiway_join, rescale, stateful_batches
from support.grouped import grouped
from support.spark_streams import BACKEND, FileStream, collected, metric, run_to_end

pytestmark = pytest.mark.spark

RESULT = "key BIGINT, source STRING, so_far BIGINT, batch BIGINT"
SEEN = {"seen": "source STRING"}


def counting(before: Callable[[Any], None] = lambda bucket: None) -> Any:
    """A function that gives every row with how many rows of its key there are so far. Nested, so
    that it travels to the workers by value: they do not have this file."""

    def count(bucket: Any, batches: Any, store: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sources = pa.array([batch.input] * batch.rows.num_rows)
            store.append("seen", pa.record_batch({"source": sources}), batch.keys)
            counts = store.probe("seen", batch.keys).counts
            yield pa.record_batch(
                {
                    "key": batch.keys.column(0),
                    "source": sources,
                    "so_far": counts,
                    "batch": pa.array([bucket.batch_id] * len(counts)),
                },
                schema=bucket.schema,
            )
            before(bucket)

    return count


def stream(path: Path, kind: pa.DataType, files: list[list[int | None]]) -> FileStream:
    sql = {pa.int32(): "INT", pa.int64(): "BIGINT"}[kind]
    tables = [pa.table({"id": pa.array(values, kind)}) for values in files]
    return FileStream(path, f"id {sql}").add(*tables)


@pytest.mark.parametrize(
    "backend", ["lsm", *(pytest.param(b, marks=pytest.mark.stress) for b in ("rocksdb", "memory"))]
)
def test_several_inputs_null_keys_and_a_restart(spark: Any, tmp_path: Path, backend: str) -> None:
    """An int and a bigint key; what was seen before the restart, in both, counts after it."""
    a = stream(tmp_path / "a", pa.int32(), [[1, None, 2], [1, 3]])
    b = stream(tmp_path / "b", pa.int64(), [[None, 2, 5]])

    def result(buckets: int = 2) -> Any:
        return stateful_batches(
            {"a": a.read(spark), "b": b.read(spark)},
            key="ID",
            function=counting(),
            streams=SEEN,
            schema=RESULT,
            state=State(backend=backend, memory="16m", buckets=buckets),
        )

    first = Counter(map(tuple, collected(result(), tmp_path)))
    assert first == Counter(
        [
            (1, "a", 1, 0),
            (None, "a", 1, 0),
            (2, "a", 1, 0),
            (None, "b", 2, 0),
            (2, "b", 2, 0),
            (5, "b", 1, 0),
            (1, "a", 2, 1),
            (3, "a", 1, 1),
        ]
    )
    b.add(pa.table({"id": pa.array([None, 1], pa.int64())}))
    buckets = 2
    if backend == "lsm":
        assert rescale(str(tmp_path / "checkpoint"), 3).rows == 8
        buckets = 3
    again = sorted(map(tuple, collected(result(buckets), tmp_path)), key=str)
    assert again == [(1, "b", 3, 2), (None, "b", 3, 2)]


@pytest.mark.stress
def test_null_keys_can_be_left_out(spark: Any, tmp_path: Path) -> None:
    source = stream(tmp_path / "a", pa.int64(), [[1, None, 1, None]])
    result = stateful_batches(
        source.read(spark),
        key=["id"],
        function=counting(),
        streams=[
            StreamSchema("seen", pa.schema([("k", pa.int64())]), pa.schema([("source", "utf8")]))
        ],
        schema=T.StructType.fromDDL(RESULT),
        null_keys="drop",
        state=State(backend=BACKEND),
    )
    query = run_to_end(result, tmp_path / "checkpoint", tmp_path / "out")
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(map(tuple, rows)) == [(1, "input", 2, 0)] * 2
    assert metric(query, "rows_in") == metric(query, "rows_out") == [2]


def fail(_bucket: Any) -> None:
    raise ValueError("no such customer")


@pytest.mark.stress
@pytest.mark.parametrize("how", ["raises", "is killed"])
def test_a_function_that_ends_midway_leaves_the_state_as_it_was(
    spark: Any, tmp_path: Path, how: str
) -> None:
    """In micro-batch 1, after it has written; the restart gives what an undisturbed run gives."""
    source = stream(tmp_path / "a", pa.int64(), [[1, 2], [1, 3], [1]])

    def result(before: Callable[[Any], None]) -> Any:
        return stateful_batches(
            source.read(spark),
            key="id",
            function=counting(before),
            streams=SEEN,
            schema=RESULT,
            state=State(backend=BACKEND, buckets=1),
        )

    def end(bucket: Any) -> None:
        if bucket.batch_id == 1 and how == "raises":
            raise ValueError("no such customer")
        if bucket.batch_id == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    words = "no such customer" if how == "raises" else "Python worker exited unexpectedly"
    with pytest.raises(StreamingQueryException, match=words):
        run_to_end(result(end), tmp_path / "checkpoint", tmp_path / "out")
    run_to_end(result(lambda bucket: None), tmp_path / "checkpoint", tmp_path / "out")
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    expected = [(1, 1, 0), (2, 1, 0), (1, 2, 1), (3, 1, 1), (1, 3, 2)]
    assert sorted((r.key, r.so_far, r.batch) for r in rows) == sorted(expected)


@pytest.fixture(scope="module")
def started(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("stateful")
    ids = pa.array([1, 2, None], pa.int64())
    for name in "ab":
        FileStream(home / name, "id BIGINT, other BIGINT").add(pa.table({"id": ids, "other": ids}))
    collected(one(spark, home), home)
    return home


def one(spark: Any, home: Path, **options: Any) -> Any:
    frames = {n: FileStream(home / n, "id BIGINT, other BIGINT").read(spark) for n in "ab"}
    defaults = {
        "key": "id",
        "function": counting(),
        "streams": SEEN,
        "schema": RESULT,
        "buckets": 2,
    }
    return stateful_batches(**grouped(**{"df": frames, **defaults, **options}))


@pytest.mark.parametrize(
    ("options", "was", "now"),
    [
        ({"key": "other"}, "key = (a.id, b.id)", "key = (a.other, b.other)"),
        (
            {"streams": {"seen": "source BIGINT"}},
            "state seen = (key (id int64), source string)",
            "state seen = (key (id int64), source int64)",
        ),
        *(
            pytest.param(*each, marks=pytest.mark.stress)
            for each in (
                ({"null_keys": "drop"}, "null keys = keep", "null keys = drop"),
                ({"streams": {"sawn": "source STRING"}}, "state = (seen)", "state = (sawn)"),
                ({"backend": "memory"}, "backend = lsm", "backend = memory"),
                ({"buckets": 3}, "buckets = 2", "buckets = 3"),
            )
        ),
    ],
)
def test_a_restart_with_another_state_is_refused(
    spark: Any, started: Path, options: dict[str, Any], was: str, now: str
) -> None:
    with pytest.raises(StreamingQueryException) as refusal:
        collected(one(spark, started, **options), started)
    assert f"started with {was}" in str(refusal.value)
    assert now in str(refusal.value)


def test_a_restart_with_another_function_and_schema_goes_on(spark: Any, started: Path) -> None:
    def nothing(_bucket: Any, batches: Any, _store: Any) -> list[pa.RecordBatch]:
        return [batch.keys for batch in batches]

    assert collected(one(spark, started, function=nothing, schema="id BIGINT"), started) == []


def test_its_state_is_read_from_outside_with_plain_keys(started: Path) -> None:
    state = QueryState.open(str(started / "checkpoint"))
    stream = state.stream("seen")
    found = Counter(
        (row["_key_id"], row["source"])
        for bucket in state.pointers
        for piece in state.rows(bucket, stream, with_keys=True)
        for row in piece.to_pylist()
    )
    assert found == Counter((key, source) for key in (1, 2, None) for source in "ab")


def test_a_join_does_not_go_on_from_it(spark: Any, started: Path) -> None:
    frames = {n: FileStream(started / n, "id BIGINT, other BIGINT").read(spark) for n in "ab"}
    with pytest.raises(StreamingQueryException, match=r"started with streams = nothing"):
        collected(multiway_join(frames, on=["id"], state=State(buckets=2)), started)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"df": {}}, "df is empty"),
        ({"df": "events"}, r"inputs\['input'\] is str; give streaming DataFrames"),
        ({"key": "idd"}, "input 'a' has no column 'idd'; did you mean 'id'"),
        ({"key": []}, "the same number of key columns, at least one; a has 0, b has 0"),
        ({"key": ["id", "ID"]}, r"column a\.id stands twice"),
        ({"key": {"a": "id"}}, "input 'b' has no key columns"),
        ({"key": {"a": "id", "b": "id", "c": "id"}}, "no input 'c'; did you mean"),
        ({"key": {"a": "id", "b": ["id", "other"]}}, "a has 1, b has 2"),
        ({"function": "count"}, "function is str"),
        ({"streams": {}}, "at least one stream"),
        ({"streams": {"": "source STRING"}}, "stream name '' is empty"),
        ({"streams": "seen BIGINT"}, "streams='seen BIGINT': give names with columns"),
        (
            {"streams": {"seen": "source STRINGG"}},
            r"streams\['seen'\]='source STRINGG' is not a list",
        ),
        ({"streams": {"seen": 7}}, r"streams\['seen'\]=7: give columns as DDL"),
        ({"schema": "a INT, A INT"}, "schema has several columns called 'a'"),
        ({"schema": "at INTERVAL"}, "schema"),
        ({"null_keys": "kept"}, "null_keys='kept' is unknown; did you mean 'keep'"),
        ({"output_mode": "complete"}, "output_mode='complete' is unknown"),
        ({"memory": "1m"}, "too small"),
    ],
)
def test_arguments_are_checked(
    spark: Any, started: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        one(spark, started, **options)


def test_static_inputs_and_results_of_other_operators_are_refused(
    spark: Any, started: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'input' is a static DataFrame; give a stream"):
        one(spark, started, df=spark.range(1))
    with pytest.raises(InvalidArgumentError, match=r"is the result of another stateful_batches"):
        one(spark, started, df=one(spark, started), key="key")
    frames = {"j": one(spark, started), "k": one(spark, started)}
    with pytest.raises(InvalidArgumentError, match=r"'j' is the result of a stateful_batches"):
        multiway_join(frames, on=["key"])
