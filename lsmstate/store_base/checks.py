"""Argument checks that all backends share, so that their errors are the same."""

import difflib
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.batches import as_batch, selected
from lsmstate.schema.codecs import codecs_of
from lsmstate.schema.documents import check_document_rows, is_schema_free
from lsmstate.schema.python_values import shown
from lsmstate.store import BatchLike, KeyNames, Positions, StreamSchema
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
    except (KeyError, TypeError):
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
    near = difflib.get_close_matches(str(name)[:1000], names, n=1, cutoff=0.0)
    return f"; did you mean {near[0]!r}? Known: {', '.join(names)}" if near else ""


def checked_entries(
    stream: StreamSchema,
    rows: BatchLike,
    keys: BatchLike | KeyBatch | None,
    key: KeyNames | None = None,
) -> tuple[pa.RecordBatch, pa.RecordBatch | KeyBatch]:
    """Return the rows of a write with the stream's columns, and one key for each.

    Args:
        stream: The stream.
        rows: The rows, and with ``key`` also the columns of their keys.
        keys: One key per row.
        key: Columns of ``rows`` that are the keys, instead of ``keys``.

    Raises:
        InvalidArgumentError: They do not fit the stream.

    Cost:
        One comparison of schemas for rows and one for keys that have the stream's columns.
    """
    found_keys: pa.RecordBatch | KeyBatch
    if key is not None:
        found, found_keys = _with_key_columns(stream, rows, keys, key)
    elif keys is None:
        raise InvalidArgumentError(
            f"rows of stream {stream.name!r} have no keys; give keys=, one key per row, or key=, "
            f"the columns of the rows that are {', '.join(stream.key.names)}"
        )
    else:
        found, found_keys = checked_rows(stream, rows), checked_keys(stream, keys)
    if len(found_keys) != found.num_rows:
        raise InvalidArgumentError(
            f"stream {stream.name!r}: {found.num_rows} rows but {len(found_keys)} keys; give one "
            "key per row"
        )
    return found, found_keys


def checked_rows(stream: StreamSchema, rows: BatchLike) -> pa.RecordBatch:
    """Return rows with the stream's columns; raise InvalidArgumentError if they do not fit.

    Plain types may replace dictionaries and views, as in rows that a store returns.
    """
    if not (isinstance(rows, pa.RecordBatch) and rows.schema.equals(stream.rows)):
        what, stored = f"rows of stream {stream.name!r}", codecs_of(stream).rows.schema
        rows = as_batch(rows, stream.rows, what, stored=stored)
    if is_schema_free(stream.rows):
        check_document_rows(rows)
    return rows


def checked_keys(
    stream: StreamSchema, keys: BatchLike | KeyBatch, key: KeyNames | None = None
) -> pa.RecordBatch | KeyBatch:
    """Return keys with the stream's key columns; raise InvalidArgumentError if they do not fit.

    Encoded keys are returned as they are. Columns may have other names than the stream's, and are
    then taken as they stand. Plain types may replace dictionaries and views, as in keys that a
    store returns. ``key`` names the columns that are the key, in a batch that may have others.
    """
    if key is not None:
        return _key_columns(stream, keys, key)
    if isinstance(keys, KeyBatch):
        return keys
    if isinstance(keys, pa.RecordBatch) and keys.schema.equals(stream.key):
        return keys
    what, stored = f"keys of stream {stream.name!r}", codecs_of(stream).key.schema
    return as_batch(keys, stream.key, what, stored=stored, is_renamed=True)


def _with_key_columns(
    stream: StreamSchema, rows: BatchLike, keys: object, key: KeyNames
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows and keys out of one batch."""
    if keys is not None:
        raise InvalidArgumentError(
            f"stream {stream.name!r}: keys= and key={key!r} are both given; give one of them"
        )
    names = _key_names(stream, key)
    codecs, what = codecs_of(stream), f"rows of stream {stream.name!r}"
    wanted, stored = list(stream.rows), list(codecs.rows.schema)
    for name, field, kept in zip(names, stream.key, codecs.key.schema, strict=True):
        if name not in stream.rows.names:
            wanted.append(field.with_name(name))
            stored.append(kept.with_name(name))
    batch = as_batch(rows, pa.schema(wanted), what, stored=pa.schema(stored))
    alone = batch.select(stream.rows.names) if len(wanted) > len(stream.rows) else batch
    found = checked_keys(stream, batch.select(names))
    return checked_rows(stream, alone), found


def _key_columns(
    stream: StreamSchema, given: BatchLike | KeyBatch, key: KeyNames
) -> pa.RecordBatch:
    """The keys that stand in some columns of a batch."""
    what = f"keys of stream {stream.name!r}"
    if isinstance(given, KeyBatch):
        raise InvalidArgumentError(
            f"{what} are encoded, and have no column {key!r}; leave out key="
        )
    return as_batch(
        selected(given, _key_names(stream, key), what),
        stream.key,
        what,
        stored=codecs_of(stream).key.schema,
        is_renamed=True,
    )


def _key_names(stream: StreamSchema, key: KeyNames) -> list[str]:
    """The named columns in the order of the key; in their own order if they have other names."""
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Iterable) else [key]
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"key={key!r}: the names of columns are text; give key={stream.key.names!r}"
        )
    if len(names) != len(stream.key) or len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"key={key!r}: stream {stream.name!r} has the key columns "
            f"{', '.join(stream.key.names)}; name one column of the batch for each"
        )
    return stream.key.names if sorted(names) == sorted(stream.key.names) else names


def encoded_keys(stream: StreamSchema, codec: KeyCodec, keys: BatchLike | KeyBatch) -> KeyBatch:
    """Return the keys of a stream encoded; raise InvalidArgumentError for other key types."""
    keys = checked_keys(stream, keys)
    if not isinstance(keys, KeyBatch):
        return codec.encode(keys)
    if keys.types is not None and keys.types != codec.types:
        raise InvalidArgumentError(
            f"keys of stream {stream.name!r} were encoded as {_listed(keys.types)}, expected "
            f"{_listed(codec.types)}; encode them with KeyCodec(streams[{stream.name!r}].key)"
        )
    return keys


def _listed(types: Iterable[pa.DataType]) -> str:
    return f"({', '.join(map(str, types))})"


def checked_positions(keys: Sized, positions: Positions | None) -> Positions:
    """Return the positions as an ascending int64 array; all positions if None is given."""
    if positions is None:
        return np.arange(len(keys), dtype=np.int64)
    given = np.asarray(positions)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidArgumentError(f"positions={shown(positions)}: give whole numbers, ascending")
    asked = given.astype(np.int64)
    if asked.size and (
        asked[0] < 0 or asked[-1] >= len(keys) or not bool(np.all(np.diff(asked) > 0))
    ):
        raise InvalidArgumentError(
            f"positions must ascend and lie between 0 and {len(keys) - 1}; given "
            f"{asked[:8].tolist()}{' ...' if asked.size > 8 else ''}"
        )
    return asked


def check_piece_bytes(max_bytes: int) -> None:
    """Raise InvalidArgumentError for a number of bytes that no piece has."""
    if not isinstance(max_bytes, int) or max_bytes < 0:
        raise InvalidArgumentError(
            f"max_bytes={shown(max_bytes)}: give the most bytes of a piece, such as 1 << 20"
        )


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


def pack_schemas(streams: Mapping[str, StreamSchema]) -> list[dict[str, Any]]:
    """Convert the streams to JSON values, which ``unpack_schemas`` reads."""
    return [
        codecs_of(stream).packed | ({"zones": list(stream.zones)} if stream.zones else {})
        for stream in streams.values()
    ]


def unpack_schemas(packed: Sequence[Mapping[str, Any]]) -> dict[str, StreamSchema]:
    """Invert ``pack_schemas``; Arrow checks the bytes (pa.ArrowInvalid)."""
    return streams_by_name(
        [
            StreamSchema(
                entry["name"],
                pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(entry["key"]))),
                pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(entry["rows"]))),
                zones=tuple(entry.get("zones", ())),
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
