"""The arguments of a stateful function: its bucket, and the batches of the bucket."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.protocols import Role
from lsmstate.store import BatchLike, MultimapStore
from lsmstate.store_base.key_groups import KeyGroups


@dataclass(slots=True)
class Tally:
    """Counts of our own functions for the metrics."""

    counts: dict[str, int] = field(default_factory=dict)
    """Those of the local join."""
    ticks: int = 0
    """Rows of the result that the plan drops above the operator."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket in one micro-batch, as a stateful function sees it."""

    number: int
    """Number of the bucket; a key has the same bucket in every micro-batch. Numbers are not
    consecutive."""
    batch_id: int
    """Spark's number of the micro-batch; a repeated micro-batch has the same one."""
    schema: pa.Schema
    """Columns that every batch of results must have."""
    watermark_us: int | None = None
    """The watermark in microseconds since 1970. None: there is none yet, or the operator does not
    watch it."""
    tally: Tally = field(default_factory=Tally, compare=False)
    place: int = 0
    """The bucket among all of them, from 0; a routing names it by this. -1: it is one of before a
    rescale, which Spark calls once more with a watermark and without rows."""
    buckets: int = 1
    """How many buckets there are."""


class InputBatch(NamedTuple):
    """Some rows of one input that belong to the bucket: about 1 MiB, or 1/64 of the memory cap."""

    input: str
    """Name of the input."""
    rows: pa.RecordBatch
    """All columns of the input."""
    keys: pa.RecordBatch
    """The key of each row, in the types in which Spark's ``=`` compares it. The store takes it."""
    role: Role = Role.STORE
    """What the rows do in this bucket. Other roles than STORE: rows of a hot key, or copies."""
    marks: pa.RecordBatch | None = None
    """What the router wrote beside each row; None: nothing."""

    def groups(self) -> KeyGroups:
        """Group the rows by key.

        Returns:
            The distinct keys: the first row of each, and the number of the group of each row.
        """
        return KeyGroups.of(self.keys)


#: Called once per bucket and micro-batch that has rows for it; gives the rows of the result, in
#: batches or as one object of the Arrow PyCapsule protocol, or,
#: where the plan has ``parts``, picks of them.
BucketFunction = Callable[
    [Bucket, Iterator[InputBatch], MultimapStore],
    Iterable[BatchLike | Picked] | None,
]
