"""A join by two inequalities whose stored rows do not fit into memory: row blocks that zones spare,
counted and measured, beside DuckDB and polars.

    POLARS_MAX_THREADS=1 python -m bench.joins.zone_maps [--rows 1000000] [--only count join keyed]

- ``count``: a stream is sorted by the column of its range and lies in blocks. Zones say the least
  value of its second column in each block. A block in reach of ``a.x < b.y`` has to be read if a
  new row has also ``a.u`` above that least value.
- ``join``, and ``keyed`` beside an equality of one of 20 keys: the CPU time of a batch of new rows,
  storing included, as a median. The stored rows lie on disk, under a cap at which they are not kept
  in memory. Batches with zones and without them alternate on one store. The peers have all rows in
  memory, DuckDB with one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.joins.any_condition import (
    BATCH,
    apart,
    apart_and_high,
    duck,
    inequalities,
    of_polars,
    polars,
    taxed,
    unequal,
)
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.local.theta import step_ranges
from lsmstate.joins.local.theta.zones import Zones, asked_zones

#: Rows in a block of 4 KiB.
ROWS_OF_BLOCK = 128
PARTS = ("count", "join", "keyed")
SIZES = (10, 100, 1_000, 10_000)
KEYS = 20
Made = Callable[[int, int], pa.RecordBatch]
KINDS: list[tuple[str, Made, Made]] = [
    ("taxes of salaries", taxed, taxed),
    ("with ten times the noise", unequal, unequal),
    ("two columns apart", apart, apart_and_high),
]


def share_needed(new: pa.RecordBatch, stored: pa.RecordBatch) -> float:
    """Of the blocks in reach by the range, the part that zones would not rule out."""
    y, v = (column.to_numpy() for column in stored.columns)
    order = np.argsort(y)
    starts = np.arange(0, len(y), ROWS_OF_BLOCK)
    greatest_y = np.maximum.reduceat(y[order], starts)
    least_v = np.minimum.reduceat(v[order], starts)
    x, u = (column.to_numpy() for column in new.columns)
    by_x = np.argsort(x)
    greatest_u = np.maximum.accumulate(u[by_x])
    below = np.searchsorted(x[by_x], greatest_y)  # new rows with x < y, for each block
    reached = below > 0
    return float((greatest_u[below[reached] - 1] > least_v[reached]).mean())


def spared(join: MultiwayJoin) -> int:
    """Row blocks that zones have spared so far."""
    return join._store.stats().probes.blocks_spared


def none(*given: Any) -> tuple[Zones, npt.NDArray[np.bool_]]:
    """No zones of any combination."""
    return {}, np.ones(given[-1], np.bool_)


def keyed(made: Made, count: int, seed: int) -> pa.RecordBatch:
    """The same rows, each with one of some keys."""
    return made(count, seed).append_column(
        "k", np.random.default_rng(seed).integers(0, KEYS, count)
    )


def measure(
    name: str, new: Made, stored: pa.RecordBatch, memory: str, rounds: int, sizes: list[int]
) -> None:
    """Print a line for each number of new rows."""
    has_key = "key" in stored.schema.names
    on = "a.x < b.y AND a.u > b.v" + " AND a.k = b.key" * has_key
    streams = {"a": new(0, 0).schema, "b": stored.schema}
    with MultiwayJoin(streams, on, state=State(memory=memory)) as join:
        for first in range(0, stored.num_rows, BATCH):
            join.process("b", stored.slice(first, BATCH)).close()
        join._store.compact(due_only=True)  # no merge of the stored rows runs beside the clock
        for size in sizes:
            batches = [new(size, 100 + seed) for seed in range(rounds + 1)]
            seconds: dict[bool, list[float]] = {True: [], False: []}
            counted, blocks = [], 0
            for at, batch in enumerate(batches):
                for has_zones in (True, False) if at % 2 else (False, True):
                    before = spared(join)
                    with patch.object(
                        step_ranges, "asked_zones", asked_zones if has_zones else none
                    ):
                        start = time.process_time()
                        count = sum(piece.num_rows for piece in join.process("a", batch))
                        seconds[has_zones].append(time.process_time() - start)
                    counted.append(count)
                    blocks += spared(join) - before
            assert counted[::2] == counted[1::2], "zones change no result"
            some = batches[: min(4, rounds + 1)]
            shown = {
                "with zones": seconds[True][1:],
                "without": seconds[False][1:],
                "DuckDB": duck(f"SELECT a.*, b.* FROM a JOIN b ON {on}", stored, some)[0],
            }
            if polars is not None:
                conditions = inequalities()
                if has_key:
                    conditions.append(polars.col("k") == polars.col("key"))
                shown["polars"] = of_polars(conditions, stored, some)[0]
            told = ", ".join(f"{k} {statistics.median(v) * 1e3:,.1f} ms" for k, v in shown.items())
            print(
                f"{name}, {size:,} new rows: {told}; {blocks / (rounds + 1):,.0f} blocks spared, "
                f"{statistics.median(counted):,.0f} results",
                flush=True,
            )


def main() -> None:
    """Print a line for each kind of columns and number of new rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="stored")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", default="16m")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="new rows of a batch")
    parser.add_argument("--beside", type=int, default=0, help="bytes of text in each stored row")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    asked = parser.parse_args()
    for name, new, old in KINDS:
        stored = old(asked.rows, 1).rename_columns(["y", "v"])
        for size in asked.sizes if "count" in asked.only else ():
            share = share_needed(new(size, 2), stored)
            print(f"{name}, {size:,} new rows: {share:.0%} of the blocks", flush=True)
        if asked.beside:
            stored = stored.append_column("text", texts(asked.rows, asked.beside))
        given = asked.memory, asked.rounds, asked.sizes
        if "join" in asked.only:
            measure(name, new, stored, *given)
        if "keyed" in asked.only:
            stored = keyed(lambda count, _, rows=stored: rows, asked.rows, 1)
            stored = stored.rename_columns([*stored.schema.names[:-1], "key"])
            measure(f"{name}, {KEYS} keys", partial(keyed, new), stored, *given)


def texts(count: int, size: int) -> pa.Array:
    """Random hexadecimal digits."""
    rng = np.random.default_rng(3)
    return pa.array([rng.bytes(size // 2).hex() for _ in range(count)])


if __name__ == "__main__":
    main()
