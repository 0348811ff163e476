"""Hot keys spread while the disk fails, tasks are killed and files are damaged."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.joins.routing.skew import respread
from lsmstate.joins.routing.skew.spread import SpreadKey
from lsmstate.lsm.table_cache import table_cache
from lsmstate.process.memory_budget import process_memory
from lsmstate.spark_integration.skew import key_watch as skew
from lsmstate.spark_integration.tables.versioned_tables import PERIOD
from support.faults import Faults, faults
from support.simulated_spark import State
from support.skewed_query import BUCKET_IDS, SkewedQuery, arriving, spread_keys

HOT = {5000: {"a": 1, "b": 16, "c": 1}}
OTHERS = {"a": 6, "b": 9, "c": 6}


class Switch:
    """A join of three streams in the micro-batch that spreads its hot key."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(respread, "LEAST_ROWS", 50.0)
        self.rng = random.Random(3)
        self.query = SkewedQuery(home, monkeypatch, self.rng, "abc")
        for _ in range(PERIOD):
            self.query.batch(arriving(self.rng, HOT, OTHERS))
        self.rows = arriving(self.rng, HOT, OTHERS)

    def routed(self) -> dict[int, pd.DataFrame]:
        frames = self.query.routed(PERIOD, self.rows)
        assert frames is not None
        return {int(bucket): mine for bucket, mine in frames.groupby("bucket")}

    def hot_key(self) -> SpreadKey:
        (key,) = spread_keys(self.query.home)
        return key

    def added(self) -> list[int]:
        addition = self.hot_key().addition
        assert addition is not None
        return [BUCKET_IDS[place] for place in addition.buckets]

    def attempt(self, bucket: int, frames: pd.DataFrame) -> Any:
        state = State(self.query.pointers.get(bucket))
        return self.query.called(PERIOD, bucket, frames, state)

    def goes_on(self) -> None:
        self.query.batch(self.rows)
        for _ in range(2):
            self.query.batch(arriving(self.rng, HOT, OTHERS))
        self.query.check()


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Switch:
    return Switch(tmp_path, monkeypatch)


@pytest.mark.parametrize("tear", [pytest.param(None, marks=pytest.mark.stress), 0.5])
def test_a_full_disk_and_a_kill_while_a_bucket_takes_over_cost_nothing(
    switch: Switch, monkeypatch: pytest.MonkeyPatch, tear: float | None
) -> None:
    for number in range(4):
        with faults(Faults(number, tear=tear)), suppress(InvalidArgumentError):
            switch.routed()
    frames = switch.routed()
    failed = 0
    for bucket in switch.added():
        for number in range(6):
            with faults(Faults(number, tear=tear)), suppress(OSError, InvalidArgumentError):
                failed += 1
                switch.attempt(bucket, frames[bucket])
                failed -= 1
    assert failed >= 6
    real, taken = skew.take_over, []

    def killed(*args: Any) -> int:
        taken.append(real(*args))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(skew, "take_over", killed)
        for bucket in switch.added():
            with pytest.raises(KeyboardInterrupt):
                switch.attempt(bucket, frames[bucket])
    assert all(taken)
    switch.goes_on()


def test_what_is_damaged_is_an_error_that_names_it(switch: Switch) -> None:
    frames = switch.routed()
    bucket, owner = switch.added()[0], BUCKET_IDS[switch.hot_key().buckets[0]]
    directory = switch.query.home / f"bucket-{owner:06d}"
    intact = {path: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    tables = table_cache(process_memory())
    for path, content in intact.items():
        path.chmod(0o644)
        path.write_bytes(content[: len(content) // 2])
        tables.forget(str(directory), path.name)
    with pytest.raises(CorruptionError, match=str(directory)):
        switch.attempt(bucket, frames[bucket])
    for path, content in intact.items():
        path.write_bytes(content)
        tables.forget(str(directory), path.name)
    table = switch.query.home / f"routes/table-{PERIOD:010d}-000001.json"
    content = table.read_bytes()
    table.write_bytes(content.replace(b"5000", b"5001"))
    with pytest.raises(CorruptionError, match=table.name):
        switch.routed()
    table.write_bytes(content)
    switch.goes_on()
