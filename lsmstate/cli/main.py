"""Entry point of the command line; the other modules of this folder define the commands."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from lsmstate import __version__
from lsmstate.cli.backup import app as backup_commands
from lsmstate.cli.console import plain_console
from lsmstate.cli.numbers import at_least
from lsmstate.cli.query import app as query_commands
from lsmstate.cli.rescale import app as rescale_command
from lsmstate.cli.state import app as state_commands
from lsmstate.cli.ui import app as ui_command
from lsmstate.cli.upkeep import app as upkeep_commands
from lsmstate.errors import LsmStateError
from lsmstate.local_directory import directory_path

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(state_commands)
app.add_typer(query_commands)
app.add_typer(ui_command)
app.add_typer(upkeep_commands)
app.add_typer(backup_commands)
app.add_typer(rescale_command)

#: Exit status if the demo's result differs from DuckDB's.
UNEQUAL = 1
#: Exit status if a command could not run.
FAILED = 2


def main() -> None:
    """Run the script ``lsmstate`` or ``python -m lsmstate``."""
    try:
        app()
    except (LsmStateError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted", status=130)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def describe(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Inspect, check, copy and repair the state of streaming joins.

    lsmstate is a disk-spilling state store with full-history multi-way streaming joins.
    """


@app.command()
def demo(
    scale: Annotated[float, typer.Option(help="TPC-DS scale factor.")] = 1.0,
    memory: Annotated[
        str, typer.Option(help="Memory cap of each Python worker, such as 16m.")
    ] = "16m",
    batches: Annotated[
        int, typer.Option(callback=at_least(1), help="Number of micro-batches.")
    ] = 10,
    backend: Annotated[str, typer.Option(help="Store: lsm, rocksdb or memory.")] = "lsm",
    cores: Annotated[
        int | None,
        typer.Option(callback=at_least(1), help="Number of cores for Spark; default: all."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Directory that keeps the generated data.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Directory for output and state; it is emptied first.")
    ] = None,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Send the data through a Kafka broker that is started.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")
    ] = False,
) -> None:
    """Join four TPC-DS streams on Spark under a memory cap, and compare the result with DuckDB's.

    Exit status: 0 if the results are equal, 1 if they differ, 2 if the demo could not run.
    """
    try:
        from lsmstate.spark import DemoSettings, run_demo

        settings = DemoSettings(
            data_directory=_local(data, "data") or _default_data(),
            run_directory=_local(run, "run") or _default_run(),
            scale=scale,
            memory=memory,
            batches=batches,
            backend=backend,
            cores=cores,
            kafka=kafka,
        )
        summary = run_demo(settings, Console(stderr=json, highlight=False))
    except ModuleNotFoundError as error:
        _fail(f"the demo needs {error.name}; run: pip install 'lsmstate[spark,demo]'")
    if json:
        typer.echo(summary.as_json())
    if not summary.equal:
        raise typer.Exit(UNEQUAL)


def _fail(message: str, status: int = FAILED) -> NoReturn:
    plain_console(stderr=True).print(f"lsmstate: {message}", soft_wrap=True)
    sys.exit(status)


def _local(directory: Path | None, name: str) -> Path | None:
    return directory and Path(directory_path(directory, name))


def _checkout() -> Path | None:
    """Return the checkout that this package runs from, or None if it is installed."""
    directory = Path(__file__).resolve().parents[2]
    return directory if (directory / "Makefile").exists() else None


def _default_data() -> Path:
    checkout = _checkout()
    return checkout / ".data" if checkout else _user_cache() / "lsmstate"


def _default_run() -> Path:
    return (_checkout() or Path.cwd()) / ".run"


def _user_cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else Path.home() / ".cache"
