"""NaturalSpec: documents that share attributes, and agree on all attributes they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.names import resolved
from lsmstate.joins.document_reading import MARKS, Reading
from lsmstate.joins.specs.event_time import WATERMARK, EventTime
from lsmstate.joins.specs.malformed import Malformed
from lsmstate.joins.specs.one_key import check_streams, joined_schema
from lsmstate.joins.specs.window import time_window
from lsmstate.store import StreamSchema
from lsmstate.store_base.checks import nearest

Output = Literal["both", "merged", "ids"]
Arrays = Literal["sets", "equal"]
Nulls = Literal["value", "nothing"]
Local = Literal["auto", "bitmaps", "by_shape", "fp_tree", "hash"]

#: What the user calls the two documents of a pair where both are of one stream.
SIDES: Final = ("first", "second")
#: Of a stored document: its window's number, and its own inside the window.
DOCUMENT_KEY: Final = pa.schema([("window", pa.int64()), ("document", pa.int64())])
POSTING_KEY: Final = pa.schema([("window", pa.int64()), ("values", pa.int64())])
WINDOW_KEY: Final = pa.schema([("window", pa.int64())])
POSTINGS: Final = pa.schema([("documents", pa.binary())])
WINDOWS: Final = pa.schema(
    [("indexed", pa.int64()), ("units", pa.string()), ("classes", pa.string())]
)
MERGED: Final = "document"


@dataclass(frozen=True)
class DocumentWindow:
    """Which documents may meet: those that some window holds both of."""

    kind: str
    """``time`` or ``count``."""
    size: int
    """Microseconds, or documents."""
    slide: int
    """From the begin of a window to that of the next. Documents are stored by *panes* of this
    length."""

    @property
    def panes(self) -> int:
        """Panes of a window."""
        return self.size // self.slide

    def __str__(self) -> str:
        if self.kind == "count":
            return f"{self.size} documents"
        size, slide = (timedelta(microseconds=n) for n in (self.size, self.slide))
        return f"{size}" if self.panes == 1 else f"{size} every {slide}"


@dataclass(frozen=True)
class NaturalSpec:
    """Made by ``NaturalSpec.create``."""

    streams: Mapping[str, pa.Schema]
    documents: Mapping[str, str]
    """By stream the column that holds the document, as JSON text."""
    ids: Mapping[str, str]
    """By stream the column that names a document; needed for ``output="ids"`` only."""
    output: str
    window: DocumentWindow | None
    event_time: EventTime | None
    """Set where the window is one of time."""
    include: tuple[str, ...] | None
    exclude: tuple[str, ...]
    at_least: int
    arrays: str
    nulls: str
    malformed: str
    local: str
    is_routed: bool = False
    """Whether several buckets may store a document; then rows have marks."""

    @classmethod
    def create(
        cls,
        streams: Mapping[str, pa.Schema],
        document: str | Mapping[str, str],
        *,
        id: str | Mapping[str, str] | None = None,
        output: str = "both",
        window: object = None,
        event_time: Mapping[str, str] | None = None,
        late: str = "drop",
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        at_least: int = 1,
        arrays: str = "sets",
        nulls: str = "value",
        malformed: str = "refuse",
        local: str = "auto",
        is_routed: bool = False,
    ) -> "NaturalSpec":
        """InvalidArgumentError names what does not fit."""
        _check_some_streams(streams)
        for name, value, known in (
            ("output", output, Output),
            ("arrays", arrays, Arrays),
            ("nulls", nulls, Nulls),
            ("malformed", malformed, Malformed),
            ("local", local, Local),
        ):
            if value not in get_args(known):
                raise InvalidArgumentError(
                    f"{name}={value!r} is unknown{nearest(str(value), get_args(known))}"
                )
        documents = _columns("document", document, streams)
        for name, column in documents.items():
            kind = streams[name].field(column).type
            if not pa.types.is_string(kind):
                raise InvalidArgumentError(
                    f"document: column {column!r} of stream {name!r} is {kind}; give JSON text"
                )
        ids = {} if id is None else _columns("id", id, streams)
        if output == "ids" and not ids:
            raise InvalidArgumentError(
                'output="ids" gives the ids of two documents; name their column, as in id="id"'
            )
        if isinstance(at_least, bool) or not isinstance(at_least, int) or at_least < 1:
            raise InvalidArgumentError(
                f"at_least={at_least!r}: give how many shared attributes must agree, 1 or more"
            )
        names = None if include is None else _names("include", include)
        found = window_of(window)
        return cls(
            streams=dict(streams),
            documents=documents,
            ids=ids,
            output=output,
            window=found,
            event_time=_times(streams, found, event_time, late),
            include=names,
            exclude=_names("exclude", exclude),
            at_least=at_least,
            arrays=arrays,
            nulls=nulls,
            malformed=malformed,
            local=local,
            is_routed=is_routed,
        )

    @property
    def reading(self) -> Reading:
        """How documents are read."""
        return Reading(self.include, self.exclude, self.arrays == "sets", self.nulls == "value")

    @property
    def is_of_one_stream(self) -> bool:
        """Whether documents of one stream meet each other."""
        return len(self.streams) == 1

    @cached_property
    def sides(self) -> Mapping[str, pa.Schema]:
        """The columns of both documents of a pair, as ``output`` asks for them."""
        if self.is_of_one_stream:
            ((name, _),) = self.streams.items()
            return dict.fromkeys(SIDES, self.shown(name))
        return {name: self.shown(name) for name in self.streams}

    def shown(self, stream: str) -> pa.Schema:
        """The columns of a stream that a result is made of."""
        schema = self.streams[stream]
        if self.output == "ids":
            return pa.schema([schema.field(self.ids[stream])])
        if self.output == "merged":
            names = [self.ids[stream]] if self.ids else []
            return pa.schema([schema.field(n) for n in [*names, self.documents[stream]]])
        return schema

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The columns of a result."""
        if self.output != "merged":
            return joined_schema(self.sides)
        ids = {side: pa.schema(list(schema)[:-1]) for side, schema in self.sides.items()}
        return pa.schema([*joined_schema(ids), pa.field(MERGED, pa.string())])

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams of the store: documents, postings and what is known of each window."""
        found = []
        for name, schema in self.streams.items():
            rows = pa.schema([*schema, *MARKS]) if self.is_routed else schema
            found += [
                StreamSchema(name, DOCUMENT_KEY, rows),
                StreamSchema(postings_of(name), POSTING_KEY, POSTINGS),
                StreamSchema(windows_of(name), WINDOW_KEY, WINDOWS),
            ]
        return (*found, WATERMARK)

    def computed(self, stream: str) -> Sequence[str]:
        """The document, which the router reads."""
        return (self.documents[stream],)

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return {
            "natural join of": {n: self.documents[n] for n in self.streams},
            "ids": dict(self.ids),
            "output": self.output,
            "window": None if self.window is None else str(self.window),
            "event times": {} if self.event_time is None else dict(self.event_time.columns),
            "include": None if self.include is None else sorted(self.include),
            "exclude": sorted(self.exclude),
            "at least": self.at_least,
            "arrays": self.arrays,
            "nulls": self.nulls,
        }

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        if stream not in self.streams:
            raise InvalidArgumentError(
                f"there is no stream {stream!r}{nearest(stream, tuple(self.streams))}"
            )


def postings_of(stream: str) -> str:
    """The stream of the store with the posting lists of a stream's documents."""
    return f"{stream} (postings)"


def windows_of(stream: str) -> str:
    """The stream of the store that says how far each window is indexed."""
    return f"{stream} (windows)"


def window_of(given: object) -> DocumentWindow | None:
    """The window that a user asked for. InvalidArgumentError if it is none."""
    if given is None:
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise InvalidArgumentError(f"window={given!r}: give 1 document or more")
        return DocumentWindow("count", given, given)
    found = time_window(given)
    if found.size_us % found.slide_us:
        raise InvalidArgumentError(
            f"window={given!r}: the size of a window of documents is a multiple of the step to the "
            'next one, as in Time(window=("1 hour", "10 minutes"))'
        )
    return DocumentWindow("time", found.size_us, found.slide_us)


def _times(
    streams: Mapping[str, pa.Schema],
    window: DocumentWindow | None,
    event_time: Mapping[str, str] | None,
    late: str,
) -> EventTime | None:
    """Event times, which a window of time needs and no other join has."""
    if late not in ("drop", "side"):
        raise InvalidArgumentError(
            f"late={late!r}: the documents that a late one would match may be forgotten; choose "
            "late='drop' or 'side'"
        )
    if window is None or window.kind == "count":
        if event_time:
            raise InvalidArgumentError(
                f"event_time={dict(event_time)!r} says which window a document is in; give one, "
                'as in Time(window="10 minutes")'
            )
        if window is not None and len(streams) > 1:
            raise InvalidArgumentError(
                f"window={window.size}: a number of documents is a window of one stream, and "
                'these are two; give a duration, as in Time(window="10 minutes")'
            )
        return None
    columns = {}
    for name in streams:
        column = (event_time or {}).get(name)
        if column is None:
            raise InvalidArgumentError(
                f"window: stream {name!r} has no event time; name its column of time stamps, as in "
                f'time=Time(event_time={{"{name}": "at"}})'
            )
        columns[name] = resolved("column", column, streams[name].names, name)
        kind = streams[name].field(columns[name]).type
        if not pa.types.is_timestamp(kind):
            raise InvalidArgumentError(
                f"event_time[{name!r}]={column!r} is {kind}; name a column of time stamps, or cast "
                "it to one"
            )
    if len({streams[n].field(c).type.tz is None for n, c in columns.items()}) > 1:
        raise InvalidArgumentError(
            "event_time: one stream's time stamps have a time zone and the other's have none; "
            "cast one of them"
        )
    for name in event_time or {}:
        resolved("stream", name, streams)
    kept: dict[str, int | None] = dict.fromkeys(streams, window.size)
    return EventTime(columns, (), kept, late, needs_time=True)


def _check_some_streams(streams: Mapping[str, pa.Schema]) -> None:
    """InvalidArgumentError unless they are one or two."""
    if not isinstance(streams, Mapping) or len(streams) != 1:
        check_streams(streams)
    else:
        ((name, schema),) = streams.items()
        check_streams({name: schema, f"{name} and itself": schema})
    if len(streams) > 2:
        raise InvalidArgumentError(
            f"{len(streams)} streams ({', '.join(streams)}): a natural join of documents has one "
            "or two; unite streams that are joined alike"
        )


def _columns(
    what: str, given: str | Mapping[str, str], streams: Mapping[str, pa.Schema]
) -> dict[str, str]:
    """By stream a column of it."""
    if isinstance(given, str):
        given = dict.fromkeys(streams, given)
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"{what}={given!r} is {type(given).__name__}; give the name of a column, or one for "
            "each stream"
        )
    for name in given:
        resolved("stream", name, streams)
    missing = [name for name in streams if name not in given]
    if missing:
        raise InvalidArgumentError(f"{what}={dict(given)!r} has no column of {missing[0]!r}")
    return {
        name: resolved("column", given[name], schema.names, name)
        for name, schema in streams.items()
    }


def _names(what: str, given: Sequence[str]) -> tuple[str, ...]:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or not all(isinstance(name, str) for name in given):
        raise InvalidArgumentError(
            f'{what}={given!r}: give a list of attributes, such as ["time", "meta.id"]'
        )
    return tuple(given)
