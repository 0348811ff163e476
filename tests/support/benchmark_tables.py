"""Tables of TPC-H and TPC-DS as streams, three shuffled files each: one per micro-batch."""

import os
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from lsmstate.spark_integration.demo.tpcds import connect, extension_path
from support.spark_streams import FileStream, pieces

TPCH_TABLES = (
    *("part", "supplier", "partsupp", "customer", "orders", "lineitem", "nation", "region"),
)
MICRO_BATCHES = 3


def tpch_streams(
    home: Path,
    scale: float,
    files: int = MICRO_BATCHES,
    columns: Mapping[str, str] | None = None,
) -> dict[str, FileStream]:
    """All tables, or some ``columns`` of some, made by tpchgen-cli."""
    wanted = dict.fromkeys(TPCH_TABLES, "*") if columns is None else columns
    generator = os.path.join(sysconfig.get_path("scripts"), "tpchgen-cli")
    made_in = home / "made"
    arguments = ["parquet", "--scale-factor", str(scale), "--output-dir", str(made_in)]
    subprocess.run([generator, *arguments], check=True, capture_output=True)
    with duckdb.connect() as db:
        return {
            name: _stream(db, home, name, f"SELECT {chosen} FROM '{made_in}/{name}.parquet'", files)
            for name, chosen in wanted.items()
        }


def tpcds_streams(
    home: Path, scale: float, tables: Iterable[str], files: int = MICRO_BATCHES
) -> dict[str, FileStream]:
    """Some tables, made by DuckDB's dsdgen; 5 s at scale 0.01, where it makes all of them."""
    with connect() as db:
        db.execute(f"LOAD '{extension_path()}'")
        db.execute(f"CALL dsdgen(sf = {scale})")
        return {name: _stream(db, home, name, f"FROM {name}", files) for name in tables}


def _stream(
    db: duckdb.DuckDBPyConnection, home: Path, name: str, rows: str, files: int
) -> FileStream:
    # Views of strings come out of DuckDB as strings; Spark reads no other.
    table = db.execute(f"FROM ({rows}) t ORDER BY hash(t, 7)").to_arrow_table()
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
