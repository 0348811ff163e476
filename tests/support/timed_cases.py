"""Rows with times for joins that forget: their batches, arrivals, watermarks and DuckDB tables."""

import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa

EPOCH = datetime(2026, 1, 1)
SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("n", pa.int64())])


def schema_of(kind, name):
    return pa.schema(
        [("k", pa.int64()), ("j", pa.int64()), ("at", kind), (f"n_{name}", pa.int64())]
    )


def batch_of(schema, rows):
    """Rows as tuples; time stamps are minutes after EPOCH."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [
        pa.array(
            times_of(column, field.type) if pa.types.is_timestamp(field.type) else column,
            field.type,
        )
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def times_of(minutes, kind):
    epoch = EPOCH.replace(tzinfo=UTC) if kind.tz else EPOCH
    return [None if at is None else epoch + timedelta(minutes=at) for at in minutes]


def in_microseconds(schema):
    """The schema with time stamps as DuckDB counts them."""
    for number, field in enumerate(schema):
        if pa.types.is_timestamp(field.type):
            schema = schema.set(number, field.with_type(pa.timestamp("us", field.type.tz)))
    return schema


def make_tables(db, schemas, rows):
    """Fill tables of DuckDB, one for each stream, with the rows of the streams, (stream, row)."""
    db.execute("SET TimeZone = 'UTC'")
    for name, schema in schemas.items():
        mine = [row for stream, row in rows if stream == name]
        batch = batch_of(in_microseconds(schema), mine)
        db.register("arrow", pa.Table.from_batches([batch]))
        db.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM arrow")


def numbers_of(results, names):
    return Counter(
        tuple(row[f"n_{name}"] for name in names) for piece in results for row in piece.to_pylist()
    )


def watermark_before(rows, names, rng):
    """The greatest watermark that makes none of the rows late, or a lower one."""
    times = [row[2] for name, row in rows if name in names and row[2] is not None]
    if not times:
        return None
    back = rng.choice([0, 0, 0, 7])
    return (EPOCH + timedelta(minutes=min(times) - back, microseconds=-1)).replace(tzinfo=UTC)


def arrivals(rows, rng):
    """The rows in batches of one stream: (stream, batch, how many rows have come with it)."""
    at = 0
    while at < len(rows):
        name = rows[at][0]
        _, run = next(itertools.groupby(rows[at:], key=lambda found: found[0]))
        mine = [row for _, row in run]
        mine = mine[: rng.randint(1, len(mine))]
        at += len(mine)
        yield name, mine, at
