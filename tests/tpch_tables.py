"""TPC-H tables as streams, three shuffled files each; made by tpchgen-cli, kept for the run."""

import os
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from spark_streams import FileStream, pieces

TABLES = ("part", "supplier", "partsupp", "customer", "orders", "lineitem", "nation", "region")
MICRO_BATCHES = 3


def tpch_streams(
    home: Path,
    scale: float,
    micro_batches: int = MICRO_BATCHES,
    columns: Mapping[str, str] | None = None,
) -> dict[str, FileStream]:
    """All tables, or some ``columns`` of some; every file of a table is one micro-batch's."""
    wanted = dict.fromkeys(TABLES, "*") if columns is None else columns
    generator = os.path.join(sysconfig.get_path("scripts"), "tpchgen-cli")
    made = ["parquet", "--scale-factor", str(scale), "--output-dir", str(home / "made")]
    subprocess.run([generator, *made], check=True, capture_output=True)
    with duckdb.connect() as db:
        return {
            name: _stream(db, home, name, chosen, micro_batches) for name, chosen in wanted.items()
        }


def _stream(
    db: duckdb.DuckDBPyConnection, home: Path, name: str, columns: str, files: int
) -> FileStream:
    # Views of strings come out of DuckDB as strings; Spark reads no other.
    source = f"'{home}/made/{name}.parquet'"
    table = db.execute(f"SELECT {columns} FROM {source} t ORDER BY hash(t, 7)").to_arrow_table()
    ddl = ", ".join(f"{field.name} {_type(field.type)}" for field in table.schema)
    return FileStream(home / name, ddl).add(*pieces(table, files))


def _type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    names: dict[Any, str] = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.date32(): "DATE"}
    return names.get(kind, "STRING")


def arrived(stream: FileStream, micro_batches: int) -> str:
    """The rows of the first micro-batches, for DuckDB."""
    files = [f"'{stream.directory}/{n:04d}.parquet'" for n in range(micro_batches)]
    return f"read_parquet([{', '.join(files)}])"


def rows_in(stream: FileStream) -> int:
    return sum(pq.read_metadata(path).num_rows for path in stream.directory.glob("*.parquet"))
