"""What the bytes of a stored key say: of which stream it is, and its values."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from lsmstate.errors import CorruptionError
from lsmstate.store import StreamSchema
from lsmstate.tools.json_values import in_json

#: Of the stream's number, in front.
_NUMBER_BYTES = 2


def decoded_key(streams: Sequence[StreamSchema], stored: bytes) -> dict[str, Any] | None:
    """A stored key as JSON values; ``retracted`` says that it is one of the rows that were taken
    back from the stream. None if it is no whole key of one of the streams, which are in the order
    of their numbers, or Python has no such values."""
    number = int.from_bytes(stored[:_NUMBER_BYTES], "big")
    if len(stored) < _NUMBER_BYTES or number >= 2 * len(streams):
        return None
    # Behind the streams come the hidden ones of what was retracted from each, in the same order.
    stream = streams[number % len(streams)]
    try:
        key = KeyDecoder(stream.key).decode([stored[_NUMBER_BYTES:]])
        values = [column[0].as_py() for column in key.columns]
    except (CorruptionError, pa.ArrowException, ValueError, OverflowError):
        return None
    return {
        "stream": stream.name,
        "retracted": number >= len(streams),
        "key": in_json(dict(zip(stream.key.names, values, strict=True))),
    }
