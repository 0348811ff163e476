"""What the page shows, as JSON values: places, a query, a store, a bucket, rows.

Damage hides nothing else: what cannot be read is named in ``damaged``. Nothing is changed.
One request reads at a time, since the stores of a process share one memory cap.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError, LsmStateError
from lsmstate.expiry.readers import expiring_reads
from lsmstate.schema.documents import decode_documents, is_schema_free
from lsmstate.state_location import bucket_directory_name, local_path
from lsmstate.store import Entries, StoreReader, StreamSchema
from lsmstate.store_base.checks import stream_of
from lsmstate.tools.inspection import READ_ERRORS, Damage, State, Unreadable, damage_of, each_state
from lsmstate.tools.json_values import in_json
from lsmstate.tools.rows import open_state, with_open_files
from lsmstate.tools.summary import describe, summarize
from lsmstate.ui.places import Place, find_places, place_at

if TYPE_CHECKING:
    from lsmstate.spark import QueryState

#: Rows of one answer.
MOST_ROWS: Final = 200
#: Whole numbers below it are exact in JavaScript.
_EXACT: Final = 1 << 53
_ERRORS: Final = (LsmStateError, *READ_ERRORS)
Json = dict[str, Any]


class Views:
    """Answers for one directory."""

    def __init__(
        self,
        directory: str,
        state_dir: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Name the directory; nothing is read.

        Args:
            directory: A checkpoint, a store, a bucket, or a directory that holds some.
            state_dir: The ``state_dir`` of the only query there, if it has one.
            storage_options: Options of the file systems.
        """
        self.directory = directory
        self._state_dir = state_dir
        self._storage_options = storage_options
        self._lock = threading.Lock()

    def places(self) -> Json:
        """List the places."""
        with self._lock:
            found = [place.as_json() for place in find_places(self.directory)]
        return {"directory": self.directory, "places": found}

    def query(self, at: str) -> Json:
        """Describe a query: what ``lsmstate state --json`` gives, and its last micro-batches.

        ``problem`` says why there is no description, such as a query without a committed batch.
        """
        with self._lock:
            place = self._place(at, "query")
            found: Json = {"at": at, "path": place.path, "problem": None, "damaged": []}
            try:
                state = self._state(place)
                found |= state.describe()
                found["plan"] = state.picture().svg
            except _ERRORS as error:
                damage = _damage(error)
                return {**found, "problem": damage["what"], "history": self._history(place)}
            found["buckets"] = []
            for bucket in state.pointers:
                try:
                    found["buckets"].append(state.describe_bucket(bucket))
                except _ERRORS as error:
                    damage = _damage(error)
                    found["damaged"].append({**damage, "bucket": bucket})
                    found["buckets"].append({"bucket": bucket, "damage": damage["what"]})
            return {**found, "history": state.history()}

    def store(self, at: str) -> Json:
        """Describe the states of a place: sizes by level, streams, what is damaged."""
        with self._lock:
            place = self._place(at, "store")
            return {"at": at, "path": place.path, "states": _states(place.path)}

    def bucket(self, at: str, bucket: int) -> Json:
        """Describe the runs and levels of one bucket of a query, as ``lsmstate inspect`` does."""
        with self._lock:
            state = self._state(self._place(at, "query"))
            if bucket not in state.pointers:
                raise InvalidArgumentError(f"there is no bucket {bucket} as of batch {state.batch}")
            root = local_path(state.root)
            if root is None:
                raise InvalidArgumentError(
                    f"the levels of a bucket are shown of local states, and this is {state.root}"
                )
            directory = f"{root}/{bucket_directory_name(bucket)}"
            return {
                "at": at,
                "bucket": bucket,
                "states": _states(directory, state.pointers[bucket]),
            }

    def rows(
        self,
        at: str,
        stream: str | None,
        key: Sequence[str] = (),
        bucket: int | None = None,
        limit: int = 50,
    ) -> Json:
        """Read rows of a stream, with their keys first.

        Args:
            at: The place.
            stream: Name of the stream; None: the only one.
            key: Values of the first key columns as text; none: the first rows of all keys.
            bucket: The bucket of a query; None: all.
            limit: Most rows.
        """
        limit = max(1, min(limit, MOST_ROWS))
        with self._lock, ExitStack() as opened:
            place = self._place(at, None)
            if place.kind == "query":
                pieces = self._rows_of_query(place, stream, key, bucket)
            else:
                pieces = _rows_of_store(place, stream, key, opened)
            return _shown(pieces, limit)

    def _rows_of_query(
        self, place: Place, stream: str | None, key: Sequence[str], bucket: int | None
    ) -> Iterator[tuple[int | None, Entries]]:
        state = self._state(place)
        schema = state.stream(stream)
        for number in state.pointers if bucket is None else [bucket]:
            with state.bucket(number) as store:
                for entries in _entries(store, stream_of(store.streams, schema.name), key):
                    yield number, entries

    def _place(self, at: str, kind: str | None) -> Place:
        place = place_at(self.directory, at)
        if kind is not None and place.kind != kind:
            raise InvalidArgumentError(f"{at!r} is a {place.kind}, not a {kind}")
        return place

    def _state(self, place: Place) -> "QueryState":
        from lsmstate.spark import QueryState

        own = self._state_dir if place.at == "." else None
        return QueryState.open(place.path, None, own, self._storage_options)

    def _history(self, place: Place) -> Json:
        from lsmstate.spark import QueryState

        own = self._state_dir if place.at == "." else None
        return QueryState.history_of(place.path, own)


def _states(directory: str, pointer: str | None = None) -> list[Json]:
    found: list[Json] = []
    for state in each_state(directory, pointer):
        if isinstance(state, Unreadable):
            found.append({"directory": state.directory, "damaged": [asdict(state.damage)]})
            continue
        try:
            found.append({**describe(state), **summarize(state)})
        except READ_ERRORS as error:
            found.append({"directory": state.directory, "damaged": [asdict(damage_of(error))]})
    return found


def _rows_of_store(
    place: Place, stream: str | None, key: Sequence[str], opened: ExitStack
) -> Iterator[tuple[int | None, Entries]]:
    for state in each_state(place.path):
        if isinstance(state, Unreadable):
            raise state.error
        assert isinstance(state, State)
        store = opened.enter_context(open_state(with_open_files(state)))
        reads = expiring_reads(store)
        if stream is None and len(reads.streams) > 1:
            raise InvalidArgumentError(f"name one of the streams: {', '.join(reads.streams)}")
        name = next(iter(reads.streams)) if stream is None else stream
        for entries in _entries(reads, stream_of(reads.streams, name), key):
            yield None, entries


def _entries(store: StoreReader, stream: StreamSchema, key: Sequence[str]) -> Iterator[Entries]:
    prefix = key_of(stream, key) if key else None
    return iter(store.iterate(stream.name, prefix=prefix))


def key_of(stream: StreamSchema, texts: Sequence[str]) -> tuple[Any, ...]:
    """The values of the first key columns from text. InvalidArgumentError for what is none."""
    if len(texts) > len(stream.key):
        raise InvalidArgumentError(
            f"{len(texts)} values for the key columns {', '.join(stream.key.names)}; give one for "
            "each of the first of them"
        )
    values = []
    for field, text in zip(stream.key, texts, strict=False):
        try:
            kind = pa.string() if pa.types.is_string(field.type) else field.type
            values.append(pa.scalar(text).cast(kind).as_py())
        except (pa.ArrowException, ValueError) as error:
            raise InvalidArgumentError(
                f"key column {field.name!r} is {field.type}, and {text!r} is no such value; give "
                "one as text, such as 7 or 2026-01-31 12:00:00, with a Z behind it if the type has "
                "a time zone"
            ) from error
    return tuple(values)


def _shown(pieces: Iterable[tuple[int | None, Entries]], limit: int) -> Json:
    columns: dict[str, None] = {}
    rows: list[Json] = []
    is_more = False
    for bucket, (keys, found) in pieces:
        documents = decode_documents(found) if is_schema_free(found.schema) else found.to_pylist()
        for own, row in zip(keys.to_pylist(), documents, strict=True):
            if len(rows) == limit:
                is_more = True
                break
            shown = {} if bucket is None else {"bucket": bucket}
            shown |= {f"key {name}": _in_page(in_json(value)) for name, value in own.items()}
            shown |= {name: _in_page(in_json(value)) for name, value in row.items()}
            columns |= dict.fromkeys(shown)
            rows.append(shown)
        if is_more:
            break
    return {"columns": list(columns), "rows": rows, "is_more": is_more}


def _in_page(value: Any) -> Any:
    """A JSON value as JavaScript keeps it: whole numbers are doubles there, so large ones become
    text."""
    if isinstance(value, int):
        return value if -_EXACT < value < _EXACT else str(value)
    if isinstance(value, dict):
        return {name: _in_page(each) for name, each in value.items()}
    return [_in_page(each) for each in value] if isinstance(value, list) else value


def _damage(error: Exception) -> Json:
    if isinstance(error, READ_ERRORS):
        return asdict(damage_of(error))
    return asdict(Damage("", str(error)))
