"""A store with a stream that expires and one that does not, for tests."""

import pyarrow as pa

from lsmstate import opening as backends
from lsmstate.expiry_rules import Expiry
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("text", pa.string())])
OPTIONS = Options(memory_bytes=8 * MIB, memtable_bytes=256 * KIB)
LIFE = 100
BACKENDS = ("lsm", "rocksdb", "memory")


def schemas(after=LIFE):
    return (
        StreamSchema("plain", KEY, ROWS),
        StreamSchema("timed", KEY, ROWS, expiry=Expiry("at", after)),
    )


def opened(directory, backend="lsm", after=LIFE, options=OPTIONS):
    streams = schemas(after)
    return backends.open_store(str(directory), streams, backend=backend, options=options)


def batch(*rows):
    """(keys, rows) of (key, id, time) triples."""
    keys = pa.RecordBatch.from_pylist([{"k": k} for k, _, _ in rows], schema=KEY)
    values = [{"id": i, "at": at, "text": f"row {i}"} for _, i, at in rows]
    return pa.RecordBatch.from_pylist(values, schema=ROWS), keys


def keys_of(*keys):
    return pa.RecordBatch.from_pylist([{"k": k} for k in keys], schema=KEY)


def ids(rows):
    return sorted(rows.column("id").to_pylist())


def all_ids(store, stream="timed"):
    return sorted(i for rows in store.scan(stream) for i in ids(rows))
