"""What is made of a stream's schemas, kept by the process.

A task attempt opens its store anew in every micro-batch, and making codecs of a few dozen columns
takes as long as reading the manifest. They hold nothing of a store, so stores and threads share
them.
"""

from functools import cached_property

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.schema.entry_sizes import EntrySizes
from lsmstate.store import StreamSchema

#: Columns of the streams whose codecs are kept: with names and schemas some 0.8 KB each, so 4 MB a
#: process, which no memory budget counts. A stream of three hundred columns has 240 KB.
MOST_COLUMNS = 4096


class StreamCodecs:
    """The codecs of one stream, and its schemas as manifests keep them."""

    def __init__(self, stream: StreamSchema) -> None:
        self._stream = stream
        self.key = KeyCodec(stream.key)
        self.rows = RowCodec(stream.rows)
        self.sizes = EntrySizes(stream.rows, stream.key)
        self.columns = len(stream.key) + len(stream.rows)

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
            self._stream.name == stream.name
            and self._stream.key.equals(stream.key, check_metadata=True)
            and self._stream.rows.equals(stream.rows, check_metadata=True)
        )


#: The last made is the last. Replaced as a whole: threads that make codecs at once lose some.
_kept: tuple[StreamCodecs, ...] = ()


def codecs_of(stream: StreamSchema) -> StreamCodecs:
    """Those kept since a stream of this name and these schemas was met, or new ones, for which the
    oldest are given up. InvalidArgumentError: a type that cannot be stored, or be a key."""
    global _kept
    for found in _kept:
        if found.serve(stream):
            return found
    made = StreamCodecs(stream)
    _kept = _newest((*_kept, made))
    return made


def _newest(kept: tuple[StreamCodecs, ...]) -> tuple[StreamCodecs, ...]:
    """The last of them that have at most ``MOST_COLUMNS`` columns together, and the last one."""
    columns = 0
    for count, codecs in enumerate(reversed(kept)):
        columns += codecs.columns
        if columns > MOST_COLUMNS:
            return kept[-max(1, count) :]
    return kept
