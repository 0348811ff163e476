"""All of a query on S3: Spark's own checkpoint (hadoop-aws) and the state beside it (pyarrow).

The server is in this process. ``hadoop-aws`` comes from Maven Central by Spark's own client; the
only reason to skip is that it cannot be had. Slow, so it runs in ``make stress``.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector, S3FileSystem

pytest.importorskip("pyspark")

from typer.testing import CliRunner

from lsmstate.cli.main import app
from lsmstate.state_location import StatePlace
from support.kill_driver import streams
from support.killed_sessions import ROWS_PER_FILE, Driver, check_result, ended_well, let_arrive
from support.s3_server import SECRET, s3_server, storage_options

pytestmark = [pytest.mark.spark, pytest.mark.stress, pytest.mark.timeout(1800)]

#: Of Spark 4.3's Hadoop, with the parts of Amazon's SDK it uses in place of all of them (600 MB).
PACKAGES = "org.apache.hadoop:hadoop-aws:3.5.0,software.amazon.awssdk:s3-transfer-manager:2.35.4"
EXCLUDED = "software.amazon.awssdk:bundle"


def settings(server: str) -> dict[str, str]:
    hadoop = "spark.hadoop.fs.s3a."
    return {
        "spark.jars.packages": PACKAGES,
        "spark.jars.excludes": EXCLUDED,
        f"{hadoop}endpoint": f"http://{server}",
        f"{hadoop}endpoint.region": "us-east-1",
        f"{hadoop}path.style.access": "true",
        f"{hadoop}access.key": "user",
        f"{hadoop}secret.key": SECRET,
    }


def skip_without_package(driver: Driver) -> None:
    told = driver.log.read_text()
    if "unresolved dependency" in told or "Unresolved dependencies" in told:
        pytest.skip(f"{PACKAGES} cannot be had: Maven Central, or Spark's place for it, lacks it")


def test_checkpoint_and_state_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first start over a kill in the middle to a start without anything local."""
    let_arrive(tmp_path, random.Random(13), 6)
    with s3_server() as server:
        filesystem = S3FileSystem(**storage_options(server), allow_bucket_creation=True)
        filesystem.create_dir("queries")
        wanted = {"settings": settings(server), "checkpoint": "s3a://queries/first"}
        monkeypatch.setenv("LSMSTATE_DRIVER", json.dumps(wanted))
        killed = Driver(tmp_path, "hdfs", "kill 40")
        assert not ended_well(killed), "it was to be killed"
        killed.end()
        skip_without_package(killed)
        assert killed.mark.exists(), killed.log.read_text()[-3000:]
        shutil.rmtree(tmp_path / "local", ignore_errors=True)
        last = Driver(tmp_path, "hdfs")
        assert ended_well(last), last.log.read_text()[-3000:]
        names = [
            info.path
            for info in filesystem.get_file_info(FileSelector("queries/first", recursive=True))
        ]
        assert "queries/first/commits/5" in names
        assert any(n.startswith("queries/first/lsmstate/bucket-") for n in names)
    assert not (tmp_path / "checkpoint").exists()
    assert SECRET not in last.log.read_text()
    assert check_result(tmp_path) > 50


def test_checkpoint_and_state_on_s3_are_rescaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command line, once taken back, between two runs of the query."""
    let_arrive(tmp_path / "later", random.Random(14), 6)
    with s3_server() as server:
        options = storage_options(server)
        S3FileSystem(**options, allow_bucket_creation=True).create_dir("queries")
        wanted = {"settings": settings(server), "checkpoint": "s3a://queries/rescaled"}
        monkeypatch.setenv("LSMSTATE_DRIVER", json.dumps(wanted))

        def runs(files: int) -> None:
            for name in streams(tmp_path):
                (tmp_path / name).mkdir(exist_ok=True)
                for path in sorted((tmp_path / "later" / name).glob("*.parquet"))[:files]:
                    path.rename(tmp_path / name / path.name)
            driver = Driver(tmp_path, "hdfs")
            well = ended_well(driver)
            skip_without_package(driver)
            assert well, driver.log.read_text()[-3000:]

        def rescaled(*arguments: str) -> Any:
            said = [f"--storage-option={name}={value}" for name, value in options.items()]
            done = CliRunner().invoke(app, ["rescale", *where, *said, *arguments, "--json"])
            assert done.exit_code == 0, done.output
            return json.loads(done.stdout.splitlines()[-1])

        where = ["s3a://queries/rescaled"]
        away = ["--cache-dir", str(tmp_path / "another machine")]
        runs(3)
        done = rescaled("--buckets", "7", *away)
        assert (done["buckets"], done["rows"]) == (7, 3 * 3 * ROWS_PER_FILE)
        assert rescaled("--undo") == {"buckets": done["before"]}
        assert rescaled("--buckets", "3", *away)["buckets"] == 3
        runs(2)
        assert rescaled("--drop-original")["freed_bytes"] > 0
        runs(1)
        place = StatePlace("s3://queries/rescaled/lsmstate", storage_options=options)
        assert len(place.buckets()) == 3
    assert check_result(tmp_path) > 50
