"""Spark's own checkpoint files, read without Spark: those that Spark 4.3 wrote under each provider,
with what its state data source says they hold."""

import json
import random
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError, LsmStateError
from lsmstate.remote.directory import durable_dir
from lsmstate.spark_integration.checkpoint.compression import decompressed, xxh32
from lsmstate.spark_integration.checkpoint.location import SparkCheckpoint, below
from lsmstate.spark_integration.checkpoint.state_files import StateFile
from lsmstate.spark_integration.checkpoint.state_partition import StatePartition
from support.paths import DATA

ARCHIVE = DATA / "spark-4.3-checkpoints.tar.gz"
PROVIDERS = (
    "hdfs-lz4",
    "hdfs-zstd",
    "rocksdb-zip",
    "rocksdb-changelog",
    "rocksdb-v2-zip",
    "rocksdb-v2-changelog",
)
NEWEST = 4


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with a checkpoint of each provider; not to be changed."""
    home = tmp_path_factory.mktemp("checkpoints")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(home, filter="data")
    return home


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    """A checkpoint with LZ4 deltas and a snapshot at batch 2."""
    return Path(shutil.copytree(written / "hdfs-lz4", tmp_path / "checkpoint"))


def expected(checkpoint: Path, batch: int) -> dict[int, str]:
    found = json.loads((checkpoint / "expected.json").read_text())[str(batch)]
    return {int(bucket): pointer for bucket, pointer in found.items()}


def state(checkpoint: Path, name: str, partition: int = 0) -> Path:
    return checkpoint / "state" / "0" / str(partition) / name


@pytest.mark.parametrize("provider", PROVIDERS)
def test_pointers_are_those_that_spark_keeps(written: Path, provider: str) -> None:
    if provider.startswith("rocksdb"):
        pytest.importorskip("rocksdict")
    place = written / provider
    checkpoint = SparkCheckpoint(str(place))
    assert checkpoint.committed() == list(range(NEWEST + 1))
    for batch in checkpoint.committed():
        assert checkpoint.pointers(batch) == expected(place, batch)
    assert len(expected(place, NEWEST)) == 3


def test_the_archive_has_complete_files_and_changes_after_them(written: Path) -> None:
    kinds = {path.suffix for path in written.rglob("state/0/0/*") if path.is_file()}
    assert kinds == {".delta", ".snapshot", ".zip", ".changelog"}


def test_a_batch_that_is_not_there(copy: Path) -> None:
    for name in ("0", "1"):
        (copy / "commits" / name).unlink()
    with pytest.raises(InvalidArgumentError, match=r"batch 1 is not retained: .* batches 2 to 4"):
        SparkCheckpoint(str(copy)).pointers(1)
    with pytest.raises(InvalidArgumentError, match="batch 5 is not retained"):
        SparkCheckpoint(str(copy)).pointers(5)


def test_a_batch_whose_changes_are_gone(copy: Path) -> None:
    """Batch 1 needs version 1; batch 4 begins at the snapshot of version 3."""
    state(copy, "1.delta").unlink()
    checkpoint = SparkCheckpoint(str(copy))
    with pytest.raises(
        InvalidArgumentError, match=r"batch 1 cannot be read: .* no file of version 1"
    ):
        checkpoint.pointers(1)
    assert checkpoint.pointers(NEWEST) == expected(copy, NEWEST)


def test_a_file_of_another_attempt_does_not_count(written: Path, tmp_path: Path) -> None:
    """With unique ids a late attempt's file lies beside the one the commit names."""
    place = Path(shutil.copytree(written / "rocksdb-v2-changelog", tmp_path / "checkpoint"))
    (named,) = state(place, "").glob("5_*.changelog")
    shutil.copy(named, named.with_name("5_00000000-0000-0000-0000-000000000000.changelog"))
    pytest.importorskip("rocksdict")
    assert SparkCheckpoint(str(place)).pointers(NEWEST) == expected(place, NEWEST)
    named.unlink()
    with pytest.raises(InvalidArgumentError, match=r"no file of version 5 [0-9a-f-]{36} any more"):
        SparkCheckpoint(str(place)).pointers(NEWEST)


@pytest.mark.parametrize("provider", ["hdfs-lz4", "rocksdb-zip"])
def test_a_checkpoint_on_another_file_system(written: Path, provider: str) -> None:
    pytest.importorskip("rocksdict")
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.put(str(written / provider), "/elsewhere", recursive=True)
    try:
        checkpoint = SparkCheckpoint("memory://elsewhere/")
        assert checkpoint.pointers(1) == expected(written / provider, 1)
        assert checkpoint.pointers(NEWEST) == expected(written / provider, NEWEST)
    finally:
        memory.rm("/elsewhere", recursive=True)


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("/a/b#?c/", "/a/b#?c/lsmstate"),
        ("file:/a", "file:/a/lsmstate"),
        ("s3://b/c?region=eu", "s3://b/c/lsmstate?region=eu"),
    ],
)
def test_below_a_location(location: str, found: str) -> None:
    assert below(location, "lsmstate") == found


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a checkpoint location"):
        SparkCheckpoint(str(tmp_path))


def test_another_query(copy: Path) -> None:
    metadata = copy / "state" / "0" / "_metadata" / "metadata"
    metadata.write_text(metadata.read_text().replace("applyInPandasWithState", "dedupe"))
    with pytest.raises(InvalidArgumentError, match="no state of lsmstate: none of its 1 stateful"):
        SparkCheckpoint(str(copy)).pointers(NEWEST)


@pytest.mark.parametrize("name", ["5.delta", "3.snapshot"])
def test_no_damage_changes_the_answer(copy: Path, name: str) -> None:
    """A bit of every third byte: an error that names the file, or what was there before."""
    path = state(copy, name)
    whole = path.read_bytes()
    partition = StatePartition(
        durable_dir(path.parent, None), durable_dir(path.parent / "SSTs", None)
    )
    answer = partition.pointers(NEWEST, None)
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found: object
        try:
            found = partition.pointers(NEWEST, None)
        except LsmStateError as error:
            found = str(error)
        assert found == answer or name in str(found)


@pytest.mark.parametrize("provider", ["hdfs-zstd", "rocksdb-zip", "rocksdb-v2-changelog"])
def test_files_that_are_cut_short(written: Path, tmp_path: Path, provider: str) -> None:
    pytest.importorskip("rocksdict")
    place = Path(shutil.copytree(written / provider, tmp_path / "checkpoint"))
    (path,) = (p for p in state(place, "").iterdir() if p.name[0] == "5" and p.suffix != ".crc")
    whole = path.read_bytes()
    for size in random.Random(1).sample(range(1, len(whole)), 8):
        path.write_bytes(whole[:size])
        with pytest.raises((CorruptionError, InvalidArgumentError), match=path.name):
            SparkCheckpoint(str(place)).pointers(NEWEST)


def test_a_missing_table_of_a_rocksdb_snapshot(written: Path, tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    place = Path(shutil.copytree(written / "rocksdb-zip", tmp_path / "checkpoint"))
    for table in state(place, "SSTs").iterdir():
        table.unlink()
    with pytest.raises(CorruptionError, match=r"names \S+\.sst, which is gone"):
        SparkCheckpoint(str(place)).pointers(NEWEST)


def test_without_rocksdict(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    monkeypatch.delitem(sys.modules, "lsmstate.rocksdb_backend.files", raising=False)
    monkeypatch.delitem(sys.modules, "lsmstate.rocksdb_backend.database", raising=False)
    with pytest.raises(InvalidArgumentError, match=r"pip install 'lsmstate\[rocksdb\]'"):
        SparkCheckpoint(str(written / "rocksdb-zip")).pointers(NEWEST)


def test_partitions_that_were_exchanged(copy: Path) -> None:
    """Spark's hash says which partition a bucket is in."""
    one, other = state(copy, "", 0), state(copy, "", 1)
    one.rename(copy / "aside")
    other.rename(one)
    (copy / "aside").rename(other)
    with pytest.raises(CorruptionError, match=r"bucket \d+ is not of this partition"):
        SparkCheckpoint(str(copy)).pointers(NEWEST)


def test_xxh32_of_known_texts() -> None:
    """From the reference implementation's documentation and test suite."""
    assert xxh32(b"", 0) == 0x02CC5D05
    assert xxh32(b"abc", 0) == 0x32D153FF
    assert xxh32(b"Nobody inspects the spammish repetition", 0) == 0xE2293B2F


def test_other_codecs_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="neither with lz4 nor with zstd"):
        decompressed(b"ZV\x01\x00\x00", "1.delta")


def test_a_changelog_of_a_later_version() -> None:
    import pyarrow as pa

    with pa.BufferOutputStream() as sink:
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(b"\x00\x02v9")
        data = sink.getvalue().to_pybytes()
    with pytest.raises(FormatVersionError, match="changelog of version '9'"):
        StateFile(data, "1.changelog")
