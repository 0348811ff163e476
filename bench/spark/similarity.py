"""A similarity join on Spark, local[2]: two streams of points in windows of 240,000 records.

    python -m bench.spark.similarity --windows 2

Points are uniform in a square, and one pair in a thousand is close. Results are both ids and the
distance, which are counted and thrown away. S3J's figure on ten cores is 8,000 records a second.
"""

import argparse
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from lsmstate.spark import Skew, State, Time, configure, metrics_of, similarity_join

WINDOW_SECONDS, RECORDS = 60, 240_000
#: The area of a circle of this radius is a thousandth of the square.
THRESHOLD = math.sqrt(0.001 / math.pi)
DDL = "id BIGINT, at TIMESTAMP, v ARRAY<DOUBLE>"


def make_stream(directory: Path, seed: int, windows: int, files: int) -> None:
    """A file for each micro-batch."""
    directory.mkdir()
    rng = np.random.default_rng(seed)
    count = RECORDS // 2 // files
    for number in range(windows * files):
        start = number * WINDOW_SECONDS * 1_000_000 // files
        span = WINDOW_SECONDS * 1_000_000 // files
        times = start + np.sort(rng.integers(0, span, count))
        flat = pa.array(rng.random(2 * count))
        ends = pa.array(np.arange(count + 1, dtype=np.int32) * 2)
        table = pa.table(
            {
                "id": np.arange(number * count, (number + 1) * count),
                "at": pa.array(times, pa.timestamp("us", "UTC")),
                "v": pa.ListArray.from_arrays(ends, flat),
            }
        )
        pq.write_table(table, directory / f"{number:04d}.parquet")


def main() -> None:
    """Print records a second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--files", type=int, default=6, help="micro-batches of a window")
    parser.add_argument("--routing", default=None)
    asked = parser.parse_args()
    spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
    with tempfile.TemporaryDirectory() as place:
        streams = {}
        for seed, name in enumerate(("a", "b")):
            directory = Path(place) / name
            make_stream(directory, seed, asked.windows, asked.files)
            frame = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
            streams[name] = frame.parquet(str(directory)).withWatermark("at", "1 second")
        joined = similarity_join(
            streams,
            "a.v ~ b.v",
            metric="l2",
            threshold=THRESHOLD,
            columns=["a_id", "b_id", "distance"],
            skew=Skew(routing=asked.routing),
            time=Time(window="60 seconds"),
            state=State(memory="256m", buckets=2),
        )
        start = time.perf_counter()
        query = (
            joined.writeStream.format("noop")
            .option("checkpointLocation", str(Path(place) / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - start
        records = asked.windows * asked.files * 2 * (RECORDS // 2 // asked.files)
        last = metrics_of(query.lastProgress)
        print(
            f"{records} records in {seconds:.1f} s: {records / seconds:,.0f} a second; "
            f"{0 if last is None else last.rows_out} results of the last micro-batch"
        )


if __name__ == "__main__":
    main()
