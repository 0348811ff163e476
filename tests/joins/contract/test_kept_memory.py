"""A closed join keeps no memory, however long somebody holds it."""

import gc
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from lsmstate.join import MultiwayJoin, State, Time, asof_join, similarity_join
from lsmstate.joins.local.parts import placed_rows
from lsmstate.process.memory_budget import process_memory

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us")),
        ("v", pa.list_(pa.float64())),
    ]
)
STREAMS = dict.fromkeys("ab", SCHEMA)
START = datetime(2026, 1, 1)
RANGE = "b.x BETWEEN a.x - 1 AND a.x + 1"
TWO_RANGES = "a.x < b.x AND a.k > b.k"
STATE = State(memory="16m")
#: Rows whose results wait.
FINAL = Time(event_time=dict.fromkeys("ab", "at"), within="1 hour")
ROWS = 400


def three_streams() -> Any:
    on = f"{RANGE} AND c.x BETWEEN b.x - 1 AND b.x + 1"
    schemas = {**STREAMS, "c": SCHEMA}
    return MultiwayJoin(schemas, on, algorithm="tree", order=list("abc"), state=STATE)


JOINS: dict[str, Callable[[], Any]] = {
    "one range": lambda: MultiwayJoin(STREAMS, RANGE, state=STATE),
    "two ranges": lambda: MultiwayJoin(STREAMS, TWO_RANGES, state=STATE),
    "a tree of ranges": three_streams,
    "as of": lambda: asof_join(STREAMS, "a.at >= b.at", by="k", state=STATE),
    "similarity": lambda: similarity_join(
        STREAMS, "a.v ~ b.v", by="k", metric="l2", threshold=1, state=STATE
    ),
    "similarity in time": lambda: similarity_join(
        STREAMS, "a.v ~ b.v", metric="l2", threshold=1, state=STATE, time=FINAL
    ),
}


def rows(first: int) -> pa.RecordBatch:
    numbers = range(first, first + ROWS)
    columns = [
        [n % 5 for n in numbers],
        [float(n % 90) for n in numbers],
        [START + timedelta(seconds=n) for n in numbers],
        [[float(n % 9), float(n % 7)] for n in numbers],
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def charged() -> int:
    return process_memory().budget.usage()["probe"]


@pytest.mark.parametrize("name", JOINS)
@patch.object(placed_rows, "LEAST", 1)
def test_closing_a_join_releases_what_it_keeps(name: str) -> None:
    gc.collect()
    before = charged()
    join = JOINS[name]()
    try:
        for first in range(0, 4 * ROWS, ROWS):
            for stream in reversed(join.spec.streams):
                join.process(stream, rows(first)).close()
                join.process(stream, rows(first)).count()
            if join.event_time is not None:
                join.advance(START + timedelta(seconds=first + ROWS)).count()
        assert charged() > before, "nothing is kept"
        unread = join.process("b", rows(4 * ROWS))
        next(unread, None)
    finally:
        join.close()
    assert charged() == before
    assert join.counts is not None
    join.close()
