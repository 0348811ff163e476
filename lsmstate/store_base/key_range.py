"""Ranges of typed keys as ranges of their bytes.

Keys are ordered by their bytes, columns are self-delimiting: the encoding of the first values of a
key is a prefix of the key, and less than every key that begins with those values.
"""

from typing import NamedTuple

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.store import KeyValues, StreamSchema
from lsmstate.store_base.key_values import key_batch, key_values


class KeyRange(NamedTuple):
    """Keys from ``low`` on and below ``high`` (None: to the end), without a stream's number."""

    low: bytes = b""
    high: bytes | None = None

    def in_stream(self, number: int) -> "KeyRange":
        """The same range of stored keys, which have the stream's number in front."""
        front = number.to_bytes(2, "big")
        return KeyRange(front + self.low, after(front) if self.high is None else front + self.high)


def key_range(
    stream: StreamSchema, low: KeyValues | None, high: KeyValues | None, prefix: KeyValues | None
) -> KeyRange:
    """The range that these values of the first key columns mean; see store.StateStore.iterate.
    InvalidArgumentError names the value."""
    if prefix is None:
        return KeyRange(
            b"" if low is None else _encoded(stream, "low", low),
            None if high is None else _encoded(stream, "high", high),
        )
    if low is not None or high is not None:
        raise InvalidArgumentError(
            f"prefix={prefix!r} stands for both bounds; leave out low and high, or prefix"
        )
    encoded = _encoded(stream, "prefix", prefix)
    return KeyRange(encoded, after(encoded))


def after(prefix: bytes) -> bytes | None:
    """The least string above all that begin with the prefix; None: nothing is."""
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
