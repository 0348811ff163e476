"""A query whose state lies in S3 while its checkpoint is local, from the first start to a restart
on another machine."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, S3FileSystem
from typer.testing import CliRunner

from support.s3_server import SECRET, s3_server, storage_options

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from lsmstate.cli.main import app
from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import multiway_join
from lsmstate.spark_integration.plan.storage import Storage, _from_hadoop
from support.grouped import grouped
from support.spark_streams import FileStream, assert_same_rows, committed, pieces, run_to_end

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as where:
        S3FileSystem(**storage_options(where), allow_bucket_creation=True).create_dir("states")
        yield where


@pytest.fixture
def streams(tmp_path: Path) -> dict[str, FileStream]:
    """Two streams of six files, of which three have arrived."""
    found = {}
    for seed, name in enumerate("ab"):
        table = pa.table(
            {
                f"{name}_k": pa.array([(i * 13 + seed) % 40 for i in range(120)], pa.int64()),
                f"{name}_text": pa.array([f"{name}{i}" for i in range(120)]),
            }
        )
        found[name] = FileStream(tmp_path / name, f"{name}_k BIGINT, {name}_text STRING")
        found[name].add(*pieces(table, 6)[:3])
    return found


def more(streams: dict[str, FileStream]) -> None:
    for name, stream in streams.items():
        keys = pa.array(range(40), pa.int64())
        text = pa.array([f"more {i}" for i in range(40)])
        stream.add(pa.table({f"{name}_k": keys, f"{name}_text": text}))


def joined(spark: Any, streams: dict[str, FileStream], **options: Any) -> Any:
    read = {name: stream.read(spark, 2) for name, stream in streams.items()}
    return multiway_join(
        read, on="a.a_k = b.b_k", **grouped(**{"memory": "16m", "buckets": 3, **options})
    )


def expected(streams: dict[str, FileStream]) -> str:
    a, b = (stream.sql for stream in streams.values())
    return f"SELECT * FROM {a} JOIN {b} ON a_k = b_k"


def test_state_in_s3_and_a_restart_without_its_copies(
    spark: Any, tmp_path: Path, server: str, streams: dict[str, FileStream]
) -> None:
    place = {"state_dir": "s3://states/first/", "storage_options": storage_options(server)}
    query = joined(spark, streams, **place, cache_dir=str(tmp_path / "cache"), cache="2m")
    assert SECRET not in query._jdf.queryExecution().toString()
    run_to_end(query, tmp_path / "checkpoint", tmp_path / "out")
    assert not list((tmp_path / "checkpoint").glob("lsmstate*")), "state beside the checkpoint"
    (copies,) = (tmp_path / "cache").glob("lsmstate-cache-*")
    assert list(copies.glob("*/bucket-*/commit-*.sst"))
    shutil.rmtree(copies)
    more(streams)
    again = joined(spark, streams, **place, cache_dir=str(tmp_path / "another machine"))
    run_to_end(again, tmp_path / "checkpoint", tmp_path / "out")
    assert_same_rows(expected(streams), committed(tmp_path / "out"), 200)


@pytest.mark.stress  # what may fail is in test_rescale_elsewhere.py
def test_rescaled_in_s3_by_the_command_line(
    spark: Any, tmp_path: Path, server: str, streams: dict[str, FileStream]
) -> None:
    place = {"state_dir": "s3://states/rescaled", "storage_options": storage_options(server)}
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    run_to_end(joined(spark, streams, **place, cache_dir=str(tmp_path / "cache")), checkpoint, out)
    said = [f"--storage-option={n}={value}" for n, value in storage_options(server).items()]
    where = [str(checkpoint), "--state-dir", "s3://states/rescaled", *said, "--json"]

    def rescaled(*arguments: str) -> Any:
        done = CliRunner().invoke(app, ["rescale", *where, *arguments])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1])

    away = ["--cache-dir", str(tmp_path / "another machine")]
    assert rescaled("--buckets", "5", *away) == {"before": 3, "buckets": 5, "rows": 120}
    assert rescaled("--undo") == {"buckets": 3}
    assert rescaled("--buckets", "2", *away) == {"before": 3, "buckets": 2, "rows": 120}
    more(streams)
    again = joined(spark, streams, **place, buckets=2, cache_dir=str(tmp_path / "third"))
    run_to_end(again, checkpoint, out)
    assert_same_rows(expected(streams), committed(out), 200)
    assert rescaled("--drop-original")["freed_bytes"] > 0
    names = [
        info.base_name
        for info in S3FileSystem(**storage_options(server)).get_file_info(
            FileSelector("states/rescaled")
        )
    ]
    assert len([name for name in names if name.startswith("bucket-")]) == 2
    assert not [name for name in names if name.startswith("rescale-")]


@pytest.mark.stress
def test_what_hadoop_is_told_is_enough(
    spark: Any, tmp_path: Path, server: str, streams: dict[str, FileStream]
) -> None:
    settings = {
        "fs.s3a.endpoint": f"http://{server}",
        "fs.s3a.access.key": "user",
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.endpoint.region": "us-east-1",
    }
    hadoop = spark._jsc.hadoopConfiguration()
    for name, value in settings.items():
        hadoop.set(name, value)
    try:
        query = joined(spark, streams, state_dir="s3a://states/second")
    finally:
        for name in settings:
            hadoop.unset(name)
    run_to_end(query, tmp_path / "checkpoint", tmp_path / "out")
    assert_same_rows(expected(streams), committed(tmp_path / "out"), 50)
    local = Path(spark.sparkContext.getConf().get("spark.local.dir"))
    copies = local / f"lsmstate-cache-{os.getuid()}"
    assert list(copies.glob("*/bucket-*/commit-*.sst")), "not where Spark keeps its own files"


@pytest.mark.stress
def test_a_state_that_is_gone_is_said_at_the_start(
    spark: Any, tmp_path: Path, server: str, streams: dict[str, FileStream]
) -> None:
    options = storage_options(server)
    place = {"state_dir": "s3://states/third", "storage_options": options}
    place["cache_dir"] = str(tmp_path / "cache")
    run_to_end(joined(spark, streams, **place), tmp_path / "checkpoint", tmp_path / "out")
    filesystem = S3FileSystem(**options)
    names = [info.path for info in filesystem.get_file_info(FileSelector("states/third"))]
    assert "states/third/query.json" in names
    filesystem.delete_dir("states/third")
    more(streams)
    with pytest.raises(StreamingQueryException, match="their state is not in s3:states/third"):
        run_to_end(joined(spark, streams, **place), tmp_path / "checkpoint", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "rocksdb"}, "backend='rocksdb' keeps its state in local directories only"),
        ({"cache": "1k"}, "cache='1k'"),
        ({"cache_dir": "s3://x/y"}, "cache_dir='s3://x/y' is not a local path"),
        ({"storage_options": "key"}, "storage_options is a str"),
        ({"storage_options": {"acess_key": SECRET}}, "acess_key"),
        ({"state_dir": f"s3://user:{SECRET}@states/x"}, "password in its address"),
        ({"state_dir": "nowhere://x"}, "nowhere://"),
    ],
)
def test_what_cannot_work_is_refused_as_it_is_built(
    spark: Any, streams: dict[str, FileStream], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        joined(spark, streams, **{"state_dir": "s3://states/x", **options})
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


def test_hadoops_settings_for_one_bucket_come_first() -> None:
    hadoop = {
        "fs.s3a.endpoint": "https://far:9000",
        "fs.s3a.access.key": "one",
        "fs.s3a.bucket.b.access.key": "two",
        "fs.s3a.aws.credentials.provider": "org.apache.AnonymousAWSCredentialsProvider",
        "fs.azure.account.key.acct.dfs.core.windows.net": "three",
    }
    assert _from_hadoop("s3a://b/x", hadoop) == {
        "access_key": "two",
        "endpoint_override": "far:9000",
        "scheme": "https",
        "anonymous": True,
    }
    assert _from_hadoop("s3a://c/x", hadoop)["access_key"] == "one"
    assert _from_hadoop("abfss://box@acct.dfs.core.windows.net/x", hadoop) == {
        "account_key": "three"
    }
    assert _from_hadoop("gs://b/x", hadoop) == {}


def test_a_storage_shows_no_secret() -> None:
    storage = Storage({"secret_key": SECRET}, {"fs.s3a.secret.key": SECRET})
    assert SECRET not in repr(storage) + storage.keep()
    assert storage.keep() == Storage({"secret_key": SECRET}, {"fs.s3a.secret.key": SECRET}).keep()
