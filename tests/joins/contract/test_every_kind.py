"""The contract of every kind of join, on every backend: results, cuts, restarts, refusals."""

import json
import random
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins import kinds
from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.kinds import Kind, from_pinned, kind_of, pinned, register, registered
from lsmstate.joins.options import State
from lsmstate.joins.protocols import Batch, Role
from lsmstate.joins.spec_join import SpecJoin
from lsmstate.joins.specs.event_time import EventTime
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.store import StreamSchema
from support.cross_join.local_join import CrossJoin
from support.cross_join.spec import CrossSpec
from support.kind_cases import CASES, LAST, parts_of
from support.sampling import each_value

BACKENDS = ("lsm", "rocksdb", "memory")
PIECE_BYTES = 2000


def last_results(join: Any) -> Any:
    """What the end of time makes final; nothing where time does not count."""
    return join.advance(LAST) if getattr(join, "event_time", None) else iter(())


def test_every_registered_kind_has_a_case() -> None:
    assert set(CASES) == {kind.name for kind in registered()}


def often(name: str, seed: int, backend: str) -> bool:
    """Whether `make test` has it: our store for each kind, for every second one of the others."""
    at = sorted(CASES).index(name)
    return (seed, backend) == (0, "lsm") or (seed, backend, at % 2) == (
        1,
        BACKENDS[1 + at // 2 % 2],
        0,
    )


@pytest.mark.parametrize(
    ("name", "seed", "backend"),
    [
        pytest.param(*each, marks=() if often(*each) else pytest.mark.stress)
        for each in product(CASES, range(3), BACKENDS)
    ],
)
def test_any_cut_and_any_restart_gives_duckdbs_rows(
    name: str, backend: str, seed: int, tmp_path: Path
) -> None:
    case, rng = CASES[name], random.Random(seed)
    tables = case.rows(60, seed)
    path = None if backend == "memory" else str(tmp_path)
    join = case.opened(backend, path)
    found = Counter[tuple[Any, ...]]()

    def count(results: Any) -> None:
        for row, number in case.found(results).items():
            found[row] += number

    restarts = 0.3 if seed else 1  # the first one is opened anew after every batch
    for stream, rows in parts_of(tables, rng):
        if path is not None and rng.random() < restarts:
            join.commit()
            join.close()
            join = case.opened(backend, path)
        count(join.process(stream, rows))
    count(last_results(join))
    own = {name: join.counts.get(name) for name in kind_of(join.spec).counters}
    assert all(isinstance(number, int) for number in own.values())
    assert not any(number for name, number in join.counts.items() if name not in own)
    join.close()
    assert {row: number for row, number in found.items() if number} == case.expected(tables)


@each_value(name=CASES, backend=BACKENDS)
def test_pieces_are_bounded_and_have_the_schema(name: str, backend: str, tmp_path: Path) -> None:
    case = CASES[name]
    most = 0
    with case.opened(backend, str(tmp_path), piece_bytes=PIECE_BYTES) as join:
        for stream, table in case.rows(80, 5).items():
            for piece in join.process(stream, table.combine_chunks().to_batches()[0]):
                assert piece.schema == join.spec.output_schema
                # A result's operation, and what Arrow's buffers round up, stand beside its rows.
                bound = 1.2 * PIECE_BYTES + 10 * piece.num_rows
                assert piece.num_rows == 1 or row_sizes(piece).sum() <= bound
                most = max(most, piece.num_rows)
        for piece in last_results(join):
            most = max(most, piece.num_rows)
    assert most > 1


@each_value(name=CASES, backend=BACKENDS[:2])
def test_another_join_is_refused_and_changes_nothing(
    name: str, backend: str, tmp_path: Path
) -> None:
    case = CASES[name]
    with case.opened(backend, str(tmp_path)) as join:
        join.commit()
    with pytest.raises(InvalidArgumentError, match="the state belongs to a join with"):
        case.opened(backend, str(tmp_path), is_other=True)
    case.opened(backend, str(tmp_path)).close()


@pytest.mark.parametrize("name", CASES)
def test_results_that_are_not_read_refuse_the_next_batch(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    first, second = list(case.streams)[:2]
    batches = {n: t.combine_chunks().to_batches()[0] for n, t in case.rows(20, 1).items()}
    with case.opened("memory", str(tmp_path)) as join:
        case.found(join.process(first, batches[first]))
        unread = join.process(second, batches[second])
        with pytest.raises(InvalidArgumentError, match="not consumed"):
            join.process(first, batches[first])
        unread.close()
        case.found(join.process(first, batches[first]))
        with pytest.raises(InvalidArgumentError, match="stream 'nobody'"):
            join.process("nobody", batches[first])


@pytest.mark.parametrize("name", CASES)
def test_a_spec_is_read_back_from_its_description(name: str, tmp_path: Path) -> None:
    with CASES[name].opened("memory", str(tmp_path)) as join:
        spec = join.spec
    found = pinned(spec)
    assert from_pinned(json.loads(json.dumps(found))) == spec
    if name not in ("binary tree", "theta tree"):  # whose spec is that of the join
        assert found["kind"] == name == kind_of(spec).name


@dataclass(frozen=True)
class OtherSpec(CrossSpec):
    """Says the same of itself."""


def test_another_kind_that_describes_itself_alike_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["cross join"]
    with case.opened("lsm", str(tmp_path)) as join:
        join.commit()
    monkeypatch.setitem(kinds._KINDS, OtherSpec, Kind("another", OtherSpec, CrossJoin))
    with pytest.raises(InvalidArgumentError, match=r"kind: cross join, and this .* another"):
        SpecJoin(OtherSpec(case.streams), state=State(state_dir=str(tmp_path)))


@dataclass(frozen=True)
class TimedCrossSpec(CrossSpec):
    """A cross join of rows that are forgotten."""

    event_time: EventTime  # type: ignore[misc]

    @property
    def owners(self) -> dict[str, str]:
        return {name: name for name in self.streams}

    @property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        return self.event_time.expiring(super().stream_schemas, self.owners)

    def bounds_of(self, stream: str) -> tuple[Bound, ...]:
        return ()


def test_any_local_join_forgets_rows_by_event_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind needs no word of its own for it."""
    monkeypatch.setitem(kinds._KINDS, TimedCrossSpec, Kind("timed", TimedCrossSpec, CrossJoin))
    rows = pa.schema([("at", pa.timestamp("us")), ("n", pa.int64())])
    timing = EventTime({"a": "at", "b": "at"}, (), {"a": 10, "b": 10}, "side")
    start = datetime(1970, 1, 1)

    def row(us: int) -> list[dict[str, Any]]:
        return [{"at": start + timedelta(microseconds=us), "n": us}]

    with SpecJoin(TimedCrossSpec({"a": rows, "b": rows}, timing)) as join:
        for us in (1, 5, 12):
            join.process("a", row(us)).close()
        assert join.process("b", row(13)).count() == 3
        join.advance(start + timedelta(microseconds=12)).close()
        assert join.process("b", row(14)).count() == 2  # that of 1 expires at 11
        assert join.process("b", row(12)).count() == 0
        assert join.counts["late_rows"] == 1
        assert join.late_rows is not None
        assert join.late_rows.column("n").to_pylist() == [12]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Kind("cross join", OtherSpec, CrossJoin), "'cross join' with the spec CrossSpec is"),
        (Kind("another", CrossSpec, CrossJoin), "another name and a spec of its own"),
        (
            Kind("another", OtherSpec, CrossJoin, counters=("late pairs",)),
            "is no name",
        ),
    ],
    ids=["name", "spec", "counter"],
)
def test_kinds_that_do_not_fit_are_not_registered(kind: Kind, words: str) -> None:
    before = registered()
    with pytest.raises(InvalidArgumentError, match=words):
        register(kind)
    assert registered() == before


@pytest.mark.parametrize(
    "name",
    [
        *("binary tree", "theta tree", "changes by one key", "changes by several keys", "final"),
        *("theta changes", "theta final"),
    ],
)
def test_joins_that_store_all_rows_refuse_rows_that_only_probe(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    stream = next(iter(case.streams))
    rows = case.rows(5, 1)[stream].combine_chunks().to_batches()[0]
    with case.opened("memory", str(tmp_path)) as join:
        with pytest.raises(InvalidArgumentError, match="have the role PROBE"):
            join._join.process(Batch(stream, rows, role=Role.PROBE))
        case.found(join.process(stream, rows))
