"""What a join is, in words that are compared when a kept state is opened again."""

from collections.abc import Iterable, Mapping
from typing import Any

from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.join_tree import bound_text


def described(
    keys: Iterable[Iterable[str]],
    *,
    joins: str = "inner",
    emit: str = "append",
    operations: Mapping[str, str] | None = None,
    bounds: Iterable[Bound] = (),
) -> dict[str, Any]:
    """Everything that decides which results there are; equal for joins that are the same.

    Args:
        keys: The equal columns of each key, as ``stream.column``.
        joins: The tree of joins as text.
        emit: What the results are: "append", "changes" or "final".
        operations: The operation column of each stream that is a changelog.
        bounds: The time intervals.
    """
    return {
        "keys": sorted(" = ".join(sorted(members)) for members in keys),
        "joins": joins,
        "emit": emit,
        "changelogs": sorted(f"{name}.{column}" for name, column in (operations or {}).items()),
        "intervals": sorted({bound_text(bound) for bound in bounds}),
    }
