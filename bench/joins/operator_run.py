"""One run of one join operator over the main job's four streams, in a process of its own.

    python -m bench.joins.operator_run umjoin --cap 16m
    python -m bench.joins.operator_run tree --order '[["sr", "cu"], ["wr", "cr"]]' --cap 16m

Plain Arrow batches through the operator, no Spark. Prints a JSON object a line: where it stands
after each batch, and at the end what the whole run took. ``umjoin_figures.py`` draws them.
``--limit`` makes the cap real: the process may have so much memory (RLIMIT_DATA) beside what it
has when it begins, and an allowance for batches in flight; who needs more dies.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.common.measures import disk_bytes
from lsmstate.joins.local.inner.binary_tree_join import TreeJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.binary_tree import BinaryTree
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.opening import open_attempt, open_store
from lsmstate.options import MIB, Options, parse_bytes
from lsmstate.spark_integration.demo.query import ALIASES, CONDITION
from lsmstate.spark_integration.demo.tpcds import stream_files
from lsmstate.store import MultimapStore, StreamSchema

ALGORITHMS = ("umjoin", "tree", "multistream")
#: What a process may take beside the cap: batches in flight, the reader, pieces of the result.
ALLOWANCE_BYTES = 80 * MIB
#: Files a table is cut into, and rows that arrive together.
FILES = 10
BATCH_ROWS = 5_000
DATA = Path(__file__).parents[2] / ".data"


def arrivals(scale: float) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(stream, batch) as the streams bring them: all at once, each table in random order."""
    files = stream_files(DATA, scale, FILES)
    readers = {
        alias: _batches(sorted(files.table(table).iterdir())) for alias, table in ALIASES.items()
    }
    counts = {
        alias: sum(pq.read_metadata(path).num_rows for path in files.table(table).iterdir())
        for alias, table in ALIASES.items()
    }
    # Of a larger table more batches in the same time.
    seen = dict.fromkeys(ALIASES, 0)
    while readers:
        alias = min(readers, key=lambda name: seen[name] / counts[name])
        batch = next(readers[alias], None)
        if batch is None:
            del readers[alias]
        else:
            seen[alias] += batch.num_rows
            yield alias, batch


def _batches(paths: list[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        yield from pq.ParquetFile(path).iter_batches(BATCH_ROWS)


class Counted:
    """A store that counts what is stored in it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.rows: dict[str, int] = dict.fromkeys(store.streams, 0)
        self.bytes: dict[str, int] = dict.fromkeys(store.streams, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, stream: str, rows: pa.RecordBatch, keys: Any) -> int:
        self.rows[stream] += rows.num_rows
        self.bytes[stream] += rows.nbytes
        return self._store.append(stream, rows, keys)


def run(arguments: argparse.Namespace) -> None:
    # Arrow's own pools reserve memory that the limit would count, or not, whatever is in use.
    pa.set_memory_pool(pa.system_memory_pool())
    spec = JoinSpec.create(schemas(arguments.scale), CONDITION)
    tree = BinaryTree.create(spec, json.loads(arguments.order)) if arguments.order else None
    backend = "memory" if arguments.algorithm == "multistream" else "lsm"
    # The limit is the process's then, as a JVM's heap is MultiStream's.
    cap = 1 << 40 if backend == "memory" else parse_bytes(arguments.cap)
    memtable = parse_bytes(arguments.memtable) if arguments.memtable else None
    options = Options(memory_bytes=cap, memtable_bytes=memtable, sync="never")
    with tempfile.TemporaryDirectory(prefix="lsmstate-figure-", dir=arguments.temporary) as home:
        stored = tree or spec
        store = Counted(_opened(home, stored.stream_schemas, backend, options))
        join = TreeJoin(tree, store) if tree else UMJoin(spec, store)
        batches = list(arrivals(arguments.scale)) if arguments.preload else None
        idle, idle_data = psutil.Process().memory_info().rss, _data_bytes()
        if arguments.limit:
            _limit(parse_bytes(arguments.cap))
        start, cpu = time.perf_counter(), time.process_time()
        rows_in = rows_out = 0
        for stream, batch in batches or arrivals(arguments.scale):
            rows_in += batch.num_rows
            for piece in join.process(Batch(stream, batch)):
                rows_out += piece.num_rows
            spent = {
                "seconds": time.perf_counter() - start,
                "cpu_seconds": time.process_time() - cpu,
            }
            _say(**spent, rows_in=rows_in, rows_out=rows_out)
        if backend == "lsm":
            store.flush()
        inner = [name for name in store.rows if name not in spec.streams]
        _say(
            finished=True,
            seconds=time.perf_counter() - start,
            cpu_seconds=time.process_time() - cpu,
            rows_in=rows_in,
            rows_out=rows_out,
            data_bytes=_data_bytes() - idle_data,
            growth_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - idle,
            disk_bytes=disk_bytes(home),
            state_bytes=sum(store.bytes[name] for name in spec.streams),
            intermediate_rows=sum(store.rows[name] for name in inner),
            intermediate_bytes=sum(store.bytes[name] for name in inner),
        )
        store.close()


def _opened(
    home: str, streams: Sequence[StreamSchema], backend: str, options: Options
) -> MultimapStore:
    if backend == "memory":  # without a log, which it would write for every batch
        return open_attempt(
            home, streams, backend=backend, batch_id=0, attempt_id="figure", options=options
        )
    return open_store(home, streams, backend=backend, options=options)


def schemas(scale: float) -> dict[str, pa.Schema]:
    files = stream_files(DATA, scale, FILES)
    return {
        alias: pq.read_schema(min(files.table(table).iterdir())).remove_metadata()
        for alias, table in ALIASES.items()
    }


def _limit(cap: int) -> None:
    """Let the data of this process grow by the cap and the allowance, no more."""
    most = _data_bytes() + cap + ALLOWANCE_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _data_bytes() -> int:
    """What RLIMIT_DATA counts: private memory that may be written to."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("algorithm", choices=ALGORITHMS)
    found.add_argument("--order", help="of the tree, as JSON")
    found.add_argument("--scale", type=float, default=1.0)
    found.add_argument("--cap", default="16m")
    found.add_argument("--memtable", help="default: a quarter of the cap")
    found.add_argument("--limit", action="store_true", help="make the cap that of the process")
    found.add_argument(
        "--preload", action="store_true", help="all input in memory before it starts"
    )
    found.add_argument("--temporary", help="where the state lies meanwhile")
    return found


if __name__ == "__main__":
    try:
        run(parser().parse_args())
    except (MemoryError, pa.ArrowMemoryError) as error:
        # The store is in no state to be closed.
        _say(died=f"{type(error).__name__}: {error}"[:200])
        sys.exit(3)
