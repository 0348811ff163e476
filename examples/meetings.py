"""Tracks within 50 metres of each other, at most a minute apart.

python examples/meetings.py [POSITIONS]
"""

import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lsmstate.join import State, Time, similarity_join

POSITIONS = pa.schema(
    [("car", pa.int64()), ("at", pa.timestamp("s")), ("place", pa.list_(pa.float64(), 2))]
)
CARS, STEP_SECONDS = 60, 10


def positions(count: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """Cars that drive at random through a few square kilometres, a batch for each step."""
    rng = np.random.default_rng(seed)
    places = rng.uniform([13.3, 52.4], [13.5, 52.6], (CARS, 2))
    for step in range(-(-count // CARS)):
        places += rng.normal(0, 0.002, places.shape)
        flat = pa.array(places.ravel())
        columns = [
            np.arange(CARS),
            pa.array(np.full(CARS, step * STEP_SECONDS), pa.timestamp("s")),
            pa.FixedSizeListArray.from_arrays(flat, 2),
        ]
        yield pa.record_batch(columns, schema=POSITIONS)


def meetings(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, object]]:
    """Pairs of positions of two cars, with their distance in metres."""
    with similarity_join(
        {"a": POSITIONS},
        on="a.place ~ b.place",
        metric="haversine",
        threshold=50,
        time=Time(event_time={"a": "at"}, within="1 minute"),
        state=State(memory="32m"),
    ) as join:
        for batch in batches:
            for pair in join.process("a", batch).rows():
                if pair["a_car"] != pair["b_car"]:
                    yield pair
            # The next step is later than this one.
            join.advance(batch.column("at")[-1].cast(pa.int64()).as_py() * 1_000_000 - 1).close()


if __name__ == "__main__":
    for found in meetings(positions(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)):
        print(found["a_car"], found["b_car"], f"{found['distance']:.0f} m")
