"""Rows on the command line: one JSON object per line, or tables."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import typer

from lsmstate.cli.console import plain_console, plain_table
from lsmstate.schema.documents import decode_documents, is_schema_free
from lsmstate.store import Entries
from lsmstate.tools.json_values import in_json

#: Prefix of a key column's name, the same as in ``lsmstate state --keys``.
_KEY_PREFIX: Final = "_key_"


def print_rows(pieces: Iterable[pa.RecordBatch], *, as_json: bool) -> None:
    """Print rows as JSON lines, or as one table per piece.

    Values without a JSON type are written as text. Rows without a schema are printed as documents.
    """
    for piece in pieces:
        _print(_values(piece), as_json=as_json)


def print_entries(entries: Entries, *, as_json: bool) -> None:
    """Print rows with their keys; key columns come first, under names that no row has."""
    rows = _values(entries.rows)
    taken = {name for row in rows for name in row}
    names = key_names(entries.keys.schema.names, taken)
    columns = [column.to_pylist() for column in entries.keys.columns]
    keys = zip(*columns, strict=True)
    _print(
        [dict(zip(names, key, strict=True)) | row for key, row in zip(keys, rows, strict=True)],
        as_json=as_json,
    )


def key_names(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Return names for key columns that differ from all names in ``taken``."""
    prefix = _KEY_PREFIX
    while any(prefix + name in taken for name in names):
        prefix = "_" + prefix
    return [prefix + name for name in names]


def _print(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            typer.echo(json.dumps(in_json(row)))
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = plain_table(*columns)
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in columns))
    plain_console().print(table)


def first_rows(pieces: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Yield at most ``limit`` rows; read no piece beyond them."""
    for piece in pieces:
        if limit > 0:
            yield piece.slice(0, limit)
        limit -= piece.num_rows
        if limit <= 0:
            return


def _values(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return decode_documents(rows) if is_schema_free(rows.schema) else rows.to_pylist()
