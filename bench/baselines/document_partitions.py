"""Two partitionings of documents that the paper compares association groups with.

- Disjoint sets: values that occur in one document have one partition. Nothing is copied, and often
  all values are connected.
- Set cover: values may have several partitions. Each document of the sample lies whole in one.

Source: Gjurovski, Michel, *Scaling Out Schema-free Stream Joins* (ICDE 2020), section 7.
"""

from collections.abc import Mapping, Sequence

Values = frozenset[int]
#: By value its partitions.
Table = Mapping[int, frozenset[int]]


def disjoint_sets(documents: Sequence[Values], partitions: int) -> Table:
    """Connected values together, the largest sets first, each where the load is least."""
    parent: dict[int, int] = {}

    def root(value: int) -> int:
        parent.setdefault(value, value)
        while parent[value] != value:
            parent[value] = parent[parent[value]]
            value = parent[value]
        return value

    for values in documents:
        first, *others = values
        for value in others:
            parent[root(value)] = root(first)
    loads: dict[int, int] = {}
    for values in documents:
        own = root(next(iter(values)))
        loads[own] = loads.get(own, 0) + 1
    filled = [0] * partitions
    at: dict[int, int] = {}
    for component in sorted(loads, key=lambda each: (-loads[each], each)):
        at[component] = min(range(partitions), key=lambda each: (filled[each], each))
        filled[at[component]] += loads[component]
    return {value: frozenset({at[root(value)]}) for value in list(parent)}


def set_cover(documents: Sequence[Values], partitions: int) -> Table:
    """Seeds with most values that no other seed has; then each document, few values first, where it
    has most in common, less the part of the load."""
    covered: set[int] = set()
    waiting = sorted(set(documents), key=lambda each: (len(each), sorted(each)))
    held: list[set[int]] = []
    loads: list[int] = []
    for _ in range(min(partitions, len(waiting))):
        seed = max(waiting, key=lambda each: (len(each - covered), -len(each & covered)))
        waiting.remove(seed)
        covered |= seed
        held.append(set(seed))
        loads.append(1)
    for values in waiting:
        total = sum(loads)
        best = max(
            range(len(held)),
            key=lambda each: (len(values & held[each]) / len(values) - loads[each] / total, -each),
        )
        held[best] |= values
        loads[best] += 1
    return {
        value: frozenset(at for at, some in enumerate(held) if value in some)
        for value in set().union(*held)
    }


def partitions_of(table: Table, values: Values, partitions: int) -> frozenset[int]:
    """Where a document goes: everywhere, if it has a value that the table lacks."""
    if any(value not in table for value in values):
        return frozenset(range(partitions))
    return frozenset().union(*(table[value] for value in values))
