"""The load that a profile-guided build is trained with: what joins ask of a store, and the rest.

    PYTHONPATH=build/profile/lib python bench/training.py

``make profile`` runs it on extensions that count (setup.py). The compiler makes fast what it was
shown often: integer keys, rows of 88 bytes, LZ4, batches of 10,000 (``joins_do``). What else a user
can do follows on less data, so that none of it counts as unlikely (``others_do``). Rows, keys and
the order of the work are fixed; no thread works in the background.
"""

import argparse
import os
import tempfile
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from measures import Opener, measure_join, measure_store
from sides import OurSide
from workloads import Workload

from lsmstate import (
    SCHEMA_FREE,
    Expiry,
    KeyBounds,
    MultimapStore,
    Mutation,
    Options,
    StoreMapping,
    StoreReader,
    StreamSchema,
    decode_documents,
    encode_documents,
    export,
    open_store,
    restore,
)
from lsmstate.tools.inspection import find_states
from lsmstate.join import MultiwayJoin
from lsmstate.tools.verify import verify

MIB = 1 << 20
#: Little memory, so that most rows are read from files, and runs are merged again and again.
OPTIONS = Options(memory_bytes=12 * MIB, sync="never", background=False)
#: The blocks of larger caps, which have twice the rows.
LARGER_BLOCKS = replace(OPTIONS, block_bytes=16 << 10)
#: Of the other work: rows in a batch, and about how many of them have one key.
BATCH_ROWS = 2000
ROWS_OF_KEY = 4

#: Rows and their keys.
Batch = tuple[pa.RecordBatch, pa.RecordBatch]

NUMBER = pa.schema([("k", pa.int64())])
KEYS = {
    "number": NUMBER,
    "text": pa.schema([("name", pa.string())]),
    "composite": pa.schema([("name", pa.string()), ("line", pa.int32())]),
    "amount": pa.schema([("amount", pa.decimal128(12, 2))]),
    "large": pa.schema([("amount", pa.decimal128(30, 4)), ("day", pa.date32())]),
    "measured": pa.schema([("value", pa.float64()), ("at", pa.timestamp("us"))]),
}
ROWS = {
    "narrow": pa.schema([("id", pa.int64()), ("amount", pa.decimal128(12, 2))]),
    "mixed": pa.schema(
        {
            "id": pa.int64(),
            "text": pa.string(),
            "ok": pa.bool_(),
            "x": pa.float64(),
            "at": pa.timestamp("us"),
            "total": pa.decimal128(30, 4),
            "raw": pa.binary(),
        }
    ),
    "wide": pa.schema({f"column_{number}": pa.int32() for number in range(40)}),
    "nested": pa.schema(
        {
            "tags": pa.list_(pa.string()),
            "place": pa.struct({"x": pa.float64(), "name": pa.string()}),
        }
    ),
}
#: Key, rows and compression of the stores that everything is done to.
CASES = (
    ("number", "mixed", "lz4"),
    ("text", "narrow", "lz4"),
    ("composite", "mixed", "zstd"),
    ("amount", "wide", "lz4"),
    ("large", "nested", "none"),
    ("measured", "narrow", "none"),
)


def joins_do(directory: str, rows: int) -> None:
    """Appends, probes that hit and miss, the join loop, merges; commits onto a state."""
    work = Workload(rows)
    measure_store(_opener(work, attempt=False), work, os.path.join(directory, "store"))
    measure_join(_opener(work, attempt=False), work, os.path.join(directory, "join"))
    half = replace(work, rows=rows // 2)
    measure_join(_opener(half, attempt=True), half, os.path.join(directory, "attempt"))
    _commit(replace(work, rows=2 * rows), os.path.join(directory, "commits"))
    _commit(replace(work, skew="zipf"), os.path.join(directory, "skewed-commits"))
    texts = replace(work, rows=rows // 4, key="string")
    measure_store(_opener(texts, attempt=False), texts, os.path.join(directory, "texts"))
    skewed = replace(work, rows=rows // 8, skew="zipf")
    measure_store(_opener(skewed, attempt=False), skewed, os.path.join(directory, "skewed"))


def _opener(work: Workload, *, attempt: bool) -> Opener:
    def opened(directory: str, streams: int) -> OurSide:
        if attempt:
            return OurSide.attempt(directory, work, OPTIONS, None, 0, streams)
        return OurSide.process(directory, work, streams, LARGER_BLOCKS)

    return opened


def _commit(work: Workload, directory: str) -> None:
    """Half of the rows at once, then a batch a commit, by an attempt each; some are asked."""
    batches = list(work.batches())
    half = len(batches) // 2
    pointer = None
    for number, turn in enumerate([batches[:half], *([batch] for batch in batches[half:])]):
        with closing(OurSide.attempt(directory, work, LARGER_BLOCKS, pointer, number)) as side:
            for rows, keys in turn:
                side.append(0, rows, keys)
            if number % 4 == 0:
                for _ in side.probe(0, work.hits(1)[0]):
                    pass
            pointer = side.commit()


def others_do(directory: str, batches: int) -> None:
    """All else, in stores of other keys, rows and codecs; and what is built on stores."""
    for number, (keys, rows, compression) in enumerate(CASES):
        schema = StreamSchema("s", KEYS[keys], ROWS[rows])
        options = replace(OPTIONS, compression=compression, bottom_compression=compression)
        data = [
            (_drawn(rng, schema.rows, BATCH_ROWS), _drawn(rng, schema.key, batches * 500))
            for rng in map(np.random.default_rng, range(batches))
        ]
        _do_everything(os.path.join(directory, f"case-{number}"), schema, options, data)
    _keep_documents(os.path.join(directory, "documents"), batches)
    _let_expire(os.path.join(directory, "expiry"), batches)
    _map(os.path.join(directory, "mapping"))
    _join_many(batches)


def _drawn(rng: np.random.Generator, schema: pa.Schema, different: int) -> pa.RecordBatch:
    """A batch whose columns have about so many values; a few are null."""
    columns = []
    for number, field in enumerate(schema):
        numbers = rng.integers(0, max(2, different >> number), BATCH_ROWS)
        columns.append(_values(numbers, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values(numbers: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Numbers as values of a type; every hundredth is null."""
    if pa.types.is_list(kind):
        values = [[f"tag {number + i}" for i in range(number % 4)] for number in numbers.tolist()]
        return pa.array(values, kind)
    if pa.types.is_struct(kind):
        values = [{"x": number / 4, "name": f"place {number}"} for number in numbers.tolist()]
        return pa.array(values, kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        values = [f"value {number} " + "of some " * (number % 8) for number in numbers.tolist()]
        return pa.array(values, pa.string(), mask=numbers % 100 == 7).cast(kind)
    found = pa.array(numbers.astype(np.int32), mask=numbers % 100 == 7)
    if pa.types.is_timestamp(kind):
        return pc.multiply(found.cast(pa.int64()), 60_000_000).cast(kind)
    return pc.greater(found, 10).cast(kind) if pa.types.is_boolean(kind) else found.cast(kind)


def _do_everything(
    directory: str, schema: StreamSchema, options: Options, batches: list[Batch]
) -> None:
    """Every write and read of a store of one stream, on what lies in memory and in files."""
    with open_store(directory, [schema], options=options) as store:
        for rows, keys in batches:
            store.append("s", rows, keys)
        _write(store, batches[:2])
        _read(store, batches[:2])
    # Nothing was committed: the changelog is replayed.
    with open_store(directory, [schema], options=options) as store:
        store.flush()
        with store.snapshot() as before:
            _write(store, batches)
            _read(store, batches)
            _read(before, batches[:1])
        store.commit()
        store.compact()
        _read(store, batches)
    for state in find_states(directory):
        list(verify(state))
    export(directory, directory + "-exported")
    restore(directory + "-exported", directory + "-restored")


def _write(store: MultimapStore, batches: list[Batch]) -> None:
    for (rows, keys), (others, _) in pairwise(batches):
        store.retract("s", rows.slice(0, 200), keys.slice(0, 200))
        store.delete("s", keys.slice(200, 50))
        store.put("s", others.slice(0, 50), keys.slice(250, 50))
        store.write(
            [
                Mutation("append", "s", keys.slice(300, 100), others.slice(0, 100)),
                Mutation("retract", "s", keys.slice(300, 20), others.slice(0, 20)),
                Mutation("delete", "s", keys.slice(400, 10)),
                Mutation("delete_range", "s", KeyBounds(prefix=_least(keys.slice(410, 5)))),
            ]
        )
    low, high = _bounds(batches[0][1].slice(1000, 20))
    store.delete_range("s", low=low, high=high)


def _read(store: StoreReader, batches: list[Batch]) -> None:
    for _, keys in batches:
        probe = store.probe("s", keys)
        for _ in probe.fetch(np.flatnonzero(probe.counts), MIB):
            pass
        store.probe("s", keys, np.flatnonzero(store.exists("s", keys))[::3])
    keys = batches[0][1]
    store.get_many("s", keys.slice(0, 100))
    low, high = _bounds(keys.slice(500, 500))
    store.get("s", _least(keys))
    store.contains("s", _least(keys))
    for reverse in (False, True):
        ranges = ({}, {"low": low}, {"high": high}, {"low": low, "high": high}, {"prefix": low[:1]})
        for bounds in ranges:
            for _ in store.iterate("s", reverse=reverse, **bounds):
                pass
    for _ in store.scan("s"):
        pass


def _bounds(keys: pa.RecordBatch) -> tuple[list[object], list[object]]:
    """The least and the greatest of some keys that hold no null."""
    found = sorted(tuple(key.values()) for key in keys.to_pylist() if None not in key.values())
    return list(found[0]), list(found[-1])


def _least(keys: pa.RecordBatch) -> list[object]:
    return _bounds(keys)[0]


def _keep_documents(directory: str, batches: int) -> None:
    schema = StreamSchema("s", NUMBER, SCHEMA_FREE)
    with open_store(directory, [schema], options=OPTIONS) as store:
        for turn in range(batches):
            documents = [
                {"id": number, "tags": ["a", None, turn / 2], "of": {"text": f"row {number}"}}
                for number in range(BATCH_ROWS)
            ]
            store.append("s", encode_documents(documents), _numbers(turn))
        for rows in store.scan("s"):
            decode_documents(rows)


def _let_expire(directory: str, batches: int) -> None:
    """Rows that come in the order of their time, of which some are late, and are due in turn."""
    rows_schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    schema = StreamSchema("s", NUMBER, rows_schema, expiry=Expiry("at", 2 * BATCH_ROWS))
    with open_store(directory, [schema], options=OPTIONS) as store:
        for turn in range(2 * batches):
            at = np.arange(BATCH_ROWS) + turn * BATCH_ROWS
            at[::50] = max(0, (turn - 1) * BATCH_ROWS)
            columns = [pa.array(np.arange(BATCH_ROWS)), pa.array(at)]
            rows = pa.RecordBatch.from_arrays(columns, schema=rows_schema)
            keys = _numbers(turn % 3)
            store.append("s", rows, keys)
            store.retract("s", rows.slice(0, 20), keys.slice(0, 20))
            store.advance("s", turn * BATCH_ROWS)
            probe = store.probe("s", keys)
            for _ in probe.fetch(np.flatnonzero(probe.counts), MIB):
                pass
            store.commit()
        for _ in store.iterate("s", reverse=True):
            pass


def _numbers(seed: int) -> pa.RecordBatch:
    """Keys for a batch."""
    numbers = np.random.default_rng(seed).integers(0, BATCH_ROWS // ROWS_OF_KEY, BATCH_ROWS)
    return pa.RecordBatch.from_arrays([pa.array(numbers)], schema=NUMBER)


def _map(directory: str) -> None:
    """Keys one by one."""
    schema = StreamSchema("s", NUMBER, ROWS["mixed"])
    with open_store(directory, [schema], options=OPTIONS) as store:
        mapping = StoreMapping(store, "s")
        for key in range(200):
            mapping[key] = [{"id": key, "text": f"row {key}"}] * (key % 3)
        for key in range(0, 200, 3):
            mapping.pop(key, None)
        store.flush()
        assert dict(mapping.items()).keys() == set(mapping)


def _join_many(batches: int) -> None:
    """Joins by one key and by several, in a store and in results put together from others' rows."""
    schemas = {
        "a": pa.schema([("x", pa.int64()), ("text", pa.string())]),
        "b": pa.schema([("x", pa.int64()), ("y", pa.int64())]),
        "c": pa.schema([("y", pa.int64()), ("tags", pa.list_(pa.string()))]),
    }
    one = {name: schemas[name] for name in ("a", "b")}
    for streams, condition in ((one, "a.x = b.x"), (schemas, "a.x = b.x AND b.y = c.y")):
        with MultiwayJoin(streams, condition, memory=OPTIONS.memory_bytes) as join:
            for turn in range(batches):
                rng = np.random.default_rng(turn)
                for name, schema in streams.items():
                    for _ in join.process(name, _drawn(rng, schema, BATCH_ROWS)):
                        pass
                join.commit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="of the joins' load")
    parser.add_argument("--batches", type=int, default=8, help="of each kind of the rest")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lsmstate-training-") as place:
        joins_do(place, arguments.rows)
        others_do(place, arguments.batches)
