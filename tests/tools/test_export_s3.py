"""Exports to S3, through pyarrow's own client and a server in this process (moto)."""

import pytest
from pyarrow.fs import S3FileSystem

import lsmstate
from lsmstate.errors import CorruptionError
from lsmstate.lsm.store import LsmStore
from support.checkpoint_cases import opened
from support.crash_cases import BATCHES, found
from support.export_cases import long_store, rows_of
from support.s3_server import SECRET, s3_server
from support.sample_streams import STREAMS


@pytest.fixture(scope="module")
def server():
    """host:port of the server."""
    with s3_server() as where:
        yield where


@pytest.fixture
def bucket(server, request):
    """(file system, bucket of this test)."""
    filesystem = S3FileSystem(
        access_key="user",
        secret_key=SECRET,
        endpoint_override=f"http://{server}",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    name = request.node.name.replace("_", "-")[:60]
    filesystem.create_dir(name)
    return filesystem, name


def test_there_and_back_incrementally(tmp_path, bucket):
    filesystem, name = bucket
    source = str(tmp_path / "store")
    with opened(source) as store:
        for number, batch in enumerate(BATCHES[:3]):
            store.append("customers", *batch)
            store.checkpoint(f"c{number}")
            done = lsmstate.export(
                source, f"{name}/deep/place", filesystem=filesystem, checkpoint=f"c{number}"
            )
            assert done.sent_files <= 2
    again = lsmstate.export(source, f"{name}/deep/place", filesystem=filesystem, checkpoint="c2")
    assert again.sent_files == 0
    lsmstate.restore(f"{name}/deep/place", str(tmp_path / "new"), filesystem=filesystem, name="c1")
    assert rows_of(tmp_path / "new") == list(range(240))
    lsmstate.delete_export(f"{name}/deep/place", "c0", filesystem=filesystem)
    lsmstate.restore(f"{name}/deep/place", str(tmp_path / "newest"), filesystem=filesystem)
    assert rows_of(tmp_path / "newest") == list(range(360))


def test_by_uri_with_parts_of_several_megabytes(tmp_path, bucket, server):
    _, name = bucket
    long_store(tmp_path / "store")
    uri = (
        f"s3://user:{SECRET}@{name}/backup?scheme=http&region=us-east-1"
        f"&endpoint_override={server.replace(':', '%3A')}"
    )
    lsmstate.export(str(tmp_path / "store"), uri, checkpoint="long")
    lsmstate.restore(uri, str(tmp_path / "new"))
    options = lsmstate.Options(memory_bytes=16 << 20)
    with LsmStore.open(str(tmp_path / "new"), STREAMS, options=options) as store:
        assert found(store) == list(range(4000))


def test_damaged_and_missing_objects(tmp_path, bucket):
    filesystem, name = bucket
    source = str(tmp_path / "store")
    with opened(source) as store:
        store.append("customers", *BATCHES[0])
        store.checkpoint("c")
    done = lsmstate.export(source, name, filesystem=filesystem, checkpoint="c")
    stored = done.catalog.files[0].stored
    with filesystem.open_input_stream(f"{name}/{stored}") as file:
        data = bytearray(file.read())
    for wrong in (data[:-1], bytes([data[0] ^ 1]) + data[1:], None):
        filesystem.delete_file(f"{name}/{stored}")
        if wrong is not None:
            with filesystem.open_output_stream(f"{name}/{stored}") as file:
                file.write(bytes(wrong))
        with pytest.raises(CorruptionError, match=f"s3:{name}/{stored} at offset") as caught:
            lsmstate.restore(name, str(tmp_path / "new"), filesystem=filesystem)
        assert SECRET not in str(caught.value)
    # The next export of that state brings what is missing.
    healed = lsmstate.export(source, name, filesystem=filesystem, checkpoint="c")
    assert healed.sent_files == 1
    lsmstate.restore(name, str(tmp_path / "new"), filesystem=filesystem)
    assert rows_of(tmp_path / "new") == list(range(120))


def test_a_server_that_is_not_there_is_an_os_error(tmp_path):
    with opened(tmp_path / "store") as store:
        store.append("customers", *BATCHES[0])
        store.checkpoint("c")
    nowhere = S3FileSystem(
        access_key="user",
        secret_key=SECRET,
        endpoint_override="http://127.0.0.1:9",
        region="us-east-1",
        connect_timeout=1,
        request_timeout=1,
    )
    with pytest.raises(OSError, match=r"AWS|NETWORK|network") as caught:
        lsmstate.export(str(tmp_path / "store"), "bucket/x", filesystem=nowhere, checkpoint="c")
    assert SECRET not in str(caught.value)
