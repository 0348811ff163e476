"""Two streams that most tests of stores use, their rows and keys, and what is read of them."""

import numpy as np
import pyarrow as pa

from lsmstate.store import StreamSchema

KEY = pa.schema([("k0", pa.int64()), ("k1", pa.string())])
CUSTOMERS = StreamSchema("customers", KEY, pa.schema([("id", pa.int64()), ("name", pa.string())]))
RETURNS = StreamSchema(
    "returns",
    KEY,
    pa.schema([("id", pa.int64()), ("price", pa.decimal128(7, 2)), ("day", pa.date32())]),
)
STREAMS = (CUSTOMERS, RETURNS)


def keys_of(*keys):
    """Each key an int (k1 follows from it), a pair, or None."""
    pairs = [
        (None, "x") if k is None else k if isinstance(k, tuple) else (k, f"s{k % 3}") for k in keys
    ]
    return pa.RecordBatch.from_pylist([{"k0": a, "k1": b} for a, b in pairs], schema=KEY)


def customers(*ids, name="n"):
    rows = [{"id": i, "name": None if i % 7 == 6 else f"{name}{i}"} for i in ids]
    return pa.RecordBatch.from_pylist(rows, schema=CUSTOMERS.rows)


def returns(*ids):
    rows = [{"id": i, "price": None, "day": None} for i in ids]
    return pa.RecordBatch.from_pylist(rows, schema=RETURNS.rows)


def fetched(probe, positions, max_bytes=1 << 20):
    """position -> rows, after checking what every piece must keep."""
    found = {}
    last = -1
    for piece in probe.fetch(np.asarray(positions, dtype=np.int64), max_bytes):
        assert piece.rows.num_rows > 0
        assert len(piece.positions) == piece.rows.num_rows
        assert last <= piece.positions[0]
        assert bool(np.all(np.diff(piece.positions) >= 0))
        last = piece.positions[-1]
        for position, row in zip(piece.positions.tolist(), piece.rows.to_pylist(), strict=True):
            found.setdefault(position, []).append(row)
    return found


def scanned(store, stream, max_bytes=1 << 20):
    return [row for piece in store.scan(stream, max_bytes) for row in piece.to_pylist()]


def iterated(store, stream, **wanted):
    """(key, row) of each row, after checking that every piece has rows and as many keys."""
    found = []
    for piece in store.iterate(stream, **wanted):
        assert piece.rows.num_rows == piece.keys.num_rows > 0
        assert piece.rows.schema == store.streams[stream].rows
        assert piece.keys.schema == store.streams[stream].key
        keys = [tuple(key.values()) for key in piece.keys.to_pylist()]
        found += zip(keys, piece.rows.to_pylist(), strict=True)
    return found


def ids(rows):
    return [row["id"] for row in rows]
