"""Commands that maintain a state on disk: stats, compact, repair."""

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lsmstate.cli.console import plain_console, plain_table
from lsmstate.cli.states import JsonStates, key_text, level_name, show_states
from lsmstate.lsm.store import LsmStore
from lsmstate.options import CommandOptions, parse_bytes
from lsmstate.store import StreamSchema
from lsmstate.tools.inspection import State, find_standalone, find_state
from lsmstate.tools.repair import RepairReport, repair
from lsmstate.tools.stored_keys import decoded_key
from lsmstate.tools.summary import summarize

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_MERGED_BY_QUERY: Final = (
    "the micro-batches of a query compact its buckets, so that its checkpoint names the new files"
)

#: Exit status if repair could not save everything.
LOST = 1


@app.command("stats")
def show_stats(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Directory of a store or a bucket, or the directory that holds buckets."
        ),
    ],
    json: JsonStates = False,
) -> None:
    """Show sizes by level, compression, and the other files of the directory.

    Exit status 1 if something cannot be read: a state, a newer commit, a checkpoint or a
    write-ahead log.
    """
    show_states(str(directory), None, summarize, _print_stats, as_json=json)


def _print_stats(found: dict[str, Any]) -> None:
    console = plain_console()
    console.print(found["directory"], style="bold", soft_wrap=True)
    console.print(
        f"{found['rows']:,} rows (with deleted rows that are still stored), {found['bytes']:,} "
        f"bytes with keys, indexes and filters: {found['bytes_per_raw_byte']:.2f} per byte of rows "
        f"before compression; other bytes: write-ahead log {found['changelog_bytes']:,}, other "
        f"files of the commit {found['commit_bytes']:,}, files of checkpoints only "
        f"{found['checkpoint_bytes']:,}, files of other commits or unneeded "
        f"{found['other_bytes']:,}",
        soft_wrap=True,
    )
    columns = ("level", "runs", "files", "bytes", "keys", "rows", "deletions")
    table = plain_table(*columns)
    for level in found["levels"]:
        counts = (f"{level[column]:,}" for column in columns[1:])
        table.add_row(level_name(level["level"]), *counts)
    console.print(table)


@app.command("compact")
def compact_store(
    directory: Annotated[Path, typer.Argument(help="A standalone store's directory.")],
    memory: Annotated[str, typer.Option(help="Memory cap of the compaction, such as 64m.")] = "64m",
    json: Json = False,
) -> None:
    """Merge the runs of a standalone store into one, and free the space of deleted rows.

    No other process may have the store open. If one run holds nearly everything and nothing was
    deleted, small runs stay.
    """
    place = str(directory)
    before = find_standalone(place, _MERGED_BY_QUERY)
    streams = list(before.found.streams.values())
    options = CommandOptions(memory_bytes=parse_bytes(memory))
    with LsmStore.open(place, streams, options=options) as store:
        store.compact()
    after = find_standalone(place, _MERGED_BY_QUERY)
    found = {"directory": place, "before": _size(before), "after": _size(after)}
    if json:
        typer.echo(json_text.dumps(found))
    else:
        left = "; one of them holds nearly everything" if _size(after)["runs"] > 1 else ""
        typer.echo(
            f"{place}: {_size(before)['runs']} runs, {_size(before)['bytes']:,} bytes -> "
            f"{_size(after)['runs']} runs, {_size(after)['bytes']:,} bytes{left}"
        )


def _size(state: State) -> dict[str, int]:
    version = state.found.edit.version
    return {"runs": len(version.runs), "files": len(version.files), "bytes": version.size}


@app.command("repair")
def repair_state(
    directory: Annotated[
        Path, typer.Argument(help="Directory of a damaged standalone store or bucket.")
    ],
    target: Annotated[Path, typer.Argument(help="A new directory for the readable part.")],
    pointer: Annotated[
        str | None, typer.Option(help="A commit pointer of a bucket; default: the newest.")
    ] = None,
    json: Json = False,
) -> None:
    """Copy the readable part of a damaged state into a new directory, and report what is lost.

    The damaged directory is not changed. Exit status: 0 if nothing is lost, 1 otherwise.
    """
    report = repair(str(directory), str(target), pointer)
    if json:
        typer.echo(json_text.dumps(report.as_dict()))
    else:
        _print_report(report)
    if report.losses:
        raise typer.Exit(LOST)


def _bound(streams: Sequence[StreamSchema], stored: str | None) -> str | None:
    """Show a stored key, given in hex, by its values."""
    return stored and key_text(decoded_key(streams, bytes.fromhex(stored)), stored)


def _print_report(report: RepairReport) -> None:
    typer.echo(
        f"{report.target}: {report.rows:,} rows in tables and {report.logged_writes:,} logged "
        f"writes; {report.copied_files} files copied, {report.rebuilt_files} rebuilt"
    )
    state = find_state(report.target, report.pointer)
    streams = list(state.found.streams.values()) if state is not None else []
    for problem in report.problems:
        typer.echo(f"note: {problem}")
    for loss in report.as_dict()["losses"]:
        rows = "an unknown number of" if loss["rows"] is None else f"{loss['rows']:,}"
        typer.echo(f"LOST {loss['file']}: {loss['what']}; {rows} rows")
        for keys in loss["ranges"]:
            low, high = (_bound(streams, keys[end]) for end in ("low", "high"))
            typer.echo(f"  between the keys {low or 'first'} and {high or 'last'}")
        if loss["deletions"]:
            typer.echo("  deletions may be lost too: deleted rows may have come back")
    if not report.losses:
        typer.echo("nothing is lost")
