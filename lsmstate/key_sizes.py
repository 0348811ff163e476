"""How large a key may be.

A key is held in whole, once or several times, by each file that is open, read or merged, and by
the manifest: by what it parts of the index where keys begin alike for long, as the bound of a
file or of a deleted range. A row is held by itself, so it may take far more.
"""

from cython_ext.changelog_record import largest_entry
from cython_ext.key_codec import KeyBatch
from lsmstate.errors import MemoryLimitError
from lsmstate.options import Options

#: Of the memory cap, for each key: enough for what a merge of ``max_runs`` runs holds of them.
KEYS_IN_CAP = 1024


def check_largest_key(keys: KeyBatch, largest: int, options: Options) -> None:
    """MemoryLimitError if a key is larger than its share of the cap. ``largest``: no key has more
    bytes, so mostly none is looked at."""
    limit = options.memory_bytes // KEYS_IN_CAP
    if largest <= limit:
        return
    size = largest_entry(keys, None)
    if size > limit:
        raise MemoryLimitError(
            f"a key of {size} bytes, encoded, is larger than 1/{KEYS_IN_CAP} of the memory cap "
            f"({limit} bytes); raise memory_bytes to {KEYS_IN_CAP * size} or more, or use a digest "
            "of it as the key"
        )
