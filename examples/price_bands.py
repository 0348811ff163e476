"""Trades with the price band they fall into, while the bands change.

python examples/price_bands.py [TRADES]
"""

import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lsmstate.join import MultiwayJoin, State

TRADES = pa.schema([("id", pa.int64()), ("price", pa.int64())])
BANDS = pa.schema(
    [("op", pa.string()), ("band", pa.string()), ("low", pa.int64()), ("high", pa.int64())]
)
ON = "t LEFT JOIN b ON t.price BETWEEN b.low AND b.high"


def changes(count: int, seed: int = 0) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Trades by the hundred. After each hundred a band is made, or one goes."""
    rng = np.random.default_rng(seed)
    bands: list[dict[str, object]] = []
    for first in range(0, count, 100):
        ids = np.arange(first, min(count, first + 100))
        prices = rng.integers(0, 1000, len(ids))
        yield "t", pa.record_batch([ids, prices], schema=TRADES)
        if bands and rng.random() < 0.4:
            gone = {**bands.pop(int(rng.integers(len(bands)))), "op": "-D"}
            yield "b", pa.RecordBatch.from_pylist([gone], schema=BANDS)
        else:
            low = int(rng.integers(0, 900))
            bands.append({"op": "+I", "band": f"b{first}", "low": low, "high": low + 100})
            yield "b", pa.RecordBatch.from_pylist(bands[-1:], schema=BANDS)


def banded(batches: Iterator[tuple[str, pa.RecordBatch]]) -> Counter[tuple[int, str | None]]:
    """What stands in the end: each trade with its bands, or with none."""
    found: Counter[tuple[int, str | None]] = Counter()
    streams = {"t": TRADES, "b": BANDS}
    state = State(memory="16m")
    with MultiwayJoin(streams, ON, emit="changes", changes={"b": "op"}, state=state) as join:
        for stream, batch in batches:
            for row in join.process(stream, batch).rows():
                found[row["id"], row["band"]] += 1 if row["op"] == "+I" else -1
    return +found


if __name__ == "__main__":
    bands = Counter(band for _, band in banded(changes(int((sys.argv[1:] or ["3000"])[0]))))
    for band, trades in bands.most_common():
        print(band, trades)
