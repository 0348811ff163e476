"""The commands that look inside a state on disk: inspect, verify, dump."""

import json as json_text
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from lsmstate.cli.console import narrow_table, plain_console
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
    Path, typer.Argument(help="A store's or a bucket's directory, or the one that holds buckets.")
]
PointerOption = Annotated[
    str | None, typer.Option(help="A commit pointer; default: the newest commit.")
]
JsonFiles = Annotated[bool, typer.Option("--json", help="JSON lines: one object a file.")]
JsonRows = Annotated[
    bool, typer.Option("--json/--table", help="JSON lines: one object a row; or tables.")
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

    Exit status 1 if a state, a newer commit of one, a file, a checkpoint or a changelog cannot be
    read.
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
        f"open: {memory['top_indexes']:,} bytes of top indexes stay in memory; "
        f"{memory['index_partitions']:,} of index and {memory['filter_partitions']:,} of "
        "filters come and go through the block cache"
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
    """Read and check every block and row of every file, of checkpoints and changelogs too.

    Another process may use the store. Exit status 1 if anything is damaged.
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
    limit: Annotated[int, typer.Option(help="At most this many rows.")] = 100,
    pointer: PointerOption = None,
    json: JsonRows = True,
) -> None:
    """Print rows of a stream as JSON, one a line, in key order; what JSON lacks is written as text.

    Key columns come first, as `_key_` and their name, with more underscores where the rows have
    such a name themselves. Of several states one after the other. Rows that only a changelog has
    are not shown; the standard error says how many writes. Exit status 1 if a state, a block of
    its rows, its newest commit or a changelog cannot be read: rows are missing then.
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
    """Those before the first that cannot be read, which is added to what is damaged."""
    try:
        yield from pieces
    except READ_ERRORS as error:
        damaged.append(damage_of(error))
