"""Attempts whose files lie in Azure Blob Storage and in Google Cloud Storage, as their emulators
have them, or on HDFS, through pyarrow's own clients; and exports to there.

In ``make stress``, where the emulators are: ``npm install --global azurite`` and
``pip install gcp-storage-emulator``. HDFS: a directory that LSMSTATE_TEST_HDFS names
(``hdfs://host:port/path``), with what pyarrow wants for it: ``libhdfs.so`` in ARROW_LIBHDFS_DIR and
Hadoop's client in CLASSPATH.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import lsmstate
from lsmstate.errors import CorruptionError
from lsmstate.remote.filesystems import resolve
from lsmstate.spark_integration.checkpoint.json_records import create_record_in, read_record_in
from lsmstate.spark_integration.demo.ports import free_ports
from lsmstate.state_location import StatePlace, open_bucket
from support.checkpoint_cases import opened
from support.crash_cases import BATCHES
from support.durable_cases import expected, held, run_batch
from support.export_cases import rows_of

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


@pytest.fixture
def hdfs() -> tuple[str, dict[str, Any]]:
    place = os.environ.get("LSMSTATE_TEST_HDFS")
    if place is None:
        pytest.skip("no HDFS is named: LSMSTATE_TEST_HDFS=hdfs://host:port/path")
    return f"{place}/{uuid4()}", {}


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the emulator did not start"
            time.sleep(0.1)


SERVICES = pytest.mark.parametrize("service", ["azure", "google", "hdfs"])


@SERVICES
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


@SERVICES
def test_exports_there_and_back(
    service: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, options = request.getfixturevalue(service)
    filesystem, path = resolve(f"{url}/exports", options)
    source = str(tmp_path / "store")
    with opened(source) as store:
        for number, batch in enumerate(BATCHES[:3]):
            store.append("customers", *batch)
            store.checkpoint(f"c{number}")
            done = lsmstate.export(source, path, filesystem=filesystem, checkpoint=f"c{number}")
            assert 0 < done.sent_files <= 2
    again = lsmstate.export(source, path, filesystem=filesystem, checkpoint="c2")
    assert again.sent_files == 0
    lsmstate.restore(path, str(tmp_path / "new"), filesystem=filesystem, name="c1")
    assert rows_of(tmp_path / "new") == list(range(240))
    lsmstate.delete_export(path, "c0", filesystem=filesystem)
    lsmstate.restore(path, str(tmp_path / "newest"), filesystem=filesystem)
    assert rows_of(tmp_path / "newest") == list(range(360))
    damaged = f"{path}/{done.catalog.files[0].stored}"
    with filesystem.open_output_stream(damaged) as file:
        file.write(b"damaged")
    with pytest.raises(CorruptionError, match=re.escape(damaged)):
        lsmstate.restore(path, str(tmp_path / "none"), filesystem=filesystem)
