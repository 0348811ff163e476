"""Bounds of many ranges, checked and encoded."""

from collections.abc import Mapping

import pyarrow as pa

from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.batches import arrow_batch, as_batch
from lsmstate.schema.codecs import codecs_of
from lsmstate.store import ArrowColumn, BatchLike, RangeBounds, StreamSchema


class CheckedBounds:
    """Bounds with the types of a stream's key.

    Attributes:
        n: Number of ranges.
        equal: Values of the first key columns; None: of none.
        low: The lower bounds of the next column, or None.
        high: The upper bounds of the next column, or None.
    """

    def __init__(self, stream: StreamSchema, bounds: RangeBounds) -> None:
        what = f"bounds of stream {stream.name!r}"
        if not isinstance(bounds, RangeBounds):
            raise InvalidArgumentError(
                f"{what} are a {type(bounds).__name__}; give RangeBounds(equal, low, high)"
            )
        self.equal = None if bounds.equal is None else _equal(stream, bounds.equal, what)
        columns = 0 if self.equal is None else self.equal.num_columns
        has_range = bounds.low is not None or bounds.high is not None
        if has_range and columns == len(stream.key):
            raise InvalidArgumentError(
                f"{what}: equal has all key columns {', '.join(stream.key.names)}, so no column "
                "is left for low and high; give fewer columns in equal, or neither low nor high"
            )
        if not has_range and self.equal is None:
            raise InvalidArgumentError(
                f"{what} have neither equal nor low nor high; give at least one, or iterate over "
                "the stream"
            )
        self.low = _bound(stream, columns, bounds.low, f"low {what}")
        self.high = _bound(stream, columns, bounds.high, f"high {what}")
        self._check_lengths(what)

    def _check_lengths(self, what: str) -> None:
        lengths = {
            name: len(part)
            for name, part in (("equal", self.equal), ("low", self.low), ("high", self.high))
            if part is not None
        }
        self.n = next(iter(lengths.values()))
        if any(length != self.n for length in lengths.values()):
            said = ", ".join(f"{length} in {name}" for name, length in lengths.items())
            raise InvalidArgumentError(f"{what} have {said}; give one row per range in each")


def encoded_ranges(stream: StreamSchema, bounds: RangeBounds | EncodedRanges) -> EncodedRanges:
    """Return the ranges encoded; raise InvalidArgumentError if they do not fit the stream's key.

    Ranges that are encoded already are returned as they are.

    Cost:
        One encoding and one sort of the lower bounds, and of the upper ones.
    """
    if isinstance(bounds, EncodedRanges):
        return bounds
    checked = CheckedBounds(stream, bounds)
    # Without a bound of its own, a side has that of the keys that begin with ``equal``.
    return EncodedRanges(
        checked.n,
        _encoded(checked.equal, checked.low),
        _encoded(checked.equal, checked.high),
        after_low=checked.low is not None and not bounds.includes_low,
        after_high=checked.high is None or bounds.includes_high,
    )


def _encoded(equal: pa.RecordBatch | None, bound: pa.Array | None) -> KeyBatch | None:
    columns = [] if equal is None else list(equal.columns)
    if bound is not None:
        columns.append(bound)
    if not columns:
        return None
    batch = pa.RecordBatch.from_arrays(columns, names=[str(at) for at in range(len(columns))])
    return KeyCodec(batch.schema).encode(batch)


def _equal(stream: StreamSchema, given: BatchLike, what: str) -> pa.RecordBatch:
    what = f"equal {what}"
    batch = given if isinstance(given, Mapping) else arrow_batch(given, what)
    count = len(batch) if isinstance(batch, Mapping) else batch.num_columns
    if count > len(stream.key):
        raise InvalidArgumentError(
            f"{what}: {count} columns, but the key has {len(stream.key)}: "
            f"{', '.join(stream.key.names)}; give values of its first columns"
        )
    return as_batch(
        batch,
        pa.schema(list(stream.key)[:count]),
        what,
        stored=pa.schema(list(codecs_of(stream).key.schema)[:count]),
        is_renamed=True,
    )


def _bound(
    stream: StreamSchema, column: int, given: ArrowColumn | None, what: str
) -> pa.Array | None:
    if given is None:
        return None
    field = stream.key.field(column)
    stored = codecs_of(stream).key.schema.field(column)
    if isinstance(given, pa.Array) and given.type in (field.type, stored.type):
        return given
    wanted, kept = pa.schema([field]), pa.schema([stored])
    return as_batch({field.name: given}, wanted, what, stored=kept).column(0)
