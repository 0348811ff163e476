"""One table as every kind of batch that stores and joins take."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

Make = Callable[[pa.Table], Any]


class ArrayOnly:
    """What has ``__arrow_c_array__`` alone."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._batch.__arrow_c_array__(requested_schema)


class StreamOnly:
    """What has ``__arrow_c_stream__`` alone."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    (batch,) = table.combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], schema=table.schema)
    ]
    return batch


def in_chunks(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 1), table.slice(1)])


def as_polars(table: pa.Table) -> Any:
    polars = pytest.importorskip("polars", reason="make test installs polars")
    return polars.from_arrow(table)


def as_duckdb(table: pa.Table) -> Any:
    duckdb = pytest.importorskip("duckdb", reason="make test installs duckdb")
    connection = duckdb.connect()
    connection.register("given", table)
    found = connection.sql("SELECT * FROM given")
    _CONNECTIONS.append(connection)  # a relation does not keep its connection
    return found


_CONNECTIONS: list[Any] = []

KINDS: dict[str, Make] = {
    "record batch": one_batch,
    "table": lambda table: table,
    "table in chunks": in_chunks,
    "reader": lambda table: in_chunks(table).to_reader(),
    "array protocol": lambda table: ArrayOnly(one_batch(table)),
    "stream protocol": lambda table: StreamOnly(in_chunks(table)),
    "pandas": lambda table: table.to_pandas(),
    # An index without a name, as filtered rows have one, is no column.
    "pandas with an index": lambda table: table.to_pandas().set_index([[7] * len(table)]),
    "polars": as_polars,
    "duckdb": as_duckdb,
    "columns": lambda table: table.to_pydict(),
    "columns of arrays": lambda table: dict(zip(table.column_names, table.columns, strict=True)),
    "columns of numpy": lambda table: {
        name: column.to_numpy()
        for name, column in zip(table.column_names, table.columns, strict=True)
    },
    "columns of pandas": lambda table: dict(table.to_pandas().items()),
    "columns of polars": lambda table: as_polars(table).to_dict(),
    "rows": lambda table: table.to_pylist(),
}


def turned(table: pa.Table) -> pa.Table:
    """The columns in the opposite order."""
    return table.select(table.column_names[::-1])
