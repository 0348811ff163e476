"""How results come from Python to Spark: as flat rows, or as products that Spark multiplies.

    python -m bench.spark.result_forms --shape many --form products

Frames of results are made beforehand, with columns like those of the paper's query: 53 integers, 27
decimals and 9 texts of four streams. Each round unpacks all of them and throws the rows away. CPU
seconds are those of the JVM's executor threads, of its compiler threads, and of the workers. The
first rounds hold their start and the compiler's work. ``one``: each row is in one result. ``few``
and ``many``: 20 and 700 results to a key.
"""

import argparse
import os
import sys
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa

from lsmstate.joins.local.parts.cross_product import Side, cross_product
from lsmstate.schema.arrow_sizes import row_sizes

#: Columns per stream: integers, decimals, texts.
COLUMNS: Final = {"sr": (11, 9, 0), "cu": (9, 0, 9), "wr": (15, 9, 0), "cr": (18, 9, 0)}
#: Mean rows of a key, per stream.
SHAPES: Final = {"one": (1, 1, 1, 1), "few": (1, 2, 2, 4), "many": (3, 6, 4, 11)}
KEYS: Final = 1500
#: Threads of the JVM by words in their names, and what is measured.
THREADS: Final = {"executor": "Executor task", "compiler": "Compiler"}
MEASURED: Final = (*THREADS, "python")


def rows_of(stream: str, count: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Random rows of a stream."""
    integers, decimals, texts = COLUMNS[stream]
    columns: dict[str, pa.Array] = {}
    for number in range(integers):
        values = rng.integers(0, 10**6, count).astype(np.int32)
        columns[f"{stream}_i{number}"] = pa.array(values, mask=rng.random(count) < 0.02)
    for number in range(decimals):
        halves = np.zeros((count, 2), np.int64)
        halves[:, 0] = rng.integers(0, 10**6, count)
        buffers = [None, pa.py_buffer(halves)]
        found = pa.Array.from_buffers(pa.decimal128(7, 2), count, buffers)
        columns[f"{stream}_d{number}"] = found
    for number in range(texts):
        texts_of = [f"text-{value}" for value in rng.integers(0, 10**6, count)]
        columns[f"{stream}_t{number}"] = pa.array(texts_of)
    return pa.RecordBatch.from_pydict(columns)


def frames_of(plan: Any, shape: str, wanted: int) -> list[Any]:
    """At least so many results, as the stateful node sends them."""
    from lsmstate.spark_integration.stateful_operator.result_frames import ResultPacker

    rng = np.random.default_rng(0)
    packer, frames, made = ResultPacker(plan), [], 0
    while made < wanted:
        sides = []
        for stream, mean in zip(COLUMNS, SHAPES[shape], strict=True):
            starts = np.concatenate([[0], np.cumsum(rng.poisson(mean - 1, KEYS) + 1)])
            rows = rows_of(stream, int(starts[-1]), rng)
            sides.append(Side(rows, starts, row_sizes(rows)))
        found = list(packer.frames(cross_product(sides, 32 << 20)))
        made += sum(frame.rows for frame in found)
        frames += found
    return frames


def cpu_seconds() -> dict[str, float]:
    """Of the JVM's threads and of the workers, so far."""
    found = dict.fromkeys(MEASURED, 0.0)
    for process in psutil.Process().children(recursive=True):
        if "java" not in process.name():
            times = process.cpu_times()
            found["python"] += times.user + times.system
            continue
        for thread in process.threads():
            try:
                with open(f"/proc/{process.pid}/task/{thread.id}/comm", encoding="utf-8") as comm:
                    name = comm.read()
            except FileNotFoundError:
                continue
            for kind, word in THREADS.items():
                if word in name:
                    found[kind] += thread.user_time + thread.system_time
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="many")
    parser.add_argument("--form", choices=("flat", "products"), default="products")
    parser.add_argument("--results", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    from pyspark.sql import SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema

    from lsmstate.spark_integration.session.configure import configure
    from lsmstate.spark_integration.stateful_operator import build

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    parts = tuple(rows_of(stream, 1, np.random.default_rng()).schema for stream in COLUMNS)
    plan: Any = SimpleNamespace(parts=parts, output=pa.schema([f for part in parts for f in part]))
    frames = frames_of(plan, asked.shape, asked.results)
    total = sum(frame.rows for frame in frames)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.codegen.hugeMethodLimit", "4000")  # as in a query
    spark = configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    table = pa.table(
        {
            "rows": pa.array([frame.rows for frame in frames], pa.int32()),
            "payload": pa.array([frame.payload for frame in frames], pa.binary()),
        }
    )
    payloads = spark.createDataFrame(table).repartition(2).cache()
    payloads.count()
    output = from_arrow_schema(plan.output)
    make = build.flat_results if asked.form == "flat" else build.multiplied_results
    print(f"{total:,} results, {asked.shape}, {asked.form}; CPU s of a round")
    for number in range(asked.rounds):
        before = cpu_seconds()
        make(payloads, plan, output).write.format("noop").mode("overwrite").save()
        used = cpu_seconds()
        shown = {kind: round(used[kind] - before[kind], 2) for kind in MEASURED}
        print(number, shown, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
