"""The store of a bucket as a function sees it: Spark commits it, and it ends with the call."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError, StoreClosedError
from lsmstate.spark_integration.metrics.fan_out import FanOut
from lsmstate.spark_integration.plan.bucket import Bucket
from lsmstate.store import MultimapStore, Positions, Probe

#: What belongs to whoever opened the store.
_OWNERS: Final = ("commit", "close")


@contextmanager
def lent(store: MultimapStore, bucket: Bucket, fan_out: FanOut) -> Iterator[MultimapStore]:
    """The store without ``commit`` and ``close``, which belong to its owner. After the block, using
    it raises StoreClosedError. What its probes find is counted."""
    loan = _LentStore(store, bucket, fan_out)
    try:
        yield cast("MultimapStore", loan)
    finally:
        loan.end()


class _LentStore:
    """All of MultimapStore except ``commit`` and ``close``."""

    def __init__(self, store: MultimapStore, bucket: Bucket, fan_out: FanOut) -> None:
        self._store: MultimapStore | None = store
        self._fan_out = fan_out
        self._where = f"the store of bucket {bucket.number} in micro-batch {bucket.batch_id}"

    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        found: Probe = self.__getattr__("probe")(stream, keys, positions)
        self._fan_out.add(found.counts if positions is None else found.counts[positions])
        return found

    def __getattr__(self, name: str) -> Any:
        if self._store is None:
            raise StoreClosedError(
                f"{self._where} was used after the function had returned; a store is valid during "
                "its call only: use the store of each call, and keep in it what is to last"
            )
        if name in _OWNERS:
            raise InvalidArgumentError(
                f"{name}() of {self._where}: the store is committed with the micro-batch, after "
                f"the function has returned; leave {name}() out"
            )
        return getattr(self._store, name)

    def end(self) -> None:
        self._store = None
