"""The paper's comparison: state many times as large as what a worker may use.

In memory, as MultiStream keeps it, the query dies; with our store it finishes, and nothing is
missing. The limit is the system's own (RLIMIT_DATA), on the Python workers alone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.options import MIB
from support.limit_driver import NAMES, streams
from support.paths import SUPPORT
from support.spark_streams import assert_same_rows, committed, pieces

pytestmark = [pytest.mark.spark, pytest.mark.stress, pytest.mark.timeout(3600)]

CAP_BYTES = 16 * MIB
#: What a worker may allocate. An idle one with pyarrow, pandas and lsmstate has about 200 MiB.
LIMIT_BYTES = 400 * MIB
#: Of each stream; 2,000 bytes that do not compress each. In all 458 MiB, half of it a worker's.
ROWS = 60_000
ROW_BYTES = 2_000
#: Keys that all streams share; every other is in one of them only.
SHARED = 3_000
FILES = 6


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("limit")
    rng = np.random.default_rng(8)
    for number, (name, stream) in enumerate(streams(home).items()):
        keys = 10 + len(NAMES) * np.arange(ROWS) + number
        keys[rng.choice(ROWS, SHARED, replace=False)] = -rng.permutation(SHARED)
        raw = rng.bytes(ROWS * ROW_BYTES)
        rows = [raw[i * ROW_BYTES : (i + 1) * ROW_BYTES] for i in range(ROWS)]
        columns = {f"{name}_k": keys, f"{name}_i": np.arange(ROWS), f"{name}_raw": rows}
        stream.add(*pieces(pa.table(columns), FILES))
    return home


def run(home: Path, backend: str, memory: str) -> tuple[int, str]:
    """Exit status, and all that was said."""
    driver = SUPPORT / "limit_driver.py"
    done = subprocess.run(
        [sys.executable, str(driver), str(home), backend, memory],
        env={**os.environ, "LIMIT_BYTES": str(LIMIT_BYTES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_in_memory_the_query_dies(home: Path) -> None:
    status, said = run(home, "memory", "16g")
    assert "limit bites: True" in said
    assert status != 0, "the state fitted into memory: the comparison shows nothing"
    assert "MemoryLimitError" not in said, "it was the store's own cap that refused"
    died = [w for w in ("MemoryError", "malloc of size", "exited unexpectedly") if w in said]
    assert died, said[-3000:]
    commits = home / "memory" / "checkpoint" / "commits"
    done = len([n for n in os.listdir(commits) if n.isdigit()]) if commits.exists() else 0
    assert done < FILES
    print(f"memory: {done} of {FILES} micro-batches, then {died[0]!r}")


def test_with_our_store_it_finishes(home: Path) -> None:
    status, said = run(home, "lsm", str(CAP_BYTES))
    assert "limit bites: True" in said
    assert status == 0, said[-3000:]
    found = json.loads(said.splitlines()[-1])
    assert sum(found["rows_in"]) == len(NAMES) * ROWS
    assert max(found["state_disk_bytes"]) > LIMIT_BYTES
    assert max(found["peak_state_bytes"]) <= CAP_BYTES
    columns = [f"{name}_i" for name in NAMES]
    columns += [f"md5({name}_raw) AS {name}_md5" for name in NAMES]
    tables = [stream.sql for stream in streams(home).values()]
    on = " ".join(f"JOIN {t} ON a_k = {n}_k" for n, t in zip(NAMES[1:], tables[1:], strict=True))
    expected = f"SELECT {', '.join(columns)} FROM {tables[0]} {on}"
    rows = assert_same_rows(expected, committed(home / "lsm" / "out"), at_least=SHARED)
    print(
        f"lsm: {rows} rows equal DuckDB's; state {max(found['state_disk_bytes']) / MIB:.0f} MiB, "
        f"cap {CAP_BYTES / MIB:.0f} MiB, a worker grew by "
        f"{max(found['worker_growth_bytes']) / MIB:.0f} MiB, limit {LIMIT_BYTES / MIB:.0f} MiB"
    )
