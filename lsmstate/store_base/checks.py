"""Argument checks that all backends share, so that their errors are the same."""

import difflib
from collections.abc import Iterable, Mapping, Sequence, Sized

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.codecs import codecs_of
from lsmstate.schema.columns import by_name, keys_by_name
from lsmstate.schema.documents import check_document_rows, is_schema_free
from lsmstate.store import Positions, StreamSchema
from lsmstate.store_base.slots import without_slots

#: Each stream has a second number, for its retractions. Numbers have two bytes, and one more number
#: lies behind the last.
MOST_STREAMS = (1 << 15) - 1


def check_streams(streams: object) -> None:
    """Raise InvalidArgumentError unless this is a sequence of streams whose columns have distinct
    names."""
    if not isinstance(streams, Sequence) or isinstance(streams, str | bytes):
        raise InvalidArgumentError(
            f"streams={streams!r} is a {type(streams).__name__}; give a list of StreamSchema"
        )
    for stream in streams:
        if not isinstance(stream, StreamSchema):
            raise InvalidArgumentError(
                f"stream {stream!r} is a {type(stream).__name__}; give a StreamSchema"
            )
        for what, names in (("key", stream.key.names), ("rows", stream.rows.names)):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InvalidArgumentError(
                    f"{what} of stream {stream.name!r} has several columns called {twice!r}; "
                    "rename all but one"
                )


def streams_by_name(streams: Sequence[StreamSchema]) -> dict[str, StreamSchema]:
    """Return the streams by name; raise InvalidArgumentError if there are none or a name occurs
    twice."""
    if not streams:
        raise InvalidArgumentError("a store needs at least one stream")
    if len(streams) > MOST_STREAMS:
        raise InvalidArgumentError(
            f"{len(streams)} streams; a store holds at most {MOST_STREAMS}, and a stream "
            "with an expiry counts once per time bucket; use several stores"
        )
    found: dict[str, StreamSchema] = {}
    for stream in streams:
        if not stream.name or stream.name in found:
            raise InvalidArgumentError(
                f"stream name {stream.name!r} is empty or given twice; names must differ"
            )
        found[stream.name] = stream
    return found


def stream_of(streams: Mapping[str, StreamSchema], name: str) -> StreamSchema:
    """Return the stream of that name; the InvalidArgumentError for an unknown name suggests the
    nearest one."""
    try:
        return streams[name]
    except KeyError:
        raise InvalidArgumentError(
            f"the store has no stream {name!r}{nearest(name, streams)}"
        ) from None


def refuse_advance(streams: Mapping[str, StreamSchema], name: str, watermark: object) -> None:
    """Raise InvalidArgumentError: the stream has no expiry, or does not exist."""
    stream = stream_of(streams, name).name
    raise InvalidArgumentError(
        f"watermark {watermark}: stream {stream!r} has no expiry; open the store with "
        f"StreamSchema({stream!r}, ..., expiry=Expiry(column, after))"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'? Known: x, y"``, which ends a message about an unknown name."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"; did you mean {near[0]!r}? Known: {', '.join(names)}" if near else ""


def check_is_batch(what: str, given: object) -> None:
    """Raise InvalidArgumentError, which says how to make one, unless this is a record batch."""
    if isinstance(given, pa.RecordBatch):
        return
    if isinstance(given, pa.Table):
        remedy = "give the batches of table.combine_chunks().to_batches()"
    else:
        remedy = "make one by pyarrow.RecordBatch.from_pylist([{column: value}, ...], schema=...)"
    raise InvalidArgumentError(
        f"{what}: expected a pyarrow.RecordBatch, given a {type(given).__name__}; {remedy}"
    )


def check_is_keys(what: str, given: object) -> None:
    """Raise InvalidArgumentError unless this is a record batch or encoded keys."""
    if not isinstance(given, KeyBatch):
        check_is_batch(what, given)


def checked_rows(
    stream: StreamSchema, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch
) -> pa.RecordBatch:
    """Return the rows with their columns in the stream's order.

    InvalidArgumentError unless they have the stream's columns, by name, and one key each. Plain
    types may replace dictionaries and views, as in rows that a store returns.
    """
    what = f"rows of stream {stream.name!r}"
    check_is_batch(what, rows)
    check_is_keys(f"keys of stream {stream.name!r}", keys)
    rows = by_name(rows, stream.rows, what)
    if not same_columns(rows.schema, stream.rows) and not same_columns(
        rows.schema, codecs_of(stream).rows.schema
    ):
        raise InvalidArgumentError(f"{what}: {_difference(stream.rows, rows.schema)}; cast them")
    count = len(keys) if isinstance(keys, KeyBatch) else keys.num_rows
    if count != rows.num_rows:
        raise InvalidArgumentError(
            f"stream {stream.name!r}: {rows.num_rows} rows but {count} keys; give one key per row"
        )
    if isinstance(keys, pa.RecordBatch) and keys.num_columns != len(stream.key):
        checked_keys(stream, keys)  # encoding checks everything else
    if is_schema_free(stream.rows):
        check_document_rows(rows)
    return rows


def encoded_keys(
    stream: StreamSchema, codec: KeyCodec, keys: pa.RecordBatch | KeyBatch
) -> KeyBatch:
    """Return the keys of a stream encoded; raise InvalidArgumentError for other key types."""
    if isinstance(keys, KeyBatch):
        if keys.types is not None and keys.types != codec.types:
            raise InvalidArgumentError(
                f"keys of stream {stream.name!r} were encoded as {_listed(keys.types)}, expected "
                f"{_listed(codec.types)}; encode them with KeyCodec(streams[{stream.name!r}].key)"
            )
        return keys
    return codec.encode(checked_keys(stream, keys))


def checked_keys(stream: StreamSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
    """Return the keys with their columns in the stream's order, if they have the stream's names.

    InvalidArgumentError unless they have the types of the stream's key columns. Plain types may
    replace dictionaries and views, as in keys that a store returns.
    """
    check_is_batch(f"keys of stream {stream.name!r}", keys)
    keys = keys_by_name(keys, stream.key)
    given = keys.schema.types
    if given != stream.key.types and tuple(given) != codecs_of(stream).key.types:
        raise InvalidArgumentError(
            f"keys of stream {stream.name!r}: {_difference(stream.key, keys.schema)}; cast them"
        )
    return keys


def _listed(types: Iterable[pa.DataType]) -> str:
    return f"({', '.join(map(str, types))})"


def checked_positions(keys: Sized, positions: Positions | None) -> Positions:
    """Return the positions as an ascending int64 array; all positions if None is given."""
    if positions is None:
        return np.arange(len(keys), dtype=np.int64)
    asked = np.asarray(positions, dtype=np.int64)
    if asked.size and (
        asked[0] < 0 or asked[-1] >= len(keys) or not bool(np.all(np.diff(asked) > 0))
    ):
        raise InvalidArgumentError(
            f"positions must ascend and lie between 0 and {len(keys) - 1}; given "
            f"{asked[:8].tolist()}{' ...' if asked.size > 8 else ''}"
        )
    return asked


def check_same_streams(
    where: str, kept: Mapping[str, StreamSchema], asked: Mapping[str, StreamSchema]
) -> None:
    """Raise InvalidArgumentError unless a state was written with exactly these streams, in this
    order.

    A stream with an expiry is stored as several streams; the message has the name that users know.
    """
    written, wanted = (
        {stream.name: stream for stream in without_slots(each, {})} for each in (kept, asked)
    )
    _check_same_names(where, written, wanted)
    for name, stream in wanted.items():
        _check_same_expiry(where, written[name], stream)
        for what, was, now in (
            ("keys", written[name].key, stream.key),
            ("rows", written[name].rows, stream.rows),
        ):
            if not same_columns(was, now):
                raise InvalidArgumentError(
                    f"{where}, {what} of stream {name!r}: {_difference(was, now)}; open it with "
                    "the schema it was made with, or start a new state"
                )
    _check_same_names(where, kept, asked)  # user names may look like names of slots


def _check_same_names(where: str, kept: Iterable[str], asked: Iterable[str]) -> None:
    if list(kept) != list(asked):
        raise InvalidArgumentError(
            f"{where} holds the streams {', '.join(kept)}, asked for: {', '.join(asked)}; "
            "open it with the streams it was made with"
        )


def _check_same_expiry(where: str, kept: StreamSchema, asked: StreamSchema) -> None:
    if (kept.expiry is None) == (asked.expiry is None):
        return
    if kept.expiry is None:
        said = "was written without an expiry; open it without one, or start a new state"
    else:
        said = (
            "was written with an expiry; open it with the one it was made with: "
            f"StreamSchema({kept.name!r}, ..., expiry=Expiry(column, after))"
        )
    raise InvalidArgumentError(f"{where}: stream {kept.name!r} {said}")


def pack_schemas(streams: Mapping[str, StreamSchema]) -> list[dict[str, str]]:
    """Convert the streams to JSON values, which ``unpack_schemas`` reads."""
    return [codecs_of(stream).packed for stream in streams.values()]


def unpack_schemas(packed: Sequence[Mapping[str, str]]) -> dict[str, StreamSchema]:
    """Invert ``pack_schemas``; Arrow checks the bytes (pa.ArrowInvalid)."""
    return streams_by_name(
        [
            StreamSchema(
                entry["name"],
                pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(entry["key"]))),
                pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(entry["rows"]))),
            )
            for entry in packed
        ]
    )


def same_columns(left: pa.Schema, right: pa.Schema) -> bool:
    """Test whether names and types are equal. Nullability is ignored: nothing relies on it."""
    # Arrow's own comparison usually suffices and makes no Python object per column.
    return bool(left.equals(right) or (left.names == right.names and left.types == right.types))


def _difference(expected: pa.Schema, given: pa.Schema) -> str:
    if expected.names != given.names:
        return f"expected the columns {expected.names}, given {given.names}"
    for want, have in zip(expected, given, strict=True):
        if want.type != have.type:
            return f"column {want.name!r}: expected {want.type}, given {have.type}"
    return f"expected {expected}, given {given}"
