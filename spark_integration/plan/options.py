"""Options of every stateful operator, checked when the operator is built."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from lsmstate.errors import InvalidArgumentError
from lsmstate.opening import check_place
from lsmstate.options import Options, parse_bytes
from lsmstate.spark_integration.plan.storage import Storage, state_url

OPTION_NAMES: Final = (
    "memory",
    "backend",
    "buckets",
    "state_dir",
    "options",
    "storage_options",
    "cache_dir",
    "cache",
)
_BACKENDS: Final = ("lsm", "rocksdb", "memory")
_MOST_BUCKETS: Final = 4096
#: Fields of Options that are said elsewhere.
_ELSEWHERE: Final = {
    "memory_bytes": "give memory=... instead",
    "retained_batches": "set spark.sql.streaming.minBatchesToRetain instead",
}


@dataclass(frozen=True)
class OperatorOptions:
    """The user's options in our units."""

    store: Options
    backend: str
    buckets: int | None
    state_dir: str | None
    storage: Storage

    @classmethod
    def of(
        cls,
        memory: int | str,
        backend: str,
        buckets: int | None,
        state_dir: str | None,
        options: Mapping[str, Any] | None,
        storage: Storage,
    ) -> "OperatorOptions":
        """Check the options. InvalidArgumentError names a wrong value and the remedy."""
        if backend not in _BACKENDS:
            raise InvalidArgumentError(
                f"backend={backend!r}: did you mean {nearest(backend, _BACKENDS)!r}? "
                f"Known: {', '.join(_BACKENDS)}"
            )
        if buckets is not None and (
            isinstance(buckets, bool)
            or not isinstance(buckets, int)
            or not 1 <= buckets <= _MOST_BUCKETS
        ):
            raise InvalidArgumentError(
                f"buckets={buckets!r}: must be a whole number from 1 to {_MOST_BUCKETS}, or None"
            )
        store = _store_options(parse_bytes(memory, "memory"), backend, options or {})
        if state_dir is not None:
            state_dir = state_url(str(state_dir))
            place = storage.place(state_dir)
            if place.local_directory is None:
                check_place(backend, place.where)
        return cls(store, backend, buckets, state_dir, storage)


def _store_options(memory_bytes: int, backend: str, given: Mapping[str, Any]) -> Options:
    if given and backend != _BACKENDS[0]:
        raise InvalidArgumentError(
            f"options={dict(given)!r} apply to backend={_BACKENDS[0]!r}, and this is "
            f"backend={backend!r}; leave them out"
        )
    known = tuple(field.name for field in fields(Options) if field.name not in _ELSEWHERE)
    for name, value in given.items():
        if name in _ELSEWHERE:
            raise InvalidArgumentError(f"options[{name!r}]={value!r}: {_ELSEWHERE[name]}")
        if name not in known:
            raise InvalidArgumentError(
                f"options[{name!r}]: did you mean {nearest(str(name), known)!r}? "
                f"Known: {', '.join(known)}"
            )
    return Options(memory_bytes=memory_bytes, **given)


def nearest(name: str, known: tuple[str, ...]) -> str:
    """The known name that was probably meant."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
