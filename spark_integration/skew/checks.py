"""Checks which joins can have ``hot_keys``, when they are built."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from lsmstate.errors import InvalidArgumentError
from lsmstate.options import MIB, MINIMUM_MEMORY_BYTES, STORE_MEMORY_BYTES
from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan, is_classic, items, kind_of
from lsmstate.spark_integration.plan.options import nearest
from lsmstate.spark_integration.skew.key_watch import OBSERVE, SPREAD

#: Nodes of Spark's plans that keep rows in their order, by the beginning of their names.
_IN_ORDER: Final = (
    *("Streaming", "Project", "Filter", "SubqueryAlias", "View", "EventTimeWatermark", "Union"),
    *("Generate", "MapIn", "MapPartitions", "MapElements", "SerializeFrom", "DeserializeTo"),
)


def check_skew(
    skew: str | None, streams: Sequence[str], unfit: str | None, backend: str = "lsm"
) -> None:
    """InvalidArgumentError if there is no such choice, or the join cannot have it. ``unfit`` is a
    verb phrase that says why it cannot; None: it can."""
    if skew is None:
        return
    if skew not in (OBSERVE, SPREAD):
        near = nearest(str(skew), (OBSERVE, SPREAD))
        raise InvalidArgumentError(
            f"hot_keys={skew!r}: did you mean {near!r}? Known: {OBSERVE}, {SPREAD}, or None"
        )
    if unfit is not None:
        raise InvalidArgumentError(
            f"hot_keys={skew!r} is for inner joins over the full history by one common key, and "
            f"this join {unfit}; leave hot_keys out"
        )
    if skew == SPREAD and len(streams) > 2 and backend != "lsm":
        raise InvalidArgumentError(
            f"hot_keys={SPREAD!r} of three or more streams needs backend='lsm', in which a bucket "
            f"can read the commits of another, and this join has backend={backend!r}; choose "
            f"'lsm', or hot_keys={OBSERVE!r}"
        )


def check_memory(streams: Sequence[str], memory_bytes: int) -> None:
    """InvalidArgumentError if a bucket could not open the store of a key's owner beside its own. It
    does that when it is added to a hot key of three or more streams (``take_over``)."""
    needed = MINIMUM_MEMORY_BYTES + 2 * STORE_MEMORY_BYTES
    if len(streams) > 2 and memory_bytes < needed:
        raise InvalidArgumentError(
            f"memory={memory_bytes} is too small for hot_keys={SPREAD!r} of three or more streams: "
            "a bucket that is added to a hot key reads the files of another bucket beside its own; "
            f"give at least {needed} bytes ('{needed // MIB}m')"
        )


def check_repeatable(name: str, frame: DataFrame) -> None:
    """InvalidArgumentError unless the input has the same rows when a micro-batch is repeated,
    because the content of a row decides in which bucket it is stored. What the user's functions
    return is not checked."""
    if not is_classic(frame.sparkSession):
        raise InvalidArgumentError(
            f"hot_keys={SPREAD!r} reads the plans of its inputs, which Spark Connect does not "
            f"expose; use hot_keys={OBSERVE!r}"
        )
    stack = [analyzed_plan(frame)]
    while stack:
        node = stack.pop()
        kind = kind_of(node)
        if not kind.startswith(_IN_ORDER):
            raise InvalidArgumentError(
                f"hot_keys={SPREAD!r}: stream {name!r} has {kind} in its plan, so a repeated task "
                "may read its rows in another order; do that after the join, write its result to a "
                f"table and read that table as a stream, or use hot_keys={OBSERVE!r}"
            )
        children = items(node.children())
        if not node.deterministic() and all(child.deterministic() for child in children):
            found = [each.sql() for each in items(node.expressions()) if not each.deterministic()]
            raise InvalidArgumentError(
                f"hot_keys={SPREAD!r}: stream {name!r} has {', '.join(found)} in its plan, which "
                "has another value whenever a task is repeated; do that after the join, write its "
                f"result to a table and read that table as a stream, or use hot_keys={OBSERVE!r}"
            )
        stack += children


def explained_skew(skew: str | None, streams: int) -> str:
    """A line for ``explain_join``; empty without skew."""
    if skew is None:
        return ""
    if skew == OBSERVE:
        return "\nhot keys are counted"
    if streams == 2:
        return "\nhot keys are counted, and their rows are spread over several buckets"
    return (
        "\nhot keys are counted, and the rows of one stream of each are spread over several buckets"
    )
