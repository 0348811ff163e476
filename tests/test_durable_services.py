"""Attempts whose files lie in Azure Blob Storage and in Google Cloud Storage, as their emulators
have them, through pyarrow's own clients.

In ``make stress``, where the emulators are: ``npm install --global azurite`` and
``pip install gcp-storage-emulator``.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from durable_cases import expected, held, run_batch

from lsmstate.state_place import StatePlace, open_bucket
from spark_integration.demo.ports import free_ports
from spark_integration.records import create_record_in, read_record_in

pytestmark = pytest.mark.stress

#: Azurite's own, the same everywhere.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not installed: npm install --global azurite")
    from pyarrow.fs import AzureFileSystem

    port = free_ports(1)[0]
    where = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(tmp_path))
    command = [program, *where, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        options = {"account_key": KEY}
        for service in ("blob", "dfs"):
            options[f"{service}_storage_authority"] = f"127.0.0.1:{port}"
            options[f"{service}_storage_scheme"] = "http"
        AzureFileSystem(ACCOUNT, **options).create_dir("states")
        yield f"abfss://states@{ACCOUNT}.dfs.core.windows.net/query", options
    finally:
        running.terminate()
        running.wait()


@pytest.fixture
def google() -> Iterator[tuple[str, dict[str, Any]]]:
    pytest.importorskip("gcp_storage_emulator")
    port = free_ports(1)[0]
    where = ("--host", "127.0.0.1", "--port", str(port), "--in-memory")
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", *where]
    running = subprocess.Popen([*command, "--default-bucket", "states"], stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        options = {"anonymous": True, "scheme": "http", "endpoint_override": f"127.0.0.1:{port}"}
        yield "gs://states/query", options
    finally:
        running.terminate()
        running.wait()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the emulator did not start"
            time.sleep(0.1)


@pytest.mark.parametrize("service", ["azure", "google"])
def test_batches_whose_machine_changes(
    service: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, options = request.getfixturevalue(service)

    def machine(name: str) -> StatePlace:
        return StatePlace(url, storage_options=options, cache_dir=str(tmp_path / name))

    pointer = None
    for batch in range(5):
        pointer = run_batch(machine(f"machine {batch % 2}").bucket(3), batch, pointer)
    last = machine("another")
    assert held(last.bucket(3), pointer) == expected(range(5))
    with open_bucket(last, 3, pointer) as store:
        assert sum(piece.num_rows for piece in store.scan("s")) == 1000
    create_record_in(last, "query.json", {"buckets": 4})
    assert read_record_in(machine("a third"), "query.json") == {"buckets": 4}
