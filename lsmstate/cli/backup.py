"""Commands for copies of a state: checkpoints, export, exports, restore."""

import json as json_text
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lsmstate.cli.console import plain_console, plain_table
from lsmstate.cli.states import DAMAGED, damage_line
from lsmstate.errors import InvalidArgumentError
from lsmstate.local_directory import check_is_there
from lsmstate.lsm.checkpoints import Checkpoint, read_each_checkpoint
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from lsmstate.remote.directory import LocalDir, durable_dir
from lsmstate.tools.export import delete_export, export, list_each_export
from lsmstate.tools.export_catalog import Catalog, whole
from lsmstate.tools.inspection import find_standalone
from lsmstate.tools.restore import restore

app = typer.Typer()

_ONLY_THOSE: Final = "only standalone stores have named checkpoints"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonList = Annotated[bool, typer.Option("--json", help="Print one JSON list of objects.")]
PlaceArgument = Annotated[
    str, typer.Argument(help="A local directory or a URI such as s3://bucket/path.")
]


@app.command("checkpoints")
def show_checkpoints(
    directory: Annotated[Path, typer.Argument(help="A standalone store's directory.")],
    create: Annotated[
        str | None, typer.Option(help="Make a checkpoint of this name before the list is printed.")
    ] = None,
    delete: Annotated[
        str | None, typer.Option(help="Delete this checkpoint before the list is printed.")
    ] = None,
    json: JsonList = False,
) -> None:
    """List the named checkpoints of a standalone store, oldest first; make or delete one.

    No other process may have the store open while one is made or deleted.

    Exit status 1 if a checkpoint cannot be read. Standard error names it.
    """
    place = str(directory)
    check_is_there(place)
    known = _read_ones(place)
    is_changed = create is not None or delete is not None
    # A store that cannot be read may have readable checkpoints, which can be restored.
    state = None if known and not is_changed else find_standalone(place, _ONLY_THOSE)
    if is_changed and state is not None:
        streams = list(state.found.streams.values())
        with LsmStore.open(place, streams, options=Options()) as store:
            if create is not None:
                store.checkpoint(create)
            if delete is not None:
                store.checkpoints.delete(delete)
        known = _read_ones(place)
    found = [_described(place, checkpoint) for checkpoint in known]
    _print(found, ("name", "files", "bytes", "pointer"), json)
    read = read_each_checkpoint(place)
    _name_lost((os.path.basename(path), said) for path, said in read if isinstance(said, Exception))


def _name_lost(lost: Iterable[tuple[str, Exception]]) -> None:
    """Print what cannot be read; raise typer.Exit if there is any."""
    found = list(lost)
    for name, error in found:
        typer.echo(damage_line(name, str(error)), err=True)
    if found:
        raise typer.Exit(DAMAGED)


def _read_ones(directory: str) -> list[Checkpoint]:
    """Return the checkpoints that can be read."""
    return [said for _, said in read_each_checkpoint(directory) if isinstance(said, Checkpoint)]


def _described(directory: str, checkpoint: Checkpoint) -> dict[str, Any]:
    sizes = [os.path.getsize(os.path.join(directory, name)) for name in checkpoint.files]
    return {
        "name": checkpoint.name,
        "files": len(sizes),
        "bytes": sum(sizes),
        "pointer": checkpoint.pointer,
    }


@app.command("export")
def export_state(
    directory: Annotated[
        Path, typer.Argument(help="A standalone store's directory, or a bucket's with --pointer.")
    ],
    destination: PlaceArgument,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the export; default: name of the checkpoint or commit."),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Export this checkpoint; default: the newest state.")
    ] = None,
    pointer: Annotated[
        str | None, typer.Option(help="Export this commit of a bucket, given by its pointer.")
    ] = None,
    json: Json = False,
) -> None:
    """Copy a state to a place that may hold earlier exports; only new files are sent."""
    done = export(str(directory), destination, name=name, checkpoint=checkpoint, pointer=pointer)
    sent = {"sent_files": done.sent_files, "sent_bytes": done.sent_bytes}
    if json:
        typer.echo(json_text.dumps(_listed(done.catalog) | sent))
    else:
        typer.echo(
            f"export {done.catalog.name}: {len(done.catalog.files):,} files of "
            f"{done.catalog.size:,} bytes, {done.sent_files:,} of {done.sent_bytes:,} bytes sent"
        )


@app.command("exports")
def show_exports(
    place: PlaceArgument,
    delete: Annotated[
        str | None,
        typer.Option(help="Delete this export, and the files that only it needs, first."),
    ] = None,
    json: JsonList = False,
) -> None:
    """List the exports at a place, oldest first; delete one.

    Exit status 1 if an export cannot be read. Standard error names it.
    """
    local = durable_dir(place, None)
    if isinstance(local, LocalDir) and not os.path.isdir(local.where):
        raise InvalidArgumentError(
            f"{place} is not a directory; give the place that exports were written to"
        )
    if delete is not None:
        delete_export(place, delete)
    read = list_each_export(place)
    found = [_listed(catalog) for catalog in whole(read)]
    _print(found, ("name", "files", "bytes", "pointer"), json)
    _name_lost((each.file_name, each.said) for each in read if isinstance(each.said, Exception))


def _listed(catalog: Catalog) -> dict[str, Any]:
    return {
        "name": catalog.name,
        "files": len(catalog.files),
        "bytes": catalog.size,
        "pointer": catalog.pointer,
    }


@app.command("restore")
def restore_state(
    source: Annotated[
        str, typer.Argument(help="The place of exports, or a store's directory with checkpoints.")
    ],
    directory: Annotated[Path, typer.Argument(help="A new directory to restore into.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the export or checkpoint; default: the newest.")
    ] = None,
    json: Json = False,
) -> None:
    """Restore an export or a checkpoint into a new directory, and check every byte."""
    done = restore(source, str(directory), name=name)
    if json:
        found = {
            "name": done.name,
            "directory": str(directory),
            "files": done.files,
            "bytes": done.size,
            "linked_files": done.linked_files,
            "pointer": done.pointer,
        }
        typer.echo(json_text.dumps(found))
    else:
        typer.echo(
            f"{directory}: {done.name}, {done.files:,} files of {done.size:,} bytes, "
            f"{done.linked_files:,} of them hard links; pointer {done.pointer}"
        )


def _print(found: list[dict[str, Any]], columns: tuple[str, ...], json: bool) -> None:
    if json:
        typer.echo(json_text.dumps(found))
        return
    table = plain_table(*columns)
    for each in found:
        values = (each[column] for column in columns)
        table.add_row(*(f"{v:,}" if isinstance(v, int) else v for v in values))
    plain_console().print(table)
