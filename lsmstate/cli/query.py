"""Command that shows the state of a Spark query without Spark: state."""

import json as json_text
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.text import Text

from lsmstate.cli.console import plain_console, plain_table
from lsmstate.cli.numbers import at_least
from lsmstate.cli.rows import first_rows, print_rows
from lsmstate.cli.storage import StorageOption, storage_options

if TYPE_CHECKING:
    from lsmstate.spark import QueryState

app = typer.Typer()


@app.command("state")
def show_state(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpoint location.")],
    stream: Annotated[str | None, typer.Option(help="Print the rows of this stream.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            callback=at_least(0),
            help="Show the state after this micro-batch; default: the newest committed.",
        ),
    ] = None,
    bucket: Annotated[
        int | None, typer.Option(callback=at_least(0), help="Show this bucket only.")
    ] = None,
    limit: Annotated[
        int, typer.Option(callback=at_least(0), help="Print at most this many rows.")
    ] = 100,
    keys: Annotated[bool, typer.Option("--keys", help="Show bucket and key of each row.")] = False,
    state_dir: Annotated[
        str | None, typer.Option(help="The query's state_dir, if it was started with one.")
    ] = None,
    storage_option: StorageOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, or one per row with --stream.")
    ] = False,
) -> None:
    """Show settings, micro-batches and buckets of a Spark query, or the rows of a stream.

    The checkpoint's own state store says which commit of each bucket is valid.
    """
    from lsmstate.spark import QueryState

    options = storage_options(storage_option)
    state = QueryState.open(checkpoint, batch, state_dir, options)
    buckets = list(state.pointers) if bucket is None else [bucket]
    if stream is not None:
        print_rows(first_rows(_rows(state, buckets, stream, keys), limit), as_json=json)
    elif json:
        typer.echo(json_text.dumps(_described(state, buckets)))
    else:
        _show_state(_described(state, buckets))


def _described(state: "QueryState", buckets: list[int]) -> dict[str, Any]:
    found = [state.describe_bucket(bucket) for bucket in buckets]
    return {**state.describe(), "buckets": found}


def _show_state(described: dict[str, Any]) -> None:
    console = plain_console()
    batches = described["batches"]
    console.print(
        Text(described["checkpoint"], "bold"),
        f" as of batch {described['batch']}; retained: {batches[0]} to {batches[-1]}",
        soft_wrap=True,
    )
    for name, value in described["settings"].items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        console.print(f"{name}: {shown}", soft_wrap=True)
    table = plain_table("bucket", "rows", "bytes", "runs", "commit")
    for bucket in described["buckets"]:
        numbers = (f"{bucket[name]:,}" for name in ("rows", "bytes", "runs"))
        table.add_row(str(bucket["bucket"]), *numbers, bucket["pointer"].partition(":")[0])
    console.print(table)


def _rows(
    state: "QueryState", buckets: list[int], name: str, with_keys: bool
) -> Iterator[pa.RecordBatch]:
    stream = state.stream(name)
    for bucket in buckets:
        yield from state.rows(bucket, stream, with_keys)
