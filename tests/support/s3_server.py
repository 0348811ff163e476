"""An S3 server in this process (moto), and what it was asked."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer

SECRET = "s3cret"


@contextmanager
def s3_server() -> Iterator[str]:
    """host:port of the server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        yield f"{host}:{port}"
    finally:
        running.stop()


def storage_options(server: str) -> dict[str, str]:
    return {
        "access_key": "user",
        "secret_key": SECRET,
        "endpoint_override": server,
        "scheme": "http",
        "region": "us-east-1",
    }
