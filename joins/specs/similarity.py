"""SimilaritySpec: one or two streams, and how close two rows must be to be a result.

- Of one stream each unordered pair of rows is a result once, and never a row with itself. The first
  of the two sides is the row that was stored before.
- ``how="anti"`` gives the rows of one stream that have no close row before them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, get_args

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.key_classes import class_type
from lsmstate.joins.conditions.key_types import cast_key
from lsmstate.joins.conditions.names import column_names, resolved, unknown
from lsmstate.joins.specs.event_time import LATE, EventTime, duration_us
from lsmstate.joins.specs.malformed import Malformed
from lsmstate.joins.specs.one_key import joined_schema
from lsmstate.joins.specs.window import TimeWindow, time_window
from lsmstate.store import StreamSchema
from lsmstate.store_base.checks import nearest

#: Metrics of vectors, in the order of ``cython_ext.distances.exact``.
VECTOR_METRICS: Final = (
    "l2",
    "cosine",
    "angular",
    "manhattan",
    "chebyshev",
    "hamming",
    "haversine",
)
JACCARD: Final = "jaccard"
LEVENSHTEIN: Final = "levenshtein"
METRICS: Final = (*VECTOR_METRICS, JACCARD, LEVENSHTEIN)
#: Metrics whose distances are those of points, and components from which on points have codes.
CODED_METRICS: Final = ("l2", "cosine", "angular")
LEAST_CODED: Final = 17
ALGORITHMS: Final = ("auto", "tiles", "grid", "pivots", "keys", "s3j")
HOW: Final = ("inner", "anti")
#: Components of a place on the earth.
_EARTH: Final = 2

#: Of a stored row: where it lies, and where inside. Its cell, or its block.
HOME: Final = "@home"
ORDER: Final = "@order"
#: When it came, counted in rows.
ARRIVAL: Final = "@arrival"
#: What the join remembers beside rows: the dimension, and how many rows came.
FACTS: Final = StreamSchema(
    "@similarity", pa.schema([("name", pa.string())]), pa.schema([("value", pa.int64())])
)
#: Pivots by number.
PIVOTS: Final = StreamSchema(
    "@pivots",
    pa.schema([("pivot", pa.int64())]),
    pa.schema(
        [
            ("point", pa.list_(pa.float64())),
            ("companion", pa.int64()),
            ("apart", pa.float64()),
            ("since", pa.int64()),
        ]
    ),
)
#: How often members of sets were seen, by ranking.
RANKINGS: Final = StreamSchema(
    "@rankings",
    pa.schema([("ranking", pa.int64())]),
    pa.schema([("member", pa.int64()), ("count", pa.int64())]),
)
#: Bases of codes by version. Part 0 says how many rows had come when it was last looked for one.
BASES: Final = StreamSchema(
    "@bases",
    pa.schema([("version", pa.int64()), ("part", pa.int64())]),
    pa.schema([("numbers", pa.list_(pa.float64()))]),
)
#: The codes of some rows, and the version of their basis.
CODE: Final = "@code"
VERSION: Final = "@version"
#: A generated key.
KEY: Final = "@key"
#: Beside a key of a set: how many members the set has, and how many of them stand before the key's.
SIZE: Final = "@size"
PLACE: Final = "@place"
#: Of each pivot the least and the greatest distance of the rows of its workset, nearer to its
#: companion and beyond, and their last event time.
REACHES: Final = StreamSchema(
    "@reaches",
    pa.schema([("pivot", pa.int64())]),
    pa.schema(
        [
            ("low", pa.float64()),
            ("high", pa.float64()),
            ("low_beyond", pa.float64()),
            ("high_beyond", pa.float64()),
            ("latest", pa.int64()),
        ]
    ),
)


@dataclass(frozen=True)
class SimilaritySpec:
    """Made by ``SimilaritySpec.of``."""

    streams: Mapping[str, pa.Schema]
    sides: tuple[str, str]
    """The names of the two rows of a pair in the result. Of two streams: their names."""
    columns: Mapping[str, str]
    """By stream, the column that is compared."""
    metric: str
    """One of METRICS, or ``module:function``."""
    threshold: float
    keys: Mapping[str, tuple[str, ...]]
    """By stream, columns that are equal in a result."""
    how: str = "inner"
    distance: str | None = "distance"
    """Name of the column of distances; None: there is none."""
    algorithm: str = "auto"
    dimension: int | None = None
    """Components of a vector; None: the first one says."""
    malformed: str = "refuse"
    """What becomes of rows whose vectors have another dimension, or hold a null."""
    event_time: EventTime | None = None
    within_us: int | None = None
    """How far the event times of a pair may be apart."""
    window: TimeWindow | None = None
    """The event times of a pair lie in one window."""
    compared_as: pa.Schema | None = None
    """The types in which keys are compared, if the caller casts them."""
    shown: tuple[int, ...] | None = None
    """Places of the columns that results have, among ``whole_schema``; None: all."""

    @classmethod
    def of(
        cls,
        streams: Mapping[str, pa.Schema],
        on: str,
        *,
        metric: str,
        threshold: float,
        by: Sequence[str] | Mapping[str, Sequence[str]] | str = (),
        how: str = "inner",
        distance: str | None = "distance",
        algorithm: str = "auto",
        dimension: int | None = None,
        malformed: str = "refuse",
    ) -> "SimilaritySpec":
        """Check what is joined, over the full history. InvalidArgumentError names what does not
        fit."""
        _check_streams(streams)
        sides, columns = _compared(streams, on)
        spec = cls(
            dict(streams),
            sides,
            columns,
            checked_metric(metric),
            _threshold(metric, threshold),
            _keys(streams, by),
            how,
            distance,
            algorithm,
            dimension,
            malformed,
        )
        _choose("how", how, HOW)
        _choose("malformed", malformed, get_args(Malformed))
        _choose("algorithm", algorithm, ALGORITHMS)
        if how == "anti" and len(streams) > 1:
            raise InvalidArgumentError(
                "how='anti' keeps the rows of one stream that have no earlier partner, and there "
                f"are the streams {', '.join(streams)}; give one stream"
            )
        _check_algorithm(spec)
        _check_dimension(spec)
        for stream, column in columns.items():
            _check_type(spec.metric, f"{stream}.{column}", streams[stream].field(column).type)
        if distance is not None and not isinstance(distance, str):
            raise InvalidArgumentError(
                f"distance={distance!r}: give the name of a column to add, or None for none"
            )
        if distance is not None and distance.lower() in map(str.lower, spec._pair_schema.names):
            raise InvalidArgumentError(
                f"distance={distance!r} is the name of a column of the result; give another name"
            )
        return spec

    @property
    def is_self_join(self) -> bool:
        """Whether one stream is joined with itself."""
        return len(self.streams) == 1

    @property
    def compares_vectors(self) -> bool:
        """Whether values are vectors of one dimension."""
        return self.metric not in (JACCARD, LEVENSHTEIN)

    @property
    def known_dimension(self) -> int | None:
        """The dimension of all vectors, if it is known before any row comes."""
        return _EARTH if self.metric == "haversine" else self.dimension

    @property
    def is_anti(self) -> bool:
        """Whether results are rows without a partner."""
        return self.how == "anti"

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Types in which equal columns are compared, under the names k0, k1, and so on."""
        if self.compared_as is not None:
            return self.compared_as
        count = len(next(iter(self.keys.values()), ()))
        return pa.schema(
            [
                (f"k{k}", class_type(self.streams, {n: c[k] for n, c in self.keys.items()}))
                for k in range(count)
            ]
        )

    @cached_property
    def place_schema(self) -> pa.Schema:
        """The key of a stored row: equal columns, its home, and where it lies inside."""
        return pa.schema([*self.key_schema, (HOME, pa.int64()), (ORDER, pa.float64())])

    def key_batch(self, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The equal columns of rows, in the common types."""
        columns = [
            cast_key(rows.column(name), field.type)
            for name, field in zip(self.keys[stream], self.key_schema, strict=True)
        ]
        if not columns:  # Arrow knows no rows without a column.
            return rows.select([])
        return pa.RecordBatch.from_arrays(columns, schema=self.key_schema)

    @cached_property
    def stored(self) -> Mapping[str, pa.Schema]:
        """The columns of each stream as they are stored."""
        return {
            name: schema.append(pa.field(ARRIVAL, pa.int64()))
            for name, schema in self.streams.items()
        }

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams of the store."""
        streams = tuple(
            StreamSchema(name, self.place_schema, schema) for name, schema in self.stored.items()
        )
        if has_keys(self):
            streams = (*streams, *(keys_stream(self, name) for name in self.streams))
        if has_codes(self):
            streams = (*streams, *(codes_stream(self, name) for name in self.streams))
        if self.event_time is not None:
            streams = self.event_time.expiring(streams, self.owners)
        bases = (BASES,) if has_codes(self) else ()
        learned = (RANKINGS,) if has_keys(self) else (PIVOTS, REACHES, *bases)
        return (*streams, FACTS, *learned)

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, whose rows it holds."""
        own = {name: name for name in self.streams}
        beside = {keys_name(name): name for name in self.streams}
        return {**own, **beside, **{codes_name(name): name for name in self.streams}}

    @cached_property
    def _pair_schema(self) -> pa.Schema:
        if self.is_anti:
            return next(iter(self.streams.values()))
        return joined_schema(dict(zip(self.sides, self._both, strict=True)))

    @property
    def _both(self) -> tuple[pa.Schema, pa.Schema]:
        first, *others = self.streams.values()
        return first, others[0] if others else first

    @cached_property
    def whole_schema(self) -> pa.Schema:
        """The columns of both rows, and the distance; of ``how="anti"`` those of one row."""
        if self.is_anti or self.distance is None:
            return self._pair_schema
        return self._pair_schema.append(pa.field(self.distance, pa.float64()))

    @cached_property
    def output_schema(self) -> pa.Schema:
        """Those that are shown."""
        if self.shown is None:
            return self.whole_schema
        return pa.schema([self.whole_schema.field(at) for at in self.shown])

    @cached_property
    def shown_columns(self) -> tuple[tuple[str, ...], ...]:
        """Of each row of a pair, the columns that are shown."""
        rows = self._both[:1] if self.is_anti else self._both
        starts = [0, len(rows[0])]
        return tuple(
            tuple(
                name
                for at, name in enumerate(row.names, start)
                if self.shown is None or at in self.shown
            )
            for row, start in zip(rows, starts, strict=False)
        )

    @property
    def shows_distance(self) -> bool:
        """Whether results have the distance."""
        has_one = self.distance is not None and not self.is_anti
        return has_one and (self.shown is None or len(self._pair_schema) in self.shown)

    def showing(
        self, columns: Sequence[str] | str | None, known: Sequence[str] | None = None
    ) -> "SimilaritySpec":
        """The same join, whose results have some columns only, in the order that they have there.

        Args:
            columns: Their names; None: all.
            known: The names of all columns. Default: those of ``whole_schema``.

        Raises:
            InvalidArgumentError: There is no such column, or no name.
        """
        if columns is None:
            return self
        known = self.whole_schema.names if known is None else known
        names = column_names("columns", columns)
        if not names:
            raise InvalidArgumentError(
                f"columns={columns!r}: name at least one column of the result, or give None for all"
            )
        places = {known.index(resolved("column", name, known)) for name in names}
        return replace(self, shown=tuple(sorted(places)))

    def bounds_of(self, stream: str) -> tuple[Bound, ...]:
        """Intervals without whose times a row is in no result."""
        return () if self.event_time is None else self.event_time.bounds

    def computed(self, stream: str) -> Sequence[str]:
        """The equal columns."""
        return tuple(self.key_schema.names)

    def described(self) -> dict[str, Any]:
        """Everything that decides which results there are, and where rows lie."""
        compared = [f"{name}.{column}" for name, column in self.columns.items()]
        keys = [" = ".join(f"{n}.{c[k]}" for n, c in self.keys.items()) for k in self._key_places]
        return {
            "similar": " ~ ".join(compared),
            "sides": list(self.sides),
            "metric": self.metric,
            "threshold": self.threshold,
            "keys": sorted(keys),
            "how": self.how,
            "algorithm": self.algorithm,
            "dimension": self.dimension,
            "within microseconds": self.within_us,
            "window": None if self.window is None else [self.window.size_us, self.window.slide_us],
        }

    @property
    def _key_places(self) -> range:
        return range(len(self.key_schema))

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        if stream not in self.streams:
            raise unknown("stream", stream, self.streams)


#: Names that metrics have elsewhere.
_OTHER_NAMES: Final = {"euclidean": "l2", "l1": "manhattan"}


def checked_metric(metric: object) -> str:
    """A metric's name; a function becomes ``module:name``. InvalidArgumentError for others."""
    if callable(metric):
        name = getattr(metric, "__qualname__", "")
        if not name.replace(".", "").isidentifier() or "<" in name:
            raise InvalidArgumentError(
                f"metric={metric!r} has no name that another process could import; define it with "
                "def at the top of a module"
            )
        return f"{getattr(metric, '__module__', '')}:{name}"
    if isinstance(metric, str) and ":" in metric:
        return metric
    metric = _OTHER_NAMES.get(str(metric), metric)
    _choose("metric", metric, METRICS)
    return str(metric)


def has_keys(spec: SimilaritySpec) -> bool:
    """Whether rows are found by generated keys."""
    if spec.algorithm not in ("auto", "keys"):
        return False
    if spec.metric == LEVENSHTEIN:
        return True
    if spec.metric != JACCARD:
        return False
    kinds = [spec.streams[n].field(c).type.value_type for n, c in spec.columns.items()]
    is_text = all(pa.types.is_string(k) or pa.types.is_large_string(k) for k in kinds)
    return is_text or all(map(pa.types.is_integer, kinds))


def keys_name(stream: str) -> str:
    """The name of the stream of generated keys of a stream's rows."""
    return f"{stream} (keys)"


def keys_stream(spec: SimilaritySpec, stream: str) -> StreamSchema:
    """The stream of generated keys of a stream's rows: which rows lie under each."""
    rows = pa.schema([(HOME, pa.int64())])
    if spec.metric == JACCARD:
        rows = rows.append(pa.field(SIZE, pa.int64())).append(pa.field(PLACE, pa.int64()))
    if spec.event_time is not None:
        rows = rows.append(spec.streams[stream].field(spec.event_time.columns[stream]))
    return StreamSchema(keys_name(stream), pa.schema([*spec.key_schema, (KEY, pa.int64())]), rows)


def has_codes(spec: SimilaritySpec) -> bool:
    """Whether rows of many components are found by codes."""
    if spec.algorithm not in ("auto", "tiles") or len(spec.key_schema):
        return False
    known = spec.known_dimension
    return spec.metric in CODED_METRICS and (known is None or known >= LEAST_CODED)


def codes_name(stream: str) -> str:
    """The name of the stream of codes of a stream's rows."""
    return f"{stream} (codes)"


def codes_stream(spec: SimilaritySpec, stream: str) -> StreamSchema:
    """The stream of codes of a stream's rows: chunks, by the home of their first row."""
    rows = pa.schema([(VERSION, pa.int64()), (CODE, pa.binary())])
    if spec.event_time is not None:
        rows = rows.append(spec.streams[stream].field(spec.event_time.columns[stream]))
    return StreamSchema(codes_name(stream), pa.schema([(HOME, pa.int64())]), rows)


def _choose(name: str, value: object, known: Iterable[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidArgumentError(
            f"{name}={value!r} is unknown{nearest(str(value), tuple(known))}"
        )


def _check_algorithm(spec: SimilaritySpec) -> None:
    fitting = {
        "keys": (JACCARD, LEVENSHTEIN),
        **dict.fromkeys(("grid", "pivots", "s3j"), VECTOR_METRICS),
    }
    known = fitting.get(spec.algorithm, (spec.metric,))
    if ":" in spec.metric and spec.algorithm in ("pivots", "s3j"):
        return  # a function of the user's, which promises a metric
    if spec.metric not in known or (spec.algorithm == "grid" and spec.metric == "hamming"):
        raise InvalidArgumentError(
            f"algorithm={spec.algorithm!r} does not find pairs by metric={spec.metric!r}; leave "
            "algorithm out"
        )


def _check_dimension(spec: SimilaritySpec) -> None:
    given = spec.dimension
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidArgumentError(
            f"dimension={given!r}: give the number of components of a vector, 1 or more, or None"
        )
    if not spec.compares_vectors:
        raise InvalidArgumentError(
            f"dimension={given!r}: metric={spec.metric!r} compares no vectors; leave it out"
        )
    if spec.metric == "haversine" and given != _EARTH:
        raise InvalidArgumentError(
            f"dimension={given!r}: haversine compares [longitude, latitude], which are two numbers;"
            " leave it out"
        )


def _threshold(metric: object, threshold: object) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        raise InvalidArgumentError(f"threshold={threshold!r}: give the largest distance, a number")
    if not 0 <= threshold < math.inf:
        raise InvalidArgumentError(
            f"threshold={threshold!r}: it is the largest distance of a pair, so give a finite "
            "number that is not negative"
        )
    if metric == JACCARD and threshold >= 1:
        raise InvalidArgumentError(
            f"threshold={threshold!r}: at a Jaccard distance of 1 any two sets match; give less"
        )
    return float(threshold)


def _check_streams(streams: Mapping[str, pa.Schema]) -> None:
    if not isinstance(streams, Mapping) or not 1 <= len(streams) <= 2:
        raise InvalidArgumentError(
            f"streams={streams!r}: give the schemas of one or two streams by their names, as in "
            '{"a": schema, "b": schema}'
        )
    for name, schema in streams.items():
        if not isinstance(name, str) or not name or not isinstance(schema, pa.Schema):
            raise InvalidArgumentError(
                f"streams[{name!r}] is a {type(schema).__name__}; give a pyarrow.Schema under a "
                "name that is text"
            )
        for column in schema.names:
            if column.startswith("@"):
                raise InvalidArgumentError(
                    f"column {name}.{column}: names that begin with @ are the join's own; rename it"
                )


def _compared(
    streams: Mapping[str, pa.Schema], on: object
) -> tuple[tuple[str, str], dict[str, str]]:
    """The names of the two sides, and the compared column of each stream."""
    parts = [part.strip().split(".") for part in on.split("~")] if isinstance(on, str) else []
    if len(parts) != 2 or any(len(part) != 2 for part in parts):
        raise InvalidArgumentError(
            f'on={on!r}: write the two columns as stream.column, such as "a.v ~ b.v"'
        )
    (one, one_column), (two, two_column) = ([p.strip("` ") for p in part] for part in parts)
    names = list(streams)
    if one.lower() == two.lower():
        raise InvalidArgumentError(
            f"on={on!r}: both sides are called {one!r}; give the second row of a pair a name of "
            f'its own, as in "{one}.{one_column} ~ other.{two_column}"'
        )
    if len(names) == 2:
        found = {
            resolved("stream", name, names): column
            for name, column in ((one, one_column), (two, two_column))
        }
        columns = {n: resolved("column", found[n], streams[n].names, n) for n in names}
        return (names[0], names[1]), columns
    (name,) = names
    if name.lower() not in (one.lower(), two.lower()):
        raise InvalidArgumentError(
            f"on={on!r}: neither side is the stream {name!r}; call one of them so"
        )
    if one_column.lower() != two_column.lower():
        raise InvalidArgumentError(
            f"on={on!r}: one stream is joined with itself by one column, and these are two"
        )
    column = resolved("column", one_column, streams[name].names, name)
    return (one, two), {name: column}


def _keys(
    streams: Mapping[str, pa.Schema], by: Sequence[str] | Mapping[str, Sequence[str]] | str
) -> dict[str, tuple[str, ...]]:
    given = by if isinstance(by, Mapping) else dict.fromkeys(streams, by)
    found: dict[str, tuple[str, ...]] = {}
    for stream, columns in given.items():
        name = resolved("stream", stream, streams)
        listed = column_names("by", columns)
        found[name] = tuple(resolved("column", c, streams[name].names, name) for c in listed)
    if set(found) != set(streams) or len({len(columns) for columns in found.values()}) != 1:
        raise InvalidArgumentError(
            f"by={by!r}: every stream needs the same number of columns that are equal in a pair"
        )
    return {name: found[name] for name in streams}


def _check_type(metric: str, where: str, kind: pa.DataType) -> None:
    if metric == LEVENSHTEIN:
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InvalidArgumentError(
                f"{where} is {kind}, and levenshtein compares texts; give a column of strings"
            )
        return
    if metric == JACCARD:
        if not is_list(kind):
            raise InvalidArgumentError(
                f"{where} is {kind}, and jaccard compares sets; give a column of lists"
            )
        return
    if not is_vector(kind):
        raise InvalidArgumentError(
            f"{where} is {kind}, and {metric} compares vectors; give a column of lists of numbers"
        )
    if metric == "haversine" and pa.types.is_fixed_size_list(kind) and kind.list_size != 2:
        raise InvalidArgumentError(
            f"{where} is {kind}, and haversine compares [longitude, latitude]; give two numbers"
        )


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_vector(kind: pa.DataType) -> bool:
    """Whether values are lists of numbers."""
    return is_list(kind) and bool(
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    )


def with_time(
    spec: SimilaritySpec,
    columns: Mapping[str, str],
    within: str | timedelta | None,
    window: object,
    late: str,
    no_time: str,
) -> SimilaritySpec:
    """The spec of a join that forgets rows by event time.

    Args:
        spec: What is joined.
        columns: Event times by stream.
        within: How far the times of a pair may be apart.
        window: Length of windows that hold both times of a pair; or length and slide.
        late: What becomes of late rows.
        no_time: What to do about a stream without an event time, for messages.
    """
    if within is None and window is None:
        return spec
    found = {resolved("stream", n, spec.streams): c for n, c in columns.items()}
    for name in spec.streams:
        if name not in found:
            option = f"within={within!r}" if window is None else f"window={window!r}"
            raise InvalidArgumentError(f"{option}: stream {name!r} has no event time; {no_time}")
    times = {n: resolved("column", found[n], s.names, n) for n, s in spec.streams.items()}
    kinds = [spec.streams[name].field(column).type for name, column in times.items()]
    for name, kind in zip(times, kinds, strict=True):
        if not pa.types.is_timestamp(kind):
            raise InvalidArgumentError(
                f"event_time[{name!r}]={times[name]!r} is {kind}; name a column of time stamps, or "
                "cast it to one"
            )
    if len({kind.tz is None for kind in kinds}) > 1:
        raise InvalidArgumentError(
            f"the event times {', '.join(map(str, kinds))} have no common clock; give both a time "
            "zone, or none"
        )
    _choose("late", late, LATE)
    within_us = None if within is None else duration_us("within", within)
    windows = None if window is None else time_window(window)
    most = min(
        *([within_us] if within_us is not None else []),
        *([windows.size_us] if windows is not None else []),
        1 << 62,
    )
    timing = EventTime(times, between(times, most), dict.fromkeys(times, most), late)
    return replace(spec, event_time=timing, within_us=within_us, window=windows)


def between(streams: Mapping[str, str], most_us: int) -> tuple[Bound, ...]:
    """Bounds that say that the event times of a pair are at most so far apart. ``streams``: the
    event time of each."""
    columns = [Column(name, column) for name, column in streams.items()]
    first, second = columns[0], columns[-1]
    return (Bound(first, second, most_us), Bound(second, first, most_us))
