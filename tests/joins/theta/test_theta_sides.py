"""Outer, semi and anti joins and changelogs by any condition: equal to brute force, whatever the
cut, the order and the restarts."""

import importlib.util
import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin
from lsmstate.joins.local.parts import bound_rows
from lsmstate.joins.options import State, Time
from lsmstate.joins.specs.theta_choice import theta_spec
from support.examples import examples
from support.paths import ROOT
from support.theta_cases import SCHEMA, START, Condition, every, random_condition, rows
from support.theta_sides import JOINS, Ids, Oracle

CHANGELOG = pa.schema([*SCHEMA, ("op", pa.string())])


def result_ids(join: MultiwayJoin, results: Any, sides: tuple[str, str]) -> Iterator[Any]:
    """Of each result the sign, and the ids of the left and the right row."""
    names = join.output_schema.names
    wanted = [f"{side}_id" for side in sides] if f"{sides[0]}_id" in names else ["id"]
    for piece in results:
        assert piece.schema == join.output_schema
        signs = piece.column("op").to_pylist() if names[0] == "op" else ["+I"] * piece.num_rows
        columns = (piece.column(name).to_pylist() for name in wanted)
        yield from zip(signs, zip(*columns, strict=True), strict=True)


def clause_of(kind: str, condition: Condition, sides: tuple[str, str]) -> dict[str, Any]:
    """``on``, and ``how`` where the streams stand in their order."""
    if sides == ("a", "b"):
        return {"on": condition.sql, "how": kind}
    return {"on": f"{sides[0]} {JOINS[kind]} {sides[1]} ON {condition.sql}"}


class Opened:
    """The join, which is closed and opened again now and then."""

    def __init__(self, rng: random.Random, path: str, **options: Any) -> None:
        self._rng = rng
        backend = rng.choice(["lsm", "lsm", "memory"])
        self._is_kept = backend == "lsm"
        state = State(backend=backend, state_dir=path if self._is_kept else None)
        piece_bytes = rng.choice([1 << 20, 3000, 1])
        self._make = lambda: MultiwayJoin(piece_bytes=piece_bytes, state=state, **options)
        self.join = self._make()

    def perhaps_again(self) -> None:
        if self._is_kept and self._rng.random() < 0.2:
            self.join.commit()
            self.join.close()
            self.join = self._make()


def random_join(rng: random.Random) -> tuple[str, tuple[str, str], Condition]:
    conditions = [random_condition(["a", "b"], rng) for _ in range(rng.choice([1, 2, 3]))]
    sides = rng.choice([("a", "b"), ("b", "a")])
    return rng.choice(list(JOINS)), sides, every(conditions)


def by_keys(options: dict[str, Any]) -> bool:
    """Whether an equality connects the streams, and no range beside it is used."""
    return theta_spec({"a": SCHEMA, "b": SCHEMA}, emit="changes", **options) is None


def check_changes(seed: int, path: str) -> None:
    rng = random.Random(seed)
    kind, sides, condition = random_join(rng)
    joined = clause_of(kind, condition, sides)
    if by_keys(joined):
        return
    tables = {name: rows(rng.randint(1, 25), rng, rng.choice([2, 6, 20])) for name in sides}
    changes = {name: "op" for name in sides if rng.random() < 0.6}
    schemas = {name: CHANGELOG if name in changes else SCHEMA for name in "ab"}
    oracle = Oracle(kind, condition, tables)
    there: dict[str, Counter[int]] = {name: Counter() for name in sides}
    waiting = {name: list(of) * rng.choice([1, 1, 2]) for name, of in tables.items()}
    for each in waiting.values():
        rng.shuffle(each)
    found: Ids = Counter()
    opened = Opened(rng, path, streams=schemas, emit="changes", changes=changes, **joined)
    try:
        while any(waiting.values()):
            name = rng.choice([n for n in sides if waiting[n]])
            size = rng.choice([1, 3, 50])
            new, waiting[name] = waiting[name][:size], waiting[name][size:]
            batch = [{**row, "op": rng.choice(["+I", "+U"])} for row in new]
            there[name].update(row["id"] for row in new)
            if name in changes:
                for row in rng.sample(tables[name], rng.randint(0, len(tables[name]))):
                    if there[name][row["id"]] and rng.random() < 0.5:
                        there[name][row["id"]] -= 1
                        batch.append({**row, "op": rng.choice(["-D", "-U"])})
            rng.shuffle(batch)
            opened.perhaps_again()
            given = pa.RecordBatch.from_pylist(batch, schema=schemas[name])
            signs = []
            for sign, ids in result_ids(opened.join, opened.join.process(name, given), sides):
                signs.append(sign)
                found[ids] += 1 if sign == "+I" else -1
                assert found[ids] >= 0 or sign == "-D"
            assert signs == sorted(signs, reverse=True)
            expected = oracle.joined(there[sides[0]], there[sides[1]])
            assert +found == expected, joined
            assert min(found.values(), default=0) >= 0
        assert opened.join.unmatched_retractions == 0
    finally:
        opened.join.close()


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_type_and_changelogs_equal_brute_force(seed: int) -> None:
    block_rows = random.Random(seed).choice([1, 2, bound_rows.BLOCK_ROWS])
    with TemporaryDirectory() as path, patch.object(bound_rows, "BLOCK_ROWS", block_rows):
        check_changes(seed, path)


def in_time(rng: random.Random) -> Condition:
    """An interval between the times of both streams."""
    one, other = rng.sample(["a", "b"], 2)
    before, after = rng.choice([0, 1, 5]), rng.choice([0, 2])

    def holds(found: Any) -> bool | None:
        mine, its = found[one]["t"], found[other]["t"]
        if mine is None or its is None:
            return None
        return bool(its - timedelta(hours=before) <= mine <= its + timedelta(hours=after))

    sql = f"{one}.t BETWEEN {other}.t - INTERVAL {before} HOURS AND {other}.t + INTERVAL {after} "
    return Condition(sql + "HOURS", holds)


def check_in_time(seed: int, path: str, emit: str) -> None:
    rng = random.Random(seed)
    kind, sides, condition = random_join(rng)
    condition = every([in_time(rng), *([condition] if rng.random() < 0.7 else [])])
    joined = clause_of(kind, condition, sides)
    if theta_spec({"a": SCHEMA, "b": SCHEMA}, **joined, emit="changes") is None:
        return
    tables = {name: rows(rng.randint(1, 25), rng, rng.choice([6, 20])) for name in sides}
    late = rng.choice(["drop", "side"])
    time = Time(event_time={"a": "t", "b": "t"}, late=late)
    changes = {n: "op" for n in sides if emit == "changes" and rng.random() < 0.6}
    schemas = {name: CHANGELOG if name in changes else SCHEMA for name in "ab"}
    oracle = Oracle(kind, condition, tables)
    there: dict[str, Counter[int]] = {name: Counter() for name in sides}
    waiting = {name: rng.sample(of, len(of)) for name, of in tables.items()}
    found: Ids = Counter()
    late_count = 0
    watermark = START - timedelta(days=9)
    opened = Opened(rng, path, streams=schemas, emit=emit, changes=changes, time=time, **joined)

    def count(results: Any) -> None:
        for sign, ids in result_ids(opened.join, results, sides):
            found[ids] += 1 if sign == "+I" else -1

    try:
        while any(waiting.values()):
            name = rng.choice([n for n in sides if waiting[n]])
            new, waiting[name] = waiting[name][:4], waiting[name][4:]
            batch = [{**row, "op": "+I"} for row in new]
            if name in changes:
                for row in tables[name]:
                    if there[name][row["id"]] and rng.random() < 0.3:
                        batch.append({**row, "op": "-D"})
            opened.perhaps_again()
            given = pa.RecordBatch.from_pylist(batch, schema=schemas[name])
            before = opened.join.late_count
            count(opened.join.process(name, given))
            is_late = [row["t"] is not None and row["t"] <= watermark for row in batch]
            assert opened.join.late_count - before == sum(is_late)
            if late == "side":
                assert opened.join.late_rows.num_rows == sum(is_late)
            for row, was_late in zip(batch, is_late, strict=True):
                if not was_late:
                    there[name][row["id"]] += 1 if row["op"] == "+I" else -1
            if emit == "changes":
                assert +found == oracle.joined(there[sides[0]], there[sides[1]]), joined
            if rng.random() < 0.3:
                watermark += timedelta(hours=rng.choice([1, 200, 210]))
                count(opened.join.advance(watermark))
            late_count += sum(is_late)
        count(opened.join.advance(datetime(2100, 1, 1)))
        assert +found == oracle.joined(there[sides[0]], there[sides[1]]), joined
        assert min(found.values(), default=0) >= 0
        opened.join.commit()
        left = [n for s in opened.join._store.streams for n in opened.join._store.scan(s)]
        assert emit == "changes" or sum(piece.num_rows for piece in left) <= 1 + 60  # the watermark
    finally:
        opened.join.close()


@pytest.mark.parametrize("emit", ["final", "changes"])
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_outer_joins_in_time_equal_brute_force(emit: str, seed: int) -> None:
    with TemporaryDirectory() as path:
        check_in_time(seed, path, emit)


def test_what_does_not_fit_is_refused() -> None:
    streams = {"a": SCHEMA, "b": SCHEMA, "c": SCHEMA}
    two = {"a": SCHEMA, "b": SCHEMA}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"streams": two, "on": "a LEFT JOIN b ON a.i < b.i"}, "use emit='changes'"),
        ({"streams": streams, "on": "a.i < b.i AND b.i < c.i", "emit": "changes"}, "more than two"),
        ({"streams": two, "on": "a LEFT JOIN b ON a.i < b.i", "emit": "final"}, "no event time"),
        (
            {
                "streams": two,
                "on": "a LEFT JOIN b ON a.t < b.t",
                "emit": "final",
                "time": Time(event_time={"a": "t", "b": "t"}),
            },
            "would wait for ever for 'b'; bound its time",
        ),
        (
            {
                "streams": two,
                "on": "a LEFT JOIN b ON a.i < b.i",
                "emit": "changes",
                "time": Time(event_time={"a": "t"}),
            },
            "applies to append-only inner joins",
        ),
        (
            {
                "streams": two,
                "on": "a LEFT JOIN b ON a.t < b.t",
                "emit": "changes",
                "time": Time(event_time={"a": "t", "b": "t"}, late="join"),
            },
            "late='join' with emit='changes'",
        ),
    ]
    for options, words in cases:
        with pytest.raises(InvalidArgumentError, match=words):
            MultiwayJoin(**options)


def test_a_semi_join_needs_no_operation_column() -> None:
    ints = pa.schema([("n", pa.int64())])
    on = "a LEFT SEMI JOIN b ON a.n BETWEEN b.n - 1 AND b.n + 1"
    with MultiwayJoin({"a": ints, "b": ints}, on) as join:
        join.process("a", {"n": [1, 5, 9]}).close()
        assert join.process("b", {"n": [4, 5]}).to_table().column("n").to_pylist() == [5]
        assert join.process("b", {"n": [6]}).count() == 0
        assert join.process("a", {"n": [7, 20]}).to_table().column("n").to_pylist() == [7]


def test_a_retraction_of_a_row_that_is_not_there_is_counted_or_refused() -> None:
    a, b = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.int64()), ("op", pa.string())])
    options: dict[str, Any] = {"emit": "changes", "changes": {"b": "op"}}
    on = "a LEFT JOIN b ON a.n < b.n AND b.n > 3"
    with MultiwayJoin({"a": a, "b": b}, on, **options) as join:
        join.process("a", {"n": [1]}).close()
        assert join.process("b", {"n": [9], "op": ["-D"]}).count() == 0
        assert join.unmatched_retractions == 1
    with (
        MultiwayJoin({"a": a, "b": b}, on, unmatched="error", **options) as join,
        pytest.raises(InvalidArgumentError, match="rows are retracted that are not stored"),
    ):
        join.process("b", {"n": [9], "op": ["-D"]})


@pytest.mark.parametrize("emit", ["append", "changes", "final"])
def test_the_least_cap_holds_a_batch_of_any_size(emit: str) -> None:
    count = 8000
    stamps = pa.array([START] * count, pa.timestamp("us"))
    a = pa.table({"x": range(count), "t": stamps, "s": ["x" * 60] * count})
    b = pa.table({"y": range(count // 2, count + count // 2), "u": stamps, "v": ["y"] * count})
    on = "a.x BETWEEN b.y - 1 AND b.y + 1 AND b.u BETWEEN a.t AND a.t"
    how: Any = "inner" if emit == "append" else "full"
    time = Time(event_time={"a": "t", "b": "u"})
    streams = {"a": a.schema, "b": b.schema}
    options: dict[str, Any] = {"how": how, "emit": emit, "time": time, "state": State(memory="5m")}
    with MultiwayJoin(streams, on, **options) as join:
        found = Counter[str]()
        calls = (
            lambda: join.process("a", a),
            lambda: join.process("b", b),
            lambda: join.advance(datetime(2100, 1, 1)),
        )
        for call in calls:
            for piece in call():
                signs = piece.column("op").to_pylist() if emit == "changes" else ["+I"]
                found.update(signs if emit == "changes" else {"+I": piece.num_rows})
    pairs = 3 * (count // 2)
    alone = 0 if emit == "append" else count // 2 - 1 + count // 2 - 1
    assert found["+I"] - found["-D"] == pairs + alone


def test_the_example_of_price_bands_equals_brute_force() -> None:
    spec = importlib.util.spec_from_file_location("bands", ROOT / "examples" / "price_bands.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    batches = list(module.changes(1200))
    trades = [row for name, batch in batches if name == "t" for row in batch.to_pylist()]
    bands: dict[str, tuple[int, int]] = {}
    for row in (row for name, batch in batches if name == "b" for row in batch.to_pylist()):
        if row["op"] == "+I":
            bands[row["band"]] = (row["low"], row["high"])
        else:
            del bands[row["band"]]
    wanted: Counter[tuple[int, str | None]] = Counter()
    for trade in trades:
        inside = [n for n, (low, high) in bands.items() if low <= trade["price"] <= high]
        wanted.update((trade["id"], name) for name in inside or [None])
    assert module.banded(iter(batches)) == wanted
    assert len(wanted) > 1000


def test_a_retention_and_late_rows_need_no_equality() -> None:
    streams = {
        name: pa.schema([("at", pa.timestamp("us")), (f"{name}n", pa.int64())]) for name in "ab"
    }

    def row(name: str, minutes: int, number: int) -> list[dict[str, Any]]:
        return [{"at": START + timedelta(minutes=minutes), f"{name}n": number}]

    event_time = {"a": "at", "b": "at"}
    for late, found_late in (("drop", 0), ("join", 1), ("side", 0)):
        time = Time(event_time=event_time, retention={"a": "1 hour"}, late=late)  # type: ignore[arg-type]
        with MultiwayJoin(streams, "a.an < b.bn", time=time) as join:
            join.process("a", row("a", 0, 1)).close()
            join.advance(START + timedelta(minutes=30)).close()
            assert join.process("b", row("b", 40, 2)).count() == 1
            assert join.process("b", row("b", 20, 2)).count() == found_late
            assert join.late_count == 1
            assert (join.late_rows is not None) == (late == "side")
            join.advance(START + timedelta(minutes=60)).close()
            assert join.process("b", row("b", 70, 2)).count() == 0
            assert join.process("a", row("a", 80, 1)).count() == (3 if late == "join" else 2)
