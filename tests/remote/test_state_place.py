"""Where a query's state lies: paths, addresses, options, small files."""

import pytest
from pyarrow.fs import GcsFileSystem, LocalFileSystem, S3FileSystem

from lsmstate.errors import InvalidArgumentError
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.remote.bucket import DurableBucket
from lsmstate.remote.filesystems import resolve
from lsmstate.state_location import StatePlace, local_path, open_bucket
from support.durable_cases import STREAM, append, expected

KEYS = {"access_key": "user", "secret_key": "s3cret", "region": "us-east-1"}


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b c#d?e", "/a/b c#d?e"),
        ("s3a://bucket/a", None),
        ("hdfs:///a", None),
    ],
)
def test_what_is_local(url, path):
    assert local_path(url) == path


def test_a_file_address_with_a_machine_in_it_is_refused():
    with pytest.raises(InvalidArgumentError, match="name no machine"):
        local_path("file://host/a")


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_all_names_of_s3_are_one(scheme):
    filesystem, path = resolve(f"{scheme}://bucket/a/b", KEYS)
    assert filesystem == S3FileSystem(**KEYS, background_writes=False, allow_delayed_open=True)
    assert path == "bucket/a/b"


def test_the_query_of_an_address_counts_as_options():
    filesystem, _ = resolve("s3://bucket/a?region=eu-west-1&anonymous=true")
    assert filesystem.region == "eu-west-1"


def test_google_and_local_addresses():
    assert isinstance(resolve("gs://bucket/a", {"anonymous": True})[0], GcsFileSystem)
    assert resolve("file:///a/b") == (LocalFileSystem(), "/a/b")


def test_the_account_of_an_azure_address():
    filesystem, path = resolve(
        "abfss://box@acct.dfs.core.windows.net/a/b", {"account_key": "c2VjcmV0"}
    )
    assert (filesystem.type_name, path) == ("abfs", "box/a/b")


def test_options_that_a_file_system_does_not_have_are_named_and_not_shown():
    with pytest.raises(InvalidArgumentError, match="secret_kee") as caught:
        resolve("s3://bucket/a", {"secret_kee": "s3cret"})
    assert "s3cret" not in str(caught.value)


def test_a_value_that_a_file_system_repeats_is_not_shown():
    with pytest.raises(InvalidArgumentError, match=r"retry_strategy '\*\*\*'") as caught:
        resolve("s3://bucket/a", {"retry_strategy": "s3cret"})
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "options",
    [
        {"retry_strategy": "s3cret-1\nand more"},
        {"retry_strategy": "s3cret-12", "region": "s3cret-1"},
        {"retry_strategy": {"key": "s3cret-1"}},
        {"retry_strategy": 3141592653},
    ],
)
def test_nor_one_of_several_lines_or_within_another(options):
    with pytest.raises(InvalidArgumentError) as caught:
        resolve("s3://bucket/a", options)
    shown = str(caught.value)
    assert "s3cret" not in shown
    assert "314159" not in shown
    assert "-1" not in shown
    assert caught.value.__cause__ is None


def test_a_scheme_that_nobody_knows():
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        resolve("nowhere://x/y")


def test_a_cache_that_is_too_small(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cache='1k': too small"):
        StatePlace("s3://bucket/a", storage_options=KEYS, cache="1k")


def test_local_state_is_worked_on_in_place(tmp_path):
    place = StatePlace(f"file:{tmp_path}/state")
    directory = place.bucket(3)
    assert directory == str(tmp_path / "state" / "bucket-000003")
    with open_attempt(directory, [STREAM], batch_id=0, attempt_id="a", options=Options()) as store:
        append(store, 0)
        pointer = store.commit()
    with open_bucket(place, 3, pointer) as store:
        rows = [row for piece in store.scan("s") for row in piece.to_pylist()]
    assert sorted((row["k"], row["v"]) for row in rows) == expected([0])


def test_a_file_system_of_fsspec(tmp_path):
    place = StatePlace("memory://lsmstate-test/q", cache_dir=str(tmp_path))
    bucket = place.bucket(0)
    assert isinstance(bucket, DurableBucket)
    with open_attempt(bucket, [STREAM], batch_id=0, attempt_id="a", options=Options()) as store:
        append(store, 0)
        pointer = store.commit()
    other = StatePlace("memory://lsmstate-test/q", cache_dir=str(tmp_path / "other"))
    with open_bucket(other, 0, pointer) as store:
        assert sum(piece.num_rows for piece in store.scan("s")) == 200


@pytest.mark.parametrize("url", ["{home}/state", "memory://state-of-two-buckets"])
def test_buckets_are_listed_and_removed(tmp_path, url):
    place = StatePlace(url.format(home=tmp_path), cache_dir=str(tmp_path / "cache"))
    assert place.buckets() == []
    assert place.remove_bucket(7) == 0
    for number in (7, 1_234_567):
        with open_attempt(
            place.bucket(number), [STREAM], batch_id=0, attempt_id="a", options=Options()
        ) as store:
            append(store, 0)
            store.commit()
    place.files.write("notes/file", [b"a file in another directory"])
    assert place.buckets() == [7, 1_234_567]
    size = sum(place.files.below("bucket-000007").sizes().values())
    assert place.remove_bucket(7) == size > 0
    assert place.buckets() == [1_234_567]
    place.files.below("notes").remove_tree()
    assert place.files.directories() == ["bucket-1234567"]
