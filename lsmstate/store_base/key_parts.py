"""How many keys are worked on at a time: a large batch of them is cut into parts, or refused."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import MemoryLimitError
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import Mutation
from lsmstate.store_base.checks import check_is_keys

#: Fewer are not looked at beforehand, as that takes longer than asking for one of them.
MANY_KEYS = 4096
#: What a key takes beside its own bytes while it is encoded, sorted and looked up, roughly.
_HEAD_BYTES = 100


def probe_bytes(keys: pa.RecordBatch | KeyBatch) -> int:
    """What a probe of so many keys takes, roughly."""
    return int(keys.nbytes + _HEAD_BYTES * len(keys))


def key_parts(keys: pa.RecordBatch | KeyBatch) -> Iterator[pa.RecordBatch | KeyBatch]:
    """The keys in parts that take an eighth of the cap each, roughly; whole if they take no more
    than a quarter."""
    if not is_cut(keys):
        yield keys
        return
    parts = -(-probe_bytes(keys) // (process_memory().budget.limit // 8))
    count = max(MANY_KEYS, -(-len(keys) // parts))
    for start in range(0, len(keys), count):
        if isinstance(keys, KeyBatch):
            yield keys.take(np.arange(start, min(start + count, len(keys))))
        else:
            yield keys.slice(start, count)


def is_cut(keys: pa.RecordBatch | KeyBatch) -> bool:
    """Whether ``key_parts`` cuts them. InvalidArgumentError if they are no batch."""
    check_is_keys("keys", keys)
    if len(keys) < MANY_KEYS:
        return False
    return probe_bytes(keys) > process_memory().budget.limit // 4


def check_keys(mutations: Sequence[Mutation]) -> None:
    """MemoryLimitError if the keys of writes that are made as one would take more than half of the
    memory cap while they are encoded. Those that are encoded already are the caller's."""
    batches = [m.keys for m in mutations if isinstance(m.keys, pa.RecordBatch)]
    count = sum(batch.num_rows for batch in batches)
    size = sum(map(probe_bytes, batches)) if count >= MANY_KEYS else 0
    limit = process_memory().budget.limit // 2
    if size > limit:
        raise MemoryLimitError(
            f"{count} keys in one write take about {size} bytes, more than half of "
            f"the memory cap ({limit} bytes): split it, or raise memory_bytes"
        )
