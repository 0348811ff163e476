"""Random JSON documents, and which of them match: a definition that is easy to check."""

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("doc", pa.string())])

#: Values that are easily taken for each other, and numbers at every limit.
VALUES: list[Any] = [
    *(0, -0.0, 1, 1.0, True, False, None, "1", "", "true", "null"),
    *(2**53, 2**53 + 1, float(2**53), 2**63 - 1, 2**63, float(2**63), 2**64 - 1, -(2**63)),
    *(0.1, 1e300, -1e300, 5e-324, 1e16, 10**16, 123456789012345680.0),
    *("é", "e\u0301", "\U0001f600", "a\u0000b", 'quote " and \\', "x" * 300),
    *([], [1, 2], [2, 1.0, 1], [[]], [None], [{"a": 1, "b": 2}], [{"b": 2, "a": 1.0}]),
    *({}, {"x": 1}, {"x": {"y": 1}}, {"x": {}}, {"x.y": 1}),
]  # fmt: skip


def canonical(value: Any, sets: bool = True) -> Any:
    """Equal exactly if two values are."""
    if value is None or isinstance(value, bool | str):
        return (type(value).__name__, value)
    if isinstance(value, float) and not (value.is_integer() and -(2**63) <= value < 2**64):
        return ("double", value)
    if isinstance(value, int | float):
        return ("whole", int(value))
    if isinstance(value, list):
        found = [canonical(each, sets) for each in value]
        return ("array", frozenset(found) if sets else tuple(found))
    return ("object", frozenset((name, canonical(each, sets)) for name, each in value.items()))


def leaves(
    document: Any, path: str = "", *, sets: bool = True, nulls: bool = True
) -> dict[str, Any]:
    """The attributes of a document and their values."""
    found = {}
    for name, value in document.items():
        below = f"{path}{name}"
        if isinstance(value, dict) and value:
            found.update(leaves(value, f"{below}.", sets=sets, nulls=nulls))
        elif nulls or value is not None:
            found[below] = canonical(value, sets)
    return found


def is_match(a: dict[str, Any], b: dict[str, Any], at_least: int = 1) -> bool:
    """Whether two documents, as leaves, match."""
    shared = a.keys() & b.keys()
    return len(shared) >= at_least and all(a[name] == b[name] for name in shared)


def pairs_of(documents: Sequence[dict[str, Any]], at_least: int = 1) -> set[tuple[int, int]]:
    """Positions of all pairs that match, the earlier one first."""
    return {
        (i, j)
        for j in range(len(documents))
        for i in range(j)
        if is_match(documents[i], documents[j], at_least)
    }


def random_documents(count: int, seed: int) -> list[dict[str, Any]]:
    """Documents of many shapes, with values of ``VALUES``, hot values and rare ones."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        kind = rng.random()
        if kind < 0.2:
            document = {f"v{rng.randrange(3)}": rng.choice(VALUES) for _ in range(2)}
        elif kind < 0.4:
            document = {"meta": {"host": rng.randrange(4)}, "x": rng.choice([{"y": 1}, {"y": 2}])}
        else:
            odds = {"user": 0.9, "kind": 0.8, "level": 0.7, "ip": 0.3, "x.y": 0.1, "rare": 0.05}
            document = {
                name: "hot" if rng.random() < 0.5 else rng.randrange(10)
                for name, odd in odds.items()
                if rng.random() < odd
            }
        found.append(document)
    return found


def batches(documents: Iterable[dict[str, Any]], rng: random.Random) -> list[list[dict[str, Any]]]:
    """Rows with ids, in batches of random sizes; the ids are the positions."""
    rows = [{"id": at, "doc": json.dumps(each)} for at, each in enumerate(documents)]
    found = []
    while rows:
        count = rng.choice([0, 1, 5, 40, 100])
        found.append(rows[:count])
        rows = rows[count:]
    return found


def found_pairs(results: Any) -> list[tuple[int, int]]:
    """The pairs of ids that ``output="ids"`` gives."""
    table = results.to_table()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
