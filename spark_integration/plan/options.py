"""Options of every stateful operator, checked when the operator is built."""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lsmstate.joins.options import State
from lsmstate.opening import check_place
from lsmstate.options import Options
from lsmstate.spark_integration.plan.storage import Storage, state_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    def of(cls, spark: "SparkSession", state: State) -> "OperatorOptions":
        """Check the options. InvalidArgumentError names a wrong value and the remedy."""
        storage = Storage.of(spark, state.storage_options, state.cache_dir, state.cache)
        store = state.store_options(_ELSEWHERE)
        state_dir = state.state_dir
        if state_dir is not None:
            state_dir = state_url(str(state_dir))
            place = storage.place(state_dir)
            if place.local_directory is None:
                check_place(state.backend, place.where)
        return cls(store, state.backend, state.buckets, state_dir, storage)


def nearest(name: str, known: tuple[str, ...]) -> str:
    """The known name that was probably meant."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
