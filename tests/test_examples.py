"""The examples people start from: run as they stand, and checked against DuckDB."""

import importlib.util
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from spark_streams import (
    BACKEND,
    FileStream,
    assert_same_rows,
    committed,
    metric,
    pieces,
    run_to_end,
)

from lsmstate.options import MIB

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    """Loaded as a script is: nobody can import it, so its functions travel by value."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_deduplicate(spark: Any, tmp_path: Path) -> None:
    """Keys repeat within a file and over files, over a restart too; the first row of each stays."""
    ids = [None if i % 97 == 0 else f"id{i * i % 1009:06d}" for i in range(4000)]
    table = pa.table({"id": ids, "n": pa.array(range(4000), pa.int64())})
    files = pieces(table, 4)
    events = FileStream(tmp_path / "events", "id STRING, n BIGINT").add(*files[:3])

    def run() -> Any:
        unique = example("deduplicate").deduplicate(
            events.read(spark), "id", memory="16m", backend=BACKEND
        )
        return run_to_end(unique, tmp_path / "checkpoint", tmp_path / "out")

    run()
    events.add(files[3])
    query = run()
    firsts = f"SELECT id, min(n) AS n FROM {events.sql} GROUP BY id"
    assert assert_same_rows(firsts, committed(tmp_path / "out")) == 506
    assert metric(query, "rows_in") == [1000]


def test_aggregate(spark: Any, tmp_path: Path) -> None:
    """Each micro-batch gives the customers it changes, once, with totals that DuckDB agrees to."""
    orders = FileStream(tmp_path / "orders", "customer BIGINT, amount DECIMAL(9,2)")
    customers = [None if i % 50 == 0 else i * i % 1009 for i in range(2000)]
    amounts = pa.array([Decimal(i * 37 % 9973) / 4 for i in range(2000)], pa.decimal128(9, 2))
    orders.add(*pieces(pa.table({"customer": customers, "amount": amounts}), 3))
    newest: dict[int | None, tuple[Any, ...]] = {}

    def upsert(batch: Any, _number: int) -> None:
        rows = batch.collect()
        changed = {row.customer: tuple(row) for row in rows}
        assert len(changed) == len(rows)
        newest.update(changed)

    query = (
        example("aggregate")
        .totals(orders.read(spark), memory="16m", backend=BACKEND)
        .writeStream.outputMode("update")
        .foreachBatch(upsert)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with duckdb.connect() as db:
        expected = db.execute(
            "SELECT customer, count(*), sum(amount), min(amount), max(amount) "
            f"FROM {orders.sql} GROUP BY customer"
        ).fetchall()
    assert len(expected) > 150
    assert sorted(map(str, newest.values())) == sorted(map(str, expected))
    assert max(metric(query, "peak_state_bytes")) <= 16 * MIB
