"""Say of an output mode that does not fit what to do instead.

Spark checks the mode before a query exists, so no listener of ours sees it. Its error speaks of
``applyInPandasWithState``, which the caller never wrote. So the two calls that start a query are
wrapped in the process that builds one of our operators. Queries without one are not touched.
"""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan
from lsmstate.spark_integration.plan.stateful_plan import Wanted

_SAID_BY_SPARK: Final = re.compile(
    r"applyInPandasWithState in \w+ (output )?mode|output mode: complete\. .*no streaming aggreg"
)
_MODE: Final = re.compile(r"(?i)(?:with|output mode:) (append|update|complete)\b")
_MARK: Final = "_lsmstate_tells_modes"
_REMEDIES: Final = {
    "update": 'leave outputMode out: in "append" mode the result has the same rows',
    "complete": (
        "leave outputMode out, or aggregate the result, as in groupBy(...).count(); "
        "streaming_sql(...).staged(directory) answers a whole query anew for each micro-batch"
    ),
}
_OF_FUNCTIONS: Final = (
    'start the query in the mode that {operator} was told, or give output_mode="append" or "update"'
)


def tell_modes(operators_in: Callable[[Any], list[Wanted]]) -> None:
    """Wrap the calls that start a query, once a process.

    Args:
        operators_in: The operators of ours in an analyzed plan.
    """
    for name in ("start", "toTable"):
        call = getattr(DataStreamWriter, name)
        if not hasattr(call, _MARK):
            setattr(DataStreamWriter, name, _telling(call, operators_in))


def _telling(
    call: Callable[..., Any], operators_in: Callable[[Any], list[Wanted]]
) -> Callable[..., Any]:
    @wraps(call)
    def told(writer: DataStreamWriter, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(writer, *args, **kwargs)
        except AnalysisException as error:
            if _SAID_BY_SPARK.search(str(error)) is None:
                raise
            found = operators_in(analyzed_plan(writer._df))
            if not found:
                raise
            raise mode_error(found[0].operator, str(error)) from None

    setattr(told, _MARK, True)
    return told


def mode_error(operator: str, said: str) -> InvalidArgumentError:
    """The error for an output mode that Spark refused in the words of ``said``."""
    found = _MODE.search(said)
    mode = "append" if found is None else found[1].lower()
    remedy = _REMEDIES.get(mode)
    if remedy is None or operator == "stateful_batches":
        remedy = _OF_FUNCTIONS.format(operator=operator)
    return InvalidArgumentError(
        f'outputMode("{mode}"): the result of {operator} has another output mode; {remedy}'
    )
