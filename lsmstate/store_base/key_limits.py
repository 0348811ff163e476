"""Size limit of keys.

An open, read or merged file holds some keys in memory, and so does the manifest: index separators,
and bounds of files and of deleted ranges. A row is held alone, so it may be much larger.
"""

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.wal.wal_record import largest_entry
from lsmstate.errors import MemoryLimitError
from lsmstate.options import KIB, Options

#: Part of the memory cap for one key: a merge of ``max_runs`` runs then has room for the keys it
#: holds.
KEYS_IN_CAP = 1024
#: Under a small cap a key may take up to this part. If all keys were as large, the keys held in
#: memory would exceed the cap by about 30 MB at most.
SMALL_KEY_BYTES = 128 * KIB
SMALL_KEYS_IN_CAP = 64


def largest_key_bytes(memory_bytes: int) -> int:
    """Return the size limit of an encoded key under a memory cap."""
    return max(memory_bytes // KEYS_IN_CAP, min(memory_bytes // SMALL_KEYS_IN_CAP, SMALL_KEY_BYTES))


def check_largest_key(keys: KeyBatch, largest: int, options: Options) -> None:
    """Raise MemoryLimitError if a key is larger than its part of the memory cap.

    ``largest`` is an upper bound of all sizes, so most calls look at no key.
    """
    limit = largest_key_bytes(options.memory_bytes)
    if largest <= limit:
        return
    size = largest_entry(keys, None)
    if size > limit:
        share = SMALL_KEYS_IN_CAP if size <= SMALL_KEY_BYTES else KEYS_IN_CAP
        raise MemoryLimitError(
            f"a key of {size} encoded bytes is larger than this memory cap allows "
            f"({limit} bytes); raise {options.cap_name} to {share * size} or more, or use a digest "
            "of it as the key"
        )
