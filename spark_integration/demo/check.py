"""Compare the streaming result with DuckDB's, as multisets of whole rows with their types."""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from lsmstate.spark_integration.demo.tpcds import connect


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison. ``difference`` is a sentence; it is empty exactly if both are
    equal."""

    expected_rows: int
    output_rows: int
    difference: str

    @property
    def equal(self) -> bool:
        return not self.difference


def compare(expected_sql: str, files: Sequence[str], *, exact: bool = False) -> Comparison:
    """Compare the rows of Parquet files with the result of a query.

    Types and column names must agree. Then the number of rows is compared, and two sums of 64-bit
    hashes of whole rows, each with its own salt.

    Args:
        expected_sql: The query, for DuckDB.
        files: The Parquet files.
        exact: Compare by EXCEPT ALL both ways instead, which holds both results in memory.

    Cost:
        One pass over each side, without sorting and without a table in memory.
    """
    connection = connect()
    try:
        # A string literal per file: prepared parameters are not allowed inside a view.
        listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        output_sql = f"SELECT * FROM read_parquet([{listed}], hive_partitioning = false)"
        if not files:
            output_sql = f"SELECT * FROM ({expected_sql}) WHERE false"
        expected_types = _columns(connection, expected_sql)
        output_types = _columns(connection, output_sql)
        if expected_types != output_types:
            wrong = sorted(set(expected_types) ^ set(output_types)) or "their order"
            return Comparison(
                _count(connection, expected_sql),
                _count(connection, output_sql),
                f"columns or types differ: {wrong}",
            )
        if exact:
            return _compare_rows(connection, expected_sql, output_sql)
        return _compare_hashes(connection, expected_sql, output_sql, expected_types)
    finally:
        connection.close()


def _compare_hashes(
    connection: duckdb.DuckDBPyConnection,
    expected_sql: str,
    output_sql: str,
    columns: Sequence[tuple[str, str]],
) -> Comparison:
    names = ", ".join(f'"{name}"' for name, _ in columns)
    digest = f"SELECT count(*), sum(hash(1, {names})::HUGEINT), sum(hash(2, {names})::HUGEINT) FROM"
    expected = connection.execute(f"{digest} ({expected_sql})").fetchone()
    output = connection.execute(f"{digest} ({output_sql})").fetchone()
    assert expected is not None
    assert output is not None
    difference = ""
    if expected[0] != output[0]:
        difference = f"{output[0]} rows, but DuckDB finds {expected[0]}"
    elif expected != output:
        difference = f"{output[0]} rows as expected, but not the same ones"
    return Comparison(int(expected[0]), int(output[0]), difference)


def _compare_rows(
    connection: duckdb.DuckDBPyConnection, expected_sql: str, output_sql: str
) -> Comparison:
    missing = _count(connection, f"({expected_sql}) EXCEPT ALL ({output_sql})")
    surplus = _count(connection, f"({output_sql}) EXCEPT ALL ({expected_sql})")
    difference = f"{missing} rows are missing, {surplus} too many" if missing or surplus else ""
    return Comparison(_count(connection, expected_sql), _count(connection, output_sql), difference)


def _columns(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[str, str]]:
    described = connection.execute(f"DESCRIBE {sql}").fetchall()
    return [(str(row[0]), str(row[1])) for row in described]


def _count(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM ({sql})").fetchone()
    assert row is not None
    return int(row[0])
