"""Quality: what a routing of documents costs, by the measures of the paper.

Source: Gjurovski, Michel, *Scaling Out Schema-free Stream Joins* (ICDE 2020), section 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from lsmstate.joins.routing.documents.cells import Cells

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Quality:
    """What some documents cost."""

    replication: float
    """Copies of a document on average."""
    largest_load: float
    """Part of the documents that the fullest partition had."""
    gini: float
    """Of the loads: 0 where all are equal."""

    @classmethod
    def of(cls, loads: Sequence[int] | Numbers, documents: int) -> Self:
        """The quality of loads, in documents."""
        count = max(1, documents)
        return cls(float(np.sum(loads)) / count, float(np.max(loads)) / count, gini(loads))

    @classmethod
    def of_cells(cls, cells: Cells, partitions: int) -> Self:
        """The quality of the cells of some documents."""
        loads = np.bincount(cells.numbers, minlength=partitions)
        return cls.of(loads, int((cells.counts > 0).sum()))

    def cost(self, partitions: int) -> float:
        """One number for comparisons: the largest load as a multiple of an even one, and the
        copies."""
        return self.largest_load * partitions + self.replication

    def is_worse(self, before: "Quality", theta: float) -> bool:
        """Whether copies or the largest load have grown by more than ``theta``."""
        limit = 1 + theta
        return (
            self.replication > limit * before.replication
            or self.largest_load > limit * before.largest_load
        )

    def __str__(self) -> str:
        return (
            f"{self.replication:.2f} copies of a document, {self.largest_load:.1%} of the "
            f"documents in the fullest bucket, Gini {self.gini:.2f}"
        )


def gini(loads: Sequence[int] | Numbers) -> float:
    """The Gini coefficient of loads."""
    ordered = np.sort(np.asarray(loads, np.float64))
    total = ordered.sum()
    if not total:
        return 0.0
    ranks = np.arange(1, len(ordered) + 1)
    return float((2 * ranks - len(ordered) - 1) @ ordered / (len(ordered) * total))
