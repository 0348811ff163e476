"""streaming_sql and to_multiway: queries as people write them, with their joins merged.

- Two-Step Convert of the UMJoin paper, section 3.2 (``lsmstate.joins.plan``), runs over Catalyst's
  analyzed plan. The joins of a group become one ``multiway_join``.
- What is not merged stays as Spark planned it, and a ``note`` says why.
- Invariant: a converted query has the columns and the rows of the original one, in every output
  mode that the original one allows.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.options import (
    ON_SPARK,
    SKEW,
    STATE,
    TIME,
    Skew,
    State,
    Time,
    refuse_other_fields,
)
from lsmstate.option_names import names_checked
from lsmstate.spark_integration.catalyst.catalyst import Catalyst, is_classic
from lsmstate.spark_integration.columns.key_types import quiet_query_log
from lsmstate.spark_integration.joins.residual_filter import distances_known
from lsmstate.spark_integration.session.worker_python import check_worker_python
from lsmstate.spark_integration.sql.convert import Converted, convert
from lsmstate.spark_integration.sql.staged import StagedQuery

_log = logging.getLogger("lsmstate")

#: Options of multiway_join that the query itself sets.
_SAID_BY_THE_QUERY = ("on", "streams", "how", "emit", "changes", "unmatched", "result_time", "pins")
_REMEDY = (
    "the query itself says what is joined and what comes of it, so this is no option here; leave "
    "it out, or name the streams yourself: multiway_join(...)"
)
_checked = names_checked(ON_SPARK, dict.fromkeys(_SAID_BY_THE_QUERY, _REMEDY))


@dataclass(frozen=True)
class MultiwayQuery:
    """A query, converted or not. It stands for its DataFrame and has all methods of it.

    Attributes:
        converted: What became of the query.

    Example:
        ```python
        query = streaming_sql(spark, sql)
        print(query.note or query.explain_multiway())
        query.writeStream.format("parquet").option("checkpointLocation", "cp").start("out")
        ```
    """

    converted: Converted
    _stage: Callable[[str], StagedQuery] = field(repr=False)

    @property
    def dataframe(self) -> DataFrame:
        """The streaming DataFrame, converted as far as possible.

        Raises:
            InvalidArgumentError: Spark streams the query neither way. The message has Spark's
                reason and the remedy, which is staged mode.
        """
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
        """The writer of the DataFrame. It takes all output modes of the original query."""
        if self.converted.update_as_append:
            return _AppendingWriter(self.dataframe)
        return self.dataframe.writeStream

    def staged(self, path: str) -> StagedQuery:
        """Prepare the query for staged mode, which answers queries that Spark does not stream.

        Those are queries with subqueries, distinct or nested aggregates, sorts without an
        aggregate, or semi and anti joins.

        Args:
            path: Directory of this query alone, for its checkpoint, its fragments and its answers.

        Returns:
            The staged query; its ``start`` runs it.

        Raises:
            InvalidArgumentError: The query reads no stream, ``path`` has another query's fragments,
                or the session is one of Spark Connect.
        """
        return self._stage(path)

    def explain_multiway(self) -> str:
        """Describe the conversion.

        Returns:
            The plan before and after, why each join was or was not merged, and how the operator
            works: keys, indexes, shares.
        """
        return self.converted.explained()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.dataframe, name)


class _AppendingWriter(DataStreamWriter):
    """The writer of a query whose results never change. Update mode then writes what append mode
    does, and append mode is what the operator runs in."""

    def outputMode(self, outputMode: str) -> DataStreamWriter:  # noqa: N802, N803
        return super().outputMode("append" if outputMode.lower() == "update" else outputMode)


@_checked
def streaming_sql(
    spark: SparkSession,
    sql: str,
    *,
    strict: bool = False,
    push_aggregates: bool = True,
    skew: Skew = SKEW,
    time: Time = TIME,
    state: State = STATE,
) -> MultiwayQuery:
    """Run SQL over streaming views, with its inner joins merged into one operator.

    Inner joins of streams become one ``multiway_join`` over the full history, with an equality or
    without. Filters, projections, aliases, views and common table expressions may stand between
    them. All else stays as Spark planned it.

    Spark allows one such operator in a query. It serves all groups of joins that a UNION ALL
    combines, or the largest group. The branches of the UNION ALL must be joins under filters and
    projections, without random values, subqueries, Python functions or a column that is selected
    twice. Staged mode serves all groups.

    If nothing can be merged, the query runs as Spark runs it. Its ``note`` says why and is logged
    as a warning. Under Spark Connect, which does not expose plans, that is always so; use
    ``multiway_join`` there.

    The checkpoint keeps the merged join: its inputs in their order, their columns and keys. A start
    with another join is refused, and the message shows both.

    Args:
        spark: The session.
        sql: The query, over streaming views (``createOrReplaceTempView``).
        strict: Raise an error if a join is left to Spark.
        push_aggregates: Compute aggregates right above the joins inside them, where that can be
            done. Sums of DOUBLE may then differ in their last digits.
        skew: How rows are spread over the buckets: ``Skew(rows=..., ...)``, without ``routing``.
            ``rows`` are by alias or view; default for files: guessed from their size.
        time: How far apart the event times of joined rows are, how long rows are kept, and what
            becomes of late ones: ``Time(window=..., ...)``. ``within`` and ``window`` are a part of
            the condition of merged joins, so all joins of streams have to be merged then.
        state: Where the state lies, and what it may take: ``State(memory=..., ...)``.

    Returns:
        The query, which stands for its DataFrame.

    Raises:
        InvalidArgumentError: An option does not fit, or ``strict`` refuses the query.
        AnalysisException: Spark refuses the query.
        ParseException: The text is not SQL.

    Cost:
        Beside Spark's own analysis, about 1,000 calls into the JVM and a third of a second for a
        join of six inputs; two seconds for the first query of a session.

    Example:
        ```python
        query = streaming_sql(spark, "SELECT ... FROM c, o, l WHERE c.id = o.c_id AND ...")
        query.writeStream.outputMode("append").start()
        ```
    """
    _check_sql(spark, sql)
    options = _set_options(skew, time, state)
    with distances_known(spark, [sql]) as own_functions:
        if not is_classic(spark):
            return _query_of(_unseen(spark.sql(sql)), strict, time, _no_stages)
        check_worker_python(spark)
        catalyst = Catalyst(spark)
        catalyst.own_functions = own_functions
        return _sql_query(catalyst, sql, strict, push_aggregates, skew.rows or {}, options)


def _sql_query(
    catalyst: Catalyst,
    sql: str,
    strict: bool,
    push_aggregates: bool,
    rows: Mapping[str, int],
    options: Mapping[str, Any],
) -> MultiwayQuery:
    df, refusal = None, ""
    try:
        # A stream in a subquery is refused here, and may be answered in staged mode.
        with quiet_query_log():
            df = catalyst.spark.sql(sql)
    except AnalysisException as error:
        refusal = str(error).splitlines()[0]
        # What is said of streams only: any other query Spark refuses over tables too.
        if "STREAM" not in refusal or not catalyst.is_stream_of_known_columns(catalyst.parsed(sql)):
            raise
    plan = catalyst.parsed(sql) if df is None else catalyst.analyzed(df)
    return _query(catalyst, plan, df, strict, push_aggregates, rows, options, refusal)


@_checked
def to_multiway(
    df: DataFrame,
    *,
    strict: bool = False,
    push_aggregates: bool = True,
    skew: Skew = SKEW,
    time: Time = TIME,
    state: State = STATE,
) -> MultiwayQuery:
    """Merge the inner joins of a streaming DataFrame into one operator.

    It does for a DataFrame that was built with ``join``, ``where`` and so on what ``streaming_sql``
    does for SQL.

    Args:
        df: The streaming DataFrame.
        strict: Raise an error if a join is left to Spark.
        push_aggregates: Compute aggregates right above the joins inside them, where that can be
            done. Sums of DOUBLE may then differ in their last digits.
        skew: How rows are spread over the buckets: ``Skew(rows=..., ...)``, without ``routing``.
            ``rows`` are by alias or source.
        time: How far apart the event times of joined rows are, how long rows are kept, and what
            becomes of late ones: ``Time(window=..., ...)``. ``within`` and ``window`` are a part of
            the condition of merged joins, so all joins of streams have to be merged then.
        state: Where the state lies, and what it may take: ``State(memory=..., ...)``.

    Returns:
        The query, which stands for its DataFrame.

    Raises:
        InvalidArgumentError: An option does not fit, or ``strict`` refuses the query.

    Example:
        ```python
        joined = c.join(o, o.c_id == c.id).join(l, l.o_id == o.id).select("name", "price")
        to_multiway(joined, strict=True).writeStream.outputMode("append").start()
        ```
    """
    if not hasattr(df, "sparkSession") or not hasattr(df, "isStreaming"):
        raise InvalidArgumentError(
            f"df={df!r} is a {type(df).__name__}; give a streaming DataFrame"
        )
    options = _set_options(skew, time, state)
    if not is_classic(df.sparkSession):
        return _query_of(_unseen(df), strict, time, _no_stages)
    check_worker_python(df.sparkSession)
    catalyst = Catalyst(df.sparkSession)
    plan = catalyst.analyzed(df)
    return _query(catalyst, plan, df, strict, push_aggregates, skew.rows or {}, options)


def _check_sql(spark: object, sql: object) -> None:
    """InvalidArgumentError unless these are a session and text: Spark shows the Java stack."""
    if not hasattr(spark, "sql"):
        raise InvalidArgumentError(
            f"spark={spark!r} is a {type(spark).__name__}; give the SparkSession"
        )
    if not isinstance(sql, str) or not sql.strip():
        raise InvalidArgumentError(
            f'sql={sql!r}: give the text of a query, such as "SELECT * FROM a JOIN b ON a.k = b.k"'
        )


def _query(
    catalyst: Catalyst,
    plan: Any,
    df: DataFrame | None,
    strict: bool,
    push_aggregates: bool,
    rows: Mapping[str, int],
    options: Mapping[str, Any],
    refusal: str = "",
) -> MultiwayQuery:
    pushes = push_aggregates
    converted = convert(catalyst, plan, df, rows, options, refusal, pushes_aggregates=pushes)
    time = options.get("time", TIME)

    def stage(path: str) -> StagedQuery:
        if asked := _distance(time):
            raise InvalidArgumentError(
                f"{asked}: staged mode answers the rest of a query from all kept rows; write the "
                "time interval into its condition"
            )
        return StagedQuery(catalyst, plan, path, rows, options)

    return _query_of(converted, strict, time, stage)


def _set_options(skew: Skew, time: Time, state: State) -> dict[str, Any]:
    """The options that are not at their defaults. InvalidArgumentError for a column that the query
    does not have."""
    if time.result_time is not None:
        raise InvalidArgumentError(f"result_time={time.result_time!r}: {_REMEDY}")
    refuse_other_fields(skew, ("hot_keys", "rows", "shares"), f"is not said here: {_REMEDY}")
    given = {"skew": replace(skew, rows=None), "time": time, "state": state}
    defaults = {"skew": SKEW, "time": TIME, "state": STATE}
    return {name: value for name, value in given.items() if value != defaults[name]}


def _distance(time: Time) -> str:
    """``within`` and ``window`` as they are given; empty: neither is."""
    given = {"within": time.within, "window": time.window}
    return ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)


def _query_of(
    converted: Converted, strict: bool, time: Time, stage: Callable[[str], StagedQuery]
) -> MultiwayQuery:
    if converted.note:
        if asked := _distance(time):
            raise InvalidArgumentError(
                f"{asked} is a part of the condition of merged joins, and joins are left to Spark: "
                f"{converted.note}; write the time interval into the condition of the query, or "
                "name the streams yourself: multiway_join(...)"
            )
        if strict:
            raise InvalidArgumentError(
                f"strict=True refuses a query that leaves joins to Spark: {converted.note}"
            )
        _log.warning("joins are left to Spark: %s", converted.note)
    return MultiwayQuery(converted, stage)


def _unseen(df: DataFrame) -> Converted:
    note = (
        "Spark Connect does not expose query plans, so no join of the query can be merged; "
        "name the streams yourself: multiway_join({...}, on=...)"
    )
    return Converted(df, False, note, "", None)


def _no_stages(_path: str) -> StagedQuery:
    raise InvalidArgumentError(
        "staged mode reads query plans, which Spark Connect does not expose; use a classic Spark "
        "session"
    )
