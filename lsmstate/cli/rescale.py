"""Command that changes the number of buckets of a query: rescale."""

import json as json_text
from typing import Annotated, Any, Final

import typer

from lsmstate.cli.numbers import at_least
from lsmstate.cli.storage import StorageOption, storage_options
from lsmstate.errors import InvalidArgumentError
from lsmstate.state_location import DEFAULT_CACHE

app = typer.Typer()

#: Options that apply to new buckets only.
_OF_BUCKETS: Final = ("shares", "memory", "cache_dir", "cache")


@app.command("rescale")
def rescale_state(
    context: typer.Context,
    checkpoint: Annotated[str, typer.Argument(help="The stopped query's checkpoint location.")],
    buckets: Annotated[
        int | None, typer.Option(callback=at_least(1), help="The new number of buckets.")
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Give up an interrupted rescale, or undo a finished one.")
    ] = False,
    drop_original: Annotated[
        bool, typer.Option("--drop-original", help="Delete the buckets that a rescale replaced.")
    ] = False,
    state_dir: Annotated[
        str | None, typer.Option(help="The query's state_dir, if it has one.")
    ] = None,
    storage_option: StorageOption = None,
    shares: Annotated[
        str | None,
        typer.Option(
            help="New shares, such as c.id=2,o.id=4, of a join by several keys started with shares."
        ),
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory cap for writing, such as 64m.")] = "64m",
    cache_dir: Annotated[
        str | None, typer.Option(help="Local directory for copies of remote state.")
    ] = None,
    cache: Annotated[
        str, typer.Option(help="Most disk space for copies of remote state.")
    ] = DEFAULT_CACHE,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Change the number of buckets of a stopped query.

    The query then continues exactly where it stopped. If this command is killed, run it again: it
    continues. --undo takes the rescale back until the query has begun a micro-batch. The original
    buckets stay until --drop-original.
    """
    if [buckets is not None, undo, drop_original].count(True) != 1:
        raise InvalidArgumentError("give exactly one of --buckets N, --undo and --drop-original")
    if buckets is None:
        _check_only_with_buckets(context, "--undo" if undo else "--drop-original")
    options = storage_options(storage_option)
    where: dict[str, Any] = {"state_dir": state_dir, "storage_options": options}
    try:
        from lsmstate.spark import drop_original as drop
        from lsmstate.spark import rescale, undo_rescale
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            f"rescale needs {error.name}; run: pip install 'lsmstate[spark]'"
        ) from error
    if undo:
        now = undo_rescale(checkpoint, **where)
        found, words = {"buckets": now}, f"the query has {now} buckets"
    elif drop_original:
        freed = drop(checkpoint, **where)
        found, words = {"freed_bytes": freed}, f"{freed:,} bytes are free"
    else:
        assert buckets is not None
        done = rescale(
            checkpoint,
            buckets,
            **where,
            shares=None if shares is None else _shares(shares),
            memory=memory,
            cache_dir=cache_dir,
            cache=cache,
            report=lambda text: typer.echo(text, err=True),
        )
        found = {"before": done.buckets_before, "buckets": done.buckets, "rows": done.rows}
        words = f"{done.buckets_before} -> {done.buckets} buckets, {done.rows:,} rows written"
    typer.echo(json_text.dumps(found) if json else words)


def _check_only_with_buckets(context: typer.Context, command: str) -> None:
    """Raise InvalidArgumentError if an option was given that ``command`` ignores."""
    for name in _OF_BUCKETS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise InvalidArgumentError(
                f"{option} works with --buckets N only; leave it out with {command}"
            )


def _shares(text: str) -> dict[str, int]:
    """Parse ``c.id=2,o.id=4`` into shares by key."""
    found = {}
    for part in text.split(","):
        name, _, share = part.rpartition("=")
        if not name or not share.strip().isdigit():
            raise InvalidArgumentError(
                f"--shares {text}: write keys with their numbers, such as c.id=2,o.id=4"
            )
        found[name.strip()] = int(share)
    return found
