"""kill -9 of the whole session, of the JVM, of a Python worker, at random instants.

Slow, so it runs in ``make stress``. LSMSTATE_KILLS says how many kills (default 9), LSMSTATE_SEED
from which seed; a failure prints it.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from kill_driver import streams
from spark_streams import assert_same_rows, committed, pieces

pytestmark = [pytest.mark.spark, pytest.mark.stress, pytest.mark.timeout(3600)]

FILES = 40
ROWS = 1600
KINDS = ("session", "jvm", "worker")


def start(home: Path, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kill_driver.py")), str(home)],
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def members(session: int) -> list[psutil.Process]:
    """All processes of a session: pyspark's daemon has a process group of its own."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if os.getsid(process.pid) == session:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def kill(session: int, kind: str, rng: random.Random) -> int:
    """How many processes were killed."""
    processes = members(session)
    if kind == "jvm":
        processes = [p for p in processes if "java" in (p.info["cmdline"] or [""])[0]]
    elif kind == "worker":
        forked = [p for p in processes if "pyspark.worker" in " ".join(p.info["cmdline"] or [])]
        daemons = {p.ppid() for p in forked}
        workers = [p for p in forked if p.pid not in daemons]
        processes = [rng.choice(workers)] if workers else []
    for process in processes:
        process.kill()
    return len(processes)


def commits(home: Path) -> int:
    try:
        return len([n for n in os.listdir(home / "checkpoint" / "commits") if n.isdigit()])
    except FileNotFoundError:
        return 0


def wait_for_progress(child: "subprocess.Popen[bytes]", home: Path, beyond: int) -> None:
    deadline = time.monotonic() + 180
    while commits(home) <= beyond and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


def test_whatever_is_killed_nothing_is_lost_and_nothing_doubled(tmp_path):
    kills = int(os.environ.get("LSMSTATE_KILLS", "9"))
    seed = int(os.environ.get("LSMSTATE_SEED", str(random.SystemRandom().randrange(1 << 32))))
    print(f"LSMSTATE_SEED={seed}")
    rng = random.Random(seed)
    home, log = tmp_path, tmp_path / "driver.log"
    for number, (name, stream) in enumerate(streams(home).items()):
        keys = [rng.randrange(400) + number for _ in range(ROWS)]
        texts = [f"{name}{i}" for i in range(ROWS)]
        table = pa.table({f"{name}_k": pa.array(keys, pa.int64()), f"{name}_text": texts})
        stream.add(*pieces(table, FILES))
    done = 0
    for number in range(kills):
        child = start(home, log)
        wait_for_progress(child, home, commits(home))
        time.sleep(rng.uniform(0, 1.0))
        kind = KINDS[number % len(KINDS)]
        if child.poll() is None and kill(child.pid, kind, rng):
            done += 1
        if kind != "session":
            # A dead worker or JVM ends the query; what is left of the session ends with it.
            time.sleep(2)
            kill(child.pid, "session", rng)
        child.wait()
    child = start(home, log)
    assert child.wait() == 0, log.read_text()[-3000:]
    assert done >= min(kills, 3), f"only {done} kills came before the end"
    assert log.read_text().endswith("done\n")
    a, b, c = (stream.sql for stream in streams(home).values())
    query = f"SELECT * FROM {a} JOIN {b} ON a_k = b_k JOIN {c} ON a_k = c_k"
    rows = assert_same_rows(query, committed(home / "out"))
    print(f"{done} kills, {commits(home)} commits, {rows} rows equal DuckDB's")
