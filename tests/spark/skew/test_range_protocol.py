"""A range join routed by tables of ranges, from route to commit, without Spark: tasks, buckets and
micro-batches run more than once, the query is set back, and attempts of long ago end late."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.joins.local.theta.range_routing import ThetaRanges
from lsmstate.joins.routing.ranges.range_table import RangeTable
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.options import Options
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan, observed_streams
from lsmstate.spark_integration.tables.versioned_tables import (
    PERIOD,
    VersionedTables,
    newest_table,
)
from lsmstate.state_location import StatePlace
from support.skewed_query import BUCKETS, Elsewhere, Rows, SkewedQuery

BAND = "abs(a.x - b.x) <= 3"
INTERVALS = "b.x BETWEEN a.x AND a.n"


class RangedQuery(SkewedQuery):
    """What Spark does with one query whose rows are routed by their ranges."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random, on: str):
        schemas = {name: pa.schema([("x", pa.int64()), ("n", pa.int64())]) for name in "ab"}
        spec = ThetaSpec.create(schemas, on)
        key = pa.schema([("x", pa.int64())])
        self.routing = ThetaRanges.for_spec(spec)
        plan = StatefulPlan(
            operator="multiway_join",
            inputs=tuple(
                InputPlan(name, rows, key, (0,), pa.schema([]), ())
                for name, rows in schemas.items()
            ),
            state=(*spec.stream_schemas, *observed_streams(self.routing)),
            output=spec.output_schema,
            settings={},
            keeps_null_keys=False,
            output_mode="append",
            options=Options(memory_bytes=16 << 20),
            backend="lsm",
            buckets=BUCKETS,
            default_buckets=BUCKETS,
            state_dir=None,
            routing=self.routing,
        )
        self.set_up(home, monkeypatch, rng, schemas, spec, plan, on)

    def table(self) -> RangeTable:
        found = newest_table(self.place, self.routing)
        assert isinstance(found, RangeTable)
        return found


class RemoteQuery(RangedQuery):
    """The same, with its state elsewhere."""

    def place_of(self, home: Path) -> StatePlace:
        return Elsewhere(home)


def arriving(rng: random.Random, batch: int, rows: int = 40) -> Rows:
    """Keys that rise, and some late ones."""
    found: Rows = {}
    for name in "ab":
        values = [rng.randrange(100) + 60 * (batch - rng.choice([0, 0, 0, 2])) for _ in range(rows)]
        found[name] = [(x, x + rng.choice([5, 5, 5, 200])) for x in values]
    return found


@pytest.mark.parametrize(
    ("kind", "on"),
    [
        (RangedQuery, BAND),
        pytest.param(RangedQuery, INTERVALS, marks=pytest.mark.stress),
        pytest.param(RemoteQuery, INTERVALS, marks=pytest.mark.stress),
    ],
)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(2, 9))]
)
def test_results_are_exact_whatever_runs_twice_or_late(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    kind: type[RangedQuery],
    on: str,
) -> None:
    rng = random.Random(seed)
    query = kind(tmp_path, monkeypatch, rng, on)
    for step in range(3 * PERIOD + 2):
        # Few values at first, which many units have no part of.
        query.batch(arriving(rng, step if step > PERIOD else 0))
        chance = rng.random()
        if chance < 0.2:
            query.repeat_last()
        elif chance < 0.3 and len(query.shown) > 2:
            query.set_back(rng.choice([1, 2]))
        elif chance < 0.4:
            query.zombie(rng.choice(query.ran))
        elif chance < 0.5 and query.given_up:
            query.zombie_of_given_up()
    query.check()
    assert query.table().layout.edges
    assert query.table().micro_batch > 0
    known = [held for closed in query.table().closed for held in closed.held["a"]]
    assert any(held is not None for held in known)


def test_the_first_table_is_of_the_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(4)
    query = RangedQuery(tmp_path, monkeypatch, rng, BAND)
    query.batch({"a": [], "b": []})
    assert not list((tmp_path / "routes").glob("table-*"))
    query.batch(arriving(rng, 1))
    first = query.table()
    assert first.layout.edges
    # All tasks of the micro-batches after it route by it, also where the query is set back.
    query.batch(arriving(rng, 2))
    assert query.table() == first
    query.set_back(2)
    query.batch(arriving(rng, 9))
    assert query.table() == first
    query.check()


def test_a_table_that_is_gone_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    query = RangedQuery(tmp_path, monkeypatch, rng, BAND)
    for batch in range(PERIOD):
        query.batch(arriving(rng, batch))
    for table in (tmp_path / "routes").glob("table-*"):
        table.unlink()
    with pytest.raises(CorruptionError, match="is missing"):
        query.batch(arriving(rng, PERIOD))


def test_all_makers_of_a_remote_table_write_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that found no table and what it is made from, and writes when the query is long past."""
    rng = random.Random(7)
    query = RemoteQuery(tmp_path, monkeypatch, rng, BAND)
    for batch in range(PERIOD):
        query.batch(arriving(rng, batch))
    assert not query.table().layout.edges  # none is made from rows
    slow = VersionedTables.of(query.plan.settled(BUCKETS, {}), query.run_of(PERIOD))
    assert slow is not None
    record = slow._made(PERIOD, None)
    for batch in range(PERIOD, 2 * PERIOD):
        query.batch(arriving(rng, batch))
    table = query.table()
    assert table.micro_batch == PERIOD
    for batch in range(2 * PERIOD, 3 * PERIOD):
        query.batch(arriving(rng, batch))
    (name,) = (query.home / "state" / "routes").glob(f"table-{PERIOD:010d}-*.json")
    written = name.read_bytes()
    assert json.loads(written)["settings"] == json.loads(json.dumps(record))
    # What it was made from is gone by now; a maker that comes too late finds the table.
    assert slow.table(PERIOD) == table
    assert name.read_bytes() == written


def test_a_join_without_ranges_is_refused() -> None:
    schemas = {name: pa.schema([("x", pa.int64())]) for name in "ab"}
    with pytest.raises(InvalidArgumentError, match="has no range between two streams"):
        ThetaRanges.for_spec(ThetaSpec.create(schemas, "a.x <> b.x"))
