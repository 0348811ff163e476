"""Decoding of stored keys: their stream and values."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from lsmstate.errors import CorruptionError
from lsmstate.store import StreamSchema
from lsmstate.tools.json_values import in_json

#: Bytes of the stream's number, in front.
_NUMBER_BYTES = 2


def decoded_key(streams: Sequence[StreamSchema], stored: bytes) -> dict[str, Any] | None:
    """Return a stored key as JSON values.

    ``streams`` are in the order of their numbers. ``retracted`` says that the key is one of a
    retraction. None: it is not a valid key of one of the streams, or Python has no such values.
    """
    number = int.from_bytes(stored[:_NUMBER_BYTES], "big")
    if len(stored) < _NUMBER_BYTES or number >= 2 * len(streams):
        return None
    # The hidden streams, which hold the retractions of each stream, follow in the same order.
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
