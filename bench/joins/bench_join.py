"""The main job's join without Spark: its four streams at scale 0.1, on every backend.

Run: ``make bench ARGS="-k join"``. The first round also makes the data (some seconds).
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lsmstate.join import MultiwayJoin, State
from lsmstate.spark_integration.demo.query import ALIASES, CONDITION
from lsmstate.spark_integration.demo.tpcds import stream_files

BATCHES = 5
#: Little enough for the lsm backend to spill; the memory backend needs about 10 MiB.
MEMORY = {"lsm": "6m", "rocksdb": "6m", "memory": "64m"}
RESULT_ROWS = 209_707


@pytest.fixture(scope="module")
def arrivals() -> list[tuple[str, pa.RecordBatch]]:
    """(stream, batch) in the order in which the demo's micro-batches bring them."""
    files = stream_files(Path(__file__).parents[2] / ".data", 0.1, BATCHES)
    tables = {alias: sorted(files.table(table).iterdir()) for alias, table in ALIASES.items()}
    return [
        (alias, pq.read_table(paths[number]).combine_chunks().to_batches()[0])
        for number in range(BATCHES)
        for alias, paths in tables.items()
    ]


@pytest.mark.parametrize("backend", list(MEMORY))
def test_join(benchmark: Any, arrivals: list[tuple[str, pa.RecordBatch]], backend: str) -> None:
    """Join everything into an empty store, committing after every micro-batch."""
    schemas = {alias: batch.schema for alias, batch in arrivals[: len(ALIASES)]}

    def join_all() -> int:
        rows = 0
        with MultiwayJoin(
            schemas, CONDITION, state=State(memory=MEMORY[backend], backend=backend)
        ) as join:
            for number, (alias, batch) in enumerate(arrivals, start=1):
                rows += sum(result.num_rows for result in join.process(alias, batch))
                if number % len(ALIASES) == 0:
                    join.commit()
        return rows

    assert benchmark.pedantic(join_all, rounds=3, warmup_rounds=1) == RESULT_ROWS
