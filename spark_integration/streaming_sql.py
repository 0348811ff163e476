"""streaming_sql and to_multiway: queries as people write them, joins merged into one operator.

Two-Step Convert (``joins.plan``) over Catalyst's analyzed plan. What is not merged stays as Spark
planned it; what cannot be converted runs as Spark would run it, and says so.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lsmstate.errors import InvalidArgumentError
from spark_integration.catalyst import Catalyst
from spark_integration.convert import Converted, convert

_log = logging.getLogger("lsmstate")


@dataclass(frozen=True)
class MultiwayQuery:
    """A query, converted or not; stands for its DataFrame wherever that has a method."""

    converted: Converted

    @property
    def dataframe(self) -> DataFrame:
        """The streaming DataFrame, converted as far as it can be. InvalidArgumentError if Spark
        streams the query neither way, with its reason and what to do."""
        found = self.converted.dataframe
        if found is None:
            raise InvalidArgumentError(
                f"Spark does not stream this query: {self.converted.refusal}; run it in staged "
                "mode: streaming_sql(...).staged(path).start()"
            )
        return found

    @property
    def is_converted(self) -> bool:
        """Whether joins were merged."""
        return self.converted.is_converted

    @property
    def note(self) -> str:
        """Why joins were left to Spark; empty if none was."""
        return self.converted.note

    @property
    def writeStream(self) -> DataStreamWriter:  # noqa: N802
        """As of a DataFrame."""
        return self.dataframe.writeStream

    def explain_multiway(self) -> str:
        """The plan before and after as text, why each join was or was not merged, and how the
        operator works: keys, indexes, shares."""
        return self.converted.explained()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.dataframe, name)


def streaming_sql(
    spark: SparkSession,
    sql: str,
    *,
    strict: bool = False,
    rows: Mapping[str, int] | None = None,
    **options: Any,
) -> MultiwayQuery:
    """Run SQL over streaming views with its inner equi-joins merged into one operator.

        query = streaming_sql(spark, "SELECT ... FROM c, o, l WHERE c.id = o.c_id AND ...")
        query.writeStream.outputMode("append").start()

    The joins of streams that equalities link become one ``multiway_join`` over the full history,
    through filters, projections, aliases, views and common table expressions between them;
    everything else stays Spark's. Spark allows one such operator in a query: of several groups of
    joins the largest is merged. A query of which nothing can be merged runs as Spark runs it, with
    a ``note`` that says why (also logged as a warning); with ``strict`` it is refused.

    ``rows`` says how many rows the inputs have in proportion, by alias or view, where joins are by
    several keys; for files it is guessed from their size. ``options`` are those of
    ``multiway_join``. The checkpoint keeps the merged join (inputs in their order, columns, keys)
    and refuses another one, showing both.

    Costs under a second beside Spark's own analysis. InvalidArgumentError: the message names the
    value and the remedy; AnalysisException and ParseException are Spark's.
    """
    catalyst = Catalyst(spark)
    plan = catalyst.parsed(sql)
    try:
        df = spark.sql(sql)
    except AnalysisException:
        if not catalyst.is_streaming(plan):
            raise
        df = None
    return _query(convert(catalyst, plan, df, rows or {}, options), strict)


def to_multiway(
    df: DataFrame, *, strict: bool = False, rows: Mapping[str, int] | None = None, **options: Any
) -> MultiwayQuery:
    """The same for a streaming DataFrame that was built with ``join``, ``where`` and so on."""
    catalyst = Catalyst(df.sparkSession)
    converted = convert(catalyst, catalyst.analyzed(df), df, rows or {}, options)
    return _query(converted, strict)


def _query(converted: Converted, strict: bool) -> MultiwayQuery:
    if converted.note:
        if strict:
            raise InvalidArgumentError(
                f"strict=True, and joins would be left to Spark: {converted.note}"
            )
        _log.warning("joins are left to Spark: %s", converted.note)
    return MultiwayQuery(converted)
