"""What ``scan`` and ``iterate`` return."""

from collections.abc import Iterator

import pyarrow as pa

from lsmstate.pieces import Pieces, entry_schema
from lsmstate.schema.codecs import codecs_of
from lsmstate.store import Entries, StreamSchema


class EntryPieces(Pieces[Entries]):
    """The entries of a key range of a stream."""

    def __init__(self, entries: Iterator[Entries], stream: StreamSchema) -> None:
        codecs = codecs_of(stream)
        super().__init__(entries, entry_schema(codecs.key.schema, codecs.rows.schema))

    def _batch(self, piece: Entries) -> pa.RecordBatch:
        columns = [*piece.keys.columns, *piece.rows.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def row_pieces(rows: Iterator[pa.RecordBatch], stream: StreamSchema) -> Pieces[pa.RecordBatch]:
    """Return what ``scan`` returns: the rows of a stream."""
    return Pieces(rows, codecs_of(stream).rows.schema)
