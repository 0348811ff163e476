"""How large a key may be.

A key is held in whole, once or several times, by each file that is open, read or merged, and by
the manifest: by what it parts of the index where keys begin alike for long, as the bound of a
file or of a deleted range. A row is held by itself, so it may take far more.
"""

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.wal.wal_record import largest_entry
from lsmstate.errors import MemoryLimitError
from lsmstate.options import KIB, Options

#: Of the memory cap, for each key: enough for what a merge of ``max_runs`` runs holds of them.
KEYS_IN_CAP = 1024
#: Under a small cap a key may take more of it, up to this: were all keys so, what is held of them
#: would pass the cap by some 30 MB at most.
SMALL_KEY_BYTES = 128 * KIB
SMALL_KEYS_IN_CAP = 64


def largest_key_bytes(memory_bytes: int) -> int:
    """How large an encoded key may be under a memory cap."""
    return max(memory_bytes // KEYS_IN_CAP, min(memory_bytes // SMALL_KEYS_IN_CAP, SMALL_KEY_BYTES))


def check_largest_key(keys: KeyBatch, largest: int, options: Options) -> None:
    """MemoryLimitError if a key is larger than its share of the cap. ``largest``: no key has more
    bytes, so mostly none is looked at."""
    limit = largest_key_bytes(options.memory_bytes)
    if largest <= limit:
        return
    size = largest_entry(keys, None)
    if size > limit:
        share = SMALL_KEYS_IN_CAP if size <= SMALL_KEY_BYTES else KEYS_IN_CAP
        raise MemoryLimitError(
            f"a key of {size} bytes, encoded, is larger than keys may be under this memory cap "
            f"({limit} bytes); raise memory_bytes to {share * size} or more, or use a digest of it "
            "as the key"
        )
