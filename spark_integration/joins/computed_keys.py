"""Keys that are no columns, such as ``a.doc.id``: Spark computes them as columns of the inputs."""

from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.classify import with_computed
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.predicate import Call, Element, Expression, Field, text_of
from lsmstate.joins.specs.one_key import Condition
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.columns.key_types import quiet_query_log


def with_computed_keys(
    streams: Mapping[str, DataFrame], on: Condition
) -> tuple[dict[str, DataFrame], Condition, tuple[str, ...]]:
    """The inputs with the columns that keys need, the condition over these, and their names, which
    are in no other input. InvalidArgumentError if Spark does not know what a key names."""
    if not isinstance(on, str):
        return dict(streams), on, ()
    text, computed = with_computed(on, {name: f.schema.names for name, f in streams.items()})
    frames = {}
    for name, frame in streams.items():
        own = computed.of.get(name, {})
        try:
            with quiet_query_log():
                more = {added: F.expr(_own_text(of)) for added, of in own.items()}
                frames[name] = frame.withColumns(more) if more else frame
                _ = frames[name].schema if more else None
        except AnalysisException as refusal:
            listed = ", ".join(map(text_of, own.values()))
            raise InvalidArgumentError(
                f"join condition {on!r}: {listed}: {str(refusal).splitlines()[0]}"
            ) from refusal
    return frames, text, tuple(computed.names)


def _own_text(expression: Expression) -> str:
    """The expression as SQL over the columns of one input."""
    match expression:
        case Column(_, name):
            return quoted(name)
        case Field(of, name):
            return f"{_own_text(of)}.{quoted(name)}"
        case Element(of, key):
            return f"{_own_text(of)}[{text_of(key)}]"
        case Call(name, (of, constant)):
            return f"{name}({_own_text(of)}, {text_of(constant)})"
    raise AssertionError(f"{expression} is no path")
