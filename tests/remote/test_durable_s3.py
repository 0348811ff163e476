"""Attempts whose files lie in S3, through pyarrow's own client and a server in this process."""

import logging
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

from lsmstate.errors import CorruptionError
from lsmstate.options import Options
from lsmstate.remote import retries
from lsmstate.spark_integration.checkpoint.json_records import create_record_in, read_record_in
from lsmstate.state_location import StatePlace, open_bucket
from support.durable_cases import expected, held, run_batch
from support.s3_server import SECRET, s3_server, storage_options


@pytest.fixture(scope="module")
def server():
    with s3_server() as where:
        S3FileSystem(**storage_options(where), allow_bucket_creation=True).create_dir("state")
        yield where


@pytest.fixture
def requests(caplog):
    """What the server is asked: method and path of each request, as its log has them."""

    def seen():
        lines = [record.getMessage() for record in caplog.records if record.name == "werkzeug"]
        caplog.clear()
        return [re.search(r"([A-Z]+) (/\S+)", line).groups() for line in lines]

    with caplog.at_level(logging.INFO, logger="werkzeug"):
        yield seen


def place_at(server, cache, prefix="q"):
    return StatePlace(
        f"s3://state/{prefix}", storage_options=storage_options(server), cache_dir=str(cache)
    )


def test_batches_whose_machine_changes(tmp_path, server):
    pointer = None
    for batch in range(5):
        bucket = place_at(server, tmp_path / f"machine{batch % 2}").bucket(3)
        pointer = run_batch(bucket, batch, pointer)
    last = place_at(server, tmp_path / "another")
    assert held(last.bucket(3), pointer) == expected(range(5))
    with open_bucket(last, 3, pointer) as store:
        assert sum(piece.num_rows for piece in store.scan("s")) == 1000


def test_a_commit_is_two_requests(tmp_path, server, requests):
    bucket = place_at(server, tmp_path / "cache", "counted").bucket(0)
    pointer = run_batch(bucket, 0, None)
    requests()
    pointer = run_batch(bucket, 1, pointer)
    asked = requests()
    assert [method for method, _ in asked] == ["PUT", "HEAD"]
    assert all(path.startswith("/state/counted/bucket-000000/commit-") for _, path in asked)
    fresh = place_at(server, tmp_path / "other", "counted").bucket(0)
    requests()
    assert held(fresh, pointer) == expected(range(2))
    assert sorted(method for method, _ in requests()) == ["GET", "GET", "HEAD", "HEAD"]


def test_a_file_of_several_parts(tmp_path, server):
    data = random.Random(7).randbytes(11 << 20)
    bucket = place_at(server, tmp_path / "cache", "large").bucket(0)
    Path(bucket.directory, "run").write_bytes(data)
    bucket.publish("run")
    fresh = place_at(server, tmp_path / "other", "large").bucket(0)
    fresh.bring("run", len(data))
    assert Path(fresh.directory, "run").read_bytes() == data


def test_old_files_go_and_what_that_asks(tmp_path, server, requests):
    options = Options(memory_bytes=16 << 20, retained_batches=4)
    bucket = place_at(server, tmp_path / "cache", "old").bucket(0)
    pointer, asked = None, []
    for batch in range(16):
        pointer = run_batch(bucket, batch, pointer, 10, options)
        asked += requests()
    counts = Counter(method for method, path in asked if ".sst" in path)
    lists = len([path for _, path in asked if "list-type" in path])
    names = bucket.names()
    assert counts["DELETE"] > 5
    assert len(names) == counts["PUT"] - counts["DELETE"]
    assert counts["GET"] == 0
    assert lists == 15, "one for each batch that collects: retained_batches / 4 apart"
    assert not any(name.startswith("commit-0000000001") for name in names)
    assert held(place_at(server, tmp_path / "other", "old").bucket(0), pointer) == expected(
        range(16), 10
    )


def test_errors_name_the_object_and_show_no_secret(tmp_path, server, monkeypatch):
    monkeypatch.setattr(retries, "PAUSES", (0.0,))
    bucket = place_at(server, tmp_path / "cache", "broken").bucket(0)
    pointer = run_batch(bucket, 0, None)
    bucket.remove(pointer.partition(":")[0])
    with pytest.raises(CorruptionError, match=r"^s3:state/broken/bucket-000000/commit-") as one:
        held(bucket, pointer)
    nowhere = StatePlace(
        "s3://state/x",
        storage_options={
            **storage_options("127.0.0.1:9"),
            "connect_timeout": 1,
            "request_timeout": 1,
            "retry_strategy": AwsStandardS3RetryStrategy(max_attempts=1),
        },
        cache_dir=str(tmp_path / "cache"),
    )
    with pytest.raises(
        OSError, match=r"the previous commit is still valid: writing s3:state/x"
    ) as two:
        run_batch(nowhere.bucket(0), 0, None)
    assert SECRET not in str(one.value) + str(two.value)


def test_records_are_made_once(tmp_path, server):
    place = place_at(server, tmp_path / "cache", "small")
    assert read_record_in(place, "query.json") is None
    assert create_record_in(place, "query.json", {"buckets": 4})
    assert not create_record_in(place, "query.json", {"buckets": 5})
    assert read_record_in(place, "query.json") == {"buckets": 4}
    place.files.write("query.json", [b"{}"])
    with pytest.raises(CorruptionError, match="s3:state/small/query"):
        read_record_in(place, "query.json")
