"""A conversion as text: the plan before, the plan after, what became of each join, and how each
condition is used."""

from collections.abc import Mapping

from lsmstate.joins.plan.conditions import conjuncts
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
    parents_first,
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
    parts += ["Joins", *(f"  {verdict}" for verdict in verdicts)]
    uses = [line for node in parents_first(conversion.after) for line in _uses(node)]
    if uses:
        parts += ["", "Conditions", *(f"  {line}" for line in uses)]
    return "\n".join(parts)


def _uses(node: Node) -> list[str]:
    """How each condition of a multi-way join is used, and what it costs."""
    if isinstance(node, Filter) and isinstance(node.input, MultiJoin):
        of = node.input.group
        return [
            f"{part}: left to Spark, which evaluates it on each result of group {of}"
            for part in conjuncts(node.condition)
        ]
    if not isinstance(node, MultiJoin):
        return []
    of = node.group
    lines = [f"{key}: a key of group {of}; a new row reads its equal rows" for key in node.keys]
    lines += [f"{each}: evaluated by the operator of group {of}" for each in node.conditions]
    for below in node.inputs:
        if isinstance(below, Filter):
            lines += [
                f"{part}: filters an input of group {of}, each row once, before it is stored"
                for part in conjuncts(below.condition)
            ]
    return lines


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
            shown = [f"keys {keys}"] if keys else []
            if node.conditions:
                shown.append(f"conditions {'; '.join(f'[{each}]' for each in node.conditions)}")
            of = f"MultiJoin {node.group} of {len(node.inputs)} inputs"
            return ", ".join([of, *shown])
