"""Disk-spilling state store and full-history multi-way streaming joins.

- Joins without Spark: ``lsmstate.join``. On Spark: ``lsmstate.spark``.
- Each public name is imported when it is first used. ``import lsmstate`` loads neither the
  extensions nor pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lsmstate.errors import (
        CorruptionError,
        FormatVersionError,
        InvalidArgumentError,
        LsmStateError,
        LsmStateWarning,
        MemoryLimitError,
        StoreClosedError,
        StoreLockedError,
    )
    from lsmstate.expiry_rules import Expiry
    from lsmstate.mapping import StoreMapping
    from lsmstate.opening import open_checkpoint, open_store
    from lsmstate.options import Options
    from lsmstate.pieces import Pieces
    from lsmstate.schema.documents import SCHEMA_FREE, decode_documents, encode_documents
    from lsmstate.stats import StoreStats
    from lsmstate.store import (
        BatchLike,
        Entries,
        KeyBounds,
        Matches,
        MultimapStore,
        Mutation,
        Probe,
        RangeBounds,
        RangeMatches,
        StateStore,
        StoreReader,
        StreamSchema,
    )
    from lsmstate.store_base.key_groups import KeyGroups
    from lsmstate.tools.export import delete_export, export, list_exports
    from lsmstate.tools.restore import restore

__version__ = "0.1.0"

__all__ = [
    "SCHEMA_FREE",
    "BatchLike",
    "CorruptionError",
    "Entries",
    "Expiry",
    "FormatVersionError",
    "InvalidArgumentError",
    "KeyBounds",
    "KeyGroups",
    "LsmStateError",
    "LsmStateWarning",
    "Matches",
    "MemoryLimitError",
    "MultimapStore",
    "Mutation",
    "Options",
    "Pieces",
    "Probe",
    "RangeBounds",
    "RangeMatches",
    "StateStore",
    "StoreClosedError",
    "StoreLockedError",
    "StoreMapping",
    "StoreReader",
    "StoreStats",
    "StreamSchema",
    "decode_documents",
    "delete_export",
    "encode_documents",
    "export",
    "list_exports",
    "open_checkpoint",
    "open_store",
    "restore",
]

_MODULES = {
    "SCHEMA_FREE": "lsmstate.schema.documents",
    "decode_documents": "lsmstate.schema.documents",
    "encode_documents": "lsmstate.schema.documents",
    "BatchLike": "lsmstate.store",
    "Entries": "lsmstate.store",
    "Expiry": "lsmstate.expiry_rules",
    "KeyBounds": "lsmstate.store",
    "KeyGroups": "lsmstate.store_base.key_groups",
    "Matches": "lsmstate.store",
    "Mutation": "lsmstate.store",
    "MultimapStore": "lsmstate.store",
    "Options": "lsmstate.options",
    "Pieces": "lsmstate.pieces",
    "Probe": "lsmstate.store",
    "RangeBounds": "lsmstate.store",
    "RangeMatches": "lsmstate.store",
    "StateStore": "lsmstate.store",
    "StoreMapping": "lsmstate.mapping",
    "StoreReader": "lsmstate.store",
    "StoreStats": "lsmstate.stats",
    "StreamSchema": "lsmstate.store",
    "delete_export": "lsmstate.tools.export",
    "export": "lsmstate.tools.export",
    "list_exports": "lsmstate.tools.export",
    "open_checkpoint": "lsmstate.opening",
    "open_store": "lsmstate.opening",
    "restore": "lsmstate.tools.restore",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'lsmstate' has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES.get(name, "lsmstate.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
