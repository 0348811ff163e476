"""What a stateful function may not do, and what it is told: without Spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate import InvalidArgumentError, Options, StoreClosedError, StreamSchema
from lsmstate.opening import open_attempt
from lsmstate.spark_integration.metrics.fan_out import FanOut
from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
from lsmstate.spark_integration.stateful_operator.borrowed_store import lent
from lsmstate.spark_integration.stateful_operator.result_checks import checked_results

KEY = pa.schema([("k", pa.int64())])
BUCKET = Bucket(3, 7, pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())]))
GOOD = pa.record_batch({"n": pa.array([1, 2]), "text": ["a", None]}, schema=BUCKET.schema)
#: Other types of the same values, turned round.
WIDER = pa.schema([("text", pa.large_string()), ("n", pa.int32())])


def batches() -> Iterator[InputBatch]:
    for number in range(2):
        rows = pa.record_batch({"k": pa.array([number])})
        yield InputBatch("input", rows, rows)


def results_of(function: Any, store: Any = None) -> list[pa.RecordBatch]:
    return list(checked_results(function, BUCKET, batches(), store))


def read_all(_bucket: Bucket, given: Iterator[InputBatch], _store: Any, *found: Any) -> Any:
    assert [batch.rows["k"].to_pylist() for batch in given] == [[0], [1]]
    return found


def giving(*found: Any) -> Any:
    return lambda *arguments: read_all(*arguments, *found)


def test_batches_tables_or_nothing() -> None:
    assert results_of(giving()) == []
    assert results_of(lambda *a: read_all(*a) and None) == []
    table = pa.Table.from_batches([GOOD, GOOD])
    assert results_of(giving(GOOD, table)) == [GOOD] * 3


def test_batches_of_other_libraries_and_values() -> None:
    """By name, in any order, and cast where no value changes; a table may be returned itself."""
    frame = GOOD.to_pandas()
    turned = pa.table(GOOD.select(["text", "n"]).cast(WIDER))
    given = (frame, GOOD.to_pydict(), GOOD.to_pylist(), turned)
    assert [found.to_pydict() for found in results_of(giving(*given))] == [GOOD.to_pydict()] * 4
    for whole in (frame, turned, GOOD, turned.to_reader()):
        (found,) = results_of(lambda *a, whole=whole: (read_all(*a), whole)[1])
        assert found.equals(GOOD)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("text", "the function's result: given a str; give a pyarrow"),
        ({"n": 1, "text": "a"}, "column 'n': 1 is a int; give a list of values, one per row"),
        (GOOD.select(["n"]), "the function's result: columns missing 'text'; give each of n, text"),
        (
            pa.table({"n": [2.0, 1.5], "text": ["a", "b"]}),
            "column 'n', row 1: 1.5 of double would change as int64",
        ),
        (pa.table({"n": pa.array([None], pa.int64()), "text": ["a"]}), "1 nulls in column 'n'"),
    ],
)
def test_other_results_are_refused(found: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        results_of(giving(found))


def test_input_that_is_not_read_is_an_error() -> None:
    def reads_one(_bucket: Bucket, given: Iterator[InputBatch], _store: Any) -> Any:
        next(given)
        yield GOOD

    for lazy in (reads_one, lambda *_: None):
        with pytest.raises(InvalidArgumentError, match=r"before it had read all batches of buck"):
            results_of(lazy)


def test_a_function_that_is_not_read_to_its_end_ends_before_its_store(tmp_path: Path) -> None:
    ended = []

    def endless(_bucket: Bucket, _given: Iterator[InputBatch], store: Any) -> Any:
        try:
            while True:
                yield GOOD
        finally:
            ended.append(store.contains("s", (1,)))

    with opened(tmp_path) as store, lent(store, BUCKET, FanOut()) as borrowed:
        found = checked_results(endless, BUCKET, batches(), borrowed)
        assert next(found) == GOOD
        found.close()
        assert ended == [False]


def opened(directory: Path) -> Any:
    return open_attempt(
        str(directory),
        [StreamSchema("s", KEY, KEY)],
        batch_id=7,
        attempt_id="a",
        options=Options(),
    )


def test_the_store_is_lent_not_given(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with lent(store, BUCKET, FanOut()) as borrowed:
            rows = pa.record_batch({"k": [1]}, schema=KEY)
            assert borrowed.append("s", rows, rows) == 1
            for name in ("commit", "close"):
                with pytest.raises(InvalidArgumentError, match=rf"{name}\(\) of the store of buck"):
                    getattr(borrowed, name)()
        with pytest.raises(StoreClosedError, match=r"bucket 3 in micro-batch 7 was used after"):
            borrowed.contains("s", (1,))
        assert store.contains("s", (1,))
