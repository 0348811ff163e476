"""A condition that is a Column, as the SQL text that it stands for."""

from typing import Any, Final

from pyspark.sql import Column

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.catalyst.catalyst import column_node, items
from lsmstate.spark_integration.catalyst.names import quoted

_SIGNS: Final = ("=", "<=>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "and", "or", "like")
_BEHIND: Final = {"isnull": "IS NULL", "isnotnull": "IS NOT NULL"}
_BEFORE: Final = {"!": "NOT", "not": "NOT", "negative": "-"}
_REMEDY: Final = 'give the condition as text, such as "o.id = p.order_id"'


def column_text(condition: Column) -> str:
    """The text of a Column whose names are ``stream.column``, as ``F.col("o.id")`` has them.

    Raises:
        InvalidArgumentError: It is a Column of Spark Connect, or has a part that is not known.
    """
    node = column_node(condition)
    if node is None:
        raise InvalidArgumentError(
            f"on={condition!r}: Spark Connect does not show what a Column stands for; {_REMEDY}"
        )
    return _text(node, condition)


def _text(node: Any, condition: Column) -> str:
    kind = str(node.getClass().getSimpleName())
    if kind == "UnresolvedAttribute":
        names = items(node.nameParts())
        if node.planId().isDefined() or len(names) < 2:
            raise _without_stream(names[-1], condition)
        return ".".join(map(quoted, names))
    if kind == "ExpressionColumnNode":  # a column of a DataFrame, such as orders["id"]
        raise _without_stream(str(node.sql()), condition)
    if kind == "UnresolvedFunction":
        return _call(str(node.functionName()), items(node.arguments()), condition)
    if kind == "CaseWhenOtherwise":
        pairs = [(branch._1(), branch._2()) for branch in items(node.branches())]
        shown = [f"WHEN {_text(a, condition)} THEN {_text(b, condition)}" for a, b in pairs]
        if node.otherwise().isDefined():
            shown.append(f"ELSE {_text(node.otherwise().get(), condition)}")
        return f"CASE {' '.join(shown)} END"
    if kind == "UnresolvedExtractValue":
        return f"{_text(node.child(), condition)}[{_text(node.extraction(), condition)}]"
    if kind == "SqlExpression":
        return f"({node.expression()})"
    if kind == "Literal":
        return str(node.sql())
    raise InvalidArgumentError(f"on={condition!r}: {kind} is not known in a condition; {_REMEDY}")


def _without_stream(name: str, condition: Column) -> InvalidArgumentError:
    return InvalidArgumentError(
        f'on={condition!r}: {name!r} names no stream; write it as F.col("stream.{name}"), with '
        "the stream's name"
    )


def _call(name: str, arguments: list[Any], condition: Column) -> str:
    shown = [_text(argument, condition) for argument in arguments]
    word = name.lower()
    if word in _SIGNS and len(shown) == 2:
        return f"({shown[0]} {word.upper()} {shown[1]})"
    if word in _BEHIND:
        return f"({shown[0]} {_BEHIND[word]})"
    if word in _BEFORE:
        return f"({_BEFORE[word]} {shown[0]})"
    if word == "in":
        return f"({shown[0]} IN ({', '.join(shown[1:])}))"
    return f"{name}({', '.join(shown)})"
