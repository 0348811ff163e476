"""The thesis's prototype: left-deep trees of nested loops over broadcast micro-batches.

Each stream, and each intermediate result, is stored in the partitions of the nodes. In a
micro-batch the new rows of both inputs of a join are collected by the driver and broadcast to all
nodes, which compare them with all rows that they store of the other input. Equalities are compared
that way too. A pair counts if the stored row is older, so that it is found once.

What is counted are rows: stored, sent, and compared. Equation 4.2 says the first, 4.3 the second.

Source: the bachelor thesis *Full-history theta joins in micro-batches* (UFRGS 2019), chapter 4. It
does not say how rows of one micro-batch are ordered: here the left input comes first.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

#: The columns of some rows, each an array of numbers; broadcast against those of the other side.
Columns = Sequence[npt.NDArray[np.int64]]
Condition = Callable[[Columns, Columns], npt.NDArray[np.bool_]]
Rows = npt.NDArray[np.int64]

#: Pairs that are compared at a time.
_BLOCK = 1 << 22


class NestedLoops:
    """The join of several streams, in the order they are given."""

    def __init__(
        self, widths: Mapping[str, int], conditions: Sequence[Condition], nodes: int = 1
    ) -> None:
        """Prepare the join.

        Args:
            widths: By stream its number of columns, which are numbers.
            conditions: For each stream but the first, what compares the columns of all before with
                its own.
            nodes: Workers, to each of which the driver sends what it broadcasts.
        """
        self._conditions = conditions
        self._nodes = nodes
        self._names = list(widths)
        self._stores: dict[str, Rows] = {n: np.empty((0, w), np.int64) for n, w in widths.items()}
        self._intermediates: list[str] = []
        name, width = self._names[0], widths[self._names[0]]
        for other in self._names[1:-1]:
            name, width = f"({name} {other})", width + widths[other]
            self._intermediates.append(name)
            self._stores[name] = np.empty((0, width), np.int64)
        self.messages = 0
        """Rows that were sent: to the driver, and from there to all nodes."""
        self.pairs = 0
        """Pairs that were compared."""
        self.last_broadcast = 0
        """Rows that the last micro-batch broadcast."""

    @property
    def stored(self) -> dict[str, int]:
        """Rows of each stream and of each intermediate result."""
        return {name: len(rows) for name, rows in self._stores.items()}

    def micro_batch(
        self, arriving: Mapping[str, Sequence[tuple[int, ...]]]
    ) -> list[tuple[int, ...]]:
        """Store the new rows, and return the new results."""
        self.last_broadcast = 0
        left, new_left = self._names[0], self._rows(self._names[0], arriving)
        self._store(left, new_left)
        for level, right in enumerate(self._names[1:]):
            new_right = self._rows(right, arriving)
            # The left ones are older: they are compared with what the right side stored before.
            found = [
                self._compared(level, self._sent(new_left), self._stores[right]),
                self._compared(level, self._stores[left], self._sent(new_right)),
            ]
            self._store(right, new_right)
            new_left = np.concatenate(found)
            if level < len(self._intermediates):
                left = self._intermediates[level]
                self._store(left, new_left)
        return list(map(tuple, new_left.tolist()))

    def _rows(self, name: str, arriving: Mapping[str, Sequence[tuple[int, ...]]]) -> Rows:
        rows = np.array(arriving.get(name, ()), np.int64)
        return rows.reshape(-1, self._stores[name].shape[1])

    def _store(self, name: str, rows: Rows) -> None:
        self._stores[name] = np.concatenate([self._stores[name], rows])

    def _sent(self, rows: Rows) -> Rows:
        self.last_broadcast += len(rows)
        self.messages += len(rows) * (self._nodes + 1)
        return rows

    def _compared(self, level: int, left: Rows, right: Rows) -> Rows:
        """Each row of one side with each of the other, block by block."""
        self.pairs += len(left) * len(right)
        found = [np.empty((0, left.shape[1] + right.shape[1]), np.int64)]
        step = max(1, _BLOCK // max(1, len(right)))
        other = [column[None, :] for column in right.T]
        for first in range(0, len(left), step):
            block = left[first : first + step]
            mine = [column[:, None] for column in block.T]
            at, its = np.nonzero(self._conditions[level](mine, other))
            found.append(np.concatenate([block[at], right[its]], axis=1))
        return np.concatenate(found)
