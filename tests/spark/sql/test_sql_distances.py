"""Joins of SQL by a distance become similarity joins. Nothing is run here."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import streaming_sql
from support.spark_streams import FileStream

pytestmark = pytest.mark.spark

DDL = "id BIGINT, tenant INT, s STRING, v ARRAY<FLOAT>"
JOINED = "SELECT x.id, y.id AS other FROM near x JOIN far y ON "


@pytest.fixture
def views(spark: Any, tmp_path: Path) -> Any:
    for name in ("near", "far"):
        stream = FileStream(tmp_path / name, DDL).add()
        stream.read(spark).createOrReplaceTempView(name)
    yield
    for name in ("near", "far"):
        spark.catalog.dropTempView(name)


@pytest.mark.usefixtures("views")
def test_joins_by_a_distance_are_similarity_joins(spark: Any) -> None:
    for condition, told in (
        ("l2_distance(x.v, y.v) <= 0.2", "pairs with l2 <= 0.2"),
        ("x.tenant = y.tenant AND COSINE_DISTANCE(x.v, y.v) < 5e-2", "pairs with cosine <= 0.05"),
        ("levenshtein(x.s, y.s) <= 2 AND x.tenant = y.tenant", "pairs with levenshtein <= 2"),
        ("vector_l2_distance(x.v, y.v) <= 0.2 AND x.id <> y.id", "pairs with l2 <= 0.202"),
        ("haversine_distance(array(x.v[0], x.v[1]), y.v) <= 50", "pairs with haversine <= 50"),
    ):
        if "vector_" in condition and not spark.catalog.functionExists("vector_l2_distance"):
            continue  # this release of Spark does not have it
        query = streaming_sql(spark, JOINED + condition)
        assert query.is_converted, (condition, query.note)
        assert query.note == ""
        assert query.columns == ["id", "other"]
        assert told in query.explain_multiway(), condition
    assert not spark.catalog.functionExists("l2_distance")


@pytest.mark.usefixtures("views")
def test_a_function_of_the_users_of_such_a_name_is_left_as_it_is(spark: Any) -> None:
    spark.udf.register("l2_distance", lambda a, b: 0.0, "double")
    try:
        query = streaming_sql(spark, JOINED + "x.tenant = y.tenant AND l2_distance(x.v, y.v) < 1")
        assert "pairs with" not in query.explain_multiway()
        assert spark.catalog.functionExists("l2_distance")
    finally:
        spark.sql("DROP TEMPORARY FUNCTION l2_distance")
