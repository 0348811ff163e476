"""Units that follow the load: the decision, and a routing whose tables have more units or fewer."""

import math
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.joins.scaling_figure import simulated
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.protocols import ObservingRouting, Role
from lsmstate.joins.routing.biclique import BicliqueRouting
from lsmstate.joins.routing.scaling.scaled_biclique import ScaledBiclique, SeenLoad
from lsmstate.joins.routing.scaling.two_phase import Group, TwoPhaseScaling

RULE = TwoPhaseScaling(capacity_bytes=100)


def after(units: int, load: float, periods: int = 3, most: int = 99) -> Group:
    """A group that had such a load for some periods."""
    group = Group(units)
    for _ in range(periods):
        group = RULE.next(group, [load * 100] * units, most)
    return group


@pytest.mark.parametrize(
    ("units", "load", "then"),
    [
        (8, 0.9, 12),  # the steps of the paper's figure 12
        (12, 0.2999, 6),
        (8, 5 / 6, 12),
        (4, 0.85, 6),
        (6, 0.25, 3),
        (8, 0.8, 8),
        (8, 0.3, 8),
        (8, 0.6, 8),
        (1, 0.0, 1),
        (9, 0.0, 1),
        (2, 0.29, 1),
    ],
)
def test_a_confirmed_decision_brings_the_load_to_the_target(
    units: int, load: float, then: int
) -> None:
    assert after(units, load, periods=2).units == units
    assert after(units, load).units == then
    assert after(units, load).times == 0


def test_a_decision_has_to_be_the_same_three_times_in_a_row() -> None:
    group = Group(8)
    for load in (0.9, 0.9, 0.5, 0.9, 0.9, 0.2, 0.9, 0.9):
        group = RULE.next(group, [load * 100] * 8, 99)
        assert group.units == 8
    assert RULE.next(group, [90] * 8, 99).units == 12


@given(
    units=st.integers(1, 40),
    loads=st.lists(st.floats(0, 2), min_size=1, max_size=12),
    most=st.integers(1, 60),
)
def test_units_stay_in_their_bounds_and_shrinking_never_overloads(
    units: int, loads: list[float], most: int
) -> None:
    group = Group(units)
    for load in loads:
        before, stored = group, [load * 100.0] * group.units
        group = RULE.next(group, stored, most)
        assert 1 <= group.units <= max(most, units)
        if group.units < before.units:
            assert RULE.load(group.units, stored) < RULE.high
            assert load < RULE.low
        elif group.units > before.units:
            assert load > RULE.high
            assert group.units == min(most, math.ceil(load * before.units / 0.6 - 1e-9))


@pytest.mark.parametrize(
    "wrong", [{"capacity_bytes": 0}, {"target": 0.9}, {"low": 0.6}, {"confirmations": 0}]
)
def test_a_rule_without_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="give"):
        TwoPhaseScaling(**{"capacity_bytes": 1, **wrong})  # type: ignore[arg-type]


def test_the_paper_s_figure_12_grows_by_4_and_shrinks_by_6() -> None:
    minutes = simulated()
    units = [minute.units for minute in minutes]
    steps = [b - a for a, b in pairwise(units) if a != b]
    assert units[0] == 8
    assert steps == [4, -6]
    assert max(minute.fullest for minute in minutes) < 1.5e9
    drained = [minute for minute in minutes if minute.probed > minute.units]
    assert 0 < len(drained) <= 6, "units wait for their rows for a window"


US = 1_000_000
ROWS = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us"))])
ROUTING = ScaledBiclique(
    BicliqueRouting.of({"a": 1, "b": 1}, 8),
    TwoPhaseScaling(capacity_bytes=1600),
    times={"a": "at", "b": "at"},
    kept_us={"a": 10 * US, "b": 10 * US},
    active=2,
)


def batch(first: int, count: int, second: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + count, dtype=np.int64)
    times = pa.array([second * US] * count, pa.timestamp("us"))
    return pa.record_batch([numbers, times], schema=ROWS)


def test_pairs_within_the_window_meet_once_while_units_come_and_go() -> None:
    assert isinstance(ROUTING, ObservingRouting)
    table, kept, number = ROUTING.initial_table, {}, 0
    stored: list[tuple[str, int, int, int]] = []  # stream, number, second, bucket
    active, probed = [], []
    for second in range(60):
        observers = {
            bucket: ROUTING.observer(
                bucket, table, kept.get(bucket), is_last=True, watermark_us=second * US
            )
            for bucket in range(8)
        }
        for stream in "ab":
            rows = batch(number, 30 if 10 <= second < 22 else 4, second)
            number += rows.num_rows
            found = ROUTING.router(stream, ROWS, ROWS, table).route(rows, rows)
            assert found.roles is not None
            sent = {
                (p, b)
                for p, b in zip(found.positions.tolist(), found.buckets.tolist(), strict=True)
            }
            other = [row for row in stored if row[0] != stream and row[2] > second - 10]
            for position in range(rows.num_rows):
                assert all((position, bucket) in sent for *_, bucket in other)
            own = found.roles == Role.STORE
            assert found.positions[own].tolist() == list(range(rows.num_rows))
            for bucket in set(found.buckets[own].tolist()):
                places = found.positions[own & (found.buckets == bucket)]
                observers[bucket].add(stream, rows.take(pa.array(places)), rows, Role.STORE)
            numbers = rows.column("n").to_pylist()
            stored += [
                (stream, numbers[p], second, b)
                for p, b in zip(
                    found.positions[own].tolist(), found.buckets[own].tolist(), strict=True
                )
            ]
        kept = {bucket: observer.kept() for bucket, observer in observers.items()}
        told = [
            ROUTING.observed_from_json(bucket, observer.observed().to_json())
            for bucket, observer in observers.items()
        ]
        table = ROUTING.table_from_json(ROUTING.next_table(table, told, second).to_json())
        active.append(table.sides["a"].group.units)
        probed.append(table.sides["a"].probed)
    assert (max(active), active[-1]) == (4, 1)
    assert any(p > a for p, a in zip(probed, active, strict=True))
    assert probed[-1] == active[-1]
    assert table.explain().startswith("a: 1 units store rows, 1 are probed")


def test_a_side_of_which_not_all_is_known_stays_as_it_is() -> None:
    table = ROUTING.initial_table
    full = [SeenLoad(bucket, {0: 1500}) for bucket in range(8)]
    for told in (full[:1], full[1:], full[:1], full[:1]):
        table = ROUTING.next_table(table, [*told, full[4]], 4)
    assert table.sides["a"].group == Group(2)
    for _ in range(3):
        table = ROUTING.next_table(table, full, 4)
    assert table.sides["a"].group == Group(4)
    settled = ROUTING.settled(8, ROUTING.adopted)
    assert settled == ROUTING
