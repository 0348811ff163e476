"""Rows on the command line: as JSON, one a line, or as tables."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import typer

from lsmstate.cli_console import plain_console, plain_table
from lsmstate.documents import decode_documents, is_schema_free


def print_rows(pieces: Iterable[pa.RecordBatch], *, as_json: bool) -> None:
    """Values that JSON lacks are written as text; rows without a schema as the documents they
    are. One table a piece."""
    console = plain_console()
    for piece in pieces:
        rows = _values(piece)
        if as_json:
            for row in rows:
                typer.echo(json.dumps(_in_json(row), default=str))
            continue
        columns = list(dict.fromkeys(name for row in rows for name in row))
        table = plain_table(*columns)
        for row in rows:
            table.add_row(*(str(row.get(name, "")) for name in columns))
        console.print(table)


def _in_json(value: Any) -> Any:
    """NaN and the infinities as text: Python would write them as they are, which is no JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _in_json(each) for name, each in value.items()}
    return [_in_json(each) for each in value] if isinstance(value, list | tuple) else value


def first_rows(pieces: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """At most ``limit`` rows; no piece is asked for once there are as many."""
    for piece in pieces:
        if limit > 0:
            yield piece.slice(0, limit)
        limit -= piece.num_rows
        if limit <= 0:
            return


def _values(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return decode_documents(rows) if is_schema_free(rows.schema) else rows.to_pylist()
