"""The entry of a RocksDB database that holds its streams."""

import json
import os
from collections.abc import Mapping
from typing import Final

from lsmstate.errors import FormatVersionError
from lsmstate.rocksdb_backend.files import read_entries
from lsmstate.rocksdb_backend.fork import check_fork
from lsmstate.store import StreamSchema
from lsmstate.store_base.checks import pack_schemas, unpack_schemas

FORMAT_VERSION: Final = 1
STREAMS_KEY: Final = b"streams"
#: Upper bound of the schemas' bytes; the default column family holds nothing else.
_MOST_BYTES: Final = 64 << 20


def pack_streams(streams: Mapping[str, StreamSchema]) -> bytes:
    """Return the value of the entry."""
    return json.dumps({"format": FORMAT_VERSION, "streams": pack_schemas(streams)}).encode()


def unpack_streams(entry: bytes, path: str) -> dict[str, StreamSchema]:
    """Invert ``pack_streams``. FormatVersionError for an entry of another release."""
    found = json.loads(entry)
    if found["format"] != FORMAT_VERSION:
        raise FormatVersionError(
            f"{path}: format {found['format']}, this release reads {FORMAT_VERSION}"
        )
    return unpack_schemas(found["streams"])


def kept_streams(path: str) -> dict[str, StreamSchema] | None:
    """Return the streams of a database that nobody has open; None if there is none."""
    if not os.path.isdir(path):
        return None
    check_fork()
    entry = read_entries(path, _MOST_BYTES).get(STREAMS_KEY)
    return None if entry is None else unpack_streams(entry, path)
