"""The part of a join condition that is no equality of keys: it filters what the join found."""

from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from joins.spec import output_names
from lsmstate.errors import InvalidArgumentError
from spark_integration.keys import quiet_query_log


def filtered(
    joined: DataFrame,
    streams: Mapping[str, DataFrame],
    conditions: Sequence[str],
    *,
    others: Sequence[str] = (),
    unless: str | None = None,
) -> DataFrame:
    """Rows of ``joined`` for which every condition is true; columns are named ``stream.column``.
    ``others`` are columns of ``joined`` that are no stream's; where the one that ``unless`` names
    is true, nothing is filtered.

    Spark evaluates them, by its own rules. InvalidArgumentError if it cannot, with its reason.
    Cost: none but the evaluation; Spark's optimizer removes the structs made here.
    """
    if not conditions:
        return joined
    names = output_names({name: frame.columns for name, frame in streams.items()})
    by_stream = joined.select(
        *(
            F.struct(
                *(
                    F.col(quoted(found)).alias(column)
                    for column, found in zip(frame.columns, names[name], strict=True)
                )
            ).alias(name)
            for name, frame in streams.items()
        ),
        *map(quoted, others),
    )
    for condition in conditions:
        try:
            with quiet_query_log():
                wanted = F.expr(condition)
                by_stream = by_stream.where(
                    wanted if unless is None else wanted | F.col(quoted(unless))
                )
        except (AnalysisException, ParseException) as refusal:
            reason = str(refusal).splitlines()[0]
            raise InvalidArgumentError(
                f"join condition {condition!r}: {reason} Name columns as stream.column; the "
                f"streams are {', '.join(streams)}"
            ) from refusal
    return by_stream.select(
        *(
            F.col(f"{quoted(name)}.{quoted(column)}").alias(found)
            for name, frame in streams.items()
            for column, found in zip(frame.columns, names[name], strict=True)
        ),
        *map(quoted, others),
    )


def quoted(name: str) -> str:
    """The name as SQL takes it whatever it holds."""
    return "`" + name.replace("`", "``") + "`"
