"""Decimals of results, which leave Python as integers, are the user's again."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import State, multiway_join
from support.spark_streams import BACKEND, FileStream

pytestmark = pytest.mark.spark

METHOD_LIMIT = "spark.sql.codegen.hugeMethodLimit"
SMALL = [Decimal("-999999999999999.999"), None, Decimal("0.001"), Decimal("999999999999999.999")]
LARGE = [Decimal(-(10**18)), Decimal(10**19 - 1), None, Decimal(1)]


@pytest.mark.parametrize("users_limit", [None, pytest.param("60000", marks=pytest.mark.stress)])
def test_decimals_of_all_sizes_come_as_they_went(
    spark: Any, tmp_path: Path, users_limit: str | None
) -> None:
    """And large generated methods are limited in the query, unless the user has set a limit."""
    columns = {
        "k": pa.array([0, 1, 2, 3], pa.int64()),
        "small": pa.array(SMALL, pa.decimal128(18, 3)),
        "large": pa.array(LARGE, pa.decimal128(19, 0)),
    }
    ddl = "k BIGINT, small DECIMAL(18, 3), large DECIMAL(19, 0)"
    streams = {name: FileStream(tmp_path / name, ddl).add(pa.table(columns)) for name in "ab"}
    default = spark.conf.get(METHOD_LIMIT)
    got, limits = [], set()

    def keep(batch: Any, _: int) -> None:
        got.extend(batch.collect())
        limits.add(batch.sparkSession.conf.get(METHOD_LIMIT))

    try:
        if users_limit is not None:
            spark.conf.set(METHOD_LIMIT, users_limit)
        frames = {name: stream.read(spark) for name, stream in streams.items()}
        joined = multiway_join(frames, on=["k"], state=State(backend=BACKEND))
        types = [field.dataType.simpleString() for field in joined.schema]
        written = joined.writeStream.foreachBatch(keep).trigger(availableNow=True)
        written.option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).start().awaitTermination()
        assert spark.conf.get(METHOD_LIMIT) == (users_limit or default)
    finally:
        spark.conf.unset(METHOD_LIMIT)
    assert types == ["bigint", "decimal(18,3)", "decimal(19,0)"] * 2
    expected = [(n, SMALL[n], LARGE[n]) * 2 for n in range(4)]
    assert sorted(map(tuple, got), key=lambda row: row[0]) == expected
    assert limits == {users_limit or "4000"}
