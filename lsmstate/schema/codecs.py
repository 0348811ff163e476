"""Codecs of a stream's schemas, cached by the process.

A task attempt opens its store anew in every micro-batch. Making codecs for a few dozen columns
takes as long as reading the manifest. Codecs hold nothing of a store, so stores and threads share
them.
"""

from functools import cached_property

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.schema.entry_sizes import EntrySizes
from lsmstate.store import StreamSchema

#: Total columns of the cached codecs. A column takes about 0.8 KB with names and schemas: 4 MB per
#: process, which no memory budget counts. A stream of three hundred columns takes 240 KB.
MOST_COLUMNS = 4096


class StreamCodecs:
    """The codecs of one stream, and its schemas as manifests store them."""

    def __init__(self, stream: StreamSchema) -> None:
        self._stream = stream
        self.key = KeyCodec(stream.key)
        self.rows = RowCodec(stream.rows)
        self.sizes = EntrySizes(stream.rows, stream.key)
        self.columns = len(stream.key) + len(stream.rows)

    @cached_property
    def packed(self) -> dict[str, str]:
        """Return the stream as JSON values."""
        return {
            "name": self._stream.name,
            "key": self._stream.key.serialize().to_pybytes().hex(),
            "rows": self._stream.rows.serialize().to_pybytes().hex(),
        }

    def serve(self, stream: StreamSchema) -> bool:
        """Test whether these codecs serve this stream: types, names and metadata are equal."""
        return bool(
            self._stream.name == stream.name
            and self._stream.key.equals(stream.key, check_metadata=True)
            and self._stream.rows.equals(stream.rows, check_metadata=True)
        )


#: The newest comes last. The tuple is replaced as a whole: threads that make codecs at the same
#: time may lose some.
_kept: tuple[StreamCodecs, ...] = ()


def codecs_of(stream: StreamSchema) -> StreamCodecs:
    """Return the cached codecs of a stream with this name and these schemas, or make new ones and
    drop the oldest. Raise InvalidArgumentError for a type that cannot be stored, or cannot be a
    key."""
    global _kept
    for found in _kept:
        if found.serve(stream):
            return found
    made = StreamCodecs(stream)
    _kept = _newest((*_kept, made))
    return made


def _newest(kept: tuple[StreamCodecs, ...]) -> tuple[StreamCodecs, ...]:
    """Return the newest codecs with at most ``MOST_COLUMNS`` columns together, and always the last
    one."""
    columns = 0
    for count, codecs in enumerate(reversed(kept)):
        columns += codecs.columns
        if columns > MOST_COLUMNS:
            return kept[-max(1, count) :]
    return kept
