"""Copies on local disk: bounded, shared by processes, and rid of what dead ones left."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem

from lsmstate.errors import InvalidArgumentError
from lsmstate.remote.file_cache import FileCache
from support.durable_cases import bucket_at, expected, held, run_batch
from support.paths import ROOT, TESTS

MIB = 1 << 20


def copy(cache: FileCache, bucket: str, name: str, size: int) -> Path:
    """A copy of a file, as a fetch makes it."""
    path = Path(bucket) / name
    part = cache.begin(str(path), size)
    Path(part).write_bytes(b"x" * size)
    cache.finish(part, str(path))
    return path


def bytes_in(directory: Path) -> int:
    """Of all files of all buckets."""
    return sum(path.stat().st_size for path in directory.glob("*/*/*"))


def test_the_least_recently_used_go_first(tmp_path):
    cache = FileCache(str(tmp_path / "cache"), 4 * MIB)
    bucket = cache.bucket_directory("state", "bucket-000000")
    paths = [copy(cache, bucket, f"{number}", MIB) for number in range(4)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    assert cache.used_bytes() == 4 * MIB
    cache.touch([str(paths[0])])
    copy(cache, bucket, "new", MIB)
    assert [path.exists() for path in paths] == [True, False, False, True]
    assert cache.used_bytes() == bytes_in(tmp_path / "cache") == 3 * MIB


def test_what_is_open_stays_readable(tmp_path):
    cache = FileCache(str(tmp_path / "cache"), MIB)
    bucket = cache.bucket_directory("state", "bucket-000000")
    with open(copy(cache, bucket, "old", MIB // 2), "rb") as file:
        copy(cache, bucket, "new", MIB)
        assert not (Path(bucket) / "old").exists()
        assert len(file.read()) == MIB // 2


def test_what_is_not_durable_yet_is_never_evicted(tmp_path):
    cache = FileCache(str(tmp_path / "cache"), MIB)
    bucket = cache.bucket_directory("state", "bucket-000000")
    own = Path(bucket) / f"run-0000000001-a-{cache.worker}-0123456789ab-0001.sst"
    own.write_bytes(b"x" * MIB)
    for number in range(4):
        copy(cache, bucket, f"{number}", MIB // 2)
    assert own.exists()
    cache.adopt(str(own))
    copy(cache, bucket, "new", MIB // 2)
    assert not own.exists()


def test_books_that_are_lost_or_count_too_much_are_put_right(tmp_path):
    cache = FileCache(str(tmp_path / "cache"), 4 * MIB)
    bucket = cache.bucket_directory("state", "bucket-000000")
    path = copy(cache, bucket, "a", MIB)
    (tmp_path / "cache" / "LOCK").write_bytes(b"no number")
    assert cache.used_bytes() == MIB
    (tmp_path / "cache" / "LOCK").write_bytes(b"99999999999         \n")
    copy(cache, bucket, "b", MIB)
    assert cache.used_bytes() == 2 * MIB
    assert path.exists(), "evicted although there was room"


def test_queries_and_buckets_do_not_mix(tmp_path):
    pointers = {}
    for query in ("one", "two"):
        for number in range(2):
            bucket = bucket_at(
                LocalFileSystem(),
                tmp_path / "cache",
                path=f"{tmp_path}/{query}/bucket-{number:06d}",
                state=query,
                number=number,
            )
            pointers[query, number] = bucket, run_batch(bucket, number, None, 10 + len(pointers))
    for place, (bucket, pointer) in enumerate(pointers.values()):
        assert held(bucket, pointer) == expected([place % 2], 10 + place)
    assert len({bucket.directory for bucket, _ in pointers.values()}) == 4


def test_a_bucket_larger_than_the_cache_is_read_within_it(tmp_path):
    bucket = bucket_at(LocalFileSystem(), tmp_path / "cache", path=f"{tmp_path}/far")
    pointer = None
    for batch in range(8):
        pointer = run_batch(bucket, batch, pointer, 20_000)
    size = sum(path.stat().st_size for path in (tmp_path / "far").iterdir())
    small = bucket_at(LocalFileSystem(), tmp_path / "small", MIB, path=f"{tmp_path}/far")
    assert size > 2 * MIB
    assert held(small, pointer) == expected(range(8), 20_000)
    assert bytes_in(tmp_path / "small") <= MIB


def test_a_directory_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match=r"file.* cannot be used .*cache_dir"):
        FileCache(str(tmp_path / "file" / "cache"), MIB)


# Several processes -------------------------------------------------------------------------


def started(tmp_path: Path, body: str) -> subprocess.Popen:
    """A process that runs ``body``, which says when it is ready and waits for a line."""
    code = f"""
        import sys
        from support.durable_cases import *
        from pathlib import Path
        from pyarrow.fs import LocalFileSystem
        home = Path({str(tmp_path)!r})
        bucket = bucket_at(LocalFileSystem(), home / "cache", 1 << 20, path=f"{{home}}/far")
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code) + textwrap.dedent(body)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"},
    )


WRITE_AND_WAIT = """
    store = attempt(bucket, 1, None)
    append(store, 1, 40_000)
    store.flush()
    Path(bucket.directory, f"x.sst.{bucket.worker}-0.part").write_bytes(b"half")
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_what_a_killed_worker_left_goes_and_what_a_living_one_writes_stays(tmp_path):
    bucket = bucket_at(LocalFileSystem(), tmp_path / "cache", MIB, path=f"{tmp_path}/far")
    working = started(tmp_path, WRITE_AND_WAIT)
    try:
        assert working.stdout.readline() == "ready\n"
        left = os.listdir(bucket.directory)
        assert len(left) >= 2
        again = bucket_at(LocalFileSystem(), tmp_path / "cache", MIB, path=f"{tmp_path}/far")
        assert sorted(os.listdir(again.directory)) == sorted(left)
    finally:
        working.kill()
        working.communicate()
    bucket_at(LocalFileSystem(), tmp_path / "cache", MIB, path=f"{tmp_path}/far")
    assert os.listdir(bucket.directory) == []
    assert os.listdir(tmp_path / "cache" / "workers") == [bucket.worker]


READ_TO_THE_END = """
    pointer = sys.stdin.readline().strip()
    for _ in range(3):
        assert held(bucket, pointer) == expected(range(4), 15_000)
    print("read", flush=True)
"""


def test_processes_that_drive_out_each_others_copies_read_what_is_right(tmp_path):
    bucket = bucket_at(LocalFileSystem(), tmp_path / "first", path=f"{tmp_path}/far")
    pointer = None
    for batch in range(4):
        pointer = run_batch(bucket, batch, pointer, 15_000)
    readers = [started(tmp_path, READ_TO_THE_END) for _ in range(2)]
    try:
        outputs = [reader.communicate(f"{pointer}\n", timeout=120)[0] for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
    assert outputs == ["read\n"] * 2
    assert bytes_in(tmp_path / "cache") <= MIB
