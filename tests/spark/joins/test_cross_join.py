"""A new kind of join changes no file of the product: a cross join of two streams, which lives in
``tests/support/cross_join``."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.kinds import from_pinned, pinned
from lsmstate.joins.options import State
from lsmstate.joins.spec_join import SpecJoin
from lsmstate.spark import metrics_of
from support.cross_join import local_join
from support.cross_join import spec as cross_spec
from support.cross_join.face import cross_join
from support.cross_join.spec import CrossSpec
from support.spark_streams import FileStream, run_to_end

STREAMS = {
    "a": pa.schema([("x", pa.int64()), ("name", pa.string())]),
    "b": pa.schema([("y", pa.int64())]),
}


def rows_of(stream: str, count: int, rng: random.Random) -> pa.Table:
    """Rows with nulls and with equal ones among them."""
    values = [rng.choice([None, *range(5)]) for _ in range(count)]
    columns = {"a": [values, [f"n{rng.randrange(3)}" for _ in values]], "b": [values]}[stream]
    return pa.table(columns, schema=STREAMS[stream])


def pairs(a: pa.Table, b: pa.Table) -> Counter[Any]:
    rows = (zip(*(c.to_pylist() for c in t.columns), strict=True) for t in (a, b))
    return Counter((*left, *right) for left, right in product(*map(list, rows)))


def shown(pieces: Iterator[pa.RecordBatch]) -> Counter[Any]:
    return Counter(tuple(row.values()) for piece in pieces for row in piece.to_pylist())


@pytest.mark.parametrize("backend", ["lsm", "rocksdb", "memory"])
def test_plain_python_finds_each_pair_once_through_restarts(backend: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    tables = {name: rows_of(name, 40, rng) for name in STREAMS}
    spec = CrossSpec.of(STREAMS)
    found: Counter[Any] = Counter()
    for start in range(0, 40, 10):
        path = None if backend == "memory" else str(tmp_path)
        if backend == "memory" and start:
            break
        with SpecJoin(spec, piece_bytes=300, state=State(backend=backend, state_dir=path)) as join:
            for name, table in tables.items():
                part = table if backend == "memory" else table.slice(start, 10)
                found += shown(join.process(name, part.combine_chunks().to_batches()[0]))
            join.commit()
    assert found == pairs(tables["a"], tables["b"])


def test_its_spec_is_read_back_and_another_join_is_refused(tmp_path: Path) -> None:
    spec = CrossSpec.of(STREAMS)
    assert from_pinned(pinned(spec)) == spec
    SpecJoin(spec, state=State(state_dir=str(tmp_path))).close()
    turned = CrossSpec.of({"b": STREAMS["b"], "a": STREAMS["a"]})
    with pytest.raises(InvalidArgumentError, match="the state belongs to a join with cross join"):
        SpecJoin(turned, state=State(state_dir=str(tmp_path)))


@pytest.mark.stress
@pytest.mark.spark
def test_on_spark_it_joins_restarts_and_goes_on(spark: Any, tmp_path: Path) -> None:
    for module in (cross_spec, local_join):  # workers cannot import what tests share
        cloudpickle.register_pickle_by_value(module)
    rng = random.Random(3)
    a = FileStream(tmp_path / "a", "x BIGINT, name STRING")
    b = FileStream(tmp_path / "b", "y BIGINT")
    fed = {"a": [], "b": []}  # type: dict[str, list[pa.Table]]
    for _ in range(2):  # the second one is a restart
        for name, stream in (("a", a), ("b", b)):
            tables = [rows_of(name, 30, rng) for _ in range(2)]
            stream.add(*tables)
            fed[name] += tables
        joined = cross_join(
            {"a": a.read(spark), "b": b.read(spark)}, state=State(memory="16m", buckets=4)
        )
        query = run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
        metrics = metrics_of(query.lastProgress)
        assert metrics is not None
        assert metrics.counts == {"pairs": metrics.rows_out}
        rows = pq.read_table(tmp_path / "out").to_pylist()
        found = Counter((row["x"], row["name"], row["y"]) for row in rows)
        assert found == pairs(*(pa.concat_tables(fed[name]) for name in "ab"))
