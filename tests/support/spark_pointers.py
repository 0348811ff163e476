"""What Spark keeps of a query's buckets, written as its state store does, without Spark."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from lsmstate.spark_integration.plan.bucket_ids import spark_hash_long

#: Of our pointers: see spark_integration/checkpoint/commit_pointer.py.
_VERSION = 1
_END = struct.pack(">i", -1)


def commit_with(checkpoint: Path, batch: int, partitions: int, pointers: Mapping[int, str]) -> None:
    """The query begins and commits a micro-batch, which leaves its buckets at these pointers."""
    operator = checkpoint / "state" / "0"
    (operator / "_metadata").mkdir(parents=True, exist_ok=True)
    described = {
        "operatorInfo": {"operatorId": 0, "operatorName": "applyInPandasWithState"},
        "stateStoreInfo": [{"storeName": "default", "numPartitions": partitions}],
    }
    (operator / "_metadata" / "metadata").write_text(f"v1\n{json.dumps(described)}")
    for partition in range(partitions):
        rows = [
            _row(b, p) for b, p in pointers.items() if spark_hash_long(b) % partitions == partition
        ]
        place = operator / str(partition)
        place.mkdir(exist_ok=True)
        compressed = pa.Codec("zstd").compress(b"".join(rows) + _END, asbytes=True)
        (place / f"{batch + 1}_{_unique_id(batch)}.snapshot").write_bytes(compressed)
    ids = {"stateUniqueIds": {"0": [[_unique_id(batch)]] * partitions}}
    (checkpoint / "offsets" / str(batch)).write_text("v1\n{}\n{}")
    (checkpoint / "commits" / str(batch)).write_text(f"v1\n{json.dumps(ids)}")


def _unique_id(batch: int) -> str:
    return f"of-batch-{batch}"


def _row(bucket: int, pointer: str) -> bytes:
    """An UnsafeRow each: a word of null bits, a word per field, then what has no fixed size."""
    text = pointer.encode()
    key = struct.pack("<Qq", 0, bucket)
    state = struct.pack("<Qi4xII", 0, _VERSION, len(text), 24) + text.ljust(
        -(-len(text) // 8) * 8, b"\0"
    )
    value = struct.pack("<QII", 0, len(state), 16) + state
    return b"".join(struct.pack(">i", len(part)) + part for part in (key, value))
