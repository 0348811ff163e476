"""How many keys are worked on at a time: a batch that takes too much memory is refused."""

import pyarrow as pa

#: Fewer are not looked at beforehand, as that takes longer than asking for one of them.
MANY_KEYS = 4096
#: What a key takes beside its own bytes while it is encoded, sorted and looked up, roughly.
_HEAD_BYTES = 100


def probe_bytes(keys: pa.RecordBatch) -> int:
    """What a probe of so many keys takes, roughly."""
    return int(keys.nbytes + _HEAD_BYTES * keys.num_rows)
