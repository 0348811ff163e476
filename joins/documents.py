"""NaturalJoin: the natural join of documents for plain Python."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.documents.natural_join import LEAST_BYTES, MALFORMED, PART
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.local.timed.event_time_join import LATE_ROWS
from lsmstate.joins.options import GROUPS, NO_BUCKETS, STATE, TIME, State, Time, refuse_other_fields
from lsmstate.joins.spec_join import SpecJoin
from lsmstate.joins.specs.documents import (
    Arrays,
    Local,
    NaturalSpec,
    Nulls,
    Output,
)
from lsmstate.joins.specs.malformed import Malformed
from lsmstate.option_names import names_checked
from lsmstate.options import MINIMUM_MEMORY_BYTES, STORE_MEMORY_BYTES, parse_bytes
from lsmstate.schema.batches import arrow_batch
from lsmstate.shown import Shown, ShownTable
from lsmstate.stats import StoreStats
from lsmstate.store import BatchLike

#: What a single stream is called.
STREAM: Final = "documents"

#: Options of other joins, and what to say of them.
INSTEAD: Final = {
    "changes": "a natural join has no changelogs as inputs, only documents; leave it out",
    "emit": "a natural join gives pairs as they are found, and takes none back; leave it out",
}

_NOT_HERE: Final = "does not apply to a natural join in plain Python; leave it out"
#: Why there is no distance.
NO_DISTANCE: Final = {
    "within": "is a distance, and documents are stored and forgotten by windows; give a window, as "
    'in Time(window=("20 minutes", "1 minute"))'
}


class NaturalJoin(Shown):
    """Join JSON documents that share at least one attribute, and agree on all they share.

    **Attributes** are dotted paths to leaves: ``{"a": {"b": 1}}`` and ``{"a.b": 1}`` have the same
    attribute. An empty object is a value. A document without attributes joins nothing.

    **Values** are compared by their JSON types. ``1`` equals ``1.0``, and neither ``"1"`` nor
    ``true``. Whole numbers are compared exactly, all others as doubles. Text is compared as it
    stands.

    **Pairs.** In one stream each unordered pair comes once, and no document with itself. Two
    streams are joined with each other.

    Args:
        streams: Columns of the one or two streams by name; a schema alone is the one stream
            ``documents``.
        document: Column that holds the document: JSON text, structs, maps or dictionaries, which
            become JSON text. A name, or one for each stream.
        id: Column that names a document, which ``output="ids"`` gives.
        output: "both": all columns of both documents. "merged": one document with the attributes
            of both, beside the ids. "ids": the ids.
        include: Attributes that count, each with all that lies below it. Default: all.
        exclude: Attributes that do not count, each with all that lies below it.
        at_least: How many shared attributes two documents need.
        arrays: "sets": arrays are equal if they have the same elements. "equal": in the same order,
            as often.
        nulls: "value": null equals null. "nothing": an attribute that is null is left out.
        malformed: What becomes of text that is no document: not JSON, no object, a name twice in
            an object, whole numbers beyond 64 bits, halves of surrogate pairs. "refuse" refuses the
            batch. "skip" leaves it out and counts it. "side" gives its rows in
            ``malformed_rows`` too.
        local: Which index finds partners: "by_shape" (documents of the same attributes together),
            "bitmaps", "fp_tree" (a prefix tree) or "hash" (posting lists). "auto" tries the first
            three on a sample now and then. All give the same pairs.
        piece_bytes: Most bytes of a piece of the results, unless a row is larger.
        time: Inside which windows documents meet: ``Time(event_time={"documents": "at"},
            window="10 minutes")``, or ``Time(window=1000)``: that many documents of the one stream.
            The slide of a window divides its length. ``late`` counts too. Default: the full
            history.
        state: Where the state lies, and what it may take: ``State(memory=..., ...)``. A fifth of
            the memory is the index of recent documents.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Cost:
        A document costs a lookup in the index of recent documents, and one in the store for each
        class of older ones.

    Example:
        ```python
        schema = pa.schema([("id", pa.int64()), ("event", pa.string())])
        with NaturalJoin(schema, document="event", id="id", output="ids") as join:
            join.process("documents", [{"id": 1, "event": '{"user": 7, "ip": "::1"}'}]).close()
            print(join.process("documents", [{"id": 2, "event": '{"user": 7}'}]).to_table())
        ```
    """

    @names_checked(GROUPS, {**NO_BUCKETS, **INSTEAD})
    def __init__(
        self,
        streams: pa.Schema | Mapping[str, pa.Schema],
        document: str | Mapping[str, str],
        *,
        id: str | Mapping[str, str] | None = None,
        output: Output = "both",
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        at_least: int = 1,
        arrays: Arrays = "sets",
        nulls: Nulls = "value",
        malformed: Malformed = "refuse",
        local: Local = "auto",
        piece_bytes: int = 1 << 20,
        time: Time = TIME,
        state: State = STATE,
    ) -> None:
        refuse_other_fields(time, ("event_time", "window", "late"), _NOT_HERE, NO_DISTANCE)
        if isinstance(streams, pa.Schema):
            streams = {STREAM: streams}
        self.spec = NaturalSpec.create(
            _as_text(streams, document),
            document,
            id=id,
            output=output,
            window=time.window,
            event_time=time.event_time,
            late=time.late,
            include=include,
            exclude=exclude,
            at_least=at_least,
            arrays=arrays,
            nulls=nulls,
            malformed=malformed,
            local=local,
        )
        self._join = SpecJoin(
            self.spec,
            piece_bytes=piece_bytes,
            state=replace(state, memory=store_memory(parse_bytes(state.memory, "memory"))),
        )

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of every result."""
        return self.spec.output_schema

    def process(self, stream: str, batch: BatchLike) -> Results:
        """Store a batch, and return its new pairs.

        Args:
            stream: Name of the stream.
            batch: The rows: an object of the Arrow PyCapsule protocol, a mapping of columns, or a
                list of dictionaries.

        Returns:
            The pairs in bounded pieces, computed as they are read. Read them to the end, or close
            them, before the next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, a document is malformed, or
                earlier results are not read. Nothing is stored.
        """
        self.spec.check_stream(stream)
        column = self.spec.documents[stream]
        return self._join.process(stream, _with_text(batch, column, f"process({stream!r})"))

    def advance(self, watermark: datetime) -> None:
        """Set the watermark: no document with a time up to it will come any more.

        Windows that no document can join any more are forgotten. A document whose time is not after
        the watermark is late. A lower watermark than before changes nothing.

        Raises:
            InvalidArgumentError: The join has no window of time, or the watermark has no time zone
                although the event times have one.
        """
        timing = self.spec.event_time
        if timing is None:
            raise InvalidArgumentError(
                f"advance({watermark!r}): the join has no window of time; give one, as in "
                'time=Time(window="10 minutes")'
            )
        self._join.advance(timing.watermark_us(self.spec.streams, watermark)).close()

    @property
    def counts(self) -> Mapping[str, int]:
        """The join's counters since it was opened, by name."""
        return self._join.counts

    @property
    def late_count(self) -> int:
        """Number of documents that came late since the join was opened."""
        return self.counts.get(LATE_ROWS, 0)

    @property
    def late_rows(self) -> pa.RecordBatch | None:
        """With ``late="side"``, the late rows of the last batch."""
        return self._join.late_rows

    @property
    def malformed_count(self) -> int:
        """Number of malformed documents since the join was opened."""
        return self.counts[MALFORMED]

    @property
    def malformed_rows(self) -> pa.RecordBatch | None:
        """With ``malformed="side"``, the rows of the last batch whose documents are malformed."""
        return self._join.malformed_rows

    def commit(self) -> None:
        """Make everything that was fed durable, so that the same join on ``state_dir`` finds it."""
        self._join.commit()

    def stats(self) -> StoreStats:
        """Return memory, disk and counters of the state."""
        return self._join.stats()

    def _as_tables(self) -> Iterable[ShownTable]:
        """Streams, join, counters and state."""
        return self._join._as_tables()

    def close(self) -> None:
        """Release memory, locks and the temporary directory. A second call does nothing."""
        self._join.close()

    def __enter__(self) -> "NaturalJoin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def store_memory(memory_bytes: int) -> int:
    """The part of the cap that is the store's; the indexes take the rest. InvalidArgumentError if
    it does not reach."""
    least = MINIMUM_MEMORY_BYTES + STORE_MEMORY_BYTES
    if memory_bytes < least + LEAST_BYTES:
        raise InvalidArgumentError(
            f"memory={memory_bytes!r}: a natural join of documents has an index beside its store, "
            f"and needs {least + LEAST_BYTES} bytes ('6m')"
        )
    return max(least, memory_bytes * PART // (PART + 1))


def _as_text(
    streams: Mapping[str, pa.Schema], document: str | Mapping[str, str]
) -> Mapping[str, pa.Schema]:
    """The streams with documents of structs and maps as text."""
    if not isinstance(streams, Mapping):
        return streams
    found = {}
    for name, schema in streams.items():
        column = document.get(name) if isinstance(document, Mapping) else document
        if isinstance(schema, pa.Schema) and column in schema.names:
            place = schema.names.index(column)
            kind = schema.field(place).type
            if _becomes_text(kind):
                schema = schema.set(place, pa.field(column, pa.string()))
        found[name] = schema
    return found


def _becomes_text(kind: pa.DataType) -> bool:
    is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(is_text or pa.types.is_struct(kind) or pa.types.is_map(kind))


def _with_text(batch: Any, column: str, call: str) -> Any:
    """The batch with its documents as JSON text."""
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return [
            {**row, column: _text(row[column], call)}
            if isinstance(row, Mapping) and not isinstance(row.get(column), str | type(None))
            else row
            for row in batch
        ]
    if isinstance(batch, Mapping):
        values = batch.get(column)
        if isinstance(values, Sequence) and any(isinstance(v, Mapping) for v in values):
            return {**batch, column: [_text(value, call) for value in values]}
        return batch
    rows = arrow_batch(batch, call)
    if column not in rows.schema.names:
        return rows
    place = rows.schema.names.index(column)
    found = rows.column(place)
    if pa.types.is_struct(found.type):
        texts = [_text(value, call) for value in found.to_pylist()]
    elif pa.types.is_map(found.type):
        try:
            maps = found.to_pylist(maps_as_pydicts="strict")
        except KeyError as error:
            raise InvalidArgumentError(
                f"{call}: a map in column {column!r} has a key twice ({error.args[0]}); give each "
                "name once, as an object of JSON has it"
            ) from error
        texts = [_text(value, call) for value in maps]
    else:
        return rows
    return rows.set_column(place, pa.field(column, pa.string()), pa.array(texts, pa.string()))


def _text(value: Any, call: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{call}: a document cannot be written as JSON ({error}); give values that JSON has"
        ) from error
