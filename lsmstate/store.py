"""The contract of a state store: what every backend promises, and the tests hold it to.

A store holds named *streams*. A stream is a multimap: typed join key -> rows in arrival order. In
one with an expiry the rows of a key come by time bucket (expiry_rules.py), in arrival order in it.
Work comes in Arrow batches and leaves in Arrow batches. Three backends keep the contract:
``lsm`` (ours), ``rocksdb`` (rocksdict) and ``memory`` (hash tables).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry_rules import Expiry
from lsmstate.stats import StoreStats

Positions = npt.NDArray[np.int64]

#: A key as Python values, one per key column; of a bound, the first columns are enough. The value
#: of a single key column may stand by itself: a list too, if the column is one of lists, whereas a
#: tuple always is of columns. Scalars of numpy and Arrow are values too.
KeyValues = Any


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """The types of one stream: ``key`` columns it is looked up by, ``rows`` columns it stores.
    Dictionaries and views are stored, and come back, as their plain types (string views as strings,
    a dictionary as its values), which may be given as well; ``RowCodec(rows).schema`` has them.
    With ``expiry``, rows are forgotten when they are due (``MultimapStore.advance``), and those of
    a key come by time bucket first, then in arrival order."""

    name: str
    key: pa.Schema
    rows: pa.Schema
    expiry: Expiry | None = None

    def __post_init__(self) -> None:
        for what, kind in (("name", str), ("key", pa.Schema), ("rows", pa.Schema)):
            given = getattr(self, what)
            if not isinstance(given, kind):
                raise InvalidArgumentError(
                    f"{what} of stream {self.name!r} is a {type(given).__name__}; give a "
                    f"{'pyarrow.Schema' if kind is pa.Schema else 'text'}"
                )


class Matches(NamedTuple):
    """Some rows found by a probe: row i was stored under ``keys[positions[i]]``.

    Rows of one key come in arrival order, in a stream with an expiry by time bucket and in arrival
    order within one; positions ascend in the order they were asked for.
    """

    positions: Positions
    rows: pa.RecordBatch


class Entries(NamedTuple):
    """Some rows of a range, with their keys: row i is stored under ``keys[i]``."""

    keys: pa.RecordBatch
    rows: pa.RecordBatch


class KeyBounds(NamedTuple):
    """Which keys a ``delete_range`` is of; see the store's method of that name."""

    low: KeyValues | None = None
    high: KeyValues | None = None
    prefix: KeyValues | None = None


class Mutation(NamedTuple):
    """One write of several that ``MultimapStore.write`` makes at once. ``rows`` is None for
    ``delete`` and ``delete_range``, of which the latter takes KeyBounds for keys. See the store's
    method of that name."""

    kind: Literal["append", "put", "delete", "retract", "delete_range"]
    stream: str
    keys: pa.RecordBatch | KeyBatch | KeyBounds
    rows: pa.RecordBatch | None = None


class Probe(Protocol):
    """What a probe found. Valid until the next write to the store; used later, it raises.

    ``counts[i]`` is the number of live rows under ``keys[i]`` (0: absent, null or not asked for),
    ``row_bytes[i]`` their encoded size; neither has read a row. Both have one item per key.
    """

    counts: npt.NDArray[np.int64]
    row_bytes: npt.NDArray[np.int64]

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """Read the rows of the keys at ``positions``, in pieces of about ``max_bytes`` of encoded
        rows each (a larger single row travels alone; our own store's are a sixteenth of the memory
        cap at most). A key may span pieces; pieces are not empty.
        Cost: proportional to the rows read; memory: one piece. MemoryLimitError where probes and
        iterators that are open hold so much that there is no room for it."""
        ...


class StateStore(Protocol):
    """One store with its streams. Not thread-safe; used by the process that opened it, only."""

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        """The streams by name, in their fixed order."""
        ...

    def append(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """Store ``rows[i]`` under ``keys[i]``; rows whose key holds a null are left out, because
        a null never equals anything in an equi-join. Returns the number of rows stored.
        All or nothing when the arguments are refused (InvalidArgumentError, MemoryLimitError: on
        our own store a row may take a quarter of the memory cap; for keys see Options). A crash or
        an interrupt may leave the first rows of a batch of more than a sixteenth of the cap."""
        ...

    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """Look up the keys (only those at the ascending ``positions``, if given) without reading
        a row. Cost: one walk over each structure in key order, filters first; memory: some 100
        bytes a key, and the keys. MemoryLimitError if the cap has no room for it."""
        ...

    def delete(self, stream: str, keys: pa.RecordBatch | KeyBatch) -> None:
        """Remove all rows stored so far under each of the keys. Absent keys are no error. All or
        nothing when it is refused; a crash or an interrupt may leave it half done where the keys
        take more than a quarter of the memory cap while they are looked for, some 100 bytes each
        and their own: these are worked off in parts, as a large append is."""
        ...

    def scan(self, stream: str, max_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
        """All live rows of a stream in pieces of about ``max_bytes``, grouped by key; with an
        expiry, by time bucket and by key in it."""
        ...

    def commit(self) -> str:
        """Make everything appended so far durable and return the pointer that opens it again.
        After the commit the store reads on and, if it is an attempt's, refuses further writes; a
        second call returns the same pointer."""
        ...

    def stats(self) -> StoreStats:
        """Counters as of now. Cost: no file is read."""
        ...

    def close(self) -> None:
        """Release memory and locks. What was not committed is given up by an attempt's store.
        A second call does nothing."""
        ...


class StoreReader(Protocol):
    """All reads: of a store as it is, or of a snapshot. Used by ``with``."""

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        """The streams by name, in their fixed order."""
        ...

    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """Look up the keys (only those at the ascending ``positions``, if given) without reading
        a row. Cost: one walk over each structure in key order, filters first."""
        ...

    def scan(self, stream: str, max_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
        """All live rows of a stream in pieces of about ``max_bytes``, grouped by key; with an
        expiry, by time bucket and by key in it."""
        ...

    def exists(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> npt.NDArray[np.bool_]:
        """Whether there are live rows under each key; False for nulls and positions not asked
        for. Cost: as ``probe``."""
        ...

    def get(self, stream: str, key: KeyValues) -> pa.RecordBatch:
        """The rows of one key in arrival order (with an expiry by time bucket first); no rows if it
        is absent, as one with a null always is, None for a single column too. Memory: all of them,
        which are the caller's and not counted (``probe`` gives a huge key in pieces)."""
        ...

    def get_many(self, stream: str, keys: pa.RecordBatch | KeyBatch) -> Matches:
        """The rows of all the keys at once. Cost: a probe and the rows; memory: all of them."""
        ...

    def contains(self, stream: str, key: KeyValues) -> bool:
        """Whether there are live rows under a key; never, as for ``get``, if it holds a null."""
        ...

    def iterate(
        self,
        stream: str,
        *,
        low: KeyValues | None = None,
        high: KeyValues | None = None,
        prefix: KeyValues | None = None,
        reverse: bool = False,
        max_bytes: int = 1 << 20,
    ) -> Iterator[Entries]:
        """The live rows whose keys lie from ``low`` on and below ``high``, or begin with
        ``prefix``, in pieces of about ``max_bytes`` of encoded keys and rows (at least one row).

        Pieces come in key order, or in reverse key order; the rows of a key in arrival order
        either way (with an expiry by time bucket first). A bound or prefix names values of the
        first key columns; one with fewer values than columns stands before all keys that begin with
        it. Floats compare as in an equi-join: NaN is greatest, -0.0 is 0.0, and keys come back so.
        Valid until the next write, as a probe is. InvalidArgumentError for values that are null or
        do not fit their column.
        Cost: what lies outside the bounds is not read; memory: one piece."""
        ...

    def stats(self) -> StoreStats:
        """Counters as of now. Cost: no file is read."""
        ...

    def close(self) -> None:
        """Release what is held. A second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        ...


class MultimapStore(StateStore, StoreReader, Protocol):
    """All that a store can do; the joins need no more than StateStore. Used by ``with``."""

    def put(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """Replace: delete the keys and append the rows, in one write that a crash never halves.
        A key given twice gets all its rows; nulls and the result as ``append`` has them.
        MemoryLimitError if the batch is larger than an eighth of the memory cap."""
        ...

    def retract(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """Take back ``rows[i]`` under ``keys[i]``: the oldest equal row stored there lives no
        more. Without one the retraction stays pending and takes the next equal row that comes, so
        rows and retractions may arrive in any order. Equal is what is encoded alike. Deleting a
        key forgets its pending retractions. Rows whose key holds a null are left out; returns the
        number of retractions. In a stream with an expiry a row that is due cannot be taken, and a
        retraction waits no longer than its row would be there. Cost: on our own
        store, as ``append``, and reading or counting a key with retractions reads its rows, in
        several passes where there are too many to be counted in an eighth of the memory cap, until
        ``compact`` has taken them out; elsewhere, that of the key's rows."""
        ...

    def write(self, mutations: Sequence[Mutation]) -> int:
        """Make several writes, of any streams, one after the other but as one: all or none of
        them is refused, and after a crash all or none of them is there. Returns the number of
        rows stored and retracted. MemoryLimitError if they take more than an eighth of the memory
        cap, or their keys, some 100 bytes each and their own while they are encoded, more than
        half of it."""
        ...

    def delete_range(
        self,
        stream: str,
        *,
        low: KeyValues | None = None,
        high: KeyValues | None = None,
        prefix: KeyValues | None = None,
    ) -> None:
        """Remove all rows stored so far under the keys from ``low`` on and below ``high``, or
        under those that begin with ``prefix``; all keys if none is given. A bound names values of
        the first key columns; one with fewer values than columns stands before all keys that begin
        with it. InvalidArgumentError for values that are null or do not fit their column.
        Cost: not that of the rows; files that lie wholly in the range go unread."""
        ...

    def advance(self, stream: str, watermark: datetime | date | int | pa.Scalar) -> None:
        """Say how far the event time of a stream with expiry has come: what is due by it is
        hidden at once from all reads, and gone from disk when the files it lies in hold nothing
        else, or with their next merge. A lower watermark than before changes nothing.
        It is a date or a datetime where the event time is one, with a time zone if that has one, or
        a whole number in the unit that its column counts in, which for ``timestamp[us]`` is
        microseconds since 1970. InvalidArgumentError for others, or if the stream has no expiry.

        Cost: a range deletion for each time bucket that is wholly due now; a ``keep`` rule reads
        its rows; rows that came far out of order are moved to where they belong."""
        ...

    def snapshot(self) -> StoreReader:
        """What the store holds now, readable and unchanged while the store is written to, flushed,
        merged and committed, until the snapshot or the store is closed; probes and iterators of
        it are valid as long. Files and memtables it needs stay, and count: a write that finds no
        memory because of it is refused (MemoryLimitError names it). Cost: no row is copied; the
        rocksdb backend flushes, the memory backend copies its index."""
        ...
