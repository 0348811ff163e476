"""What of an expiry is kept with the state: commits, snapshots, checkpoints, files."""

import dataclasses
import random

import pyarrow as pa
import pytest

from lsmstate import opening as backends
from lsmstate.errors import InvalidArgumentError, StoreClosedError
from lsmstate.options import KIB
from support.expiring_cases import (
    BACKENDS,
    OPTIONS,
    ROWS,
    all_ids,
    batch,
    ids,
    keys_of,
    opened,
    schemas,
)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def test_the_watermark_is_kept_with_the_state(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch((1, 1, 1000), (1, 2, 1010)))
        store.advance("timed", 1105)
        store.commit()
    with opened(tmp_path, backend) as store:
        assert all_ids(store) == [2]
        assert store.append("timed", *batch((1, 3, 1005))) == 0


def test_attempts_expire_too(tmp_path, backend):
    def attempt(pointer, number):
        return backends.open_attempt(
            str(tmp_path), schemas(), backend=backend, pointer=pointer,
            batch_id=number, attempt_id="a", options=OPTIONS,
        )  # fmt: skip

    with attempt(None, 0) as store:
        store.append("timed", *batch(*((n % 7, n, n) for n in range(600))))
        first = store.commit()
    with attempt(first, 1) as store:
        store.advance("timed", 450)
        second = store.commit()
    for pointer, expected in (
        (first, list(range(600))),
        (second, list(range(351, 600))),
    ):
        with attempt(pointer, 2) as store:
            assert all_ids(store) == expected


def test_a_snapshot_stays_as_it_was_while_rows_expire(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch(*((n % 3, n, n) for n in range(400))))
        store.advance("timed", 150)
        with store.snapshot() as view:
            store.advance("timed", 450)
            store.append("timed", *batch((1, 500, 500)))
            assert all_ids(view) == list(range(51, 400))
            assert view.probe("timed", keys_of(0, 1, 2)).counts.sum() == 349
        assert all_ids(store) == [*range(351, 400), 500]


def test_checkpoints_of_a_store_with_expiry(tmp_path):
    with opened(tmp_path) as store:
        store.append("timed", *batch((1, 1, 1), (1, 2, 10**6)))
        store.checkpoint("before")
        store.advance("timed", 5000)
        store.compact()
        assert [checkpoint.name for checkpoint in store.checkpoints] == ["before"]
        assert all_ids(store) == [2]
    with pytest.raises(InvalidArgumentError, match="an expiry; give the streams"):
        backends.open_checkpoint(str(tmp_path), "before", options=OPTIONS)
    plain = [dataclasses.replace(stream, expiry=None) for stream in schemas()]
    for streams, said in (
        (plain, "'timed' was written with an expiry"),
        (schemas(after=7), "after 100"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            backends.open_checkpoint(str(tmp_path), "before", streams=streams, options=OPTIONS)
    with backends.open_checkpoint(
        str(tmp_path), "before", streams=schemas(), options=OPTIONS
    ) as reader:
        assert list(reader.streams) == ["plain", "timed"]
        assert all_ids(reader) == [1, 2]
        assert ids(reader.get("timed", (1,))) == [1, 2]
        for write in (
            lambda: reader.append("timed", *batch((1, 3, 3))),
            lambda: reader.retract("timed", *batch((1, 3, 3))),
            lambda: reader.delete_range("timed"),
            lambda: reader.advance("timed", 9000),
        ):
            with pytest.raises(StoreClosedError, match="is read-only, at checkpoint"):
                write()
        assert all_ids(reader) == [1, 2]
    refused = pytest.raises(InvalidArgumentError, match="backend='memory' has no checkpoints")
    with opened(tmp_path / "other", "memory") as store, refused:
        store.compact()


def test_a_checkpoint_that_was_made_while_a_bucket_was_due(tmp_path):
    """What is due is hidden there too."""
    with opened(tmp_path) as store:
        store.append("timed", *batch(*[(1, n, n) for n in range(100)]))
        store.advance("timed", 112)
        store.checkpoint("partly-due")
        store.delete_range("timed")
    streams = schemas()
    with backends.open_checkpoint(
        str(tmp_path), "partly-due", streams=streams, options=OPTIONS
    ) as reader:
        assert all_ids(reader) == list(range(13, 100))


def test_another_expiry_than_before_is_refused(tmp_path):
    with opened(tmp_path) as store:
        store.append("timed", *batch((1, 1, 1)))
    with pytest.raises(InvalidArgumentError, match=r"'at' after 100 .* asked for: 'at' after 101"):
        opened(tmp_path, after=101)
    with opened(tmp_path) as store:
        assert all_ids(store) == [1]


def test_a_stream_with_and_without_an_expiry_is_refused_by_its_own_name(tmp_path, backend):
    plain = [dataclasses.replace(stream, expiry=None) for stream in schemas()]
    text = dataclasses.replace(schemas()[1], key=pa.schema([("k", pa.string())]))
    other = dataclasses.replace(schemas()[1], name="other")

    def refused(directory, streams, said):
        with pytest.raises(InvalidArgumentError, match=said) as error:
            backends.open_store(str(directory), streams, backend=backend, options=OPTIONS)
        assert "@" not in str(error.value)

    with opened(tmp_path / "timed", backend) as store:
        store.append("timed", *batch((1, 1, 1)))
        store.commit()
    refused(tmp_path / "timed", plain, "stream 'timed' was written with an expiry; .*Expiry\\(")
    refused(tmp_path / "timed", [plain[0], text], "keys of stream 'timed': column 'k': expected")
    refused(
        tmp_path / "timed", [plain[0], other], "the streams plain, timed, asked for: plain, other;"
    )
    with backends.open_store(
        str(tmp_path / "plain"), plain, backend=backend, options=OPTIONS
    ) as store:
        store.append("timed", *batch((1, 1, 1)))
        store.commit()
    refused(tmp_path / "plain", schemas(), "stream 'timed' was written without an expiry; open")


def test_whole_files_go_unread(tmp_path):
    """The buckets that are due leave the disk by range deletions, without a merge of them."""
    text = "".join(random.Random(1).choices("abcdefghijklmnop", k=400))
    options = dataclasses.replace(OPTIONS, file_bytes=64 * KIB, background=False)
    with opened(tmp_path, after=4000, options=options) as store:
        for start in range(0, 16_000, 1000):
            rows = [
                {"id": n, "at": n, "text": text[n % 300 :] + str(n)}
                for n in range(start, start + 1000)
            ]
            keys = keys_of(*(n * 7919 % 1000 for n in range(start, start + 1000)))
            store.append("timed", pa.RecordBatch.from_pylist(rows, schema=ROWS), keys)
            store.advance("timed", start + 1000)
        store.commit()
        store.compact()
        before = store.stats()
        store.advance("timed", 10**6)
        store.commit()
        assert all_ids(store) == []
        after = store.stats()
        assert after.writes.merged_bytes == before.writes.merged_bytes
        assert after.disk_bytes < before.disk_bytes / 3
