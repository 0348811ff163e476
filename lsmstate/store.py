"""The contract of a state store, which every backend keeps and the tests check.

- A store holds named *streams*. A stream is a multimap from a typed join key to rows.
- Rows of a key come in arrival order. In a stream with an expiry they come by time bucket first
  (``expiry_rules.py``).
- Arrow batches go in and come out.
- Three backends keep the contract: ``lsm`` (our own), ``rocksdb`` (rocksdict) and ``memory``
  (hash tables)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry_rules import Expiry
from lsmstate.pieces import Pieces, entry_schema
from lsmstate.stats import StoreStats
from lsmstate.zones import check_zones

Positions = npt.NDArray[np.int64]

#: A key as a tuple of Python values, one per key column. A bound may name the first columns only.
#: The value of a single key column needs no tuple; a list is the value of a list column. Scalars of
#: numpy and Arrow are values too.
KeyValues = Any


#: Columns of a batch that are its keys: one name for each key column of the stream, in their order
#: or with their names.
KeyNames: TypeAlias = str | Sequence[str]


class ArrowStream(Protocol):
    """A table of the Arrow PyCapsule protocol: pyarrow, polars, pandas, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class ArrowArray(Protocol):
    """A batch of the Arrow PyCapsule protocol."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


#: A column: an array of pyarrow, or another that Arrow takes.
ArrowColumn: TypeAlias = pa.Array | pa.ChunkedArray | Sequence[Any] | npt.NDArray[Any]

#: A batch as callers have it. Columns are taken by name, in any order, and cast where no value
#: changes. In a list of dictionaries, a column that some rows lack is null there.
BatchLike: TypeAlias = ArrowStream | ArrowArray | Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """Name and column types of one stream.

    Dictionary and view types may be given. Their values are stored and returned as plain types:
    string views as strings, a dictionary as its values.

    Attributes:
        name: Name of the stream.
        key: Columns that rows are looked up by.
        rows: Columns that are stored.
        expiry: Rule by which rows are forgotten (see ``MultimapStore.advance``); None keeps all.
        zones: Columns of ``rows`` with numbers, dates or times that ``RangeBounds`` may bound too.
            The backend ``lsm`` writes with each row block the least and the greatest value of each.
            They may change from one open to the next, and serve for files written since.

    Raises:
        InvalidArgumentError: A value has another type, or a column can have no zones.
    """

    name: str
    key: pa.Schema
    rows: pa.Schema
    expiry: Expiry | None = None
    zones: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, kind in (("name", str), ("key", pa.Schema), ("rows", pa.Schema)):
            given = getattr(self, what)
            if not isinstance(given, kind):
                raise InvalidArgumentError(
                    f"{what} of stream {self.name!r} is a {type(given).__name__}; give a "
                    f"{'pyarrow.Schema' if kind is pa.Schema else 'text'}"
                )
        if self.expiry is not None and not isinstance(self.expiry, Expiry):
            raise InvalidArgumentError(
                f"expiry of stream {self.name!r} is a {type(self.expiry).__name__}; give an "
                'Expiry, as in Expiry("at", timedelta(days=1)), or None'
            )
        check_zones(self.name, self.rows, self.zones)


class Matches(NamedTuple):
    """A piece of the rows that a probe found: row i was stored under ``keys[positions[i]]``.

    Rows of one key come in arrival order, in a stream with an expiry by time bucket first.

    Attributes:
        positions: Position of each row's key, in the order in which positions were asked for.
        rows: The rows.
    """

    positions: Positions
    rows: pa.RecordBatch

    def to_table(self) -> pa.Table:
        """Return the rows as a table."""
        return pa.Table.from_batches([self.rows])

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        return self.rows.to_pandas()


class Entries(NamedTuple):
    """A piece of the entries of a key range: row i is stored under ``keys[i]``.

    Attributes:
        keys: The key of each row.
        rows: The rows.
    """

    keys: pa.RecordBatch
    rows: pa.RecordBatch

    def to_table(self) -> pa.Table:
        """Return keys and rows side by side.

        A key column whose name is also a row's is called ``key_<name>``.
        """
        schema = entry_schema(self.keys.schema, self.rows.schema)
        return pa.Table.from_arrays([*self.keys.columns, *self.rows.columns], schema=schema)

    def to_pandas(self) -> Any:
        """Return keys and rows side by side as a pandas DataFrame."""
        return self.to_table().to_pandas()


class KeyBounds(NamedTuple):
    """The key range of a ``delete_range`` mutation; see ``MultimapStore.delete_range``.

    Attributes:
        low: Smallest key of the range; None: no lower bound.
        high: First key beyond the range; None: no upper bound.
        prefix: Values that the keys begin with, instead of ``low`` and ``high``.
    """

    low: KeyValues | None = None
    high: KeyValues | None = None
    prefix: KeyValues | None = None


@dataclass(frozen=True)
class RangeBounds:
    """Ranges of keys, one per row: values of the first key columns, and a range of the next column.

    - A null in a row makes its range empty.
    - Values are ordered as keys are: NaN is the greatest value and equals itself, -0.0 equals 0.0.
    - In a null-safe store a null in ``equal`` equals a null, and a range of values holds no null.

    Attributes:
        equal: Values of the first key columns, fewer than all if there are bounds; None: of none.
        low: Lowest value of the next key column; None: unbounded below.
        high: Highest value of the next key column; None: unbounded above.
        includes_low: Whether keys with the lowest value belong to the range.
        includes_high: Whether keys with the highest value belong to the range.
        zones: By column of the stream's ``zones``, the least and the greatest value that each range
            wants of it, both included; None: unbounded, and a null: no row of that range is wanted.
            Rows with another value may be left out or given, so whoever asks checks them.
    """

    equal: BatchLike | None = None
    low: ArrowColumn | None = None
    high: ArrowColumn | None = None
    includes_low: bool = True
    includes_high: bool = True
    zones: Mapping[str, tuple[ArrowColumn | None, ArrowColumn | None]] = field(default_factory=dict)


class RangeMatches(NamedTuple):
    """A piece of the stored rows that lie in at least one range, each once, in key order.

    A range is named by its row in the bounds. Its rows of the piece are one stretch of them.

    Attributes:
        rows: The rows.
        ranges: The ranges that have rows in this piece, in the order of their lower bounds.
        first: Beside each range, where its rows begin.
        stop: Beside each range, where its rows end: they are ``rows[first:stop]``.
        keys: The key of each row, if keys were asked for.
    """

    rows: pa.RecordBatch
    ranges: Positions
    first: Positions
    stop: Positions
    keys: pa.RecordBatch | None = None


class Mutation(NamedTuple):
    """One of several writes that ``MultimapStore.write`` makes at once.

    Attributes:
        kind: The method of the store that does the same.
        stream: Name of the stream.
        keys: Keys of the rows; KeyBounds for ``delete_range``.
        rows: Rows to store or retract; None for ``delete`` and ``delete_range``.
    """

    kind: Literal["append", "put", "delete", "retract", "delete_range"]
    stream: str
    keys: BatchLike | KeyBatch | KeyBounds
    rows: BatchLike | None = None


class Probe(Protocol):
    """The result of a lookup. Valid until the next write to the store; a later use raises.

    Both arrays have one item per key and are known before any row is read.

    Attributes:
        counts: Number of live rows under each key; 0 if it is absent, null or not asked for.
        row_bytes: Encoded size of these rows.
    """

    counts: npt.NDArray[np.int64]
    row_bytes: npt.NDArray[np.int64]

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """Read the rows of some of the keys, in pieces.

        Args:
            positions: Positions of keys in the batch that was probed, in ascending order.
            max_bytes: Encoded size of a piece, approximately. A single larger row makes a piece of
                its own. The backend ``lsm`` limits pieces to a sixteenth of the memory cap.

        Returns:
            Pieces that are not empty. The rows of a key may span several.

        Raises:
            MemoryLimitError: Open probes and iterators leave no room for a piece.

        Cost:
            Time is proportional to the rows read; memory: one piece.
        """
        ...


class StateStore(Protocol):
    """A store with its streams: all that joins need.

    It is not thread-safe, and only the process that opened it may use it.
    """

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        """Return the streams by name, in their fixed order."""
        ...

    def append(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Store ``rows[i]`` under ``keys[i]``.

        - Rows whose key holds a null are left out: in an equi-join a null equals nothing.
        - Rows and keys are batches of any kind (``BatchLike``). Columns are taken by name, in any
          order, and cast where no value changes.

        Args:
            stream: Name of the stream.
            rows: The rows.
            keys: One key per row.
            key: Columns of ``rows`` that are the keys, instead of ``keys``. A column that the
                stream's rows have as well stays in the row.

        Returns:
            The number of rows stored.

        Raises:
            InvalidArgumentError: Rows or keys do not fit the stream. Nothing is stored.
            MemoryLimitError: There is no room under the memory cap. Nothing is stored. In the
                backend ``lsm`` a row may take a quarter of the cap; for keys see ``Options``.

        A crash or an interrupt may leave the first rows of a batch that is larger than a sixteenth
        of the memory cap.

        Cost:
            A pyarrow RecordBatch with the stream's schema is taken as it is. Another batch is
            converted first, and all of it is in memory.

        Example:
            ```python
            store.append("clicks", [{"user": 1, "page": "/a"}], key="user")
            ```
        """
        ...

    def probe(
        self, stream: str, keys: BatchLike | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """Look up keys without reading a row.

        Args:
            stream: Name of the stream.
            keys: Keys to look up.
            positions: Ascending positions of the keys to look up; None: all keys.

        Returns:
            The number of rows under each key; ``fetch`` reads the rows.

        Raises:
            MemoryLimitError: There is no room for the lookup under the memory cap.

        Cost:
            One walk over each structure in key order, filters first. Memory: about 100 bytes per
            key, and the keys.
        """
        ...

    def probe_ranges(
        self,
        stream: str,
        bounds: RangeBounds | EncodedRanges,
        max_bytes: int = 1 << 20,
        *,
        first: bool = False,
        last: bool = False,
        with_keys: bool = False,
    ) -> Iterator[RangeMatches]:
        """Read the live rows of many ranges of keys at once.

        - A row that lies in several ranges is read once.
        - Rows come in key order, those of one key in arrival order. In a stream with an expiry,
          one time bucket comes after another, each in key order.
        - The iterator is valid until the next write.

        Args:
            stream: Name of the stream.
            bounds: The ranges.
            max_bytes: Encoded size of a piece, approximately; at least one row.
            first: Only the first row of each range: of its least key, the one that arrived first.
            last: Only the last row of each range: of its greatest key, the one that arrived last.
            with_keys: Whether pieces have the keys of their rows.

        Returns:
            Pieces that are not empty. The rows of a range may span several.

        Raises:
            InvalidArgumentError: The bounds do not fit the stream, or bound zones with ``first`` or
                ``last``.
            MemoryLimitError: There is no room for the ranges, or for a piece.

        Cost:
            One walk over the keys of each structure, which visits the ranges only. Time is
            proportional to the ranges and the rows read. Memory: the ranges, the keys of a portion
            (a sixteenth of the memory cap), and one piece. For ``first`` and ``last``, one row of
            each range.

        Example:
            ```python
            around = RangeBounds(low=pc.subtract(new["t"], 5), high=pc.add(new["t"], 5))
            for rows, ranges, first, stop, _ in store.probe_ranges("trades", around):
                print(ranges, stop - first)
            ```
        """
        ...

    def count_ranges(
        self, stream: str, bounds: RangeBounds | EncodedRanges
    ) -> npt.NDArray[np.int64]:
        """Count the live rows of many ranges of keys at once.

        Args:
            stream: Name of the stream.
            bounds: The ranges.

        Returns:
            The number of live rows in each range.

        Raises:
            InvalidArgumentError: The bounds do not fit the stream, or bound zones.

        Cost:
            One walk over the keys in the ranges. Rows are read only where some may be retracted or
            expired.
        """
        ...

    def delete(
        self, stream: str, keys: BatchLike | KeyBatch, *, key: KeyNames | None = None
    ) -> None:
        """Remove all rows stored so far under each of the keys.

        Absent keys are no error. A refused call removes nothing. While keys are looked up, each
        takes about 100 bytes beside its own. If that is more than a quarter of the memory cap, the
        keys are removed in parts, and a crash or an interrupt may leave only the first parts
        removed.

        Args:
            stream: Name of the stream.
            keys: Keys to remove.
            key: The columns of ``keys`` that are the key, if there are others.
        """
        ...

    def scan(self, stream: str, max_bytes: int = 1 << 20) -> Pieces[pa.RecordBatch]:
        """Read all live rows of a stream, grouped by key; with an expiry by time bucket first.

        Args:
            stream: Name of the stream.
            max_bytes: Size of a piece, approximately.

        Returns:
            Pieces of rows. ``to_table`` and ``to_pandas`` give what is left as one, ``rows`` gives
            dictionaries.
        """
        ...

    def commit(self) -> str:
        """Make all writes so far durable.

        The store can still be read afterwards. The store of an attempt refuses further writes, and
        a second call returns the same pointer.

        Returns:
            The commit pointer, which opens this state again.
        """
        ...

    def stats(self) -> StoreStats:
        """Return the counters as of now, without reading a file."""
        ...

    def close(self) -> None:
        """Release memory and locks.

        An attempt's store loses what was not committed. A second call does nothing.
        """
        ...


class StoreReader(Protocol):
    """All reads of a store or of a snapshot. Use it in a ``with`` statement."""

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        """Return the streams by name, in their fixed order."""
        ...

    def probe(
        self, stream: str, keys: BatchLike | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """Look up keys without reading a row.

        Args:
            stream: Name of the stream.
            keys: Keys to look up.
            positions: Ascending positions of the keys to look up; None: all keys.

        Returns:
            The number of rows under each key; ``fetch`` reads the rows.

        Raises:
            MemoryLimitError: There is no room for the lookup under the memory cap.

        Cost:
            One walk over each structure in key order, filters first. Memory: about 100 bytes per
            key, and the keys.
        """
        ...

    def scan(self, stream: str, max_bytes: int = 1 << 20) -> Pieces[pa.RecordBatch]:
        """Read all live rows of a stream, grouped by key; with an expiry by time bucket first.

        Args:
            stream: Name of the stream.
            max_bytes: Size of a piece, approximately.

        Returns:
            Pieces of rows. ``to_table`` and ``to_pandas`` give what is left as one, ``rows`` gives
            dictionaries.
        """
        ...

    def exists(
        self, stream: str, keys: BatchLike | KeyBatch, positions: Positions | None = None
    ) -> npt.NDArray[np.bool_]:
        """Test which keys have live rows.

        Args:
            stream: Name of the stream.
            keys: Keys to look up.
            positions: Ascending positions of the keys to look up; None: all keys.

        Returns:
            One boolean per key; False for a null and for a position not asked for.

        Cost:
            The same as ``probe``.
        """
        ...

    def get(self, stream: str, key: KeyValues) -> pa.RecordBatch:
        """Return all rows of one key, in arrival order; with an expiry by time bucket first.

        Args:
            stream: Name of the stream.
            key: Values of the key columns. A key with a null is absent.

        Returns:
            The rows; no rows if the key is absent.

        Cost:
            One probe. All rows are in memory and do not count against the memory cap; ``probe``
            reads the rows of a large key in pieces.
        """
        ...

    def get_many(self, stream: str, keys: BatchLike | KeyBatch) -> Matches:
        """Return the rows of all keys at once.

        Args:
            stream: Name of the stream.
            keys: Keys to look up.

        Returns:
            All rows with the positions of their keys.

        Cost:
            One probe. All rows are in memory.
        """
        ...

    def contains(self, stream: str, key: KeyValues) -> bool:
        """Test whether a key has live rows.

        Args:
            stream: Name of the stream.
            key: Values of the key columns. A key with a null is absent.

        Returns:
            True if it has any.
        """
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
    ) -> Pieces[Entries]:
        """Read the live rows of a key range in key order.

        The rows of a key come in arrival order in both directions; with an expiry by time bucket
        first. Floats compare as in an equi-join, and keys are returned so: NaN is the greatest
        value, -0.0 is 0.0. The iterator is valid until the next write.

        Args:
            stream: Name of the stream.
            low: Smallest key of the range; None: no lower bound. A bound names values of the first
                key columns. With fewer values than columns it stands before all keys that begin
                with them.
            high: First key beyond the range; None: no upper bound.
            prefix: Values that the keys begin with, instead of ``low`` and ``high``.
            reverse: Whether keys come in descending order.
            max_bytes: Encoded size of keys and rows in a piece, approximately; at least one row.

        Returns:
            Pieces of keys and rows. ``to_table`` and ``to_pandas`` give what is left as one, key
            columns first; ``rows`` gives dictionaries. A key column whose name is also a row's is
            called ``key_<name>`` there.

        Raises:
            InvalidArgumentError: A value is null or does not fit its column.

        Cost:
            Nothing outside the range is read; memory: one piece.

        Example:
            ```python
            for piece in store.iterate("orders", low=(7,), high=(9,)):
                print(piece.keys, piece.rows)
            ```
        """
        ...

    def probe_ranges(
        self,
        stream: str,
        bounds: RangeBounds | EncodedRanges,
        max_bytes: int = 1 << 20,
        *,
        first: bool = False,
        last: bool = False,
        with_keys: bool = False,
    ) -> Iterator[RangeMatches]:
        """Read the live rows of many ranges of keys at once.

        - A row that lies in several ranges is read once.
        - Rows come in key order, those of one key in arrival order. In a stream with an expiry,
          one time bucket comes after another, each in key order.
        - The iterator is valid until the next write.

        Args:
            stream: Name of the stream.
            bounds: The ranges.
            max_bytes: Encoded size of a piece, approximately; at least one row.
            first: Only the first row of each range: of its least key, the one that arrived first.
            last: Only the last row of each range: of its greatest key, the one that arrived last.
            with_keys: Whether pieces have the keys of their rows.

        Returns:
            Pieces that are not empty. The rows of a range may span several.

        Raises:
            InvalidArgumentError: The bounds do not fit the stream, or bound zones with ``first`` or
                ``last``.
            MemoryLimitError: There is no room for the ranges, or for a piece.

        Cost:
            One walk over the keys of each structure, which visits the ranges only. Time is
            proportional to the ranges and the rows read. Memory: the ranges, the keys of a portion
            (a sixteenth of the memory cap), and one piece. For ``first`` and ``last``, one row of
            each range.

        Example:
            ```python
            around = RangeBounds(low=pc.subtract(new["t"], 5), high=pc.add(new["t"], 5))
            for rows, ranges, first, stop, _ in store.probe_ranges("trades", around):
                print(ranges, stop - first)
            ```
        """
        ...

    def count_ranges(
        self, stream: str, bounds: RangeBounds | EncodedRanges
    ) -> npt.NDArray[np.int64]:
        """Count the live rows of many ranges of keys at once.

        Args:
            stream: Name of the stream.
            bounds: The ranges.

        Returns:
            The number of live rows in each range.

        Raises:
            InvalidArgumentError: The bounds do not fit the stream, or bound zones.

        Cost:
            One walk over the keys in the ranges. Rows are read only where some may be retracted or
            expired.
        """
        ...

    def stats(self) -> StoreStats:
        """Return the counters as of now, without reading a file."""
        ...

    def close(self) -> None:
        """Release memory and locks. A second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        """Close it."""
        ...


class MultimapStore(StateStore, StoreReader, Protocol):
    """A store with all its operations. Use it in a ``with`` statement.

    Joins need no more than ``StateStore``.
    """

    def put(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Replace all rows of the keys, in one write that a crash never halves.

        A key that is given twice gets all its rows. Rows whose key holds a null are left out.

        Args:
            stream: Name of the stream.
            rows: The new rows.
            keys: One key per row.
            key: Columns of ``rows`` that are the keys, instead of ``keys``. A column that the
                stream's rows have as well stays in the row.

        Returns:
            The number of rows stored.

        Raises:
            MemoryLimitError: The batch is larger than an eighth of the memory cap.
        """
        ...

    def retract(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Take back ``rows[i]`` under ``keys[i]``: remove the oldest equal row of the key.

        - If there is no equal row, the retraction stays pending and removes the next equal row.
          Rows and retractions may thus arrive in any order.
        - Two rows are equal if their encoded bytes are.
        - Deleting a key forgets its pending retractions.
        - Rows whose key holds a null are left out.
        - In a stream with an expiry, a row that has expired cannot be retracted. A pending
          retraction expires when its row would.

        Args:
            stream: Name of the stream.
            rows: The rows to take back.
            keys: One key per row.
            key: Columns of ``rows`` that are the keys, instead of ``keys``. A column that the
                stream's rows have as well stays in the row.

        Returns:
            The number of retractions.

        Cost:
            In the backend ``lsm`` the same as ``append``. Until ``compact`` has applied the
            retractions of a key, reading or counting the key reads its rows. More rows than fit an
            eighth of the memory cap take several passes. Other backends read the key's rows here.
        """
        ...

    def write(self, mutations: Sequence[Mutation]) -> int:
        """Make several writes, of any streams, in order and atomically.

        If one is refused, none is made. After a crash, all or none of them are there.

        Args:
            mutations: The writes.

        Returns:
            The number of rows stored and retracted.

        Raises:
            MemoryLimitError: The writes take more than an eighth of the memory cap, or their keys
                more than half of it. A key counts with about 100 bytes beside its own while it is
                encoded.
        """
        ...

    def write_all(self, parts: Iterable[Sequence[Mutation]]) -> int:
        """Make several writes one after another, or none of them if one is refused.

        For what is too large for one ``write``. After a crash, the first of them may be there.

        Args:
            parts: The writes, each as ``write`` takes it. They are gone through twice, so a list
                serves and a generator does not.

        Returns:
            The number of rows stored and retracted.

        Raises:
            InvalidArgumentError: A write does not fit its stream. Nothing was stored.
            MemoryLimitError: A row or a write is too large, or there is no memory for it. Nothing
                was stored.

        Cost:
            If they do not fit a sixteenth of the memory cap together, keys and rows are encoded
            twice.
        """
        ...

    def delete_range(
        self,
        stream: str,
        *,
        low: KeyValues | None = None,
        high: KeyValues | None = None,
        prefix: KeyValues | None = None,
    ) -> None:
        """Remove all rows stored so far under the keys of a range; all keys if no bound is given.

        Args:
            stream: Name of the stream.
            low: Smallest key of the range; None: no lower bound. A bound names values of the first
                key columns. With fewer values than columns it stands before all keys that begin
                with them.
            high: First key beyond the range; None: no upper bound.
            prefix: Values that the keys begin with, instead of ``low`` and ``high``.

        Raises:
            InvalidArgumentError: A value is null or does not fit its column.

        Cost:
            Independent of the number of rows. Files that lie wholly in the range are not read.
        """
        ...

    def advance(self, stream: str, watermark: datetime | date | int | pa.Scalar) -> None:
        """Advance the watermark of a stream with an expiry, and forget the rows that it expires.

        Reads no longer see expired rows. Their disk space is freed when all rows of a file have
        expired, or when the file is compacted. A watermark below the current one changes nothing.

        Args:
            stream: Name of the stream.
            watermark: A date or a datetime if the event time is one; with a time zone if the column
                has one. A whole number counts in the column's unit: microseconds since 1970 for
                ``timestamp[us]``.

        Raises:
            InvalidArgumentError: The watermark does not fit the column, or the stream has no
                expiry.

        Cost:
            One range deletion for each time bucket that has expired as a whole. Rows that arrived
            far out of order are moved to their bucket.
        """
        ...

    def snapshot(self) -> StoreReader:
        """Return a snapshot: a read view that later writes, flushes and commits do not change.

        It is readable until it or the store is closed, and so are its probes and iterators. The
        files and memtables it needs stay meanwhile. Memtables count against the memory cap: a write
        that finds no room for this reason raises MemoryLimitError, which names the snapshot.

        Returns:
            A reader; use it in a ``with`` statement.

        Cost:
            No row is copied. The backend ``rocksdb`` flushes, ``memory`` copies its index.
        """
        ...
