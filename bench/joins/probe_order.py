"""What learning the order of probing saves: one stream asks three others of very unequal rates.

    python -m bench.joins.probe_order --rounds 5

Stream ``a`` arrives in slices of 10,000 keys. ``b`` holds 9 of 10 of its keys, ``c`` half of them,
``d`` one of a hundred; halfway ``b`` and ``d`` change roles. The same rows go through the order of
the spec, the learned one, and the best one (which knows the rates); the results are the same.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.opening import open_attempt
from lsmstate.options import Options, parse_bytes
from lsmstate.store import StateStore

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
SPEC = JoinSpec.create(dict.fromkeys("abcd", SCHEMA), ["id"])
#: The share of the keys of ``a`` that each stream holds: in the first half, and in the second.
RATES = ({"b": 0.9, "c": 0.5, "d": 0.01}, {"b": 0.01, "c": 0.5, "d": 0.9})
SLICE_ROWS = 10_000


class Fixed(ProbeOrder):
    """The order of the spec, or of the true rates."""

    def __init__(self, knows: bool) -> None:
        super().__init__()
        self.knows = knows
        self.half = 0

    def order(self, asking: str, others: Iterable[str]) -> list[str]:
        names = super().order(asking, others)
        return sorted(names, key=RATES[self.half].__getitem__) if self.knows else sorted(names)


def batch_of(ids: np.ndarray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(ids)], schema=SCHEMA)


def fill(store: StateStore, keys: int) -> None:
    """Both halves' keys: those of the second lie above the first's."""
    rng = np.random.default_rng(1)
    for half, rates in enumerate(RATES):
        for name, rate in rates.items():
            ids = half * keys + np.flatnonzero(rng.random(keys) < rate)
            for start in range(0, len(ids), SLICE_ROWS):
                rows = batch_of(ids[start : start + SLICE_ROWS])
                store.append(name, rows, SPEC.key_batch(name, rows))


def run(order: ProbeOrder, keys: int, slices: int, memory: int) -> tuple[float, float, int]:
    """(CPU us a row, keys looked up a row, rows of the result)."""
    with tempfile.TemporaryDirectory() as directory:
        options = Options(memory_bytes=memory)
        store = open_attempt(
            directory, SPEC.stream_schemas, batch_id=0, attempt_id="b", options=options
        )
        fill(store, keys)
        join = UMJoin(SPEC, store, probe_order=order)
        rng = np.random.default_rng(2)
        before, found, seconds = store.stats().counters["probed_keys"], 0, 0.0
        for number in range(slices):
            half = int(2 * number >= slices)
            if isinstance(order, Fixed):
                order.half = half
            batch = batch_of(half * keys + rng.integers(0, keys, SLICE_ROWS))
            start = time.process_time()
            found += sum(piece.num_rows for piece in join.process(Batch("a", batch)))
            seconds += time.process_time() - start
        asked = store.stats().counters["probed_keys"] - before
        store.close()
    rows = slices * SLICE_ROWS
    return seconds * 1e6 / rows, asked / rows, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--slices", type=int, default=100)
    parser.add_argument("--memory", default="16m")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sides = {
        "order of the spec": lambda: Fixed(knows=False),
        "learned": ProbeOrder,
        "best": lambda: Fixed(knows=True),
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    results = set()
    for _ in range(arguments.rounds):
        for name, made in sides.items():
            memory = parse_bytes(arguments.memory)
            cpu, asked, found = run(made(), arguments.keys, arguments.slices, memory)
            figures[name].append((cpu, asked))
            results.add(found)
    assert len(results) == 1, f"the results differ: {results}"
    table = Table("order", "CPU, us a row (least, most)", "keys looked up a row")
    for name, runs in figures.items():
        cpu = [c for c, _ in runs]
        asked = statistics.median(a for _, a in runs)
        shown = f"{statistics.median(cpu):.2f} ({min(cpu):.2f}-{max(cpu):.2f})"
        table.add_row(name, shown, f"{asked:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
