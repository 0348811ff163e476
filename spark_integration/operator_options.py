"""Options that every stateful operator has, checked when it is built."""

import difflib
from dataclasses import dataclass
from typing import Final

from lsmstate.errors import InvalidArgumentError
from lsmstate.options import Options, parse_bytes
from spark_integration.query import local_path

OPTION_NAMES: Final = ("memory", "backend", "buckets", "state_dir")
_BACKENDS: Final = ("lsm", "rocksdb", "memory")
_MOST_BUCKETS: Final = 4096


@dataclass(frozen=True)
class OperatorOptions:
    """Options as the user gave them, in our units."""

    memory_bytes: int
    backend: str
    buckets: int | None
    state_dir: str | None

    @classmethod
    def of(
        cls, memory: int | str, backend: str, buckets: int | None, state_dir: str | None
    ) -> "OperatorOptions":
        """InvalidArgumentError names the value and what to write instead."""
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
        memory_bytes = Options(memory_bytes=parse_bytes(memory, "memory")).memory_bytes
        if state_dir is not None:
            state_dir = local_path(str(state_dir), "state_dir")
        return cls(memory_bytes, backend, buckets, state_dir)


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Of the known names the one that was probably meant."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
