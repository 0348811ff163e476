"""What is made of a stream's schemas, kept by the process.

A task attempt opens its store anew in every micro-batch, and making codecs of a few dozen columns
takes as long as reading the manifest. They hold nothing of a store, so stores and threads share
them.
"""

from functools import cached_property

from cython_ext.key_codec import KeyCodec
from cython_ext.row_codec import RowCodec
from lsmstate.store import StreamSchema

#: Streams whose codecs are kept; a few KB each.
MOST_KEPT = 256


class StreamCodecs:
    """The codecs of one stream, and its schemas as manifests keep them."""

    def __init__(self, stream: StreamSchema) -> None:
        self._stream = stream
        self.key = KeyCodec(stream.key)
        self.rows = RowCodec(stream.rows)

    @cached_property
    def packed(self) -> dict[str, str]:
        """The stream as JSON values."""
        return {
            "name": self._stream.name,
            "key": self._stream.key.serialize().to_pybytes().hex(),
            "rows": self._stream.rows.serialize().to_pybytes().hex(),
        }

    def serve(self, stream: StreamSchema) -> bool:
        """Whether they are those of this stream too: types, names and metadata are the same."""
        return bool(
            self._stream.key.equals(stream.key, check_metadata=True)
            and self._stream.rows.equals(stream.rows, check_metadata=True)
        )


_kept: dict[str, StreamCodecs] = {}


def codecs_of(stream: StreamSchema) -> StreamCodecs:
    """Those kept since a stream of this name and these schemas was met last, or new ones.
    InvalidArgumentError: a type that cannot be stored, or be a key."""
    found = _kept.get(stream.name)
    if found is None or not found.serve(stream):
        found = StreamCodecs(stream)
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[stream.name] = found
    return found
