"""The shape that all joins share: a spec, a routing, a local join, and results.

- A *spec* says what is joined. It is an immutable, checked value.
- A *routing* says which buckets see a row, and in which *role*. Its routers are pure.
- A *local join* says what happens inside a bucket: it stores rows and finds their partners.
- *Results* are matches that are made into rows when they are read.

``kinds.py`` maps the name of a kind of join to its spec and its local join.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.specs.event_time import EventTime
from lsmstate.store import StreamSchema

Numbers = npt.NDArray[np.int64]
Roles = npt.NDArray[np.int8]


class Role(IntEnum):
    """What a bucket does with a row. The rows of one stream and micro-batch are handled in this
    order, so a row that only probes finds all rows of its own micro-batch."""

    STORE = 0
    """It is stored here, looks for partners, and is this bucket's own."""
    COPY = 1
    """It is stored here and looks for partners. Another bucket counts it as its own."""
    PROBE = 2
    """It looks for partners here, and is stored in another bucket."""


class Batch(NamedTuple):
    """Rows of one stream that arrive in a bucket."""

    stream: str
    rows: pa.RecordBatch
    computed: pa.RecordBatch | KeyBatch | None = None
    """The columns that the spec asked for (``Spec.computed``), one row per row; None: the local
    join computes them."""
    role: Role = Role.STORE
    marks: pa.RecordBatch | None = None
    """What the router wrote beside each row."""
    is_more_coming: bool = False
    """Whether the next batch is of the same stream and micro-batch: both count as one."""


def check_is_stored(batch: Batch) -> None:
    """InvalidArgumentError for rows that only probe, in a join that stores all that it is given."""
    if batch.role == Role.PROBE:
        raise InvalidArgumentError(
            f"process({batch.stream!r}): the rows have the role PROBE, and this kind of join "
            "stores all its rows; route them by a routing that gives STORE or COPY"
        )


@dataclass(frozen=True)
class Context:
    """What a local join knows of its bucket and of its caller's options."""

    piece_bytes: int = 1 << 20
    """Most bytes of a piece of the results, unless a row is larger."""
    bucket: int = 0
    buckets: int = 1
    micro_batch: int = 0
    watermark_us: int | None = None
    """Microseconds since 1970; None: there is none yet."""
    unmatched: str = "count"
    """What becomes of a retraction of a row that is not stored: "count" or "error"."""
    most_results: float | None = None
    """Most results for each row of a batch; more are an error. None: they are logged."""
    learned: ProbeOrder = field(default_factory=ProbeOrder)
    """What earlier local joins of the same join have learned about the order of probes."""


@runtime_checkable
class LocalJoin(Protocol):
    """A join inside one bucket. It is not thread-safe. The store belongs to the caller, who commits
    and closes it."""

    def process(self, batch: Batch) -> Results:
        """Store a batch as its role says, and return its new results.

        A batch that is refused changes nothing. Read the results to the end, or close them, before
        the next call.
        """
        ...

    def advance(self, watermark_us: int) -> Results:
        """Set the watermark, and return the results that are now final. A lower one than before
        changes nothing."""
        ...

    def finish(self) -> None:
        """End what the last call began; to be called before a commit."""
        ...

    def close(self) -> None:
        """Release memory; no other call follows. The store may be closed already."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """Counters since this object was made, by name, such as ``late_rows``."""
        ...

    @property
    def late_rows(self) -> pa.RecordBatch | None:
        """The late rows of the last batch, if the join hands them out."""
        ...

    @property
    def watermark_us(self) -> int | None:
        """The watermark up to which rows are forgotten."""
        ...


class Spec(Protocol):
    """What is joined: an immutable, checked value."""

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The columns of each stream as they are stored."""
        ...

    @property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams of the store."""
        ...

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of a result."""
        ...

    @property
    def event_time(self) -> EventTime | None:
        """Event times of the streams, and how long their rows are kept; None: for ever."""
        ...

    def described(self) -> Mapping[str, Any]:
        """Everything that decides which results there are, in words; equal for equal joins."""
        ...

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        ...

    def computed(self, stream: str) -> Sequence[str]:
        """Names of the columns that the local join is given beside the rows of a stream. Keys that
        are stored with the row, or that the local join makes itself, are none of them."""
        ...


class Routed(NamedTuple):
    """Where rows go."""

    positions: Numbers
    """Positions of rows, ascending. A row that goes to several buckets stands several times."""
    buckets: Numbers
    """Beside each its bucket, 0 to buckets - 1."""
    roles: Roles | None = None
    """What each does there; None: STORE."""
    marks: pa.RecordBatch | None = None
    """Columns beside each, as ``Routing.marks`` declares them."""


class Router(Protocol):
    """Says in which buckets the rows of one stream go. It is pure: the answer follows from the
    rows, from what the checkpoint keeps, and from the table of the micro-batch."""

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows, whose keys stand beside them. Rows that match nothing are left out."""
        ...


class Routing(Protocol):
    """Which buckets see a row. A value; ``settled`` fixes what the first start chooses."""

    @property
    def adopted(self) -> Mapping[str, Any]:
        """What the first start pins and later starts take over."""
        ...

    @property
    def marks(self) -> pa.Schema:
        """Columns that its routers write beside each row; most write none."""
        ...

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "Routing":
        """The routing over that many buckets, with what the first start pinned."""
        ...

    def router(self, stream: str, rows: pa.Schema, keys: pa.Schema, table: Any) -> Router:
        """The router of one stream, under the table of the micro-batch; None: it has no tables."""
        ...


class Table(Protocol):
    """What rows are routed by in some micro-batches, beside their routing: an immutable value."""

    @property
    def called(self) -> tuple[int, ...]:
        """Buckets that every task calls, with rows for them or without; ascending."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The table as JSON has it."""
        ...

    def explain(self) -> str:
        """The table for people; empty: there is nothing to say."""
        ...


class Observed(Protocol):
    """What one bucket has seen, for whoever makes the next table."""

    @property
    def bucket(self) -> int:
        """Its number, 0 to buckets - 1."""
        ...

    def to_json(self) -> dict[str, Any]:
        """What it has seen as JSON has it."""
        ...


@runtime_checkable
class TableRouting(Routing, Protocol):
    """A routing whose routes change with what the buckets have seen. It is pure: whoever keeps the
    tables sees to it that all tasks of a micro-batch route by one, whenever they run."""

    @property
    def initial_table(self) -> Table:
        """The table of micro-batches before the first one that is made."""
        ...

    def next_table(self, table: Any, observed: Sequence[Any], micro_batch: int) -> Table:
        """Make the table that follows ``table`` from what buckets have observed; none of it is
        needed, and each bucket is there at most once.

        Args:
            table: The table before.
            observed: What buckets saw by the end of the micro-batch before.
            micro_batch: The first one that the new table is for.
        """
        ...

    def table_from_json(self, found: Mapping[str, Any]) -> Table:
        """The inverse of ``Table.to_json``."""
        ...

    def observed_from_json(self, bucket: int, found: Mapping[str, Any]) -> Observed:
        """The inverse of ``Observed.to_json``, also of an earlier release's."""
        ...


def makes_tables_alike(routing: TableRouting) -> bool:
    """Whether all attempts of a bucket observe the same, and ``next_table`` makes the same of it on
    every machine, as a routing says by an attribute of this name. Then a table may be made several
    times, and lie where no file can be created exclusively. All others need a local directory."""
    return bool(getattr(routing, "makes_tables_alike", False))


def counters_of(routing: Routing) -> tuple[str, ...]:
    """What its observers count, as a routing says by an attribute ``counters``."""
    return tuple(getattr(routing, "counters", ()))


def candidates_of(routing: Routing) -> tuple[Routing, ...]:
    """The routings that it may settle as; most settle as themselves."""
    return tuple(getattr(routing, "candidates", {"": routing}).values())


class Observer(Protocol):
    """Watches what one bucket stores in one micro-batch."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What the metrics show of the table, by name."""
        ...

    def add(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, role: Role) -> None:
        """Note rows that are stored, as their bucket's own or as copies, with their keys."""
        ...

    def kept(self) -> dict[str, Any]:
        """What the next observer of the bucket needs, as JSON has it; to be committed with the
        rows."""
        ...

    def observed(self) -> Observed:
        """What the next table is made from."""
        ...


@runtime_checkable
class ObservingRouting(TableRouting, Protocol):
    """A routing whose buckets have observers, and whose first table is made from rows."""

    def sampled_table(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, micro_batch: int
    ) -> Table:
        """Make the first table from the first rows of one task. It has to be right for all rows,
        however little these say of them."""
        ...

    def observer(
        self,
        bucket: int,
        table: Any,
        kept: Mapping[str, Any] | None,
        *,
        is_last: bool,
        watermark_us: int | None,
    ) -> Observer:
        """Watch what a bucket stores.

        Args:
            bucket: Its number.
            table: The table of the micro-batch.
            kept: What ``kept`` of the last observer of the bucket gave; None: it is the first.
            is_last: Whether the next micro-batch may have another table.
            watermark_us: The watermark of the micro-batch; None: there is none yet.
        """
        ...


#: Makes the local join of a spec over a store.
MakesLocalJoin = Callable[[Any, Any, Context], LocalJoin]
