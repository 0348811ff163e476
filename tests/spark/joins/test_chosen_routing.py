"""The routing that the first start chooses by its cost, and later ones go on with."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.theta.range_routing import ThetaRanges
from lsmstate.joins.options import SKEW, Skew
from lsmstate.joins.routing.biclique import BicliqueRouting
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned, adopt_or_pin
from lsmstate.spark_integration.joins import theta
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from support.fake_frames import frame_of, operator_of

ROWS = pa.schema([("x", pa.int64()), ("y", pa.int64()), ("k", pa.int64())])
BAND = "b.x BETWEEN a.x - 5 AND a.x + 5"
INTERVALS = "b.x BETWEEN a.x AND a.y"
INEQUALITIES = "a.x < b.x AND a.y > b.y"


def plan_of(
    monkeypatch: pytest.MonkeyPatch,
    on: str,
    buckets: int,
    skew: Skew = SKEW,
    *,
    is_classic: bool = True,
) -> StatefulPlan:
    """The plan of a query that leaves the number of buckets out, where so many are the default."""
    monkeypatch.setattr(theta, "is_classic", lambda _: is_classic)
    frames = {name: frame_of(ROWS) for name in "ab"}
    operator = operator_of(monkeypatch, frames, on, buckets=buckets, skew=skew)
    assert operator is not None
    return replace(operator.plan, buckets=None, default_buckets=buckets)


def start(home: Path, plan: StatefulPlan) -> tuple[Pinned, StatefulPlan]:
    """What is pinned, and the plan by that."""
    pinned = adopt_or_pin(str(home), plan.wanted(), 2, "query")
    return pinned, plan.settled(pinned.buckets, pinned.adopted)


@pytest.mark.parametrize(
    ("on", "buckets", "rows", "chosen"),
    [
        (BAND, 4, {}, "biclique"),
        (BAND, 6, {}, "ranges"),
        (BAND, 8, {"a": 1_000_000, "b": 10}, "biclique"),  # a has all units but one
        (INTERVALS, 6, {}, "ranges"),
        (INEQUALITIES, 32, {}, "biclique"),
        ("abs(a.x * b.x) < 10", 32, {}, "biclique"),
        (f"a.k = b.k AND {BAND}", 32, {}, "hash"),
    ],
)
def test_the_cheapest_routing_is_chosen(
    monkeypatch: pytest.MonkeyPatch, on: str, buckets: int, rows: dict[str, int], chosen: str
) -> None:
    plan = plan_of(monkeypatch, on, buckets, Skew(rows=rows) if rows else SKEW)
    assert plan.settings["routing"] == chosen
    assert f"routing {chosen}: " in plan.explanation


def test_nothing_is_chosen_that_needs_the_starts_of_a_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(monkeypatch, BAND, 16, is_classic=False)
    assert plan.settings["routing"] == "biclique"


@pytest.mark.parametrize(("first", "later"), [(4, 16), (16, 4)])
def test_later_starts_go_on_with_the_first_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, later: int
) -> None:
    started, settled = start(tmp_path, plan_of(monkeypatch, BAND, first))
    again, then = start(tmp_path, plan_of(monkeypatch, BAND, later))
    kind = BicliqueRouting if first == 4 else ThetaRanges
    assert type(settled.routing) is type(then.routing) is kind
    assert (again, then.routing, then.state) == (started, settled.routing, settled.state)
    assert again.buckets == first
    assert ("@observed" in [stream.name for stream in then.state]) == (kind is ThetaRanges)


def test_what_was_chosen_can_be_forced_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, chosen = start(tmp_path, plan_of(monkeypatch, BAND, 16))
    _, forced = start(tmp_path, plan_of(monkeypatch, BAND, 16, Skew(routing="ranges")))
    assert forced.routing == chosen.routing
    with pytest.raises(InvalidArgumentError, match="routing = ranges, the query now has routing"):
        start(tmp_path, plan_of(monkeypatch, BAND, 16, Skew(routing="biclique")))


@pytest.mark.parametrize(("forced", "buckets"), [("ranges", 2), ("biclique", 16)])
def test_what_was_forced_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: str, buckets: int
) -> None:
    _, first = start(tmp_path, plan_of(monkeypatch, BAND, buckets, Skew(routing=forced)))  # type: ignore[arg-type]
    _, later = start(tmp_path, plan_of(monkeypatch, BAND, buckets))
    assert later.routing == first.routing


def test_a_routing_that_is_no_candidate_is_not_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path, plan_of(monkeypatch, BAND, 16, Skew(routing="shares")))
    with pytest.raises(InvalidArgumentError, match="routing = shares, the query now has routing"):
        start(tmp_path, plan_of(monkeypatch, BAND, 16))


@pytest.mark.parametrize("forced", ["ranges", "biclique", None])
def test_streams_of_late_rows_come_last(
    monkeypatch: pytest.MonkeyPatch, forced: Literal["ranges", "biclique"] | None
) -> None:
    """A store is opened with its streams in the order in which it was made."""
    plan = plan_of(monkeypatch, BAND, 16, Skew(routing=forced))
    late = replace(plan.state[0], name="late rows")
    settled = replace(plan, state=(*plan.state, late)).settled(16, plan.adopted)
    names = [stream.name for stream in settled.state]
    own = names[: -1 if forced == "biclique" else -2]
    assert "@observed" not in own
    assert names == [*own, *(["@observed"] if forced != "biclique" else []), "late rows"]
