"""A conversion as text: the plan before, the plan after, and what became of each join."""

from collections.abc import Mapping

from lsmstate.joins.plan.join_tree import (
    Alias,
    Filter,
    Join,
    MultiJoin,
    Node,
    Other,
    Project,
    Source,
    is_streaming,
)
from lsmstate.joins.plan.tsc import Conversion


def explain(conversion: Conversion) -> str:
    """Describe a conversion. Joins are numbered from the top of the plan before, left
    before right."""
    numbers = {join: number for number, join in enumerate(conversion.verdicts, 1)}
    verdicts = [
        f"{_line(join, numbers)}: "
        + (verdict.reason if verdict.group is not None else f"not merged: {verdict.reason}")
        for join, verdict in conversion.verdicts.items()
    ]
    parts = ["Before", draw(conversion.before, numbers), ""]
    if conversion.multi_joins:
        parts += ["After", draw(conversion.after), ""]
    else:
        parts += ["After: unchanged, no join was merged", ""]
    return "\n".join([*parts, "Joins", *(f"  {verdict}" for verdict in verdicts)])


def draw(plan: Node, numbers: Mapping[Join, int] | None = None) -> str:
    """The plan as a tree of lines, inputs below their node. A shared subplan is drawn once."""
    drawn: dict[Node, int] = {}
    lines: list[str] = []
    # (node, what stands before its line, what stands before the lines below it)
    stack: list[tuple[Node, str, str]] = [(plan, "", "")]
    while stack:
        node, first, below = stack.pop()
        text = _line(node, numbers or {})
        if node in drawn and node.inputs:
            lines.append(f"{first}{text} (as in line {drawn[node]})")
            continue
        lines.append(first + text)
        drawn[node] = len(lines)
        for place, child in reversed(list(enumerate(node.inputs))):
            last = place == len(node.inputs) - 1
            stack.append(
                (child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))
            )
    return "\n".join(lines)


def _line(node: Node, numbers: Mapping[Join, int]) -> str:
    match node:
        case Source():
            rows = "" if node.rows is None else f", about {node.rows:,} rows"
            return f"{node.name} ({'stream' if is_streaming(node) else 'table'}{rows})"
        case Join():
            number = f" {numbers[node]}" if node in numbers else ""
            on = "without a condition" if node.condition is None else f"on {node.condition}"
            return f"Join{number} {node.kind} {on}"
        case Filter():
            return f"Filter {node.condition}"
        case Project():
            values = (
                str(column) if column == value else f"{value} AS {column}"
                for column, value in node.values
            )
            return f"Project {', '.join(values)}"
        case Alias():
            return f"Alias {node.name}"
        case Other():
            return node.name
        case MultiJoin():
            keys = "; ".join(f"[{key}]" for key in node.keys)
            return f"MultiJoin {node.group} of {len(node.inputs)} inputs, keys {keys}"
