"""How many keys are processed at a time: a large batch of keys is split into parts, or refused."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import MemoryLimitError
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import Mutation

#: Smaller batches are not measured: that would take longer than looking up a key.
MANY_KEYS = 4096
#: Approximate memory of a key beside its own bytes while it is encoded, sorted and looked up.
_HEAD_BYTES = 100


def probe_bytes(keys: pa.RecordBatch | KeyBatch) -> int:
    """Estimate the memory of a probe of these keys."""
    return int(keys.nbytes + _HEAD_BYTES * len(keys))


def key_parts(keys: pa.RecordBatch | KeyBatch) -> Iterator[pa.RecordBatch | KeyBatch]:
    """Split keys into parts that take about an eighth of the memory cap each. Keys that take at
    most a quarter stay whole."""
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
    """Test whether ``key_parts`` splits the keys."""
    if len(keys) < MANY_KEYS:
        return False
    return probe_bytes(keys) > process_memory().budget.limit // 4


def check_keys(mutations: Sequence[Mutation], options: Options) -> None:
    """Raise MemoryLimitError if encoding the keys of atomic writes would take more than half of the
    memory cap. Keys that are already encoded are the caller's and do not count."""
    batches = [m.keys for m in mutations if isinstance(m.keys, pa.RecordBatch)]
    count = sum(batch.num_rows for batch in batches)
    size = sum(map(probe_bytes, batches)) if count >= MANY_KEYS else 0
    limit = process_memory().budget.limit // 2
    if size > limit:
        raise MemoryLimitError(
            f"{count} keys in one write take about {size} bytes, more than half of "
            f"the memory cap ({limit} bytes): split it, or raise {options.cap_name}"
        )
