"""Options that several faces share: how long rows are kept, and where the state lies.

Names of options with a few known values are types of literals, so a type checker finds a misspelt
one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.specs.event_time import LATE, Retention
from lsmstate.joins.specs.window import WindowLike
from lsmstate.opening import BACKENDS
from lsmstate.option_names import fields_checked
from lsmstate.options import JoinOptions, Options, parse_bytes
from lsmstate.state_location import DEFAULT_CACHE
from lsmstate.store_base.checks import nearest

Emit = Literal["append", "changes", "final"]
Unmatched = Literal["count", "error"]
Late = Literal["drop", "join", "side"]
HotKeys = Literal["observe", "spread"]
Routing = Literal["hash", "shares", "biclique", "ranges", "worksets"]
Backend = Literal["lsm", "rocksdb", "memory"]

HOT_KEYS: Final[tuple[str, ...]] = get_args(HotKeys)
ROUTINGS: Final[tuple[str, ...]] = get_args(Routing)

_MOST_BUCKETS: Final = 4096


@fields_checked
@dataclass(frozen=True, kw_only=True)
class Time:
    """How long rows of a join are kept by event time, and what becomes of late ones.

    Args:
        event_time: Column of time stamps of each stream that has an event time. In plain Python
            only; on Spark it is the column of the stream's watermark.
        retention: How long rows of a stream match at most, as in ``{"o": "7 days"}``. Fixed by the
            first start.
        within: How far apart the event times of the rows of a result are at most, for all pairs of
            streams: "10 minutes", or a timedelta. It is part of the condition. Fixed by the first
            start.
        window: The rows of a result lie in one window of event time: the length of windows, as in
            "1 hour", or their length and their slide, as in ("1 hour", "15 minutes"). Windows begin
            at 1970-01-01 and every slide before and after. Rows that share several windows are one
            result. It is part of the condition. Fixed by the first start. NaturalJoin takes a
            number of documents too.
        late: What becomes of late rows. "drop": left out, and counted. "join": matched with what
            is still stored. "side": left out and kept aside. On Spark they are kept in the state,
            in the stream ``o (late)``, which ``spark.read.format("lsmstate")`` reads with the
            columns ``_batch`` and ``_watermark``; whether they are is fixed by the first start. In
            plain Python ``late_rows`` has them.
        late_batches: For how many micro-batches Spark keeps late rows with ``late="side"``.
            Default: for ever.
        result_time: On Spark, name of a column to add: the latest event time of a result's rows,
            with a correct watermark for windows, outer joins and deduplication above the join.
            Spark needs ``spark.sql.streaming.statefulOperator.checkCorrectness.enabled=false`` for
            those.

    Raises:
        InvalidArgumentError: ``late`` is unknown.

    Example:
        ```python
        Time(retention={"s": "1 day"}, late="side", late_batches=1000)
        ```
    """

    event_time: Mapping[str, str] | None = None
    retention: Retention | None = None
    within: str | timedelta | None = None
    window: WindowLike | int | None = None
    late: Late = "drop"
    late_batches: int | None = None
    result_time: str | None = None

    def __post_init__(self) -> None:
        if self.late not in LATE:
            raise InvalidArgumentError(f"late={self.late!r} is unknown{nearest(self.late, LATE)}")


@fields_checked
@dataclass(frozen=True, kw_only=True)
class State:
    """Where the state of an operator lies, and what it may take.

    Args:
        memory: Cap of what the state holds in memory ("64m", or bytes; at least "5m"). On Spark it
            is the cap of one running task.
        backend: "lsm", "rocksdb" or "memory". Fixed by the first start.
        buckets: On Spark, number of buckets of the state, 1 to 4096. Default: two per core. Fixed
            by the first start; ``rescale`` changes it.
        state_dir: Directory of this state alone: a local path, or on Spark an address such as
            ``s3://bucket/path`` (backend "lsm"). Default on Spark: ``lsmstate`` in the checkpoint
            location. Default in plain Python: a temporary directory, which ``close`` removes.
        options: Settings of the store by their names in ``lsmstate.Options``, such as
            ``{"compression": "zstd"}``. Like ``memory`` they may change with every start.
        storage_options: On Spark, options of the file system of ``state_dir``; they win over the
            Hadoop settings of the session.
        cache_dir: On Spark, local directory for copies of remote files in use. Default: Spark's
            local directory.
        cache: Most bytes of these copies.

    Raises:
        InvalidArgumentError: ``memory``, ``backend``, ``buckets`` or a name in ``options`` cannot
            be used.

    Example:
        ```python
        State(memory="256m", buckets=32, state_dir="s3://bucket/clicks")
        ```
    """

    memory: int | str = "64m"
    backend: Backend = "lsm"
    buckets: int | None = None
    state_dir: str | None = None
    options: Mapping[str, Any] | None = None
    storage_options: Mapping[str, Any] | None = None
    cache_dir: str | None = None
    cache: int | str = DEFAULT_CACHE

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InvalidArgumentError(
                f"backend={self.backend!r} is unknown{nearest(str(self.backend), BACKENDS)}"
            )
        buckets = self.buckets
        if buckets is not None and (
            isinstance(buckets, bool)
            or not isinstance(buckets, int)
            or not 1 <= buckets <= _MOST_BUCKETS
        ):
            raise InvalidArgumentError(
                f"buckets={buckets!r}: must be a whole number from 1 to {_MOST_BUCKETS}, or None"
            )

    def store_options(self, elsewhere: Mapping[str, str]) -> Options:
        """The settings of the store. ``elsewhere``: fields of Options that are said in another
        way, and how. InvalidArgumentError names a wrong one and the remedy."""
        memory_bytes = parse_bytes(self.memory, "memory")
        if self.options is not None and not isinstance(self.options, Mapping):
            raise InvalidArgumentError(
                f"options={self.options!r} is {type(self.options).__name__}; give a dictionary, "
                'such as {"compression": "zstd"}'
            )
        given = self.options or {}
        if given and self.backend != BACKENDS[0]:
            raise InvalidArgumentError(
                f"options={dict(given)!r} apply to backend={BACKENDS[0]!r}, and this is "
                f"backend={self.backend!r}; leave them out"
            )
        known = tuple(field.name for field in fields(Options) if field.name not in elsewhere)
        for name, value in given.items():
            if name in elsewhere:
                raise InvalidArgumentError(f"options[{name!r}]={value!r}: {elsewhere[name]}")
            if name not in known:
                raise InvalidArgumentError(
                    f"options[{name!r}] is unknown{nearest(str(name), known)}"
                )
        return JoinOptions(memory_bytes=memory_bytes, **given)


@fields_checked
@dataclass(frozen=True, kw_only=True)
class Skew:
    """How the rows of a join on Spark are spread over the buckets of its state.

    Args:
        hot_keys: "observe" counts hot keys and shows them in the metrics. "spread" also gives a hot
            key several buckets: of two streams, each row is stored in one of them and probes all;
            of three or more, the rows of the largest stream of that key are spread and those of the
            others copied. For inner joins over the full history by one common key. Fixed by the
            first start.
        routing: Where rows of a join by conditions go: "hash" by one key that all streams have;
            "shares" along a grid of buckets, in which a stream without an equality has a dimension
            of its own; "biclique", of an inner join of two streams, to one bucket of their side,
            and to all of the other to look for partners; "ranges", of an inner join of two streams
            with a range condition, to the bucket of their range, and to those where a partner may
            be. Default: by the condition. Of ``similarity_join`` "hash", "biclique", or "worksets":
            near rows in one bucket. Fixed by the first start.
        rows: Rows of each stream in proportion, for joins by several keys or without any. With them
            few rows are copied. The first start chooses the shares and keeps them.
        shares: Buckets per key, for joins by several keys, as in ``{"c.id": 2, "o.id": 4}``.
            Default: chosen by ``rows``. Fixed by the first start.

    Raises:
        InvalidArgumentError: ``hot_keys`` or ``routing`` is unknown, or ``rows`` or ``shares`` is
            no dictionary.

    Example:
        ```python
        Skew(rows={"c": 1, "o": 10, "l": 40})
        ```
    """

    hot_keys: HotKeys | None = None
    routing: Routing | None = None
    rows: Mapping[str, int] | None = None
    shares: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        for name, known in (("hot_keys", HOT_KEYS), ("routing", ROUTINGS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise InvalidArgumentError(
                    f"{name}={value!r} is unknown{nearest(str(value), known)}"
                )
        for name in ("rows", "shares"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise InvalidArgumentError(
                    f"{name}={value!r} is a {type(value).__name__}; give a dictionary of numbers, "
                    'as in {"a": 1000, "b": 10}'
                )


def refuse_most_results(most_results: float | None) -> None:
    """InvalidArgumentError if a join whose results are not counted is given it."""
    if most_results is not None:
        raise InvalidArgumentError(
            f"most_results={most_results!r} applies to joins whose streams are not all connected "
            "by equalities; leave it out"
        )


def check_most_results(most_results: object) -> None:
    """InvalidArgumentError for what is no number of results."""
    is_number = isinstance(most_results, int | float) and not isinstance(most_results, bool)
    if most_results is not None and not (is_number and most_results > 0):  # type: ignore[operator]
        raise InvalidArgumentError(
            f"most_results={most_results!r}: give the most results for each row of a batch, a "
            "number above 0, or leave it out"
        )


#: Defaults of the faces: values that never change.
TIME: Final = Time()
STATE: Final = State()
SKEW: Final = Skew()

#: What the faces tell ``names_checked``.
GROUPS: Final[Mapping[str, type[Any]]] = {"time": Time, "state": State}
ON_SPARK: Final[Mapping[str, type[Any]]] = {"skew": Skew, **GROUPS}
STATE_ONLY: Final[Mapping[str, type[Any]]] = {"state": State}


#: What a face in plain Python says of options that only Spark has.
NO_BUCKETS: Final = dict.fromkeys(
    ("skew", *(field.name for field in fields(Skew))),
    "in plain Python all rows lie in one place, so nothing is spread; leave it out",
)


def refuse_other_fields(
    given: Time | State | Skew,
    fitting: tuple[str, ...],
    remedy: str,
    because: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """InvalidArgumentError for a field that is set, and that the face at hand does not have.
    ``because``: of some fields another reason and remedy."""
    for field in fields(given):
        value = getattr(given, field.name)
        if field.name not in fitting and value != field.default:
            told = because.get(field.name, remedy)
            raise InvalidArgumentError(f"{field.name}={value!r} {told}")
