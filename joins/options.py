"""Options that several faces share: how long rows are kept, and where the state lies.

Names of options with a few known values are types of literals, so a type checker finds a misspelt
one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final, Literal

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.specs.event_time import Retention
from lsmstate.opening import BACKENDS
from lsmstate.option_names import fields_checked
from lsmstate.options import Options, parse_bytes
from lsmstate.state_location import DEFAULT_CACHE
from lsmstate.store_base.checks import nearest

Emit = Literal["append", "changes", "final"]
Unmatched = Literal["count", "error"]
Late = Literal["drop", "join", "side"]
Skew = Literal["observe", "spread"]
Backend = Literal["lsm", "rocksdb", "memory"]

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

    Example:
        ```python
        Time(retention={"s": "1 day"}, late="side", late_batches=1000)
        ```
    """

    event_time: Mapping[str, str] | None = None
    retention: Retention | None = None
    within: str | timedelta | None = None
    late: Late = "drop"
    late_batches: int | None = None
    result_time: str | None = None


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
        return Options(memory_bytes=memory_bytes, **given)


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

#: What the faces tell ``names_checked``.
GROUPS: Final[Mapping[str, type[Any]]] = {"time": Time, "state": State}
STATE_ONLY: Final[Mapping[str, type[Any]]] = {"state": State}


def refuse_other_fields(given: Time | State, fitting: tuple[str, ...], remedy: str) -> None:
    """InvalidArgumentError for a field that is set, and that the face at hand does not have."""
    for field in fields(given):
        value = getattr(given, field.name)
        if field.name not in fitting and value != field.default:
            raise InvalidArgumentError(f"{field.name}={value!r} {remedy}")
