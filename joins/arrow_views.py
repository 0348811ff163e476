"""Columns of view types, which are plain types inside a join: Arrow cannot take rows out of
a view."""

from collections.abc import Callable, Mapping

import pyarrow as pa

from lsmstate.cython_ext.rows.arrow_read import plain_column
from lsmstate.cython_ext.rows.nested import is_any_list_view
from lsmstate.cython_ext.rows.restore import restored
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.store_base.checks import same_columns


class Views:
    """Converts batches between the declared columns and those that the join works with.

    ``streams`` holds the declared columns, with view types replaced by the types that a state
    returns.
    """

    def __init__(self, declared: Mapping[str, pa.Schema]) -> None:
        self._declared = dict(declared)
        self.streams = {name: _without_views(schema) for name, schema in declared.items()}

    @property
    def any(self) -> bool:
        """Whether a column is a view or contains one."""
        return self.streams != self._declared

    def plain(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with the declared columns, in plain types. The join refuses any other batch."""
        declared = self._declared.get(stream)
        if declared is None or not same_columns(declared, batch.schema):
            return batch
        plain = self.streams[stream]
        return batch if same_columns(plain, declared) else _converted(batch, plain, plain_column)

    def declared(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """A batch of the join, in the declared types."""
        return _converted(batch, schema, restored)


def _converted(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    convert: Callable[[pa.Array, pa.DataType], pa.Array],
) -> pa.RecordBatch:
    columns = [convert(c, field.type) for c, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _without_views(schema: pa.Schema) -> pa.Schema:
    for at, field in enumerate(schema):
        if _has_view(field.type):
            (plain,) = RowCodec(pa.schema([field])).schema
            schema = schema.set(at, plain)
    return schema


def _has_view(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_view(kind.value_type)
    return (
        pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
        or is_any_list_view(kind)
        or any(_has_view(kind.field(i).type) for i in range(kind.num_fields))
    )
