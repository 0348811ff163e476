"""Command that shows states as a web page: ui."""

import socket
from typing import Annotated

import typer

from lsmstate.cli.storage import StorageOption, storage_options
from lsmstate.errors import InvalidArgumentError

app = typer.Typer()

_HOST = "127.0.0.1"


@app.command("ui")
def show_page(
    directory: Annotated[
        str,
        typer.Argument(help="A query's checkpoint, a store, or a directory that holds some."),
    ],
    port: Annotated[int, typer.Option(help="Port on loopback; 0: any that is free.")] = 8642,
    state_dir: Annotated[
        str | None, typer.Option(help="The query's state_dir, if it was started with one.")
    ] = None,
    storage_option: StorageOption = None,
) -> None:
    """Show queries, micro-batches, buckets, levels and rows as a web page on this machine.

    The page only reads. It works on a running query, a stopped one, a store and a damaged state.
    """
    try:
        import uvicorn

        from lsmstate.ui.app import ui_app
        from lsmstate.ui.views import Views
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            f"lsmstate ui needs {error.name}; run: pip install 'lsmstate[ui]'"
        ) from error
    if not 0 <= port < 1 << 16:
        raise InvalidArgumentError(f"--port {port}: give a number from 0 to 65535")
    views = Views(directory, state_dir, storage_options(storage_option))
    views.places()  # names a directory that is not there
    with socket.create_server((_HOST, port)) as listening:
        config = uvicorn.Config(ui_app(views), log_level="warning", access_log=False)
        typer.echo(f"http://{_HOST}:{listening.getsockname()[1]}/  (Ctrl-C ends it)")
        uvicorn.Server(config).run(sockets=[listening])
