"""The commands that look after a state on disk: stats, compact, repair."""

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lsmstate.cli.console import plain_console, plain_table
from lsmstate.cli.states import JsonStates, key_text, level_name, show_states
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options, parse_bytes
from lsmstate.store import StreamSchema
from lsmstate.tools.inspection import State, find_standalone, find_state
from lsmstate.tools.repair import RepairReport, repair
from lsmstate.tools.stored_keys import decoded_key
from lsmstate.tools.summary import summarize

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]

_MERGED_BY_QUERY: Final = (
    "a query's buckets are merged by its own micro-batches, so that its checkpoint goes on naming "
    "them"
)

#: Exit status when repair could not save everything.
LOST = 1


@app.command("stats")
def show_stats(
    directory: Annotated[
        Path, typer.Argument(help="A store's or a bucket's directory, or the one of buckets.")
    ],
    json: JsonStates = False,
) -> None:
    """Show sizes by level, compression, and what else lies in the directory.

    Exit status 1 if a state, a newer commit of one, a checkpoint or a changelog cannot be read.
    """
    show_states(str(directory), None, summarize, _print_stats, as_json=json)


def _print_stats(found: dict[str, Any]) -> None:
    console = plain_console()
    console.print(found["directory"], style="bold", soft_wrap=True)
    console.print(
        f"{found['rows']:,} rows, deleted ones that are still there included, {found['bytes']:,} "
        f"bytes with keys, indexes and filters: {found['bytes_per_raw_byte']:.2f} a byte of rows "
        f"before compression; changelog {found['changelog_bytes']:,}, the commit's "
        f"other files {found['commit_bytes']:,}, kept by checkpoints alone "
        f"{found['checkpoint_bytes']:,}, other commits' and unneeded files "
        f"{found['other_bytes']:,} bytes",
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
    memory: Annotated[str, typer.Option(help="Cap while merging, e.g. 64m.")] = "64m",
    json: Json = False,
) -> None:
    """Merge the runs of a standalone store into one, and free what was deleted.

    Nobody has it open. Small runs stay where one holds nearly all and nothing was deleted.
    """
    place = str(directory)
    before = find_standalone(place, _MERGED_BY_QUERY)
    streams = list(before.found.streams.values())
    with LsmStore.open(place, streams, options=Options(memory_bytes=parse_bytes(memory))) as store:
        store.compact()
    after = find_standalone(place, _MERGED_BY_QUERY)
    found = {"directory": place, "before": _size(before), "after": _size(after)}
    if json:
        typer.echo(json_text.dumps(found))
    else:
        left = "; one of them holds nearly all" if _size(after)["runs"] > 1 else ""
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
        Path, typer.Argument(help="A damaged standalone store's or bucket's directory.")
    ],
    target: Annotated[Path, typer.Argument(help="A new directory for what can be saved.")],
    pointer: Annotated[
        str | None, typer.Option(help="A commit pointer of a bucket; default: the newest.")
    ] = None,
    json: Json = False,
) -> None:
    """Save what can be read of a damaged state into a new directory and say what is lost.

    The damaged directory is not touched. Exit status: 0 nothing is lost, 1 something is.
    """
    report = repair(str(directory), str(target), pointer)
    if json:
        typer.echo(json_text.dumps(report.as_dict()))
    else:
        _print_report(report)
    if report.losses:
        raise typer.Exit(LOST)


def _bound(streams: Sequence[StreamSchema], stored: str | None) -> str | None:
    """A stored key in hex by its values."""
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
            typer.echo("  deletions may be lost too: rows deleted earlier may be back")
    if not report.losses:
        typer.echo("nothing is lost")
