"""How far a process's resident memory grows over its idle size under a cap, scenario by scenario.

    python -m bench.store.memory_limit --caps 16m,64m,256m

Each scenario runs in a process of its own, which generates its data batch by batch, writes it
through one or more stores, reads all of it back and compares count and sum. It passes if the
peak growth (VmHWM minus the resident size before the first store) stays under cap + 64 MiB and
the result is right, or if a MemoryLimitError comes before anything is stored.
"""

import argparse
import ctypes
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from lsmstate.errors import MemoryLimitError
from lsmstate.join import MultiwayJoin, State
from lsmstate.opening import open_store
from lsmstate.options import MIB, Options, parse_bytes
from lsmstate.store import MultimapStore, RangeBounds, StateStore, StreamSchema

KEY = pa.schema([("key", pa.int64())])
ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("text", pa.string())])
#: What a process may take beside its cap: interpreter, Arrow, batches in flight.
ALLOWANCE = 64 * MIB
BATCH = 10_000

Batches = Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]


def stream(name: str) -> StreamSchema:
    return StreamSchema(name, KEY, ROWS)


def batch_of(keys: np.ndarray, values: np.ndarray) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    texts = pa.array(np.char.mod("text of row %d", values % 1000))
    rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values), texts], schema=ROWS)
    return rows, pa.RecordBatch.from_arrays([pa.array(keys)], schema=KEY)


def write(store: StateStore, name: str, batches: Batches) -> tuple[int, int]:
    """(rows, sum of the values) that were stored."""
    rows = total = 0
    for batch, keys in batches:
        rows += store.append(name, batch, keys)
        total += int(np.sum(batch.column(1).to_numpy()))
    return rows, total


def read(store: StateStore, name: str) -> tuple[int, int]:
    rows = total = 0
    for piece in store.scan(name):
        rows += piece.num_rows
        total += int(np.sum(piece.column(1).to_numpy()))
    return rows, total


def random_batches(rows: int, seed: int) -> Batches:
    rng = np.random.default_rng(seed)
    for start in range(0, rows, BATCH):
        count = min(BATCH, rows - start)
        yield batch_of(rng.integers(0, 1 << 40, count), rng.integers(0, 1 << 30, count))


def one_hot_key(directory: str, options: Options, scale: float) -> None:
    """One key with 10 million rows, probed in pieces."""
    count = int(10_000_000 * scale)
    with_store = open_store(directory, [stream("s")], options=options)
    rows = total = 0
    for start in range(0, count, BATCH):
        values = np.arange(start, min(count, start + BATCH), dtype=np.int64)
        batch, keys = batch_of(np.full(len(values), 7, dtype=np.int64), values)
        rows += with_store.append("s", batch, keys)
    probe = with_store.probe("s", batch_of(np.array([7]), np.array([0]))[1])
    assert probe.counts.tolist() == [count], probe.counts
    found = 0
    for match in probe.fetch(np.array([0]), 1 << 20):
        found += match.rows.num_rows
        total += int(np.sum(match.rows.column(1).to_numpy()))
    assert found == count, (found, count)
    assert total == count * (count - 1) // 2
    with_store.close()


def huge_rows(directory: str, options: Options, scale: float) -> None:
    """100 rows of 10 MB each."""
    size, count = 10_000_000, max(3, int(100 * scale))
    store = open_store(directory, [stream("s")], options=options)
    for i in range(count):
        rows = pa.RecordBatch.from_arrays(
            [pa.array([i]), pa.array([i]), pa.array([chr(97 + i % 26) * size])], schema=ROWS
        )
        store.append("s", rows, rows.select(["key"]))
    found = 0
    for piece in store.scan("s"):
        for i in range(piece.num_rows):
            number = piece.column(1)[i].as_py()
            text = piece.column(2)[i].as_buffer()
            assert text.size == size
            assert text[0] == 97 + number % 26
            found += 1
    assert found == count, (found, count)
    store.close()


def random_keys(directory: str, options: Options, scale: float) -> None:
    """5 million random keys, one row each."""
    store = open_store(directory, [stream("s")], options=options)
    written = write(store, "s", random_batches(int(5_000_000 * scale), 1))
    assert read(store, "s") == written
    store.close()


def many_streams(directory: str, options: Options, scale: float) -> None:
    """64 streams in one store."""
    names = [f"s{i}" for i in range(64)]
    store = open_store(directory, [stream(name) for name in names], options=options)
    rows = int(2_000_000 * scale) // 64
    written = {name: write(store, name, random_batches(rows, i)) for i, name in enumerate(names)}
    for name in names:
        assert read(store, name) == written[name], name
    store.close()


def many_stores(directory: str, options: Options, scale: float) -> None:
    """8 stores of 8 streams in one process, written to in turn."""
    names = [f"s{i}" for i in range(8)]
    stores = [
        open_store(f"{directory}/{i}", [stream(name) for name in names], options=options)
        for i in range(8)
    ]
    rows = int(2_000_000 * scale) // 64
    written = {}
    for number, name in enumerate(names):
        for i, store in enumerate(stores):
            written[i, name] = write(store, name, random_batches(rows, 8 * i + number))
    for i, store in enumerate(stores):
        for name in names:
            assert read(store, name) == written[i, name], (i, name)
    for store in stores:
        store.close()


class LongReader:
    """Reads a snapshot a piece at a time, in key order or backward."""

    def __init__(self, store: MultimapStore, expected: tuple[int, int], *, reverse: bool) -> None:
        self._expected = expected
        self._snapshot = store.snapshot()
        self._pieces = self._snapshot.iterate("s", reverse=reverse)
        self._rows = self._total = 0

    def step(self) -> bool:
        """Read one more piece; False at the end, where everything must have been there."""
        piece = next(self._pieces, None)
        if piece is None:
            assert (self._rows, self._total) == self._expected
            self._snapshot.close()
            return False
        self._rows += piece.rows.num_rows
        self._total += int(np.sum(piece.rows.column(1).to_numpy()))
        return True


def long_readers(directory: str, options: Options, scale: float) -> None:
    """3 million random keys; four snapshots at a time are read while the writer goes on."""
    store = open_store(directory, [stream("s")], options=options)
    readers: list[LongReader] = []
    rows = total = 0
    for number, (batch, keys) in enumerate(random_batches(int(3_000_000 * scale), 2)):
        rows += store.append("s", batch, keys)
        total += int(np.sum(batch.column(1).to_numpy()))
        for reader in readers:
            reader.step()
        if number % 15 == 14:
            if len(readers) == 4:
                oldest = readers.pop(0)
                while oldest.step():
                    pass
            readers.append(LongReader(store, (rows, total), reverse=number % 2 == 0))
    for reader in readers:
        while reader.step():
            pass
    assert read(store, "s") == (rows, total)
    store.close()


def huge_ranges(directory: str, options: Options, scale: float) -> None:
    """2 million random keys: 1,000 ranges that hold half of them each, and the last and first rows
    of 300,000 ranges, 50,000 at a time: all of them would take 13 MB by themselves."""
    store = open_store(directory, [stream("s")], options=options)
    ascending = np.empty(int(2_000_000 * scale), np.int64)  # of the growth, 16 MB are its own
    rows = 0
    for batch, keys in random_batches(len(ascending), 3):
        store.append("s", batch, keys)
        ascending[rows : rows + batch.num_rows] = batch.column(0).to_numpy()
        rows += batch.num_rows
    assert rows == len(ascending)
    ascending.sort()
    low = np.random.default_rng(4).integers(0, 1 << 39, 1_000)
    wide = RangeBounds(low=pa.array(low), high=pa.array(low + (1 << 39)))
    places = [np.searchsorted(ascending, each) for each in (low, low + (1 << 39) + 1)]
    expected = places[1] - places[0]
    assert store.count_ranges("s", wide).tolist() == expected.tolist()
    found = np.zeros(len(low), np.int64)
    for piece in store.probe_ranges("s", wide):
        found[piece.ranges] += piece.stop - piece.first
    assert found.tolist() == expected.tolist()
    bounds = np.random.default_rng(5).integers(0, 1 << 40, int(300_000 * scale))
    expected = np.searchsorted(ascending, bounds, side="right")
    for name, held in (("last", expected > 0), ("first", expected < len(ascending))):
        ends = np.full(len(bounds), -1)
        for start in range(0, len(bounds), 50_000):
            part = bounds[start : start + 50_000]
            side = {"high": pa.array(part)} if name == "last" else {"low": pa.array(part + 1)}
            for piece in store.probe_ranges("s", RangeBounds(**side), **{name: True}):
                ends[start + piece.ranges] = piece.rows.column(0).to_numpy()[piece.first]
        wanted = ascending[np.clip(expected - (name == "last"), 0, len(ascending) - 1)]
        assert np.array_equal(ends, np.where(held, wanted, -1))
    store.close()


def huge_results(directory: str, options: Options, scale: float) -> None:
    """A band join in which 2,000 new rows find half of a million stored ones each."""
    count = int(1_000_000 * scale)
    state = State(memory=options.memory_bytes, state_dir=f"{directory}/join")
    on = "a.key BETWEEN b.key AND b.key + 549755813888"
    with MultiwayJoin({"a": ROWS, "b": ROWS}, on, state=state) as join:
        known = []
        for batch, _ in random_batches(count, 6):
            join.process("a", batch).close()
            known.append(batch.column(0).to_numpy())
        ascending = np.sort(np.concatenate(known))
        new, _ = next(random_batches(max(100, int(2_000 * scale)), 7))
        low = new.column(0).to_numpy()
        places = [np.searchsorted(ascending, each) for each in (low, low + (1 << 39) + 1)]
        assert join.process("b", new).count() == int((places[1] - places[0]).sum())
        some = join.process("b", new.slice(0, 20))
        assert sum(p.num_rows for p in some) == int((places[1] - places[0])[:20].sum())


SCENARIOS: dict[str, Callable[[str, Options, float], None]] = {
    "one_hot_key": one_hot_key,
    "huge_rows": huge_rows,
    "random_keys": random_keys,
    "many_streams": many_streams,
    "many_stores": many_stores,
    "long_readers": long_readers,
    "huge_ranges": huge_ranges,
    "huge_results": huge_results,
}


def status_bytes(field: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def run_scenario(name: str, cap: str, scale: float) -> dict[str, object]:
    """In a process of its own: growth in bytes and what came out."""
    pa.set_memory_pool(pa.system_memory_pool())
    # As the Spark workers do: what is freed goes back to the system.
    ctypes.CDLL(None).mallopt(-3, 256 * 1024)
    ctypes.CDLL(None).mallopt(-1, 256 * 1024)
    batch_of(np.arange(BATCH), np.arange(BATCH))
    directory = tempfile.mkdtemp(prefix="lsmstate-memory-")
    idle = status_bytes("VmRSS")
    outcome = "right"
    try:
        SCENARIOS[name](directory, Options(memory_bytes=parse_bytes(cap)), scale)
    except MemoryLimitError as error:
        outcome = f"refused: {error}"
    finally:
        shutil.rmtree(directory)
    growth = max(0, status_bytes("VmHWM") - idle)
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "growth": growth,
        "outcome": outcome,
        "fits": growth < parse_bytes(cap) + ALLOWANCE,
        "seconds": cpu.ru_utime + cpu.ru_stime,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--caps", default="16m,64m,256m")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--child", nargs=2, default=None)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(run_scenario(*arguments.child, arguments.scale)))
        return
    table = Table("scenario", "cap", "growth MiB", "allowed MiB", "CPU s", "outcome")
    failed = False
    for name in arguments.scenarios.split(","):
        for cap in arguments.caps.split(","):
            command = [sys.executable, "-m", "bench.store.memory_limit", "--child", name, cap]
            command += ["--scale", str(arguments.scale)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                failed = True
                table.add_row(name, cap, "", "", "", done.stderr.strip().splitlines()[-1])
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            failed |= not found["fits"]
            table.add_row(
                name,
                cap,
                f"{found['growth'] / MIB:.1f}",
                f"{(parse_bytes(cap) + ALLOWANCE) / MIB:.0f}{'' if found['fits'] else ' EXCEEDED'}",
                f"{found['seconds']:.1f}",
                str(found["outcome"])[:70],
            )
    Console().print(table)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
