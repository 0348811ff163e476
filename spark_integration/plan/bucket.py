"""What a stateful function is given: the bucket it is called for, and the bucket's batches."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.store import MultimapStore
from lsmstate.store_base.key_groups import KeyGroups


@dataclass(slots=True)
class Tally:
    """What a function of ours reports for the metrics."""

    late_rows: int = 0
    unmatched_retractions: int = 0
    ticks: int = 0
    """Rows of the result that are dropped above."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket in one micro-batch."""

    number: int
    """The same for a key in every micro-batch; numbers are not consecutive."""
    batch_id: int
    """The micro-batch: Spark's own number, the same when the batch is repeated."""
    schema: pa.Schema
    """The columns every batch of results must have."""
    watermark_us: int | None = None
    """How far event time has come, in microseconds since 1970; None: no watermark yet, or the
    operator does not watch it."""
    tally: Tally = field(default_factory=Tally, compare=False)


class InputBatch(NamedTuple):
    """Some rows of one input that belong to the bucket, with their keys; about 1 MiB, or
    1/64 of the memory cap if that is less."""

    input: str
    """The input's name."""
    rows: pa.RecordBatch
    """All columns of the input."""
    keys: pa.RecordBatch
    """The key of each row, in the types Spark's ``=`` compares it in: what the store takes."""
    is_stored: bool = True
    """False: rows of a hot key that are stored in another bucket, and look for matches here; or
    copies of rows that count in another, where the plan marks them."""

    def groups(self) -> KeyGroups:
        """Which of the rows have the same key."""
        return KeyGroups.of(self.keys)


#: Called once per bucket and micro-batch that has rows for it; gives the rows of the result, or,
#: where the plan has ``parts``, picks of them.
BucketFunction = Callable[
    [Bucket, Iterator[InputBatch], MultimapStore],
    Iterable[pa.RecordBatch | pa.Table | Picked] | None,
]
