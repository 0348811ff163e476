"""Ranges of typed keys as ranges of bytes.

Keys are ordered by their bytes, and columns are self-delimiting. The encoding of the first values
of a key is thus a prefix of the key, and less than every key that begins with these values.
"""

from typing import NamedTuple

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.store import KeyValues, StreamSchema
from lsmstate.store_base.key_values import key_batch, key_values


class KeyRange(NamedTuple):
    """Keys from ``low`` on and below ``high`` (None: to the end), without a stream number."""

    low: bytes = b""
    high: bytes | None = None

    def in_stream(self, number: int) -> "KeyRange":
        """Return the same range of stored keys, which begin with the stream number."""
        front = number.to_bytes(2, "big")
        return KeyRange(front + self.low, after(front) if self.high is None else front + self.high)


def key_range(
    stream: StreamSchema, low: KeyValues | None, high: KeyValues | None, prefix: KeyValues | None
) -> KeyRange:
    """Convert bounds, which are values of the first key columns, to a range; see
    ``MultimapStore.iterate``. The InvalidArgumentError names the value."""
    if prefix is None:
        return KeyRange(
            b"" if low is None else _encoded(stream, "low", low),
            None if high is None else _encoded(stream, "high", high),
        )
    if low is not None or high is not None:
        raise InvalidArgumentError(
            f"prefix={prefix!r} cannot be combined with low or high; leave out one of them"
        )
    encoded = _encoded(stream, "prefix", prefix)
    return KeyRange(encoded, after(encoded))


def after(prefix: bytes) -> bytes | None:
    """Return the least string above all strings that begin with the prefix; None: there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _encoded(stream: StreamSchema, name: str, values: KeyValues) -> bytes:
    given = key_values(stream, name, values)
    if not given:
        return b""
    batch = key_batch(stream, given)
    (key,) = KeyCodec(batch.schema).encode(batch).to_pylist()
    if key is None:
        raise InvalidArgumentError(
            f"{name}={values!r}: key columns are never null; leave the value out"
        )
    return key
