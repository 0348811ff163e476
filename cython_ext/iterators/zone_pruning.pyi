from typing import final

from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.memory.budget import Budget

@final
class ZonePruner:
    def __init__(self, ranges: EncodedRanges, budget: Budget) -> None: ...
    def prune(self, lookup: Lookup, keys: KeyBatch, is_last: bool) -> int: ...
