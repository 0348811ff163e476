"""streaming_sql and to_multiway: queries as people write them, joins merged into one operator.

Two-Step Convert (``lsmstate.joins.plan``) over Catalyst's analyzed plan. What is not merged stays
as Spark planned it; what cannot be converted runs as Spark would run it, and says so.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.catalyst.catalyst import Catalyst, is_classic
from lsmstate.spark_integration.columns.key_types import quiet_query_log
from lsmstate.spark_integration.sql.convert import Converted, convert
from lsmstate.spark_integration.sql.staged import StagedQuery

_log = logging.getLogger("lsmstate")

#: Options of multiway_join that would make another query of it.
_SAID_BY_THE_QUERY = ("on", "streams", "how", "emit", "changes", "unmatched", "result_time", "pins")


@dataclass(frozen=True)
class MultiwayQuery:
    """A query, converted or not; stands for its DataFrame wherever that has a method."""

    converted: Converted
    _stage: Callable[[str], StagedQuery] = field(repr=False)

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
        """As of a DataFrame, in all its output modes."""
        if self.converted.update_as_append:
            return _AppendingWriter(self.dataframe)
        return self.dataframe.writeStream

    def staged(self, path: str) -> StagedQuery:
        """The query in staged mode, for what Spark does not stream: subqueries, distinct or nested
        aggregates, sorts without an aggregate, semi and anti joins. ``path`` is a directory of this
        query alone, for its checkpoint, its fragments and its answers."""
        return self._stage(path)

    def explain_multiway(self) -> str:
        """The plan before and after as text, why each join was or was not merged, and how the
        operator works: keys, indexes, shares."""
        return self.converted.explained()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.dataframe, name)


class _AppendingWriter(DataStreamWriter):
    """Of a query whose results are never changed: update mode writes what append mode does, which
    is the one that the operator runs in."""

    def outputMode(self, outputMode: str) -> DataStreamWriter:  # noqa: N802, N803
        return super().outputMode("append" if outputMode.lower() == "update" else outputMode)


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
    everything else stays Spark's. Spark allows one such operator in a query: it serves all groups
    of joins that a UNION ALL puts together (branches that are joins under filters and projections,
    without random values, subqueries, functions in Python or a column that is selected twice), or
    the largest, in staged mode all. A query of which nothing can be merged runs as Spark runs it,
    with a ``note`` that says why (also logged as a warning); with ``strict`` it is refused.

    ``rows`` says how many rows the inputs have in proportion, by alias or view, where joins are by
    several keys; for files it is guessed from their size. ``options`` are those of
    ``multiway_join``. The checkpoint keeps the merged join (inputs in their order, columns, keys)
    and refuses another one, showing both.

    Spark Connect shows no query plans: a query runs there as Spark runs it, with a ``note``. Name
    the streams yourself there: ``multiway_join(...)``.

    Costs some 1,000 calls into the JVM for a join of six inputs and a third of a second (the
    first in a session: two), beside Spark's own analysis.
    InvalidArgumentError: the message names the value and the remedy; AnalysisException and
    ParseException are Spark's.
    """
    if not is_classic(spark):
        _check_options(options)
        return _query_of(_unseen(spark.sql(sql)), strict, _no_stages)
    catalyst = Catalyst(spark)
    df, refusal = None, ""
    try:
        # A stream in a subquery is refused here, and may be answered in staged mode.
        with quiet_query_log():
            df = spark.sql(sql)
    except AnalysisException as error:
        refusal = str(error).splitlines()[0]
        # What is said of streams only: any other query Spark refuses over tables too.
        if "STREAM" not in refusal or not catalyst.is_stream_of_known_columns(catalyst.parsed(sql)):
            raise
    plan = catalyst.parsed(sql) if df is None else catalyst.analyzed(df)
    return _query(catalyst, plan, df, strict, rows or {}, options, refusal)


def to_multiway(
    df: DataFrame, *, strict: bool = False, rows: Mapping[str, int] | None = None, **options: Any
) -> MultiwayQuery:
    """The same for a streaming DataFrame that was built with ``join``, ``where`` and so on."""
    if not is_classic(df.sparkSession):
        return _query_of(_unseen(df), strict, _no_stages)
    catalyst = Catalyst(df.sparkSession)
    return _query(catalyst, catalyst.analyzed(df), df, strict, rows or {}, options)


def _query(
    catalyst: Catalyst,
    plan: Any,
    df: DataFrame | None,
    strict: bool,
    rows: Mapping[str, int],
    options: Mapping[str, Any],
    refusal: str = "",
) -> MultiwayQuery:
    _check_options(options)
    converted = convert(catalyst, plan, df, rows, options, refusal)
    return _query_of(
        converted, strict, lambda path: StagedQuery(catalyst, plan, path, rows, options)
    )


def _check_options(options: Mapping[str, Any]) -> None:
    for name in _SAID_BY_THE_QUERY:
        if name in options:
            raise InvalidArgumentError(
                f"{name}={options[name]!r}: what is joined and what comes of it the query says; "
                "leave it out, or name the streams yourself: multiway_join(...)"
            )


def _query_of(
    converted: Converted, strict: bool, stage: Callable[[str], StagedQuery]
) -> MultiwayQuery:
    if converted.note:
        if strict:
            raise InvalidArgumentError(
                f"strict=True, and joins would be left to Spark: {converted.note}"
            )
        _log.warning("joins are left to Spark: %s", converted.note)
    return MultiwayQuery(converted, stage)


def _unseen(df: DataFrame) -> Converted:
    note = (
        "Spark Connect shows no query plans, so no join of the query can be merged; "
        "name the streams yourself: multiway_join({...}, on=...)"
    )
    return Converted(df, False, note, "", None)


def _no_stages(_path: str) -> StagedQuery:
    raise InvalidArgumentError("staged mode reads plans, which Spark Connect does not show")
