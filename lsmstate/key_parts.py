"""How many keys are worked on at a time: a large batch of them is cut into parts, or refused."""

from collections.abc import Iterator

import pyarrow as pa

from cython_ext.key_codec import KeyBatch
from lsmstate.memory_budget import process_memory

#: Fewer are not looked at beforehand, as that takes longer than asking for one of them.
MANY_KEYS = 4096
#: What a key takes beside its own bytes while it is encoded, sorted and looked up, roughly.
_HEAD_BYTES = 100


def probe_bytes(keys: pa.RecordBatch) -> int:
    """What a probe of so many keys takes, roughly."""
    return int(keys.nbytes + _HEAD_BYTES * keys.num_rows)


def key_parts(keys: pa.RecordBatch | KeyBatch) -> Iterator[pa.RecordBatch | KeyBatch]:
    """The keys in parts that take an eighth of the cap each, roughly; whole if they take no more
    than a quarter, or if they are encoded already: then their memory is the caller's."""
    if isinstance(keys, KeyBatch) or not is_cut(keys):
        yield keys
        return
    parts = -(-probe_bytes(keys) // (process_memory().budget.limit // 8))
    count = max(MANY_KEYS, -(-keys.num_rows // parts))
    for start in range(0, keys.num_rows, count):
        yield keys.slice(start, count)


def is_cut(keys: pa.RecordBatch | KeyBatch) -> bool:
    """Whether ``key_parts`` cuts them."""
    if isinstance(keys, KeyBatch) or keys.num_rows < MANY_KEYS:
        return False
    return probe_bytes(keys) > process_memory().budget.limit // 4
