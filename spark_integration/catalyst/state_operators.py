"""Spark's own figures of a stateful operator, set to others.

Spark counts what its state store holds, and gives an operator in Python no way to count more. But
one object of the JVM is the progress of a micro-batch for all who read it: ``lastProgress``,
listeners, and the page of Structured Streaming. Its fields are set by reflection.
"""

import json
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError

#: As Spark calls the operator.
_NAME = "applyInPandasWithState"
_JACKSON = "com.fasterxml.jackson.databind"


def set_figures(
    query: Any, jvm: Any, batch_id: int, figures: Mapping[str, int], custom: Mapping[str, int]
) -> bool:
    """Set figures of the operator in a micro-batch.

    Args:
        query: The JVM's query, which may have ended.
        jvm: The JVM.
        batch_id: The micro-batch.
        figures: By the name of the field, such as ``numRowsTotal``.
        custom: Further figures, beside those that Spark has among ``customMetrics``.

    Returns:
        False, and nothing has changed, if the query has no such progress or not one such operator,
        or if this release of Spark keeps the fields elsewhere.
    """
    try:
        found = [
            operator
            for progress in reversed(list(query.recentProgress()))
            if progress.batchId() == batch_id
            for operator in progress.stateOperators()
            if operator.operatorName() == _NAME
        ]
        if len(found) != 1:
            return False
        (operator,) = found
        kind = operator.getClass()
        fields = {name: kind.getDeclaredField(name) for name in (*figures, "customMetrics")}
        for field in fields.values():
            field.setAccessible(True)
        every = {**dict(operator.customMetrics()), **custom}
        fields["customMetrics"].set(operator, _longs(jvm, every))
        for name, value in figures.items():
            fields[name].setLong(operator, value)
    except (Py4JError, OSError, TypeError):  # the JVM may be gone
        return False
    return True


def _longs(jvm: Any, values: Mapping[str, int]) -> Any:
    """A map of the JVM. Py4j would make Integers of its numbers, which Spark does not take."""
    jackson = getattr(jvm, _JACKSON)
    reader = jackson.ObjectMapper().configure(
        jackson.DeserializationFeature.USE_LONG_FOR_INTS, True
    )
    return reader.readValue(json.dumps(dict(values)), jvm.java.util.HashMap().getClass())
