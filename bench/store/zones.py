"""What zones cost where tables are written, and spare where ranges are read.

Run: ``python -m bench.store.zones``. A million rows, sorted by ``t``; ``v`` is ``t`` with noise.
100 ranges reach from a place of ``t`` to the end, and want a thousandth of the values of ``v``.
Medians of five rounds in alternation, CPU milliseconds of the process, all in one thread.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import pyarrow as pa

from lsmstate import Options, RangeBounds, StreamSchema, open_store
from lsmstate.store import MultimapStore

ROUNDS = 5
ROWS = 1_000_000
BATCH = 50_000
RANGES = 100
OPTIONS = Options(memory_bytes=64 << 20, background=False)
KEY = pa.schema([("t", pa.int64())])
COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("w", pa.float64())])
CHOICES = ((), ("v",), ("v", "w"))


def cpu(work: Callable[[], object]) -> float:
    """Return the CPU milliseconds of the work."""
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def fill(store: MultimapStore) -> None:
    """Append the rows and commit them."""
    rng = np.random.default_rng(1)
    for start in range(0, ROWS, BATCH):
        at = np.arange(start, start + BATCH)
        v = at + rng.integers(-1000, 1000, BATCH)
        store.append("z", pa.record_batch([at, v, v / 7], schema=COLUMNS), {"t": at})
    store.commit()


def read(store: MultimapStore, bounds: RangeBounds) -> int:
    """Return how many rows the ranges give."""
    return sum(piece.rows.num_rows for piece in store.probe_ranges("z", bounds))


def main() -> None:
    """Print a line for each choice of zone columns, and for each way to read."""
    written: dict[tuple[str, ...], list[float]] = {choice: [] for choice in CHOICES}
    sizes: dict[tuple[str, ...], int] = {}
    for _ in range(ROUNDS):
        for choice in CHOICES:
            stream = StreamSchema("z", KEY, COLUMNS, zones=choice)
            with (
                tempfile.TemporaryDirectory() as directory,
                open_store(directory, [stream], options=OPTIONS) as store,
            ):
                written[choice].append(cpu(partial(fill, store)))
                sizes[choice] = store.stats().disk_bytes
    for choice in CHOICES:
        named = ", ".join(choice) or "none"
        print(f"write, zones of {named}: {median(written[choice]):.0f} ms, {sizes[choice]} bytes")
    stream = StreamSchema("z", KEY, COLUMNS, zones=("v",))
    with (
        tempfile.TemporaryDirectory() as directory,
        open_store(directory, [stream], options=OPTIONS) as store,
    ):
        fill(store)
        low = np.random.default_rng(2).integers(ROWS // 2, ROWS, RANGES)
        wanted = low - ROWS // 1000 - 5000
        ways = {
            "without zones": RangeBounds(low=low),
            "with zones that no row has": RangeBounds(
                low=low, zones={"v": (wanted, wanted + ROWS // 1000)}
            ),
            "with zones that some rows have": RangeBounds(
                low=low, zones={"v": (low, low + ROWS // 1000)}
            ),
        }
        for name, bounds in ways.items():
            before = store.stats().probes.blocks_spared
            rows = read(store, bounds)
            spared = store.stats().probes.blocks_spared - before
            times = [cpu(partial(read, store, bounds)) for _ in range(ROUNDS)]
            print(f"read {name}: {median(times):.1f} ms, {rows} rows, {spared} blocks spared")


if __name__ == "__main__":
    main()
