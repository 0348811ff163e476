"""kill -9 at random instants, again and again: nothing is lost, nothing doubled.

Four kinds in turn: the whole session at a random file operation of ours; a zombie, which is a
worker that is stopped at a random file operation, outlives its session, and goes on when a newer
session has committed more; a worker alone while the session lives on; the JVM.

Slow, so it runs in ``make stress``: with Spark's own default state store, and with its RocksDB
provider. LSMSTATE_KILLS says how many kills each (default 24), LSMSTATE_SEED from which seed; it is
printed.
"""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark")

from lsmstate.lsm.file_names import parse_attempt_file
from support.faulty_daemon import kill
from support.kill_driver import PROVIDERS
from support.killed_sessions import (
    Driver,
    check_result,
    ended_well,
    is_alive,
    last_commit,
    let_arrive,
)

pytestmark = [pytest.mark.spark, pytest.mark.stress, pytest.mark.timeout(3600)]

#: In an order that needs three sessions for four kills.
KINDS = ("operation", "zombie", "worker", "jvm")
#: Of each stream there is one file a micro-batch; a kill and what it needs take a few of them.
FILES_PER_KILL = 4
#: Six left four files and more in each of the six runs on record.
ZOMBIES_OF_WHICH_ONE_WRITES = 6


def holds_state(environment: dict[str, str]) -> bool:
    return environment.get("LSMSTATE_WORKER") == "state"


def files_of(home: Path, batch_id: int) -> set[str]:
    """The state's files that attempts of a micro-batch wrote."""
    names = {path.name for path in (home / "checkpoint" / "lsmstate").rglob("*.sst")}
    return {n for n in names if (f := parse_attempt_file(n)) and f.batch_id == batch_id}


class Killer:
    """Does one kill after the other, and says of each whether it came about."""

    def __init__(self, home: Path, provider: str, rng: random.Random) -> None:
        self.home = home
        self.provider = provider
        self.rng = rng
        self.driver: Driver | None = None
        #: Files that zombies wrote after they had gone on.
        self.written_late = 0

    def running(self) -> Driver:
        """A session that lives, and has committed something."""
        if self.driver is None or not self.driver.is_running:
            self.driver = Driver(self.home, self.provider)
        self.driver.wait_for("commit")
        return self.driver

    def fated(self, fault: str) -> Driver:
        """A new session, one of whose workers meets its fate."""
        if self.driver is not None:
            self.driver.end()
        fate = f"{fault} {self.rng.randrange(1, 150)}"
        self.driver = Driver(self.home, self.provider, fate)
        return self.driver

    def operation(self) -> bool:
        driver = self.fated("kill")
        happened = driver.wait_for("mark")
        driver.process.wait()
        driver.end()
        return happened

    def jvm(self) -> bool:
        driver = self.running()
        time.sleep(self.rng.uniform(0, 1))
        names = [(p, " ".join(p.info["cmdline"] or [])) for p in driver.members()]
        killed = kill([process for process, name in names if "java" in name.split(" ")[0]])
        driver.end()
        return killed > 0

    def worker(self) -> bool:
        """A worker that holds state; the session has to live on."""
        driver = self.running()
        time.sleep(self.rng.uniform(0, 1))
        holders = [p for p in driver.members() if holds_state(p.info["environ"] or {})]
        daemons = {process.ppid() for process in holders}
        workers = [p for p in holders if p.pid not in daemons]
        killed = kill(self.rng.sample(workers, min(1, len(workers))))
        return killed > 0 and driver.wait_for("commit")

    def zombie(self) -> bool:
        driver = self.fated("stop")
        if not driver.wait_for("mark"):
            return False
        worker = psutil.Process(int(driver.mark.read_text()))
        driver.end()
        stopped_in = last_commit(self.home) + 1
        while last_commit(self.home) <= stopped_in:
            if not self.running().is_running:
                break
        before = files_of(self.home, stopped_in)
        os.kill(worker.pid, signal.SIGCONT)
        psutil.wait_procs([worker], timeout=60)
        assert not is_alive(worker), "the zombie neither ended nor failed"
        self.written_late += len(files_of(self.home, stopped_in) - before)
        return last_commit(self.home) > stopped_in


@pytest.mark.parametrize(
    ("provider", "joined"),
    [
        *((each, "keys") for each in PROVIDERS),
        *(
            ("hdfs", joined)
            for joined in ("range", "band", "documents", "similarity", "aggregates")
        ),
    ],
)
def test_whatever_is_killed_nothing_is_lost_and_nothing_doubled(
    provider: str, joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSMSTATE_JOIN", joined)
    kills = int(os.environ.get("LSMSTATE_KILLS", "24"))
    seed = int(os.environ.get("LSMSTATE_SEED", str(random.SystemRandom().randrange(1 << 32))))
    print(f"LSMSTATE_SEED={seed}")
    rng = random.Random(seed)
    let_arrive(tmp_path, rng, FILES_PER_KILL * (kills + 2))
    killer = Killer(tmp_path, provider, rng)
    done = dict.fromkeys(KINDS, 0)
    for number in range(kills):
        way = KINDS[number % len(KINDS)]
        happened = getattr(killer, way)()
        done[way] += happened
        print(f"{way}: {happened}, after batch {last_commit(tmp_path)}", flush=True)
    if killer.driver is not None:
        killer.driver.end()
    last = Driver(tmp_path, provider, files_per_batch=8)
    assert ended_well(last), "the last start of the query failed"
    print(f"{done}, {last_commit(tmp_path) + 1} batches, {killer.written_late} files by zombies")
    print(f"{check_result(tmp_path)} rows equal DuckDB's")
    assert sum(done.values()) == kills, f"some kills came too late: {done}"
    # One alone may have been stopped before it had read its input, or after its commit.
    assert killer.written_late > 0 or done["zombie"] < ZOMBIES_OF_WHICH_ONE_WRITES


def test_a_full_disk_ends_the_query_with_its_error_and_loses_nothing(tmp_path: Path) -> None:
    let_arrive(tmp_path, random.Random(5), 8)
    full = Driver(tmp_path, "hdfs", "full 30")
    assert not ended_well(full), "the disk was never full"
    told = full.log.read_text()
    assert "No space left on device" in told
    assert -1 < last_commit(tmp_path) < 7, "it is to fail in the middle"
    full.end()
    assert ended_well(Driver(tmp_path, "hdfs", files_per_batch=8)), "it does not go on"
    assert check_result(tmp_path) > 100
