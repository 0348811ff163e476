"""Spark's own figures of a stateful operator, set to others.

Spark counts what its state store holds, and gives an operator in Python no way to count more. But
one object of the JVM is the progress of a micro-batch for all who read it: ``lastProgress``,
listeners, and the page of Structured Streaming. Its fields are set by reflection.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from py4j.protocol import Py4JError

from lsmstate.spark_integration.catalyst.catalyst import java_class

#: As Spark calls the operator.
_NAME = "applyInPandasWithState"
_JACKSON = "com.fasterxml.jackson.databind"


def set_figures(
    progress: Any, jvm: Any, figures: Mapping[str, int], custom: Mapping[str, int]
) -> bool:
    """Set figures of the operator in a micro-batch.

    Args:
        progress: The JVM's progress of the micro-batch, as its listeners get it.
        jvm: The JVM.
        figures: By the name of the field, such as ``numRowsTotal``.
        custom: Further figures, beside those that Spark has among ``customMetrics``.

    Returns:
        False, and nothing has changed, if the progress has not one such operator, or if this
        release of Spark keeps the fields elsewhere.
    """
    try:
        found = [each for each in progress.stateOperators() if each.operatorName() == _NAME]
        if len(found) != 1:
            return False
        (operator,) = found
        kind = operator.getClass()
        fields = {name: kind.getDeclaredField(name) for name in (*figures, "customMetrics")}
        for field in fields.values():
            field.setAccessible(True)
        # Not by iterating over the map: py4j ends that by an exception, which PySpark looks up in
        # fifteen ways, each in all jars.
        own = json.loads(operator.json()).get("customMetrics", {})
        every = {**own, **custom}
        fields["customMetrics"].set(operator, _longs(jvm, every))
        for name, value in figures.items():
            fields[name].setLong(operator, value)
    except (Py4JError, OSError, TypeError):  # the JVM may be gone
        return False
    return True


def _longs(jvm: Any, values: Mapping[str, int]) -> Any:
    """A map of the JVM. Py4j would make Integers of its numbers, which Spark does not take."""
    reader, kind = _reader_of_longs(jvm)
    return reader.readValue(json.dumps(dict(values)), kind)


@lru_cache(maxsize=2)
def _reader_of_longs(jvm: Any) -> tuple[Any, Any]:
    """What reads a map of them from JSON, and the map's class. Made once: py4j looks for each part
    of a dotted name in all jars."""
    feature = java_class(jvm, f"{_JACKSON}.DeserializationFeature").USE_LONG_FOR_INTS
    reader = java_class(jvm, f"{_JACKSON}.ObjectMapper")().configure(feature, True)
    return reader, java_class(jvm, "java.util.HashMap")().getClass()
