"""GroupAssigner: association groups over tumbling windows, as the paper runs them.

- Documents with a value that the table lacks go everywhere. At the ``delta``-th sight of such a
  value it is added to the partition that has most of the document's values (the *delta rule*).
  Those that had it before went everywhere, so they meet the later ones.
- With ``unknown="hash"`` a value has the partition of its hash at once, and nothing is added.
- After a window its replication and its largest load are compared with those at the table's
  making. If one has grown by more than ``theta``, the next window gets a new table.

Source: Gjurovski, Michel, *Scaling Out Schema-free Stream Joins* (ICDE 2020), section 5.
Loads are compared as parts of a window, since windows and assigners differ in size.
"""

from collections import Counter

import numpy as np

from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.documents.association_groups import (
    SAMPLE,
    Expansion,
    GroupRouting,
    Values,
    association_groups,
    placed,
    values_of,
)
from lsmstate.joins.routing.documents.quality import Quality


class GroupAssigner:
    """Assigns the documents of one window after the other."""

    def __init__(
        self,
        partitions: int,
        *,
        order: str = "desc",
        unknown: str = "broadcast",
        delta: int = 3,
        theta: float = 0.2,
        expands: bool = False,
    ) -> None:
        """Begin without a table.

        Args:
            partitions: How many there are.
            order: Of grouping; see ``association_groups``.
            unknown: "broadcast" or "hash".
            delta: Sights of an unknown value after which it is added. 0: never.
            theta: How much worse than at its making a table may become.
            expands: Whether an attribute of few values is united with others.
        """
        if delta and unknown == "hash":
            raise InvalidArgumentError(
                f"delta={delta!r} with unknown='hash': a value that is added to a partition would "
                "miss those that its hash sent elsewhere; give delta=0"
            )
        self._partitions = partitions
        self._order = order
        self._unknown = unknown
        self._delta = delta
        self._theta = theta
        self._expands = expands
        self._table: dict[int, int] = {}
        self._expansion: Expansion | None = None
        self._created: Quality | None = None
        self._is_due = True
        self._sights: Counter[int] = Counter()
        self._loads = np.zeros(partitions, np.int64)
        self._documents = 0
        #: Tables that were made after the first, and values that the delta rule added.
        self.repartitions = -1
        self.added = 0

    def begin_window(self, sample: Documents) -> None:
        """Begin a window; make a table of the sample if there is none, or the last one is bad."""
        self._loads[:] = 0
        self._documents = 0
        self._sights.clear()
        if not self._is_due:
            return
        self._expansion = Expansion.of(sample, self._partitions) if self._expands else None
        values, _ = values_of(sample, self._expansion)
        values = [each for each in values[:SAMPLE] if each]
        self._table = placed(association_groups(values, self._order), self._partitions)
        loads = np.zeros(self._partitions, np.int64)
        for each in values:
            loads[list({self._table[value] for value in each})] += 1
        self._created = Quality.of(loads, len(values))
        self._is_due = False
        self.repartitions += 1

    def assign(self, documents: Documents) -> list[list[int]]:
        """The partitions of documents of the window."""
        routing = GroupRouting(self._table, self._partitions, self._unknown, self._expansion)
        found = []
        for values, lacks in zip(*values_of(documents, self._expansion), strict=True):
            cells = routing.partitions_of(values, goes_everywhere=lacks)
            found.append(cells)
            self._loads[cells] += 1
            self._documents += bool(values)
            if self._delta:
                self._watch(values)
        return found

    def _watch(self, values: Values) -> None:
        """The delta rule."""
        unknown = [value for value in values if value not in self._table]
        self._sights.update(unknown)
        due = [value for value in unknown if self._sights[value] >= self._delta]
        if not due:
            return
        common = Counter(self._table[value] for value in values if value in self._table)
        best = min(
            range(self._partitions), key=lambda each: (-common[each], self._loads[each], each)
        )
        for value in sorted(due):
            self._table[value] = best
            self.added += 1

    def end_window(self) -> Quality:
        """End the window; decide whether the next one gets a new table."""
        found = Quality.of(self._loads, self._documents)
        assert self._created is not None
        self._is_due = found.is_worse(self._created, self._theta)
        return found
