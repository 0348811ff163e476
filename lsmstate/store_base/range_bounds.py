"""Bounds of many ranges, checked and encoded."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.batches import arrow_batch, as_batch
from lsmstate.schema.codecs import codecs_of
from lsmstate.store import ArrowColumn, BatchLike, RangeBounds, StreamSchema
from lsmstate.zones import Words, zone_words


class CheckedBounds:
    """Bounds with the types of a stream's key.

    Attributes:
        n: Number of ranges.
        equal: Values of the first key columns; None: of none.
        low: The lower bounds of the next column, or None.
        high: The upper bounds of the next column, or None.
        zones: By column of the rows that is bounded, the bounds or None.
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
        self.zones = dict(_zones(stream, bounds.zones, what))
        self._check_lengths(what)

    def _check_lengths(self, what: str) -> None:
        parts = [("equal", self.equal), ("low", self.low), ("high", self.high)]
        for name, sides in self.zones.items():
            parts += [(f"zone {name!r}", side) for side in sides]
        lengths = {name: len(part) for name, part in parts if part is not None}
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
        zones=tuple(
            (stream.rows.names.index(name), *_zone_words(checked.n, *sides))
            for name, sides in checked.zones.items()
        ),
    )


def refuse_zones(ranges: EncodedRanges, what: str) -> None:
    """Raise InvalidArgumentError if the ranges bound zones."""
    if ranges.zones:
        raise InvalidArgumentError(
            f"{what} with zones: they only say which rows may be left out, so the result would "
            "depend on how rows are stored; leave zones out, or read the rows and check them"
        )


def _zone_words(n: int, least: pa.Array | None, greatest: pa.Array | None) -> tuple[Words, Words]:
    """The bounds of each range; where one of them is null, they exclude every value."""
    most = np.iinfo(np.uint64).max
    low = np.zeros(n, np.uint64) if least is None else zone_words(least)
    high = np.full(n, most, np.uint64) if greatest is None else zone_words(greatest)
    for side in (least, greatest):
        if side is not None and side.null_count:
            empty = np.asarray(side.is_null())
            low, high = np.where(empty, most, low), np.where(empty, np.uint64(0), high)
    return low, high


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


def _zones(
    stream: StreamSchema, given: object, what: str
) -> Iterator[tuple[str, tuple[pa.Array | None, pa.Array | None]]]:
    known = (
        ", ".join(stream.zones) or f"none; open it with StreamSchema({stream.name!r}, ..., zones=)"
    )
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"zones of {what} are a {type(given).__name__}; give a mapping such as "
            "{'column': (least, greatest)}"
        )
    for name, sides in given.items():
        if name not in stream.zones:
            raise InvalidArgumentError(
                f"zones of {what}: {name!r} is no zone of the stream, which has {known}"
            )
        if not isinstance(sides, tuple | list) or len(sides) != 2:
            raise InvalidArgumentError(
                f"zone {name!r} of {what}: give the pair (least, greatest); None is unbounded"
            )
        low, high = (
            None
            if side is None
            else _column(stream.rows.field(name), side, f"{word} {name!r} {what}")
            for word, side in zip(("least", "greatest"), sides, strict=True)
        )
        yield name, (low, high)


def _column(field: pa.Field, given: ArrowColumn, what: str) -> pa.Array:
    """The column with the type of a field, which is a plain one."""
    if isinstance(given, pa.Array) and given.type == field.type:
        return given
    return as_batch({field.name: given}, pa.schema([field.with_nullable(True)]), what).column(0)


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
