"""A directory with what the page shows: a query's checkpoint, a store, and a damaged store."""

import json
import time
from pathlib import Path

import pyarrow as pa

from lsmstate import Options, StreamSchema, open_store
from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.routing.hash import bucket_of
from lsmstate.opening import open_attempt
from lsmstate.spark_integration.checkpoint.json_records import create_record_in
from lsmstate.spark_integration.metrics.history import FILE_NAME
from lsmstate.spark_integration.plan.bucket_ids import bucket_ids
from lsmstate.state_location import StatePlace
from support.damaged_files import damage
from support.spark_pointers import commit_with

KEY = pa.schema([("id", pa.int64())])
STREAM = StreamSchema("o", KEY, pa.schema([("id", pa.int64()), ("what", pa.string())]))
ROWS = pa.record_batch({"id": [i % 40 for i in range(200)], "what": [f"<{i}>" for i in range(200)]})
OPTIONS = Options(memory_bytes=8 << 20)
BUCKETS, PARTITIONS = 2, 4
EXPLANATION = "one key: o.id = p.order_id\neach row goes to the bucket of its key"


def make_query(home: Path, batches: int = 12) -> dict[int, str]:
    """A checkpoint as Spark leaves it, with a bucket of 40 keys cut in two; its pointers."""
    for log in ("offsets", "commits"):
        (home / log).mkdir(parents=True)
        (home / log / "0").write_text("v1\n{}\n{}")
    (home / "metadata").write_text(json.dumps({"id": "query"}))
    place, ids = StatePlace(str(home / "lsmstate")), bucket_ids(BUCKETS, PARTITIONS)
    pointers = {}
    for number, bucket in enumerate(ids):
        mine = bucket_of(KeyCodec(KEY).encode(ROWS.select(["id"])), BUCKETS) == number
        rows = ROWS.filter(pa.array(mine))
        with open_attempt(
            place.bucket(bucket), [STREAM], batch_id=0, attempt_id="test", options=OPTIONS
        ) as store:
            store.append("o", rows, rows.select(["id"]))
            pointers[bucket] = store.commit()
    settings = {
        "streams": ["o", "p"],
        "condition": "o.id = p.order_id",
        "backend": "lsm",
        "buckets": BUCKETS,
        "partitions": PARTITIONS,
        "bucket_ids": list(ids),
        "query_id": "query",
    }
    create_record_in(place, "query.json", settings)
    commit_with(home, 0, PARTITIONS, pointers)
    lines = [
        {"start": {"time": time.time(), "operator": "multiway_join", "explanation": EXPLANATION}}
    ]
    lines += [{"batch": micro_batch(n)} for n in range(batches)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (home / "lsmstate" / FILE_NAME).write_text(text + '{"batch": {"cut o')
    return pointers


def micro_batch(number: int) -> dict[str, object]:
    """What is kept of a micro-batch."""
    wave = abs(number % 8 - 4)
    figures = {
        "rows_in": 5000 + 300 * wave,
        "rows_out": 3000 + 500 * number,
        "batch_ms": 900 + 60 * wave,
        "commit_ms": 40 + 5 * wave,
        "peak_state_bytes": min(14 << 20, (number + 1) << 20),
        "memory_limit_bytes": 16 << 20,
        "state_disk_bytes": (number + 1) * 700_000,
        "spilled_bytes": 600_000 + 90_000 * wave,
        "late_rows": wave,
        "copied_rows": 10 * number,
    }
    hot = [{"key": "<7>", "rows": 9, "share": 0.5, "spread": ""}]
    more = {"batch_id": number, "rows_skew": 1.5, "hottest_keys": hot}
    return {**figures, **more, "time": time.time()}


def make_store(path: Path, *, is_damaged: bool = False) -> None:
    """A standalone store of several runs."""
    with open_store(str(path), [STREAM], options=OPTIONS) as store:
        for start in range(0, 200, 50):
            rows = ROWS.slice(start, 50)
            store.append("o", rows, rows.select(["id"]))
            store.commit()
    if is_damaged:
        damage(sorted(path.glob("*.sst"))[0])
