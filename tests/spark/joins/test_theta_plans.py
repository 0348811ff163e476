"""Joins by any condition on Spark below Spark: the plan of a join, the routing of its rows, and its
buckets, over random streams and conditions, equal to brute force. No JVM is started."""

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.options import ROUTINGS, Skew
from support.examples import examples
from support.fake_frames import SETTINGS, Buckets, frame_of, operator_of
from support.theta_cases import (
    SCHEMA,
    START,
    Condition,
    batch,
    every,
    expected,
    random_condition,
    rows,
)
from support.theta_sides import JOINS, Oracle

CHANGELOG = pa.schema([*SCHEMA, ("op", pa.string())])


def ids_of(piece: pa.RecordBatch, names: list[str]) -> list[tuple[int, tuple[Any, ...]]]:
    """Of each result whether it comes (1) or goes (-1), and the ids of its rows."""
    signs = [1] * piece.num_rows
    if "op" in piece.schema.names:
        signs = [1 if sign == "+I" else -1 for sign in piece.column("op").to_pylist()]
    ids = zip(*(piece.column(name).to_pylist() for name in names), strict=True)
    return list(zip(signs, ids, strict=True))


def check_one(seed: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    streams = ["a", "b", "c"][: rng.choice([2, 2, 2, 3])]
    kind = rng.choice(list(JOINS)) if len(streams) == 2 else "inner"
    changes = {n: "op" for n in streams if len(streams) == 2 and rng.random() < 0.3}
    is_changing = kind != "inner" or bool(changes)
    condition = every([random_condition(streams, rng) for _ in range(rng.choice([1, 2, 3]))])
    tables = {name: rows(rng.randint(1, 12), rng, rng.choice([2, 6])) for name in streams}
    frames = {n: frame_of(CHANGELOG if n in changes else SCHEMA) for n in streams}
    options: dict[str, Any] = {"skew": Skew(routing=rng.choice([None, *ROUTINGS]))}
    if is_changing:
        options |= {"how": kind, "emit": "changes", "changes": changes}
    try:
        count = rng.choice([1, 3, 4])
        operator = operator_of(monkeypatch, frames, condition.sql, buckets=count, **options)
    except InvalidArgumentError as unfit:
        if options["skew"].routing is None and "give buckets=1" not in str(unfit):
            raise
        return
    if operator is None:
        return
    buckets = Buckets(operator, home)
    names = [f"{name}_id" for name in streams]
    if names[0] not in operator.output.names:
        names = ["id"]
    found: Counter[tuple[Any, ...]] = Counter()
    there: dict[str, Counter[int]] = {name: Counter() for name in streams}
    for part in range(3):
        arriving = {}
        for name in streams:
            new = [{**row, "op": "+I"} for row in tables[name][part::3]]
            there[name].update(row["id"] for row in new)
            for row in tables[name] if name in changes else []:
                if there[name][row["id"]] and rng.random() < 0.3:
                    there[name][row["id"]] -= 1
                    new.append({**row, "op": "-D"})
            schema = CHANGELOG if name in changes else SCHEMA
            arriving[name] = pa.RecordBatch.from_pylist(new, schema=schema)
        for piece in buckets.micro_batch(arriving, rng, None):
            assert piece.schema.names == list(operator.output.names)
            for sign, ids in ids_of(piece, names):
                found[ids] += sign
    if is_changing:
        wanted = Oracle(kind, condition, tables).joined(*(there[name] for name in streams))
    else:
        wanted = expected(condition, tables)
    assert +found == wanted, (condition.sql, options)
    assert min(found.values(), default=0) >= 0
    assert not buckets.counts.get("unmatched_retractions", 0)


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_condition_and_type_by_every_routing(seed: int) -> None:
    with TemporaryDirectory() as home, pytest.MonkeyPatch.context() as monkeypatch:
        check_one(seed, Path(home), monkeypatch)


@pytest.mark.parametrize("kind", ["inner", "left", "semi", "anti"])
def test_final_results_come_by_the_watermark(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    tables = {name: rows(20, rng, 20) for name in "ab"}
    frames = {name: frame_of(SCHEMA, "t") for name in "ab"}
    near = "b.t BETWEEN a.t - INTERVAL 3 HOURS AND a.t + INTERVAL 5 HOURS"
    emit = "append" if kind == "inner" else "final"
    operator = operator_of(monkeypatch, frames, near, how=kind, emit=emit, late="side")
    assert operator is not None
    assert operator.plan.watches_time
    buckets = Buckets(operator, tmp_path)
    names = ["a_id", "b_id"] if "a_id" in operator.output.names else ["id"]
    found: Counter[tuple[Any, ...]] = Counter()
    watermark = START - timedelta(days=1)
    there: dict[str, Counter[int]] = {name: Counter() for name in "ab"}
    seen = watermark  # rows are late by the watermark of the micro-batch before
    for part in range(6):
        arriving = {name: tables[name][part::6] for name in "ab"}
        for name, new in arriving.items():
            there[name].update(r["id"] for r in new if r["t"] is None or r["t"] > seen or part == 0)
        watermark = max(watermark, START - timedelta(hours=15 - 5 * part))
        us = (watermark - START.replace(year=1970)) // timedelta(microseconds=1)
        batches = {name: batch(new) for name, new in arriving.items()}
        for piece in buckets.micro_batch(batches, rng, us):
            found.update(ids for _, ids in ids_of(piece, names))
        seen = watermark
    end = (START - START.replace(year=1970) + timedelta(days=999)) // timedelta(microseconds=1)
    for piece in buckets.micro_batch({}, rng, end):
        found.update(ids for _, ids in ids_of(piece, names))

    def holds(both: Any) -> bool:
        mine, its = both["a"]["t"], both["b"]["t"]
        known = mine is not None and its is not None
        return known and mine - timedelta(hours=3) <= its <= mine + timedelta(hours=5)

    judged = Oracle(kind, Condition(near, holds), tables)
    assert found == judged.joined(there["a"], there["b"])
    assert buckets.counts["late_rows"] > 0


def test_a_range_beside_an_equality_is_used_unless_options_need_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = {name: frame_of(SCHEMA) for name in "ab"}
    narrow = "a.i = b.i AND b.n BETWEEN a.n AND a.big"
    for options in ({}, {"how": "left", "emit": "changes"}):
        operator = operator_of(monkeypatch, frames, narrow, **options)
        assert operator is not None
        assert operator.plan.settings["routing"] == "hash"
        assert "interval in a" in operator.plan.explanation
    assert operator_of(monkeypatch, frames, narrow, skew=Skew(hot_keys="spread")) is None
    assert operator_of(monkeypatch, frames, "a.i = b.i AND b.n < a.n") is None
    timed = {name: frame_of(SCHEMA, "t") for name in "ab"}
    near = "a.i = b.i AND b.t BETWEEN a.t AND a.t + INTERVAL 1 HOUR"
    assert operator_of(monkeypatch, timed, near) is None  # it forgets rows
    assert operator_of(monkeypatch, frames, near) is not None


def test_days_that_differ_in_length_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    zoned = pa.schema([("at", pa.timestamp("us", "UTC"))])
    frames = {name: frame_of(zoned) for name in "ab"}
    near = "b.at BETWEEN a.at AND a.at + INTERVAL 1 DAY"
    options: dict[str, Any] = {"how": "left", "emit": "changes"}
    assert operator_of(monkeypatch, frames, near, **options) is not None
    monkeypatch.setitem(SETTINGS, "spark.sql.session.timeZone", "Europe/Berlin")
    with pytest.raises(InvalidArgumentError, match="may have 23 or 25 hours"):
        operator_of(monkeypatch, frames, near, **options)
