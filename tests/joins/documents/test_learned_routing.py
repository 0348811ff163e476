"""LearnedRouting: pairs are those of brute force while tables change under the documents."""

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.joins.local.documents.natural_join import NaturalLocalJoin
from lsmstate.joins.protocols import (
    Batch,
    Context,
    ObservingRouting,
    Role,
    makes_tables_alike,
)
from lsmstate.joins.routing.documents import learned_routing
from lsmstate.joins.routing.documents.association_groups import GroupRouting
from lsmstate.joins.routing.documents.document_table import (
    ASSOCIATION_GROUPS,
    HYPERCUBE,
    DocumentTable,
)
from lsmstate.joins.routing.documents.learned_routing import LearnedRouting, Tumbling
from lsmstate.joins.specs.documents import NaturalSpec
from lsmstate.opening import open_store
from support.document_cases import SCHEMA, leaves, pairs_of, random_documents

BUCKETS = 4
PERIOD = 4
START = datetime(2024, 1, 1, tzinfo=UTC)
TIMED = pa.schema([*SCHEMA, ("at", pa.timestamp("us", "UTC"))])
MINUTE = 60_000_000
#: Documents of a micro-batch; one comes in a minute of event time.
ROWS = 24
SLIDING = ("40 minutes", "20 minutes")


def drifting(count: int, seed: int) -> list[dict[str, Any]]:
    """Documents whose attributes are others after a while."""
    found = random_documents(count, seed)
    for at in range(count // 3, count):
        found[at] = {f"{name}{at * 3 // count}": value for name, value in found[at].items()}
        found[at]["shard"] = at % 7
    return found


class Query:
    """What Spark does with one query: one table for each period, new objects for each call."""

    def __init__(
        self,
        routing: LearnedRouting,
        spec: NaturalSpec,
        path: Any,
        seed: int,
        *,
        is_elsewhere: bool = False,
    ) -> None:
        """``is_elsewhere``: no first table is made from rows."""
        self.rng = random.Random(seed)
        self.is_elsewhere = is_elsewhere
        self.routing = routing.settled(BUCKETS, json.loads(json.dumps(routing.adopted)))
        assert isinstance(self.routing, ObservingRouting)
        self.spec = spec
        self.stores = [
            open_store(str(path / str(b)), spec.stream_schemas, backend="memory")
            for b in range(BUCKETS)
        ]
        self.kept: list[Any] = [None] * BUCKETS
        self.table: DocumentTable | None = None
        self.observed: list[Any] = []
        self.found: list[tuple[int, int]] = []
        self.number = 0
        self.told = 0
        self.everywhere = 0
        self.values_at_first = 0

    @property
    def values(self) -> int:
        """Values of the groups by now."""
        assert self.table is not None
        routing = self.table.layouts[-1].routing
        return len(routing.table) if isinstance(routing, GroupRouting) else 0

    def batch(self, rows: pa.RecordBatch, watermark_us: int | None) -> None:
        """One micro-batch; ``watermark_us`` is that after it."""
        keys = rows.select(["doc"])
        if self.table is None and self.is_elsewhere:
            self.table = self.routing.initial_table
        elif self.table is None:
            self.table = self.routing.sampled_table("documents", rows, keys, self.number)
            self.values_at_first = self.values
        elif self.number % PERIOD == 0:
            self.table = self.routing.next_table(self.table, self.observed, self.number)
        found = json.loads(json.dumps(self.table.to_json()))
        table = self.table = self.routing.table_from_json(found)
        routed = self.routing.router(
            "documents", self.spec.streams["documents"], keys.schema, table
        )
        went = routed.route(rows, keys)
        assert went.roles is not None
        assert went.marks is not None
        self.everywhere += int((np.bincount(went.positions) == BUCKETS).sum())
        self.observed = []
        is_last = (self.number + 1) % PERIOD == 0
        for bucket in self.rng.sample(range(BUCKETS), BUCKETS):
            joined = NaturalLocalJoin(
                self.spec, self.stores[bucket], Context(bucket=bucket, micro_batch=self.number)
            )
            observer = self.routing.observer(
                bucket, table, self.kept[bucket], is_last=is_last, watermark_us=watermark_us
            )
            for role in (Role.STORE, Role.COPY):
                here = np.flatnonzero((went.buckets == bucket) & (went.roles == role))
                some = rows.take(pa.array(went.positions[here]))
                if not some.num_rows:
                    continue
                marks = went.marks.take(pa.array(here))
                observer.add("documents", some, some.select(["doc"]), role)
                for piece in joined.process(Batch("documents", some, role=role, marks=marks)):
                    pairs = zip(*(c.to_pylist() for c in piece.columns), strict=True)
                    self.found += [(min(pair), max(pair)) for pair in pairs]
            if watermark_us is not None:
                joined.advance(watermark_us)
            joined.finish()
            assert joined.counts.get("late_rows", 0) == 0
            self.kept[bucket] = json.loads(json.dumps(observer.kept()))
            self.told += observer.counts["repartitions"]
            if is_last and self.rng.random() < 0.9:  # some are lost
                seen = json.loads(json.dumps(observer.observed().to_json()))
                self.observed.append(self.routing.observed_from_json(bucket, seen))
        self.number += 1


@pytest.mark.parametrize(
    ("kind", "unknown", "window", "is_elsewhere"),
    [
        (HYPERCUBE, "hash", "20 minutes", False),
        (ASSOCIATION_GROUPS, "hash", "20 minutes", True),
        (ASSOCIATION_GROUPS, "broadcast", "20 minutes", False),
        (HYPERCUBE, "hash", None, True),
        pytest.param(HYPERCUBE, "hash", "20 minutes", True, marks=pytest.mark.stress),
        pytest.param(HYPERCUBE, "hash", SLIDING, True, marks=pytest.mark.stress),
        pytest.param(ASSOCIATION_GROUPS, "hash", "20 minutes", False, marks=pytest.mark.stress),
        pytest.param(HYPERCUBE, "hash", None, False, marks=pytest.mark.stress),
        pytest.param(HYPERCUBE, "hash", SLIDING, False, marks=pytest.mark.stress),
        pytest.param(ASSOCIATION_GROUPS, "broadcast", "20 minutes", True, marks=pytest.mark.stress),
        pytest.param(ASSOCIATION_GROUPS, "broadcast", None, True, marks=pytest.mark.stress),
        pytest.param(ASSOCIATION_GROUPS, "broadcast", None, False, marks=pytest.mark.stress),
    ],
)
def test_pairs_are_those_of_brute_force(
    kind: str,
    unknown: str,
    window: Any,
    is_elsewhere: bool,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learned_routing, "LEAST", 10)
    monkeypatch.setattr(learned_routing, "_AHEAD_AT_FIRST", 1)
    rng = random.Random(str((kind, unknown, window)))
    documents = drifting(ROWS * 16, 31)
    spec = NaturalSpec.create(
        {"documents": TIMED}, "doc", id="id", output="ids", window=window,
        event_time=None if window is None else {"documents": "at"}, is_routed=True,
    )  # fmt: skip
    tumbling = Tumbling({"documents": "at"}, 20 * MINUTE) if isinstance(window, str) else None
    routing = LearnedRouting(kind, unknown=unknown, window=tumbling, theta=0.0)
    assert makes_tables_alike(routing)
    query = Query(routing, spec, tmp_path, 5, is_elsewhere=is_elsewhere)
    minutes = [at + rng.randrange(-8, 8) for at in range(len(documents))]
    minutes[40] += 300  # far ahead of its window
    for first in range(0, len(documents), ROWS):
        rows = [
            {"id": at, "doc": json.dumps(documents[at]), "at": START + timedelta(minutes=minute)}
            for at, minute in enumerate(minutes[first : first + ROWS], first)
        ]
        watermark = START + timedelta(minutes=first + ROWS - 9)
        query.batch(
            pa.RecordBatch.from_pylist(rows, schema=TIMED),
            None if window is None else int(watermark.timestamp() * 1e6),
        )
    flat = [leaves(each) for each in documents]
    reach = None if window is None else 1 if tumbling else 2
    expected = [
        (i, j)
        for i, j in pairs_of(flat)
        if reach is None or abs(minutes[i] // 20 - minutes[j] // 20) < reach
    ]
    assert sorted(query.found) == sorted(expected)
    assert query.table is not None
    assert query.table.layouts
    assert query.told == query.table.repartitions
    if tumbling is None:
        assert query.table.repartitions == 0
    else:
        assert query.everywhere > 0
        # Broadcast copies so much that no other layout would be better; but values are added.
        assert query.table.repartitions > 0 or unknown == "broadcast"
    if unknown == "broadcast":
        assert query.values_at_first < query.values
    assert "seen: " in query.table.explain()


def test_what_the_user_chose_comes_first_and_a_split_stays() -> None:
    documents = [{"user": at % 40, "host": at % 3} for at in range(300)]
    texts = [json.dumps(each) for each in documents]
    window = Tumbling({"documents": "at"}, MINUTE)
    asked = LearnedRouting(window=window, buckets=BUCKETS)
    asked = LearnedRouting(window=window, first=asked.layout(texts), buckets=BUCKETS)
    later = LearnedRouting(window=window).settled(BUCKETS, json.loads(json.dumps(asked.adopted)))
    assert later.first is not None
    assert later.first.routing.explain() == "documents are split by user + host 4: 4 cells"
    assert "Gini" in later.initial_table.explain()
    rows = pa.RecordBatch.from_pylist([{"id": 1, "doc": '{"a": 1}', "at": START}], schema=TIMED)
    table = later.sampled_table("documents", rows, rows.select(["doc"]), 0)
    assert table.layouts == (later.first,)
    assert table.until is not None
    # A first start without a choice has pinned none, whatever a later start asks for.
    assert asked.settled(BUCKETS, {}).first is None


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [(HYPERCUBE, "hash"), (ASSOCIATION_GROUPS, "broadcast")],
)
def test_all_attempts_observe_alike_in_any_order(
    kind: str, unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where samples and unknown values are cut now and then."""
    monkeypatch.setattr(learned_routing, "_MOST_BYTES", 2000)
    monkeypatch.setattr(learned_routing, "_MOST_NEW", 60)
    monkeypatch.setattr(learned_routing, "_MOST_UNKNOWN", 40)
    window = Tumbling({"documents": "at"}, MINUTE)
    routing = LearnedRouting(kind, unknown=unknown, window=window, buckets=BUCKETS)
    rows = [
        {
            "id": at,
            "doc": json.dumps({"user": at, "team": at % 9, "new": at % 150}),
            "at": START + timedelta(seconds=at),
        }
        for at in range(600)
    ]
    table = routing.initial_table
    if kind == ASSOCIATION_GROUPS:
        texts = [json.dumps({"user": at, "team": at % 9}) for at in range(80)]
        table = DocumentTable(BUCKETS, (routing.layout(texts),))
    rng, told = random.Random(1), []
    for _ in range(3):
        kept = None
        for part in (rows[:300], rows[300:]):
            some_rows = rng.sample(part, len(part))
            observer = routing.observer(1, table, kept, is_last=True, watermark_us=5)
            for first in range(0, len(some_rows), step := rng.randrange(10, 90)):
                some = pa.RecordBatch.from_pylist(some_rows[first : first + step], schema=TIMED)
                observer.add("documents", some, some.select(["doc"]), Role.STORE)
            kept = json.loads(json.dumps(observer.kept()))
        seen = routing.observed_from_json(1, json.loads(json.dumps(observer.observed().to_json())))
        following = routing.next_table(table, [seen], PERIOD)
        told.append(json.dumps(following.to_json()))
        assert len(seen.sample) > 20
        if kind == ASSOCIATION_GROUPS:
            assert len(seen.unknown) == 40
            before, after = table.layouts[0].routing, following.layouts[0].routing
            assert isinstance(before, GroupRouting)
            assert isinstance(after, GroupRouting)
            assert len(after.table) > len(before.table)
    assert told[0] == told[1] == told[2]


def test_a_table_that_is_good_stays(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_routing, "LEAST", 10)
    documents = [{"user": at % 40, "host": at % 3} for at in range(ROWS * 16)]
    spec = NaturalSpec.create(
        {"documents": TIMED}, "doc", id="id", output="ids", window="20 minutes",
        event_time={"documents": "at"}, is_routed=True,
    )  # fmt: skip
    window = Tumbling({"documents": "at"}, 20 * MINUTE)
    query = Query(LearnedRouting(window=window, theta=0.5), spec, tmp_path, 1)
    for first in range(0, len(documents), ROWS):
        rows = [
            {"id": at, "doc": json.dumps(documents[at]), "at": START + timedelta(minutes=at)}
            for at in range(first, first + ROWS)
        ]
        end = START + timedelta(minutes=first + ROWS - 1)
        query.batch(pa.RecordBatch.from_pylist(rows, schema=TIMED), int(end.timestamp() * 1e6))
    assert query.table is not None
    assert query.table.repartitions == 0
    assert query.table.judged is not None
    assert query.everywhere == 0
