"""Shares: every result in exactly one bucket, and the choice of the grid."""

import itertools
import json
import math
from collections import Counter, defaultdict

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.hash import bucket_of_hashes
from lsmstate.joins.routing.shares import LOAD_SLACK, JoinGraph, Shares, choose
from support.examples import examples

TRIANGLE = JoinGraph(
    rows={"r": 1000, "s": 1000, "t": 1000},
    classes={"a": ("r", "t"), "b": ("r", "s"), "c": ("s", "t")},
)


@st.composite
def join_graphs(draw):
    """Chains, stars, trees, cycles, and trees whose classes are held by further streams."""
    count = draw(st.integers(2, 5))
    names = [f"s{k}" for k in range(count)]
    shape = draw(st.sampled_from(["chain", "star", "tree", "cycle"]))
    if shape == "chain" or shape == "cycle":
        edges = [(k, k + 1) for k in range(count - 1)]
        if shape == "cycle" and count > 2:
            edges.append((count - 1, 0))
    elif shape == "star":
        edges = [(0, k) for k in range(1, count)]
    else:
        edges = [(draw(st.integers(0, k - 1)), k) for k in range(1, count)]
    classes = {}
    for k, edge in enumerate(edges):
        more = draw(st.sets(st.integers(0, count - 1), max_size=1))
        classes[f"k{k}"] = tuple(names[n] for n in sorted({*edge, *more}))
    rows = {name: draw(st.integers(0, 10_000)) for name in names}
    known = draw(st.lists(st.sampled_from(list(classes)), unique=True))
    distinct = {name: draw(st.integers(1, 40)) for name in known}
    return JoinGraph(rows=rows, classes=classes, distinct=distinct)


def held(graph, stream):
    return [name for name in graph.classes if graph.holds(stream, name)]


@st.composite
def tables(draw, graph):
    """Per stream a list of rows; a row is a value or None per class the stream holds.

    Few values and enough rows, or most joins would have no result.
    """
    value = st.sampled_from([0, 1] * 8 + [2, None])
    found = {}
    for stream in graph.rows:
        row = st.fixed_dictionaries(dict.fromkeys(held(graph, stream), value))
        fewest = draw(st.sampled_from([4] * 9 + [0]))
        found[stream] = draw(st.lists(row, min_size=fewest, max_size=6))
    return found


def joined(table):
    """The results over positioned rows, ``stream -> [(position, row)]``, as tuples of positions."""
    results = [((), {})]
    for rows in table.values():
        results = [
            ((*found, position), {**bound, **row})
            for found, bound in results
            for position, row in rows
            if all(v is not None and bound.get(name, v) == v for name, v in row.items())
        ]
    return Counter(found for found, _ in results)


def routed(shares, stream, rows):
    valid = np.array([None not in row.values() for row in rows], np.bool_)
    hashes = {
        name: np.array([(row[name] or 0) * 0x9E3779B1 for row in rows], np.uint64)
        for name in held(shares.graph, stream)
    }
    return shares.route(stream, hashes, valid)


def joined_by_bucket(shares, table):
    buckets = defaultdict(lambda: {stream: [] for stream in table})
    for stream, rows in table.items():
        positions, found = routed(shares, stream, rows)
        for position, bucket in zip(positions.tolist(), found.tolist(), strict=True):
            assert 0 <= bucket < shares.cells <= shares.buckets
            buckets[bucket][stream].append((position, rows[position]))
    return sum((joined(part) for part in buckets.values()), Counter())


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_every_result_is_in_exactly_one_bucket(data):
    graph = data.draw(join_graphs())
    table = data.draw(tables(graph))
    buckets = data.draw(st.integers(1, 40))
    forced = None
    if data.draw(st.booleans()):
        forced = {name: data.draw(st.integers(1, 3)) for name in graph.classes}
        buckets = math.prod(forced.values())
    shares = choose(graph, buckets, forced)
    whole = joined({stream: list(enumerate(rows)) for stream, rows in table.items()})
    assert joined_by_bucket(shares, table) == whole


def test_a_stream_without_a_key_is_in_every_bucket():
    graph = JoinGraph(rows={"a": 9, "b": 9, "c": 1}, classes={"k": ("a", "b")})
    shares = choose(graph, 4)
    table = {"a": [{"k": v} for v in range(9)], "b": [{"k": v} for v in range(9)], "c": [{}, {}]}
    assert shares.copies("c") == 4
    assert joined_by_bucket(shares, table) == Counter(
        (v, v, c) for v, c in itertools.product(range(9), range(2))
    )


def test_one_common_key_is_routed_as_by_hash():
    graph = JoinGraph(
        rows={"a": 10, "b": 1000, "c": 50},
        classes={"other": ("a", "b"), "common": ("a", "b", "c")},
    )
    shares = choose(graph, 7)
    assert shares.shares == {"other": 1, "common": 7}
    assert shares.copies_per_row == 1.0
    hashes = np.random.default_rng(1).integers(0, 2**63, 500).astype(np.uint64)
    valid = hashes % np.uint64(10) != 0
    positions, buckets = shares.route("c", {"common": hashes}, valid)
    by_hash = bucket_of_hashes(hashes, valid, 7)
    assert positions.tolist() == np.flatnonzero(valid).tolist()
    assert buckets.tolist() == by_hash[valid].tolist()


def test_copies_come_by_position_then_bucket():
    shares = choose(TRIANGLE, 8, forced={"a": 2, "b": 2, "c": 2})
    hashes = {name: np.arange(100, dtype=np.uint64) for name in "ab"}
    positions, buckets = shares.route("r", hashes, np.ones(100, np.bool_))
    assert positions.tolist() == [row for row in range(100) for _ in range(2)]
    pairs = list(zip(positions.tolist(), buckets.tolist(), strict=True))
    assert pairs == sorted(set(pairs))


def test_equal_values_of_two_classes_spread_over_the_grid():
    """With one hash for both dimensions they would fill its diagonal only."""
    shares = choose(TRIANGLE, 16, forced={"a": 4, "b": 4})
    same = np.arange(4000, dtype=np.uint64)
    _, buckets = shares.route("r", {"a": same, "b": same}, np.ones(4000, np.bool_))
    counts = np.bincount(buckets, minlength=16)
    assert counts.min() > 180
    assert counts.max() < 320


@settings(deadline=None, max_examples=examples(100))
@given(join_graphs(), st.integers(1, 24))
def test_no_grid_that_was_allowed_has_fewer_copies(graph, buckets):
    shares = choose(graph, buckets)
    most = [min(buckets, graph.distinct.get(name, buckets)) for name in graph.classes]

    def grows(grid):
        return any(
            grid[k] < most[k] and math.prod(grid) // grid[k] * (grid[k] + 1) <= buckets
            for k in range(len(grid))
        )

    def part(share, name):
        extra = math.sqrt(2 * math.log(share) / share / graph.distinct.get(name, math.inf))
        return min(1.0, 1 / share + extra)

    def cost(grid):
        copies = load = 0.0
        for stream, count in graph.rows.items():
            own = held(graph, stream)
            named = list(zip(graph.classes, grid, strict=True))
            copies += max(1, count) * math.prod(s for name, s in named if name not in own)
            load += max(1, count) * math.prod(part(s, name) for name, s in named if name in own)
        return copies, load

    grids = [
        grid
        for grid in itertools.product(*(range(1, limit + 1) for limit in most))
        if math.prod(grid) <= buckets and not grows(grid)
    ]
    costs = {grid: cost(grid) for grid in grids}
    chosen = costs[tuple(shares.shares.values())]
    assert chosen[1] <= LOAD_SLACK * min(load for _, load in costs.values()) * (1 + 1e-9)
    for copies, load in costs.values():
        if load < LOAD_SLACK * min(load for _, load in costs.values()) * (1 - 1e-9):
            assert chosen[0] <= copies
            assert copies > chosen[0] or load >= chosen[1] * (1 - 1e-9)
    rows = sum(max(1, count) for count in graph.rows.values())
    assert shares.copies_per_row == pytest.approx(chosen[0] / rows)
    assert shares.fullest_load == pytest.approx(chosen[1] / rows)
    assert choose(graph, buckets) == shares


@pytest.mark.parametrize(("buckets", "expected"), [(1, 1), (8, 2), (27, 3), (64, 4), (216, 6)])
def test_a_triangle_of_equal_streams_gets_a_cube(buckets, expected):
    """The known optimum: the cube root of the buckets along each class."""
    assert set(choose(TRIANGLE, buckets).shares.values()) == {expected}


def test_of_equal_grids_the_class_named_first_is_split():
    graph = JoinGraph(rows={"a": 5, "b": 5}, classes={"x": ("a", "b"), "y": ("a", "b")})
    assert choose(graph, 6).shares == {"x": 6, "y": 1}


def test_few_distinct_values_are_not_spread_thin():
    """The common key saves copies, but 5 values leave most of 64 buckets empty."""
    rows = {"customer": 100_000, "orders": 1_000_000}
    classes = {"nation": ("customer", "orders"), "custkey": ("customer", "orders")}
    assert choose(JoinGraph(rows=rows, classes=classes), 64).shares["nation"] == 64
    known = JoinGraph(rows=rows, classes=classes, distinct={"nation": 5})
    assert choose(known, 64).shares == {"nation": 1, "custkey": 64}
    alone = JoinGraph(rows=rows, classes={"nation": classes["nation"]}, distinct={"nation": 5})
    assert choose(alone, 64).cells == 5


def test_copies_are_taken_for_a_much_evener_load():
    """25 nations in 8 buckets: no copies, but over twice the even load in the fullest."""
    rows = {"customer": 100_000, "orders": 1_000_000, "shop": 5000}
    classes = {"nation": ("customer", "orders", "shop"), "custkey": ("customer", "orders")}
    assert choose(JoinGraph(rows=rows, classes=classes), 8).shares == {"nation": 8, "custkey": 1}
    known = JoinGraph(rows=rows, classes=classes, distinct={"nation": 25})
    shares = choose(known, 8)
    assert shares.shares == {"nation": 2, "custkey": 4}
    assert choose(known, 8, {"nation": 8}).fullest_load > LOAD_SLACK * shares.fullest_load


def test_estimates_agree_with_what_is_counted():
    rng = np.random.default_rng(7)
    values = {"custkey": 3000, "orderkey": 20_000, "nation": 25}
    graph = JoinGraph(
        rows={"customer": 3000, "orders": 20_000, "lineitem": 60_000, "nation": 25},
        classes={
            "custkey": ("customer", "orders"),
            "orderkey": ("orders", "lineitem"),
            "nation": ("customer", "nation"),
        },
        distinct=values,
    )
    for forced in (None, {"custkey": 2, "orderkey": 4}, {"custkey": 4, "nation": 2}):
        shares = choose(graph, 8, forced)
        load = np.zeros(8, np.int64)
        for stream, count in graph.rows.items():
            hashes = {
                name: rng.integers(0, values[name], count).astype(np.uint64)
                for name in held(graph, stream)
            }
            positions, buckets = shares.route(stream, hashes, np.ones(count, np.bool_))
            assert len(positions) == count * shares.copies(stream)
            load += np.bincount(buckets, minlength=8)
        rows = sum(graph.rows.values())
        assert load.sum() / rows == pytest.approx(shares.copies_per_row)
        assert 0.9 * shares.fullest_load < load.max() / rows < 1.05 * shares.fullest_load


#: The inner-join groups of TPC-H: rows at scale 0.01 that are left after each stream's own
#: conditions (the specification's validation parameters), and the copies a prototype measured.
FULL = {"customer": 1500, "orders": 15_000, "lineitem": 60_175, "supplier": 100, "partsupp": 8000}
TPCH = {
    "Q2": (
        {"part": 4, "supplier": 100, "partsupp": 8000, "nation": 25, "region": 1},
        "partkey: part partsupp, suppkey: supplier partsupp, nationkey: supplier nation, "
        "regionkey: nation region",
        1.03,
    ),
    "Q3": (
        {"customer": 337, "orders": 7286, "lineitem": 32_260},
        "custkey: customer orders, orderkey: orders lineitem",
        1.06,
    ),
    "Q5": (
        {**FULL, "orders": 2303, "nation": 25, "region": 1},
        "custkey: customer orders, orderkey: orders lineitem, suppkey: lineitem supplier, "
        "nationkey: customer supplier nation, regionkey: nation region",
        1.18,
    ),
    "Q7": (
        {**FULL, "lineitem": 17_973, "n1": 2, "n2": 2},
        "suppkey: supplier lineitem, orderkey: orders lineitem, custkey: customer orders, "
        "nation1: supplier n1, nation2: customer n2",
        1.33,
    ),
    "Q8": (
        {**FULL, "part": 12, "orders": 4501, "n1": 25, "n2": 25, "region": 1},
        "partkey: part lineitem, suppkey: supplier lineitem, orderkey: orders lineitem, "
        "custkey: customer orders, nation1: customer n1, regionkey: n1 region, "
        "nation2: supplier n2",
        1.18,
    ),
    "Q9": (
        {**FULL, "part": 107, "nation": 25},
        "suppkey: supplier lineitem partsupp, partkey: part lineitem partsupp, "
        "orderkey: orders lineitem, nationkey: supplier nation",
        1.48,
    ),
    "Q10": (
        {**FULL, "orders": 611, "lineitem": 14_902, "nation": 25},
        "custkey: customer orders, orderkey: orders lineitem, nationkey: customer nation",
        1.63,
    ),
    "Q11": (
        {**FULL, "nation": 1},
        "suppkey: partsupp supplier, nationkey: supplier nation",
        1.00,
    ),
    "Q18": (FULL, "custkey: customer orders, orderkey: orders lineitem", 1.14),
    "Q21": (
        {"supplier": 100, "lineitem": 37_897, "orders": 7304, "nation": 1},
        "suppkey: supplier lineitem, orderkey: lineitem orders, nationkey: supplier nation",
        1.02,
    ),
}


def tpch_graph(query):
    rows, text, _ = TPCH[query]
    classes = {}
    for part in text.split(", "):
        name, holders = part.split(": ")
        classes[name] = tuple(holders.split())
    streams = {stream for holders in classes.values() for stream in holders}
    return JoinGraph(rows={s: n for s, n in rows.items() if s in streams}, classes=classes)


@pytest.mark.parametrize("query", TPCH)
def test_tpch_copies_over_8_buckets(query):
    shares = choose(tpch_graph(query), 8)
    assert shares.copies_per_row == pytest.approx(TPCH[query][2], abs=0.0055)
    assert 0.125 <= shares.fullest_load <= 0.204


def test_tpch_copies_over_64_buckets():
    copies = [choose(tpch_graph(query), 64).copies_per_row for query in TPCH]
    assert min(copies) == pytest.approx(1.01, abs=0.005)
    assert max(copies) == pytest.approx(4.6, abs=0.005)


def test_explain():
    shares = choose(tpch_graph("Q9"), 8)
    assert shares.explain().splitlines() == [
        "shares (chosen): partkey 2 x orderkey 4; 8 of 8 buckets",
        "not split: suppkey, nationkey",
        "  orders             15,000 rows, each in 2 of them",
        "  lineitem           60,175 rows, each in 1 of them",
        "  supplier              100 rows, each in 8 of them",
        "  partsupp            8,000 rows, each in 4 of them",
        "  part                  107 rows, each in 4 of them",
        "  nation                 25 rows, each in 8 of them",
        "estimated: 1.48 copies per row, 18.5% of the rows in the fullest bucket (even: 12.5%)",
    ]
    forced = choose(TRIANGLE, 9, forced={"b": 2})
    assert forced.explain().startswith("shares (forced): b 2; 2 of 9 buckets\nnot split: a, c\n")
    assert "no key split; 1 of 1 buckets" in choose(TRIANGLE, 1).explain()


@pytest.mark.parametrize("forced", [None, {"c": 5}])
def test_pinned_shares_are_adopted_though_sizes_have_changed(forced):
    graph = tpch_graph("Q9") if forced is None else TRIANGLE
    shares = choose(graph, 8, forced)
    assert Shares.from_json(shares.to_json(), graph) == shares
    grown = JoinGraph(rows={s: n**2 for s, n in graph.rows.items()}, classes=graph.classes)
    again = Shares.from_json(shares.to_json(), grown)
    assert (again.shares, again.buckets, again.forced) == (shares.shares, 8, forced is not None)
    assert again.to_json() == shares.to_json()


def test_pinned_shares_refuse_another_join_and_damage():
    text = choose(TRIANGLE, 8).to_json()
    turned = JoinGraph(rows=dict(reversed(TRIANGLE.rows.items())), classes=TRIANGLE.classes)
    with pytest.raises(
        InvalidArgumentError, match=r"streams \['r', 's', 't'\], the join has \['t'"
    ):
        Shares.from_json(text, turned)
    other = JoinGraph(rows=TRIANGLE.rows, classes={**TRIANGLE.classes, "c": ("r", "s", "t")})
    with pytest.raises(InvalidArgumentError, match=r"key classes .* new checkpoint"):
        Shares.from_json(text, other)
    changed = json.loads(text)
    changed["shares"][0][1] = 3
    with pytest.raises(InvalidArgumentError, match="damaged"):
        Shares.from_json(json.dumps(changed), TRIANGLE)
    for broken in ("", "[]", "{}", text[:-1], "7"):
        with pytest.raises(InvalidArgumentError, match="no pinned shares"):
            Shares.from_json(broken, TRIANGLE)


def test_where_rows_go_is_pinned():
    """A change here orphans the state of every checkpoint: raise the version instead."""
    shares = choose(TRIANGLE, 12, forced={"a": 3, "b": 2, "c": 2})
    hashes = {name: np.arange(6, dtype=np.uint64) << np.uint64(50) for name in "ab"}
    _, buckets = shares.route("r", hashes, np.ones(6, np.bool_))
    assert buckets.tolist() == [2, 3, 6, 7, 2, 3, 6, 7, 10, 11, 10, 11]
    assert json.loads(shares.to_json())["signature"] == "737e83cb1fbd94fc"


def test_another_version_is_refused(monkeypatch):
    text = choose(TRIANGLE, 8).to_json()
    monkeypatch.setattr("lsmstate.joins.routing.shares._VERSION", 2)
    with pytest.raises(InvalidArgumentError, match="have version 1, this release reads 2"):
        Shares.from_json(text, TRIANGLE)


def test_other_shares_cannot_be_forced_on_a_checkpoint():
    shares = choose(TRIANGLE, 8)
    text = shares.to_json()
    assert Shares.from_json(text, TRIANGLE, forced={"a": 2, "b": 2, "c": 2}) == shares
    with pytest.raises(InvalidArgumentError, match=r"'c': 2\}, now forced: \{'a': 8\}; force none"):
        Shares.from_json(text, TRIANGLE, forced={"a": 8})


@pytest.mark.parametrize(
    ("buckets", "forced", "message"),
    [
        (0, None, "buckets: 0 is not an integer between 1"),
        (2**21, {}, "buckets: 2097152"),
        (True, None, "buckets: True"),
        (257, None, "257 buckets and 3 key classes: at most 256 and 12 are searched"),
        (8, {"a": 3, "b": 3}, "a 3 x b 3 need 9 buckets, there are 8"),
        (8, {"a": 0}, "share of 'a': 0"),
        (8, {"a": 2.0}, "share of 'a': 2.0"),
        (8, {"d": 2}, "no key class 'd'; did you mean a, b, c?"),
    ],
)
def test_choices_that_do_not_fit_are_refused(buckets, forced, message):
    with pytest.raises(InvalidArgumentError, match=message):
        choose(TRIANGLE, buckets, forced)


def test_the_most_that_is_searched():
    streams = [f"s{k}" for k in range(14)]
    links = {f"k{k}": (streams[k], streams[k + 1]) for k in range(13)}
    with pytest.raises(InvalidArgumentError, match="13 key classes: at most"):
        choose(JoinGraph(rows=dict.fromkeys(streams, 9), classes=links), 8)
    forced = choose(JoinGraph(rows=dict.fromkeys(streams, 9), classes=links), 1000, {"k3": 1000})
    assert forced.cells == 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": {}}, "no key class"),
        ({"classes": {"a": ()}}, "'a' is held by no stream; name each stream that holds it"),
        ({"classes": {"a": ("r", "r")}}, "name each stream that holds it once"),
        ({"classes": {"a": ("r", "sx")}}, "no stream 'sx'; did you mean s?"),
        ({"rows": {"r": -1, "s": 1, "t": 1}}, "rows of 'r': -1"),
        ({"rows": {"r": 1.5, "s": 1, "t": 1}}, "rows of 'r': 1.5"),
        ({"distinct": {"a": 0}}, "distinct values of 'a': 0"),
        ({"distinct": {"aa": 5}}, "no key class 'aa'; did you mean a?"),
    ],
)
def test_graphs_that_cannot_be_are_refused(changes, message):
    given = {"rows": TRIANGLE.rows, "classes": TRIANGLE.classes}
    with pytest.raises(InvalidArgumentError, match=message.replace("?", r"\?")):
        JoinGraph(**{**given, **changes})


def test_batches_that_do_not_fit_are_refused():
    shares = choose(TRIANGLE, 8)
    three, four = np.zeros(3, np.uint64), np.ones(4, np.bool_)
    with pytest.raises(InvalidArgumentError, match="no stream 'x'"):
        shares.route("x", {}, four)
    with pytest.raises(InvalidArgumentError, match="no hashes of key class 'b'"):
        shares.route("r", {"a": np.zeros(4, np.uint64)}, four)
    with pytest.raises(InvalidArgumentError, match="3 hashes of key class 'a' for 4 rows"):
        shares.route("r", {"a": three, "b": three}, four)
