"""Commands that read a state on disk: inspect, verify, dump."""

import json as json_text
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from lsmstate.cli.console import narrow_table, plain_console
from lsmstate.cli.numbers import at_least
from lsmstate.cli.rows import print_entries
from lsmstate.cli.states import (
    DAMAGED,
    JsonStates,
    damage_line,
    key_text,
    level_name,
    logged_line,
    show_states,
    unsealed_line,
)
from lsmstate.store import Entries
from lsmstate.tools.concurrent_reader import settled
from lsmstate.tools.inspection import READ_ERRORS, Damage, State, Unreadable, damage_of, each_state
from lsmstate.tools.rows import entries_of, logged_writes, with_open_files
from lsmstate.tools.summary import describe
from lsmstate.tools.verify import Finding, verify

app = typer.Typer()

Directory = Annotated[
    Path,
    typer.Argument(help="Directory of a store or a bucket, or the directory that holds buckets."),
]
PointerOption = Annotated[
    str | None, typer.Option(help="A commit pointer; default: the newest commit.")
]
JsonFiles = Annotated[bool, typer.Option("--json", help="Print one JSON object per file.")]
JsonRows = Annotated[
    bool, typer.Option("--json/--table", help="Print one JSON object per row, or tables.")
]

_RUN_COLUMNS: Final = (
    "run",
    "level",
    "files",
    "bytes",
    "keys",
    "rows",
    "deleted\nkeys",
    "deleted\nranges",
    "filter\nbits\na key",
)


@app.command("inspect")
def inspect_state(
    directory: Directory, pointer: PointerOption = None, json: JsonStates = False
) -> None:
    """Show runs, files, sizes, rows and key ranges of the newest committed state.

    Exit status 1 if something cannot be read: a state, a newer commit, a file, a checkpoint or a
    write-ahead log.
    """
    show_states(str(directory), pointer, describe, _print_described, as_json=json)


def _print_described(described: dict[str, Any]) -> None:
    console = plain_console()
    console.print(Text(described["directory"], "bold"), f" {described['pointer']}", soft_wrap=True)
    console.print(
        f"{described['rows']:,} rows, {described['bytes']:,} bytes; streams: "
        + ", ".join(stream["name"] for stream in described["streams"]),
        soft_wrap=True,
    )
    memory = described["memory"]
    console.print(
        f"when open: {memory['top_indexes']:,} bytes of top indexes stay in memory; "
        f"{memory['index_partitions']:,} bytes of index partitions and "
        f"{memory['filter_partitions']:,} bytes of filters go through the block cache"
    )
    table = narrow_table(*_RUN_COLUMNS)
    for run in described["runs"]:
        table.add_row(*_run_cells(run))
    console.print(table)
    for run in described["runs"]:
        if run["files"]:
            first = _end_of(run["files"][0], "first_key", "min_key")
            last = _end_of(run["files"][-1], "last_key", "max_key")
            console.print(f"keys of run {run['number']}: {first} to {last}", soft_wrap=True)


def _run_cells(run: dict[str, Any]) -> list[str]:
    files = run["files"]
    keys = sum(file["keys"] for file in files)
    filter_bits = 8 * sum(file.get("filter_bytes", 0) for file in files)
    return [
        str(run["number"]),
        level_name(run["level"]),
        str(len(files)),
        f"{run['bytes']:,}",
        f"{keys:,}",
        f"{run['rows']:,}",
        f"{sum(file['tombstones'] for file in files):,}",
        f"{run['deleted_ranges']:,}",
        f"{filter_bits / keys:.1f}" if keys else "-",
    ]


def _end_of(file: dict[str, Any], decoded: str, stored: str) -> str:
    return key_text(file[decoded], file[stored])


@app.command("verify")
def verify_state(
    directory: Directory, pointer: PointerOption = None, json: JsonFiles = False
) -> None:
    """Check every block and row of all files, checkpoints and write-ahead logs included.

    Another process may use the store meanwhile. Exit status 1 if anything is damaged.
    """
    damaged = False
    for state in each_state(str(directory), pointer):
        if not json:
            typer.echo(state.directory)
        for finding in _findings(state):
            damaged |= finding.damage is not None
            if json:
                typer.echo(json_text.dumps({"directory": state.directory, **_as_json(finding)}))
            else:
                typer.echo(_line(finding, state.directory))
    if damaged:
        raise typer.Exit(DAMAGED)


def _findings(state: State | Unreadable) -> Iterator[Finding]:
    if isinstance(state, Unreadable):
        yield Finding(state.damage.file, damage=state.damage.what)
    else:
        yield from verify(state)


def _as_json(finding: Finding) -> dict[str, Any]:
    if finding.damage is not None:
        return {"file": finding.file, "status": "damaged", "found": finding.damage}
    status = "unsealed" if finding.counts is None else "ok"
    return {"file": finding.file, "status": status, "found": finding.counts}


def _line(finding: Finding, directory: str) -> str:
    if finding.damage is not None:
        return damage_line(finding.file or directory, finding.damage)
    if finding.counts is None:
        return unsealed_line(finding.file)
    counts = ", ".join(f"{count:,} {what}" for what, count in finding.counts.items())
    return f"ok {finding.file}: {counts}"


@app.command("dump")
def dump_rows(
    directory: Directory,
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    limit: Annotated[
        int, typer.Option(callback=at_least(0), help="Print at most this many rows.")
    ] = 100,
    pointer: PointerOption = None,
    json: JsonRows = True,
) -> None:
    """Print the rows of a stream in key order, one JSON object per line.

    Key columns come first, named `_key_` and their name; more underscores keep the names apart
    from those of the rows. Values without a JSON type are written as text. Several states are
    printed one after the other.

    Rows that only the write-ahead log holds are not shown. Standard error says how many writes
    these are.

    Exit status 1 if rows are missing: a state, a block, the newest commit or a write-ahead log
    cannot be read.
    """
    damaged: list[Damage] = []
    notes: list[str] = []
    for found in each_state(str(directory), pointer):
        if isinstance(found, Unreadable):
            damaged.append(found.damage)
            continue
        state = with_open_files(found)
        logged, damaged_logs = settled(state, logged_writes)
        if logged:
            notes.append(f"{state.directory}: {logged_line(logged)}")
        damaged += [*state.damaged, *damaged_logs]
        for piece in _readable(entries_of(state, stream, limit), damaged):
            print_entries(piece, as_json=json)
            limit -= piece.rows.num_rows
    for line in notes + [damage_line(each.file or str(directory), each.what) for each in damaged]:
        typer.echo(line, err=True)
    if damaged:
        raise typer.Exit(DAMAGED)


def _readable(pieces: Iterator[Entries], damaged: list[Damage]) -> Iterator[Entries]:
    """Yield pieces until one cannot be read, which is added to ``damaged``."""
    try:
        yield from pieces
    except READ_ERRORS as error:
        damaged.append(damage_of(error))
