"""Buckets whose durable place is not a local directory, for tests; and what they must hold."""

from pathlib import Path

import pyarrow as pa
from pyarrow.fs import FileSystem

from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.remote.bucket import DurableBucket
from lsmstate.remote.directory import RemoteDir
from lsmstate.remote.file_cache import FileCache
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("k", pa.int64()), ("v", pa.string())])
STREAM = StreamSchema("s", KEY, ROWS)
#: Small files and few runs, so that attempts also flush and merge.
OPTIONS = Options(memory_bytes=5 << 20, file_bytes=64 << 10, compression="none", max_runs=3)
CACHE_BYTES = 8 << 20


def bucket_at(
    filesystem: FileSystem,
    cache: Path,
    limit: int = CACHE_BYTES,
    *,
    path: str = "q/bucket-000000",
    state: str = "state",
    number: int = 0,
) -> DurableBucket:
    place = RemoteDir(filesystem, path)
    return DurableBucket(place, FileCache(str(cache), limit), state, f"bucket-{number:06d}")


def rows_of(batch: int, count: int = 200) -> list[tuple[int, str]]:
    """What a micro-batch brings: (key, text)."""
    return [((batch * 37 + i) % 101, f"{batch}:{i}:" + "x" * (i % 50)) for i in range(count)]


def append(store, batch: int, count: int = 200) -> None:
    found = rows_of(batch, count)
    keys = pa.record_batch([pa.array([k for k, _ in found], pa.int64())], schema=KEY)
    rows = pa.record_batch([keys.column(0), pa.array([v for _, v in found])], schema=ROWS)
    store.append("s", rows, keys)


def attempt(bucket, batch: int, pointer: str | None, options: Options = OPTIONS):
    return open_attempt(
        bucket, [STREAM], pointer=pointer, batch_id=batch, attempt_id="a", options=options
    )


def run_batch(
    bucket, batch: int, pointer: str | None, count: int = 200, options: Options = OPTIONS
) -> str:
    """One attempt that appends and commits; its pointer."""
    with attempt(bucket, batch, pointer, options) as store:
        append(store, batch, count)
        return store.commit()


def held(bucket, pointer: str | None) -> list[tuple[int, str]]:
    """All rows of a state, sorted."""
    with attempt(bucket, 1_000_000, pointer) as store:
        rows = [row for piece in store.scan("s") for row in piece.to_pylist()]
    return sorted((row["k"], row["v"]) for row in rows)


def expected(batches, count: int = 200) -> list[tuple[int, str]]:
    return sorted(row for batch in batches for row in rows_of(batch, count))
