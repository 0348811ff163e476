"""DuckDB as the oracle of joins: the same join over whole tables, compared as multisets."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import duckdb
import pyarrow as pa

from lsmstate.joins.specs.changes import ChangeSpec
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import JoinSpec

#: DuckDB names of Arrow key types it would otherwise coerce in its own way.
_KEY_SQL = {pa.string(): "VARCHAR", pa.float64(): "DOUBLE", pa.int64(): "BIGINT"}


def database() -> duckdb.DuckDBPyConnection:
    """A DuckDB of one thread, for joins of any type over tables of its own; for ``with``.

    It does not reason by the least and greatest values of columns: where these say that an outer
    join has no pair, DuckDB 1.5.5 puts nulls in the place of the other side, and of some plans
    does not find the columns any more ("INTERNAL Error: Failed to bind column reference").
    """
    return duckdb.connect(config={"threads": 1, "disabled_optimizers": "statistics_propagation"})


def joined(spec: JoinSpec, tables: Mapping[str, pa.Table]) -> Counter:
    """The rows of the join, each a tuple of exact values, with how often it occurs.

    DuckDB does the joining, over row numbers and keys; the values are the inputs' own, so that a
    conversion by DuckDB cannot hide or invent a difference. NaN equals NaN, -0.0 equals 0.0 and
    null equals nothing there too.
    """
    equal = [
        [(name, columns[k]) for name, columns in spec.keys.items()]
        for k in range(len(spec.key_schema))
    ]
    return _joined(tables, list(zip(equal, spec.key_schema.types, strict=True)))


def joined_graph(spec: GraphSpec, tables: Mapping[str, pa.Table]) -> Counter:
    """The same for a join by several key classes."""
    return _joined(tables, [(list(c.columns.items()), c.type) for c in spec.classes])


def joined_tree(
    db: duckdb.DuckDBPyConnection, spec: ChangeSpec, tables: Mapping[str, pa.Table]
) -> Counter:
    """The same for a tree of joins of any type: the columns of the streams that are shown."""
    for name, table in tables.items():
        keys = spec.keys.keys[name]
        db.register("arrow", table.select(keys).append_column("row", pa.array(range(len(table)))))
        columns = ", ".join(
            f"{_cast(kind, column)} AS {column}"
            for column, kind in zip(keys, spec.keys.key_schema.types, strict=True)
        )
        db.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT row, {columns} FROM arrow")
    sql = str(spec.tree).replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI")
    shown = ", ".join(f"{name}.row" for name in spec.shown)
    found = db.execute(f"SELECT {shown} FROM {sql}").fetchall()
    rows = {name: _rows(tables[name]) for name in spec.shown}
    nulls = {name: (None,) * tables[name].num_columns for name in spec.shown}
    return Counter(
        tuple(
            value
            for name, at in zip(spec.shown, places, strict=True)
            for value in (nulls[name] if at is None else rows[name][at])
        )
        for places in found
    )


def _joined(
    tables: Mapping[str, pa.Table], classes: Sequence[tuple[list[tuple[str, str]], pa.DataType]]
) -> Counter:
    connection = duckdb.connect()
    names = list(tables)
    for name in names:
        columns = {
            f"k{k}": tables[name].column(column)
            for k, (members, _) in enumerate(classes)
            for holder, column in members
            if holder == name
        }
        columns["row"] = pa.array(range(tables[name].num_rows), pa.int64())
        connection.register("arrow", pa.table(columns))
        # A table of its own: filters that DuckDB pushes into an Arrow scan tell -0.0 from 0.0.
        connection.execute(f"CREATE TABLE t_{name} AS SELECT * FROM arrow")
    clauses = " AND ".join(
        f"{_key(kind, members[0][0], k)} = {_key(kind, name, k)}"
        for k, (members, kind) in enumerate(classes)
        for name, _ in members[1:]
    )
    columns = ", ".join(f"t_{name}.row" for name in names)
    sources = ", ".join(f"t_{name}" for name in names)
    found = connection.execute(f"SELECT {columns} FROM {sources} WHERE {clauses}").fetchall()
    connection.close()
    rows = {name: _rows(tables[name]) for name in names}
    return Counter(
        tuple(value for name, at in zip(names, places, strict=True) for value in rows[name][at])
        for places in found
    )


def counted(batches: Iterable[pa.RecordBatch]) -> Counter:
    """The rows of the batches as a multiset of the same form."""
    return Counter(row for batch in batches for row in _rows(batch))


def _key(kind: pa.DataType, name: str, k: int) -> str:
    return _cast(kind, f"t_{name}.k{k}")


def _cast(kind: pa.DataType, column: str) -> str:
    sql = f"DECIMAL({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else None
    sql = sql or _KEY_SQL.get(kind)
    return f"CAST({column} AS {sql})" if sql else column


def _rows(table: pa.Table | pa.RecordBatch) -> list[tuple]:
    columns = [[_exact(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _exact(value: object) -> object:
    """A hashable value that differs whenever type, sign of zero or scale does."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, list | dict):
        return repr(value)
    return (type(value).__name__, str(value)) if value is not None else None
