"""Routings of documents: whatever the routing and the index, each pair is given by one bucket."""

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.baselines.document_partitions import disjoint_sets, partitions_of, set_cover
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.document_reading import Reading
from lsmstate.joins.local.documents import natural_join
from lsmstate.joins.local.documents.natural_join import NaturalLocalJoin
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.routing.documents.association_groups import (
    Expansion,
    Group,
    GroupRouting,
    association_groups,
    consolidated,
    placed,
    values_of,
)
from lsmstate.joins.routing.documents.group_assigner import GroupAssigner
from lsmstate.joins.routing.documents.hypercube import HypercubeRouting
from lsmstate.joins.routing.documents.quality import Quality, gini
from lsmstate.joins.specs.documents import NaturalSpec
from lsmstate.opening import open_store
from support.document_cases import SCHEMA, leaves, pairs_of, random_documents
from support.sampling import each_value

BUCKETS = 5
READING = Reading(exclude=("level",), nulls=False)


def texts(documents: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(each) for each in documents]


def routings(sample: list[str]) -> dict[str, Any]:
    groups = {
        f"groups {order} {unknown}": GroupRouting.chosen(
            sample, BUCKETS, READING, order=order, unknown=unknown
        )
        for order in ("asc", "desc")
        for unknown in ("hash", "broadcast")
    }
    return {
        "hypercube": HypercubeRouting.chosen(sample, BUCKETS, READING),
        "grid": HypercubeRouting({("user",): 2, ("meta.host",): 2}, READING),
        "together": HypercubeRouting({("user", "meta.host"): 3}, READING),
        "one": HypercubeRouting({}, READING),
        **groups,
    }


NAMES = [
    *("hypercube", "grid", "one"),
    *("groups asc hash", "groups asc broadcast", "groups desc hash", "groups desc broadcast"),
]


@each_value(
    times=2,
    name=NAMES,
    reading=[
        *(("warm", local) for local in ("bitmaps", "by_shape", "fp_tree", "hash")),
        ("cold", "auto"),  # documents are found by the lists in the store
    ],
)
def test_each_pair_is_given_once(
    name: str, reading: tuple[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, local = reading
    if memory == "cold":
        monkeypatch.setattr(natural_join, "LEAST_BYTES", 0)
        monkeypatch.setattr(natural_join, "PART", 1 << 60)
    documents = random_documents(260, 11)
    routing = routings(texts(random_documents(120, 12)))[name]
    routing = routing.settled(BUCKETS, json.loads(json.dumps(routing.adopted)))
    spec = NaturalSpec.create(
        {"documents": SCHEMA}, "doc", id="id", output="ids", exclude=["level"], nulls="nothing",
        local=local, is_routed=True,
    )  # fmt: skip
    assert spec.reading == READING
    stores = [open_store(str(tmp_path / str(b)), spec.stream_schemas, backend="memory")
              for b in range(BUCKETS)]  # fmt: skip
    joins = [NaturalLocalJoin(spec, s, Context(bucket=b)) for b, s in enumerate(stores)]
    router = routing.router("documents", SCHEMA, pa.schema([("k0", pa.string())]), None)
    rng = random.Random(name)
    found: list[tuple[int, int]] = []
    copies = 0
    for first in range(0, len(documents), 65):
        some = documents[first : first + 65]
        rows = pa.table([range(first, first + len(some)), texts(some)], schema=SCHEMA)
        batch = rows.combine_chunks().to_batches()[0]
        routed = router.route(batch, batch.select(["doc"]).rename_columns(["k0"]))
        assert routed.roles is not None
        assert routed.marks is not None
        copies += len(routed.positions)
        for bucket in rng.sample(range(BUCKETS), BUCKETS):
            for role in (Role.STORE, Role.COPY):
                here = np.flatnonzero((routed.buckets == bucket) & (routed.roles == role))
                arriving = Batch(
                    "documents", batch.take(pa.array(routed.positions[here])), role=role,
                    marks=routed.marks.take(pa.array(here)),
                )  # fmt: skip
                for piece in joins[bucket].process(arriving):
                    pairs = zip(*(c.to_pylist() for c in piece.columns), strict=True)
                    found += [(min(pair), max(pair)) for pair in pairs]
    flat = [
        leaves({n: v for n, v in each.items() if n != "level"}, nulls=False) for each in documents
    ]
    assert copies >= sum(map(bool, flat))
    assert sorted(found) == sorted(pairs_of(flat))


def test_a_repeated_task_gives_the_same_rows(tmp_path: Any) -> None:
    """Whatever the order in which it sees those of its micro-batch."""
    documents = random_documents(150, 13)
    spec = NaturalSpec.create({"documents": SCHEMA}, "doc", id="id", output="ids", is_routed=True)
    rows = pa.table([range(len(documents)), texts(documents)], schema=SCHEMA)
    found = []
    for attempt in range(2):
        store = open_store(str(tmp_path / str(attempt)), spec.stream_schemas, backend="memory")
        first = NaturalLocalJoin(spec, store, Context(bucket=0))
        first.process(
            Batch("documents", rows.slice(0, 70).combine_chunks().to_batches()[0])
        ).count()
        second = NaturalLocalJoin(spec, store, Context(bucket=0, micro_batch=1))
        order = list(range(70, 150))
        random.Random(attempt).shuffle(order)
        pairs: list[tuple[int, int]] = []
        for some in (order[:30], order[30:]):
            batch = rows.take(some).combine_chunks().to_batches()[0]
            for piece in second.process(Batch("documents", batch)):
                pairs += zip(*(c.to_pylist() for c in piece.columns), strict=True)
        found.append(sorted(pairs))
    assert found[0] == found[1]
    late = [pair for pair in pairs_of([leaves(each) for each in documents]) if pair[1] >= 70]
    assert sorted((min(pair), max(pair)) for pair in found[0]) == sorted(late)
    assert all(a < b for a, b in found[0] if min(a, b) < 70)


def test_malformed_documents_go_to_one_bucket_and_empty_ones_nowhere() -> None:
    rows = pa.table(
        [[1, 2, 3, 4, 5], ['{"user": 1}', "{", "{}", None, '{"x": 2}']], schema=SCHEMA
    ).combine_chunks()
    batch = rows.to_batches()[0]
    for routing in routings(texts(random_documents(50, 1))).values():
        router = routing.router("documents", SCHEMA, pa.schema([]), None)
        routed = router.route(batch, batch.select(["doc"]))
        assert set(routed.positions.tolist()) == {0, 1, 4}
        assert (routed.positions == 1).sum() == 1


def test_the_grid_that_costs_least() -> None:
    rng = random.Random(1)
    documents = [
        {"user": rng.randrange(500), "odd": 1, **({"kind": 1} if rng.random() < 0.5 else {})}
        for _ in range(800)
    ]
    routing = HypercubeRouting.chosen(texts(documents), 8)
    assert dict(routing.split) == {("user",): 8}
    cells = routing.cells(routing.reading.read(pa.array(texts(documents))))
    quality = Quality.of_cells(cells, 8)
    assert quality.replication == 1
    assert quality.largest_load < 0.2
    assert "user 8: 8 cells" in routing.explain()
    with pytest.raises(InvalidArgumentError, match="needs 8 buckets, and there are 4"):
        routing.settled(4, routing.adopted)


def test_a_dimension_of_several_attributes_deals_few_values_evenly() -> None:
    rng = random.Random(2)
    documents = [{"a": rng.randrange(6), "b": rng.randrange(7), "c": 1} for _ in range(1000)]
    routing = HypercubeRouting.chosen(texts(documents), 20)
    assert {frozenset(names) for names in routing.split} == {frozenset("ab")}
    assert "20: 20 cells" in routing.explain()
    cells = routing.cells(routing.reading.read(pa.array(texts([*documents, {"a": 1}]))))
    assert cells.counts.tolist() == [1] * 1000 + [20]
    assert Quality.of_cells(cells, 20).largest_load < 0.13
    assert routing.settled(20, routing.adopted) == routing


def test_groups_of_values_that_occur_together() -> None:
    a, b, c, d = 1, 2, 3, 4
    documents = [frozenset(each) for each in ((a, b), (a, b, c), (a, c), (d,))]
    # a is in three documents. b and c imply it.
    found = association_groups(documents, "desc")
    assert {group.values for group in found} == {frozenset({a, b, c}), frozenset({d})}
    found = association_groups(documents, "asc")
    assert {group.values for group in found} == {
        frozenset({d}), frozenset({a, b}), frozenset({c}),
    }  # fmt: skip
    table = placed(found, 2)
    assert table[a] == table[b]
    assert table.keys() == {a, b, c, d}


def test_groups_of_several_creators_become_disjoint() -> None:
    documents = [frozenset(each) for each in ((1, 2), (1, 2, 3), (3, 4), (5,))]
    samples = [
        [Group(frozenset({1, 2}), frozenset({0})), Group(frozenset({5}), frozenset({3}))],
        [Group(frozenset({1, 2, 3}), frozenset({0})), Group(frozenset({3, 4}), frozenset({0}))],
    ]
    found = consolidated(samples, documents)
    assert sorted(sorted(group.values) for group in found) == [[1, 2], [3, 4], [5]] or sorted(
        value for group in found for value in group.values
    ) == [1, 2, 3, 4, 5]
    assert sum(len(group.values) for group in found) == 5
    assert all(group.documents for group in found)


def test_an_attribute_of_few_values_is_united_with_others() -> None:
    rng = random.Random(3)
    documents = [{"flag": rng.randrange(2), "user": rng.randrange(40)} for _ in range(300)]
    read = Reading().read(pa.array(texts(documents)))
    expansion = Expansion.of(read, 8)
    assert expansion is not None
    assert set(expansion.paths) == {"flag", "user"}
    values, lacks = values_of(read, expansion)
    assert not any(lacks)
    assert {len(each) for each in values} == {1}
    short = Reading().read(pa.array(['{"flag": 1}']))
    assert values_of(short, expansion)[1] == [True]


@each_value(
    learning=[("broadcast", 2), ("broadcast", 0), ("hash", 0)],
    expands=[False, True],
)
def test_documents_of_a_window_meet_while_groups_learn(
    learning: tuple[Any, int], expands: bool
) -> None:
    unknown, delta = learning
    assigner = GroupAssigner(
        BUCKETS, unknown=unknown, delta=delta, theta=0.0, expands=expands, order="asc"
    )
    before = READING.read(pa.array(texts(random_documents(80, 1))))
    for seed in range(2, 6):
        documents = random_documents(150, seed)
        read = READING.read(pa.array(texts(documents)))
        assigner.begin_window(before)
        cells = [set(each) for each in assigner.assign(read)]
        quality = assigner.end_window()
        flat = [
            leaves({n: v for n, v in each.items() if n != "level"}, nulls=False)
            for each in documents
        ]
        assert all(cells[i] & cells[j] for i, j in pairs_of(flat))
        assert 0 <= quality.gini < 1
        assert 1 / BUCKETS <= quality.largest_load <= 1 <= quality.replication <= BUCKETS
        before = read
    assert assigner.repartitions > 0
    assert (assigner.added > 0) == (delta > 0)


def test_gini() -> None:
    assert gini([3, 3, 3]) == 0
    assert gini([0, 0, 9]) == pytest.approx(2 / 3)
    assert gini([0, 0]) == 0
    with pytest.raises(InvalidArgumentError, match="delta=0"):
        GroupAssigner(3, unknown="hash", delta=1)


@pytest.mark.parametrize("make", [disjoint_sets, set_cover])
def test_the_papers_other_partitionings(make: Any) -> None:
    sample, _ = values_of(READING.read(pa.array(texts(random_documents(100, 1)))), None)
    table = make([each for each in sample if each], BUCKETS)
    documents = random_documents(150, 2)
    values, _ = values_of(READING.read(pa.array(texts(documents))), None)
    cells = [partitions_of(table, each, BUCKETS) if each else frozenset() for each in values]
    flat = [
        leaves({n: v for n, v in each.items() if n != "level"}, nulls=False) for each in documents
    ]
    assert all(cells[i] & cells[j] for i, j in pairs_of(flat))
