"""late="side" in the calls of a bucket, without Spark: a late row is kept once, whoever fails."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.join_tree import bounds_of
from lsmstate.joins.protocols import Role
from lsmstate.joins.routing.shares import JoinGraph, choose
from lsmstate.joins.routing.shares_router import SharesRouting
from lsmstate.joins.specs.choose import changing_spec
from lsmstate.joins.specs.event_time import EventTime, TimedSpec, TimeOptions, time_bounds
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.joins.specs.typed_condition import typed_condition
from lsmstate.spark_integration.joins.event_time import ResultTimes, timed_output
from lsmstate.spark_integration.joins.late_rows import (
    LATE_KEPT,
    LateRows,
    keeps_late_rows,
    late_stream,
)
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.plan.stateful_plan import InputPlan
from lsmstate.state_location import StatePlace, open_bucket
from support.timed_protocol_cases import (
    INTERVAL,
    KEY,
    MINUTE_MS,
    ROWS,
    Query,
    Row,
    State,
    frames_of,
)
from support.timed_protocol_cases import plan_of as plain_plan

TIMES = {"a": "at", "b": "at"}
TOLD = TimeOptions(TIMES, {}, "side")
ON = f"a FULL JOIN b ON a.k = b.k AND {INTERVAL}"
BEFORE_ALL = -1 << 62


def query_of(
    operator: str, root: Path, monkeypatch: pytest.MonkeyPatch, batches: int | None = None
) -> Query:
    tree = typed_condition({name: rows.names for name, rows in ROWS.items()}, ON).tree
    assert tree is not None
    graph = GraphSpec.create(ROWS, "a.k = b.k")
    bounds, _ = time_bounds(ROWS, [INTERVAL])
    plan: Any
    function: Any
    if operator in ("inner", "inner, with a result time"):
        column = None if operator == "inner" else "latest"
        joined = JoinSpec(ROWS, dict.fromkeys("ab", ("k",)), KEY)
        timing = EventTime.create(joined, TIMES, bounds, {}, "side", column is not None)
        spec = TimedSpec(joined, timing)
        plan = plain_plan(spec.stream_schemas, timed_output(spec, column), column)
        late = LateRows.of(plan.inputs, timing, batches)
        times = None if column is None else partial(ResultTimes, spec)
        function = run_join(spec, plan.inputs, late=late, result_times=times)
    elif operator == "final":
        final = FinalSpec.of(graph, tree, TIMES, {}, "side")
        plan = plain_plan(final.stream_schemas, final.output_schema)
        late = LateRows.of(plan.inputs, final.event_time, batches)
        function = run_join(final, plan.inputs, late=late)
    else:
        joins = tree if operator == "changes, full" else None
        changing = changing_spec(graph, joins, "changes", {}, bounds_of(tree), TOLD)
        plan = plain_plan(changing.stream_schemas, changing.output_schema)
        late = LateRows.of(plan.inputs, changing.event_time, batches)
        function = run_join(changing, plan.inputs, unmatched="error", late=late)
    return Query(root, monkeypatch, late.added_to(plan), function)


def kept_rows(query: Query, kept: Any) -> Counter[tuple[Any, ...]]:
    """(stream, number, micro-batch, watermark) of the late rows of a state."""
    found: Counter[tuple[Any, ...]] = Counter()
    with open_bucket(StatePlace(str(query.root)), 0, kept[1]) as store:
        for name in "ab":
            for entries in store.iterate(late_stream(name)):
                for row, key in zip(
                    entries.rows.to_pylist(), entries.keys.to_pylist(), strict=True
                ):
                    assert row["_batch"] == key["micro_batch"]
                    minute = round(row["_watermark"].timestamp()) // 60
                    found[name, row[f"n{name}"], row["_batch"], minute] += 1
    return found


def by_duckdb(rows: list[Row], join: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect(config={"threads": 1}) as db:
        for name in "ab":
            mine = [row[1:] for row in rows if row[0] == name]
            columns = zip(*mine, strict=True) if mine else ([], [], [])
            table = pa.table(dict(zip(("k", "at", f"n{name}"), columns, strict=True)))
            db.register(name, table)
        sql = "a.k = b.k AND b.at BETWEEN a.at - 10 AND a.at + 5"
        return Counter(db.execute(f"SELECT na, nb FROM a {join} JOIN b ON {sql}").fetchall())


def standing(shown: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """What has come and not gone; ticks are no rows."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in shown:
        if not row.get("lsmstate.tick"):
            found[row["na"], row["nb"]] += -1 if row.get("op") == "-D" else 1
    return found


def random_batch(rng: random.Random, batch: int, first: int, watermark: int) -> list[Row]:
    """Some are late, some as late as can be, of a key that has rows and of one that has none."""
    rows: list[Row] = []
    if batch % 5 == 4 or batch > 17:
        return rows  # a micro-batch without data
    for number in range(14):
        at = 60 + batch * 4 + rng.randrange(4)
        if rng.random() < 0.3:
            at = max(1, watermark - rng.choice([0, 1, 30]))
        rows.append((rng.choice("ab"), rng.choice([1, 2, 3, 100 + batch]), at, first + number))
    return rows


@pytest.mark.parametrize(
    ("operator", "join"),
    [
        ("inner, with a result time", ""),
        *(
            pytest.param(*each, marks=pytest.mark.stress)
            for each in (
                ("inner", ""),
                ("final", "FULL"),
                ("changes, full", "FULL"),
                ("changes, inner", ""),
            )
        ),
    ],
)
def test_whatever_is_repeated_or_ends_late_each_late_row_is_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: str, join: str
) -> None:
    """Every micro-batch opens the store anew, as a restart does. Joined and late rows are together
    what came."""
    rng = random.Random(11)
    query = query_of(operator, tmp_path, monkeypatch)
    kept: Any = None
    zombies: list[Iterator[Any]] = []
    arrived: list[Row] = []
    in_time: list[Row] = []
    late: Counter[tuple[Any, ...]] = Counter()
    shown: list[dict[str, Any]] = []
    watermark = judged_by = BEFORE_ALL
    for batch in range(20):
        rows = random_batch(rng, batch, len(arrived), watermark)
        watermark_ms = max(0, watermark) * MINUTE_MS
        zombie = query._function((0,), iter(frames_of(rows)), State(kept, watermark_ms))
        query._batch = batch
        next(zombie)  # and it goes on when others were committed
        zombies.append(zombie)
        query.broken_off(batch, rows, kept, watermark_ms)
        attempts = [query.attempt(batch, rows, kept, watermark_ms) for _ in range(2)]
        shown += rng.choice(attempts)[0]
        kept = rng.choice(attempts)[1].getOption
        if batch % 3 == 2:
            for each in zombies:
                list(each)
            zombies.clear()
        arrived += rows
        in_time += [row for row in rows if row[2] > judged_by]
        late.update((s, n, batch, judged_by) for s, _, at, n in rows if at <= judged_by)
        judged_by = watermark
        latest = max((at for _, _, at, _ in arrived), default=0)
        watermark = latest + 100 * (batch >= 17)
        assert kept_rows(query, kept) == late
    assert +standing(shown) == by_duckdb(in_time, join)
    assert len(in_time) + late.total() == len(arrived)
    assert late.total() > 20


def test_those_of_so_many_micro_batches_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = query_of("inner", tmp_path, monkeypatch, batches=3)
    kept: Any = None
    for batch in range(8):
        rows: list[Row] = [("a", 1, 100, -1)] if batch == 0 else [("a", 1, 5, batch)]
        rows = [] if batch == 5 else rows
        _, state = query.attempt(batch, rows, kept, 100 * MINUTE_MS)
        kept = state.getOption
        numbers = {number for _, number, *_ in kept_rows(query, kept)}
        assert numbers == set(range(max(1, batch - 2), batch + 1)) - {5}


def test_of_a_row_with_copies_one_is_stored() -> None:
    graph = JoinGraph(rows=dict.fromkeys("abc", 1), classes={"k": ("a", "b"), "j": ("b", "c")})
    rows = pa.record_batch({"k": pa.array([*range(40), None], pa.int64())})
    routing = SharesRouting(graph, choose(graph, 6, {"k": 2, "j": 3}), marks_copies=True)
    router = routing.router("a", rows.schema, rows.schema)
    positions, buckets, roles, _ = router.route(rows, rows)
    assert roles is not None
    assert set(roles.tolist()) == {Role.COPY, Role.STORE}
    is_own = roles == Role.STORE
    assert len(positions) == 3 * 40
    assert Counter(positions[is_own].tolist()) == Counter(range(40))
    again = router.route(rows.slice(7, 5), rows.slice(7, 5))
    assert again.roles is not None
    stored = dict(zip(positions[is_own], buckets[is_own], strict=True))
    mine = again.roles == Role.STORE
    found = zip(again.positions[mine], again.buckets[mine], strict=True)
    assert all(stored[position + 7] == bucket for position, bucket in found)
    assert np.bincount(buckets[is_own]).max() < 40


def test_what_the_checkpoint_pins_and_what_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = query_of("final", tmp_path, monkeypatch)
    assert query.plan.settings[LATE_KEPT] == ["a", "b"]
    assert [s.name for s in query.plan.state if keeps_late_rows(s)] == ["a (late)", "b (late)"]
    timing = EventTime.create(GraphSpec.create(ROWS, "a.k = b.k"), TIMES, (), {}, "drop")
    nothing = LateRows.of(query.plan.inputs, timing, None).added_to(query.plan)
    assert (nothing.settings[LATE_KEPT], nothing.routing) == (None, query.plan.routing)
    rows = pa.schema([*ROWS["a"], ("_Batch", pa.int64())])
    taken = InputPlan("a", rows, KEY, (0,), pa.schema([]), ())
    aside = EventTime.create(GraphSpec.create(ROWS, "a.k = b.k"), TIMES, (), {}, "side")
    with pytest.raises(InvalidArgumentError, match=r"column '_batch'.*'_Batch'; rename it"):
        LateRows.of([taken], aside, None)
    with pytest.raises(InvalidArgumentError, match=r"of 'a' in a stream 'a \(late\)', .* rename"):
        LateRows.of(query.plan.inputs, aside, None).added_to(query.plan)
