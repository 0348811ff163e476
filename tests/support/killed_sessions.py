"""Sessions of kill_driver.py that a test ends, what arrives for them, and what they must write."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa

from support.faulty_daemon import kill, session
from support.kill_driver import JOINS, streams
from support.paths import SUPPORT
from support.spark_streams import assert_same_rows, committed, pieces

DRIVER = str(SUPPORT / "kill_driver.py")
ROWS_PER_FILE = 40


class Driver:
    """kill_driver.py in a session of its own."""

    def __init__(
        self, home: Path, provider: str, fault: str = "", files_per_batch: int = 1
    ) -> None:
        self.home = home
        self.log = home / "driver.log"
        self.mark = home / "mark"
        self.mark.unlink(missing_ok=True)
        environment = {
            "LSMSTATE_FAULT": fault,
            "LSMSTATE_FAULT_MARK": str(self.mark),
            "LSMSTATE_PROVIDER": provider,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, DRIVER, str(home), str(files_per_batch)],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, what: str, seconds: float = 240) -> bool:
        """Until the mark is there, or the next commit; False if the query ended before."""
        before, deadline = last_commit(self.home), time.monotonic() + seconds
        while not (self.mark.exists() if what == "mark" else last_commit(self.home) > before):
            if not self.is_running:
                return False
            assert time.monotonic() < deadline, f"no {what}: {self.log.read_text()[-2000:]}"
            time.sleep(0.02)
        return True

    def members(self) -> list[psutil.Process]:
        return session(self.process.pid)

    def end(self) -> None:
        """Kill what is left of the session."""
        while rest := [process for process in self.members() if is_alive(process)]:
            kill(rest)
            self.process.poll()
            time.sleep(0.05)
        self.process.wait()


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def last_commit(home: Path) -> int:
    try:
        names = os.listdir(home / "checkpoint" / "commits")  # Spark keeps the last ones
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isdigit()), default=-1)


def ended_well(driver: Driver) -> bool:
    return driver.process.wait() == 0


def let_arrive(home: Path, rng: random.Random, files: int) -> None:
    """Of each stream so many files."""
    for number, (name, stream) in enumerate(streams(home).items()):
        rows = files * ROWS_PER_FILE
        keys = [rng.randrange(rows // 4) + number for _ in range(rows)]
        texts = [f"{name}{i}" for i in range(rows)]
        table = pa.table({f"{name}_k": pa.array(keys, pa.int64()), f"{name}_text": texts})
        stream.add(*pieces(table, files))


def check_result(home: Path) -> int:
    """What was written is DuckDB's result, net of what was taken back; its rows."""
    _, _, options, sql = JOINS[os.environ.get("LSMSTATE_JOIN", "keys")]
    query = sql.format(**{name: stream.sql for name, stream in streams(home).items()})
    if os.environ.get("LSMSTATE_JOIN") == "aggregates":
        return check_groups(home, query)
    files = committed(home / "out")
    if options.get("emit") != "changes":
        return assert_same_rows(query, files)
    listed = ", ".join(f"'{path}'" for path in files)
    with duckdb.connect() as db:
        found: Counter[tuple[object, ...]] = Counter()
        for sign, *row in db.execute(f"SELECT * FROM read_parquet([{listed}])").fetchall():
            found[tuple(row)] += 1 if sign == "+I" else -1
        assert +found == Counter(db.execute(query).fetchall())
    assert min(found.values()) >= 0
    return sum(found.values())


def check_groups(home: Path, query: str) -> int:
    """The last row that was written of each group is DuckDB's; how many groups there are."""
    written = f"read_parquet('{home}/out/*/*.parquet', hive_partitioning = true)"
    last = "row_number() OVER (PARTITION BY g ORDER BY batch DESC) = 1"
    with duckdb.connect() as db:
        found = db.execute(f"SELECT g, n, total, last FROM {written} QUALIFY {last}").fetchall()
        wanted = db.execute(query).fetchall()
    assert len(wanted) > 1
    assert sorted(found) == sorted(wanted)
    return len(found)
