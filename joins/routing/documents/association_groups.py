"""Documents to buckets by groups of values that occur together (association groups).

- The *posting list* of a value, under its attribute, is the set of documents that have it. Values
  of one posting list are *equivalent*.
- x *implies* y if the documents with x are a proper part of those with y. A group is made around
  one value: in the order ``desc`` a frequent value takes all that imply it; in the order ``asc`` a
  rare one takes all that it implies.
- Groups are placed in partitions, the largest first, each in the one with the least load.
- A document goes to the partitions of all its values, so documents that share one meet.
- A value that the sample lacks is *unknown*. With ``broadcast`` its documents go everywhere. With
  ``hash`` it has a partition of its own, that of its hash; then a table never changes.

Source: Gjurovski, Michel, *Scaling Out Schema-free Stream Joins* (ICDE 2020), sections 3
to 5. The printed algorithm takes the order ``asc``, the authors' program ``desc``.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.document_reading import MARKS, READING, Reading
from lsmstate.joins.routing.documents.cells import CellRouter, Cells
from lsmstate.joins.routing.hash import bucket_of_hashes
from lsmstate.store_base.checks import nearest

Hashes = npt.NDArray[np.uint64]
#: The values of a document, by the hashes of their paths and values.
Values = frozenset[int]

ORDERS: Final = ("desc", "asc")
UNKNOWN: Final = ("hash", "broadcast")
GROUPS: Final = "association groups"
#: Documents of a sample that groups are made of.
SAMPLE: Final = 4000


@dataclass(frozen=True)
class Group:
    """Values that are placed together, and the documents of the sample that have one of them."""

    values: frozenset[int]
    documents: frozenset[int]


def association_groups(documents: Sequence[Values], order: str = "desc") -> list[Group]:
    """The groups of a sample.

    Args:
        documents: The sample.
        order: "desc": frequent values first; "asc": rare ones first.

    Returns:
        Groups whose values are disjoint, and together all that occur.

    Cost:
        For each set of equivalent values, the sets in one of its documents.
    """
    postings: dict[int, list[int]] = {}
    for place, values in enumerate(documents):
        for value in values:
            postings.setdefault(value, []).append(place)
    classes: dict[tuple[int, ...], list[int]] = {}
    for value in sorted(postings):
        classes.setdefault(tuple(postings[value]), []).append(value)
    lists = sorted(classes, key=lambda each: (len(each), each))
    sets = [frozenset(each) for each in lists]
    of_document: dict[int, list[int]] = {}
    for number, each in enumerate(lists):
        for place in each:
            of_document.setdefault(place, []).append(number)
    # What x implies stands in every document with x, so one of them is enough.
    implied = [
        [y for y in of_document[each[0]] if len(lists[y]) > len(each) and sets[x] < sets[y]]
        for x, each in enumerate(lists)
    ]
    taken_by: list[list[int]] = implied
    numbers = list(range(len(lists)))
    if order == "desc":
        taken_by = [[] for _ in lists]
        for x, found in enumerate(implied):
            for y in found:
                taken_by[y].append(x)
        numbers.reverse()
    groups, is_taken = [], [False] * len(lists)
    for number in numbers:
        if is_taken[number]:
            continue
        members = [number, *(each for each in taken_by[number] if not is_taken[each])]
        for member in members:
            is_taken[member] = True
        groups.append(
            Group(
                frozenset(value for each in members for value in classes[lists[each]]),
                frozenset().union(*(sets[each] for each in members)),
            )
        )
    return groups


def consolidated(samples: Sequence[Sequence[Group]], documents: Sequence[Values]) -> list[Group]:
    """The groups of several creators, each of a sample of its own, as one set of disjoint groups.

    A group inside another is dropped. A value of several groups stays in the smallest of them.
    Empty groups go, groups of equal documents are united, and documents are counted anew over all
    samples.
    """
    unique = list(dict.fromkeys(g.values for sample in samples for g in sample))
    holders: dict[int, list[int]] = {}
    for number, values in enumerate(unique):
        for value in values:
            holders.setdefault(value, []).append(number)
    kept: list[set[int]] = []
    for number, values in enumerate(unique):
        others = set(holders[next(iter(values))]) - {number}
        kept.append(set() if any(values < unique[other] for other in others) else set(values))
    owners: dict[int, set[int]] = {}
    for number, left in enumerate(kept):
        for value in left:
            owners.setdefault(value, set()).add(number)
    for value in sorted(owners):
        best = min(owners[value], key=lambda number: (len(kept[number]), number))
        for number in owners[value] - {best}:
            kept[number].discard(value)
    postings: dict[int, set[int]] = {}
    for place, document in enumerate(documents):
        for value in document:
            postings.setdefault(value, set()).add(place)
    united: dict[frozenset[int], set[int]] = {}
    for left in kept:
        if left:
            where = frozenset().union(*(postings.get(value, set()) for value in left))
            united.setdefault(where, set()).update(left)
    return [Group(frozenset(values), where) for where, values in united.items()]


def placed(groups: Iterable[Group], partitions: int) -> dict[int, int]:
    """By value its partition: groups of most documents first, each where the load is least. The
    load of a partition is the number of documents that have one of its values."""
    loads: list[set[int]] = [set() for _ in range(partitions)]
    found: dict[int, int] = {}
    ordered = sorted(groups, key=lambda g: (-len(g.documents), min(g.values)))
    for number, group in enumerate(ordered):
        if number < partitions:
            at = number
        else:
            at = min(range(partitions), key=lambda each: (len(loads[each]), each))
        loads[at] |= group.documents
        found.update(dict.fromkeys(group.values, at))
    return found


@dataclass(frozen=True)
class Expansion:
    """Attributes that are taken as one, because the first has fewer values than partitions.

    An attribute that all documents have, with few values, would leave partitions empty. It is
    united with the next one until there are enough combinations. A document that lacks one of
    them goes everywhere.
    """

    paths: tuple[str, ...]

    @classmethod
    def of(cls, documents: Documents, partitions: int) -> "Expansion | None":
        """The expansion that a sample asks for; None: none."""
        _, numbers, hashes = documents.columns()
        if not len(numbers):
            return None
        attributes, counts = np.unique(numbers, return_counts=True)
        pairs = np.unique(np.stack([numbers.astype(np.uint64), hashes]), axis=1)
        distinct = np.bincount(pairs[0].astype(np.int64))[attributes]
        order = np.lexsort((distinct, -counts))
        first = next(
            (at for at in order if counts[at] == len(documents) and 1 < distinct[at] < partitions),
            None,
        )
        if first is None:
            return None
        path = documents.values.path
        chosen = [int(attributes[first])]
        for at in order:
            found = _combined(documents, chosen)
            if len(np.unique(found[found != 0])) >= partitions:
                break
            if at != first and distinct[at] > 1:
                chosen.append(int(attributes[at]))
        return cls(tuple(path(number) for number in chosen)) if len(chosen) > 1 else None


def _combined(documents: Documents, numbers: Sequence[int]) -> Hashes:
    """Of each document a hash of its values under some attributes; 0: it lacks one."""
    places, found, hashes = documents.columns()
    total = np.zeros(len(documents), np.uint64)
    has = np.zeros(len(documents), np.int64)
    for order, number in enumerate(numbers):
        here = found == number
        total[places[here]] += hashes[here] * np.uint64(2 * order + 3)
        has[places[here]] += 1
    total[total == 0] = np.uint64(1)
    return np.where(has == len(numbers), total, np.uint64(0))


def values_of(documents: Documents, expansion: Expansion | None) -> tuple[list[Values], list[bool]]:
    """The values by which documents are routed, and whether each lacks an attribute that is
    expanded."""
    places, numbers, hashes = documents.columns()
    lacks = np.zeros(len(documents), np.bool_)
    kept = np.ones(len(numbers), np.bool_)
    extra = np.zeros(len(documents), np.uint64)
    if expansion is not None:
        members = [documents.values.number(path) for path in expansion.paths]
        extra = _combined(documents, members)
        lacks = extra == 0
        kept = ~np.isin(numbers, members) | lacks[places]
    found: list[set[int]] = [set() for _ in range(len(documents))]
    for place, value in zip(places[kept].tolist(), hashes[kept].tolist(), strict=True):
        found[place].add(value)
    if expansion is not None:
        for place in np.flatnonzero(~lacks).tolist():
            found[place].add(int(extra[place]))
    return [frozenset(each) for each in found], lacks.tolist()


@dataclass(frozen=True)
class GroupRouting:
    """A table of groups, which the first start fixes."""

    table: Mapping[int, int]
    """By value its partition."""
    partitions: int
    unknown: str = "hash"
    expansion: Expansion | None = None
    reading: Reading = READING
    marks: pa.Schema = MARKS

    @classmethod
    def chosen(
        cls,
        sample: Sequence[str],
        partitions: int,
        reading: Reading | None = None,
        *,
        order: str | None = None,
        unknown: str = "hash",
        expands: bool = True,
    ) -> "GroupRouting":
        """The groups of a sample of JSON texts. ``order``: None takes the one that copies least."""
        if unknown not in UNKNOWN:
            raise InvalidArgumentError(f"unknown={unknown!r} is unknown{nearest(unknown, UNKNOWN)}")
        reading = reading or READING
        documents = reading.read(pa.array(list(sample[:SAMPLE]), pa.string()))
        expansion = Expansion.of(documents, partitions) if expands else None
        values, _ = values_of(documents, expansion)
        values = [each for each in values if each]
        best: GroupRouting | None = None
        for each in ORDERS if order is None else (order,):
            table = placed(association_groups(values, each), partitions)
            found = cls(table, partitions, unknown, expansion, reading)
            if best is None or _copies(values, table) < _copies(values, best.table):
                best = found
        assert best is not None
        return best

    @property
    def adopted(self) -> Mapping[str, Any]:
        """The table, which the first start fixes."""
        values = np.array(list(self.table), np.uint64)
        owners = np.array(list(self.table.values()), np.uint16)
        return {
            GROUPS: {
                "values": base64.b64encode(values.tobytes()).decode(),
                "partitions": base64.b64encode(owners.tobytes()).decode(),
                "of": self.partitions,
                "unknown": self.unknown,
                "expansion": None if self.expansion is None else list(self.expansion.paths),
            }
        }

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "GroupRouting":
        """The routing by the table that the first start fixed. InvalidArgumentError if it has more
        partitions than there are buckets."""
        found = adopted[GROUPS]
        if found["of"] > buckets:
            raise InvalidArgumentError(
                f"the association groups need {found['of']} buckets, and there are {buckets}; give "
                "the number of buckets that they were made for"
            )
        paths = found["expansion"]
        return replace(
            self,
            table=_decoded(found["values"], found["partitions"]),
            partitions=found["of"],
            unknown=found["unknown"],
            expansion=None if paths is None else Expansion(tuple(paths)),
        )

    def router(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, table: object = None
    ) -> CellRouter:
        """The router of one stream."""
        return CellRouter(lambda documents, _: self.cells(documents), self.reading)

    def cells(self, documents: Documents) -> Cells:
        """The cells of documents."""
        values, lacks = values_of(documents, self.expansion)
        found = [
            self.partitions_of(each, goes_everywhere=lack)
            for each, lack in zip(values, lacks, strict=True)
        ]
        ends = np.cumsum([len(each) for each in found]).astype(np.int64)
        numbers = np.array([cell for each in found for cell in each], np.int64)
        return Cells(ends, numbers)

    def partitions_of(self, values: Values, *, goes_everywhere: bool = False) -> list[int]:
        """The partitions of a document, ascending."""
        if not values:
            return []
        known = {self.table[value] for value in values if value in self.table}
        unknown = [value for value in values if value not in self.table]
        if goes_everywhere or (unknown and self.unknown == "broadcast"):
            return list(range(self.partitions))
        if unknown:
            hashes = np.array(unknown, np.uint64)
            valid = np.ones(len(unknown), np.bool_)
            known.update(bucket_of_hashes(hashes, valid, self.partitions).tolist())
        return sorted(known)

    def explain(self) -> str:
        """The groups, for people."""
        largest = Counter(self.table.values()).most_common(1)
        expanded = "" if self.expansion is None else f"; as one: {' + '.join(self.expansion.paths)}"
        return (
            f"association groups: {len(self.table)} values in {self.partitions} partitions, at "
            f"most {largest[0][1] if largest else 0} in one; unknown values: {self.unknown}"
            f"{expanded}"
        )


@lru_cache(maxsize=16)
def _decoded(values: str, partitions: str) -> Mapping[int, int]:
    """A table as ``adopted`` gave it. Every task of a micro-batch reads the same one."""
    numbers = np.frombuffer(base64.b64decode(values), np.uint64).tolist()
    owners = np.frombuffer(base64.b64decode(partitions), np.uint16).tolist()
    return dict(zip(numbers, owners, strict=True))


def _copies(documents: Iterable[Values], table: Mapping[int, int]) -> int:
    """In how many partitions documents lie, all together."""
    return sum(len({table[value] for value in document}) for document in documents)
