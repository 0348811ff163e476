"""Joins of any type by several keys against DuckDB, after every batch."""

import random
import resource
from functools import partial

import hypothesis.strategies as st
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.local.rooted.change_join import RootedChangeJoin
from lsmstate.joins.specs.typed_condition import typed_condition
from support.changing_cases import check_changes
from support.grouped import grouped
from support.join_cases import on_all_stores
from support.oracle import database
from support.rooted_cases import ROWS, by_duckdb, random_case, spec_of


@st.composite
def changing_joins(draw):
    return random_case(random.Random(draw(st.integers(0, 2**32))))


def check(case, backend, piece_bytes):
    with database() as db:
        check_changes(case, RootedChangeJoin, partial(by_duckdb, db), backend, piece_bytes)


test_on_memory, test_on_lsm, test_many_on_every_store = on_all_stores(
    check, changing_joins(), memory=14, lsm=4, many=500
)


def test_the_greatest_y_says_that_a_right_join_has_no_pair():
    """By default DuckDB 1.5.5 reasons so too, and then loses columns of a and b in its plan."""
    text = "a JOIN b ON a.x = b.x RIGHT JOIN c ON a.x = c.x AND c.y = 1 JOIN d ON c.x = d.x"
    spec = spec_of("abcd", typed_condition(dict.fromkeys("abcd", ROWS.names), text), {})
    live, batches = {name: [] for name in "abcd"}, []
    for name, rows in [("c", [(1, 2, "a"), (2, 2, "b")]), ("d", [(2, 2, None)])]:
        live = {**live, name: rows}
        batches.append((name, [("+I", row) for row in rows], live))
    check((spec, batches, False), "memory", 1 << 20)


STREAMS = {
    "c": pa.schema([("ck", pa.int64())]),
    "o": pa.schema([("ok", pa.int64()), ("ck", pa.int64()), ("op", pa.string())]),
    "l": pa.schema([("ok", pa.int64()), ("kind", pa.string())]),
}
CHAIN = "c LEFT JOIN o ON c.ck = o.ck LEFT JOIN l ON o.ok = l.ok"


def changed(join, name, *rows):
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(c, f.type) for c, f in zip(columns, STREAMS[name], strict=True)]
    found = join.process(name, pa.RecordBatch.from_arrays(arrays, schema=STREAMS[name]))
    return [tuple(row.values()) for piece in found for row in piece.to_pylist()]


def test_a_result_goes_where_its_first_partner_comes_and_comes_where_the_last_one_goes():
    """As TPC-H's thirteenth query needs it, with the lines of the orders."""
    options = {"emit": "changes", "changes": {"o": "op", "l": "kind"}, "backend": "memory"}
    with MultiwayJoin(STREAMS, CHAIN, **grouped(**options)) as join:
        assert changed(join, "l", (7, "+I"), (7, "+I")) == []
        assert changed(join, "c", (1,), (None,)) == [
            ("+I", 1, None, None, None),
            ("+I", None, None, None, None),
        ]
        assert changed(join, "o", (7, 1, "+I"), (8, 1, "+I"), (9, 2, "+I")) == [
            ("-D", 1, None, None, None),
            ("+I", 1, 7, 1, 7),
            ("+I", 1, 7, 1, 7),
            ("+I", 1, 8, 1, None),
        ]
        assert changed(join, "l", (7, "-D"), (8, "+I")) == [
            ("-D", 1, 7, 1, 7),
            ("-D", 1, 8, 1, None),
            ("+I", 1, 8, 1, 8),
        ]
        assert changed(join, "o", (7, 1, "-D"), (8, 1, "-D"), (5, 5, "-D")) == [
            ("-D", 1, 7, 1, 7),
            ("-D", 1, 8, 1, 8),
            ("+I", 1, None, None, None),
        ]
        assert join.unmatched_retractions == 1


def test_every_row_of_a_full_join_is_there_once_with_a_partner_or_without():
    on = CHAIN.replace("LEFT JOIN o", "FULL JOIN o")
    options = {"emit": "changes", "changes": {"o": "op", "l": "kind"}, "backend": "memory"}
    with MultiwayJoin(STREAMS, on, **grouped(**options)) as join:
        assert changed(join, "l", (7, "+I")) == []
        assert changed(join, "o", (7, 1, "+I"), (8, None, "+I"), (None, 2, "+I")) == [
            ("+I", None, 7, 1, 7),
            ("+I", None, 8, None, None),
            ("+I", None, None, 2, None),
        ]
        assert changed(join, "c", (1,), (1,), (3,)) == [
            ("-D", None, 7, 1, 7),
            ("+I", 1, 7, 1, 7),
            ("+I", 1, 7, 1, 7),
            ("+I", 3, None, None, None),
        ]
        assert changed(join, "o", (7, 1, "-D"), (8, None, "-D")) == [
            ("-D", 1, 7, 1, 7),
            ("-D", 1, 7, 1, 7),
            ("-D", None, 8, None, None),
            ("+I", 1, None, None, None),
            ("+I", 1, None, None, None),
        ]
        assert join.unmatched_retractions == 0


@pytest.mark.parametrize("closing", ["l.ck = c.ck", "l.ck <= c.ck AND l.ck >= o.ck"])
def test_a_cycle_is_judged_by_combinations(closing):
    """A line is one of both its order and its customer; two customers have the same number."""
    streams = {**STREAMS, "l": pa.schema([("ok", pa.int64()), ("ck", pa.int64())])}
    options = {"emit": "changes", "changes": {"o": "op"}, "backend": "memory"}
    with MultiwayJoin(streams, f"{CHAIN} AND {closing}", **grouped(**options)) as join:
        assert changed(join, "o", (7, 1, "+I"), (7, 2, "+I"), (8, 1, "+I")) == []
        assert changed(join, "c", (1,), (2,)) == [
            ("+I", 1, 7, 1, None, None),
            ("+I", 1, 8, 1, None, None),
            ("+I", 2, 7, 2, None, None),
        ]
        line = pa.RecordBatch.from_arrays([[7, 8, 7], [1, 3, 1]], schema=streams["l"])
        found = [
            tuple(row.values()) for piece in join.process("l", line) for row in piece.to_pylist()
        ]
        assert found == [
            ("-D", 1, 7, 1, None, None),
            *[("+I", 1, 7, 1, 7, 1)] * 2,
        ]


@pytest.mark.parametrize("kind", ["RIGHT", "FULL"])
def test_a_row_on_the_right_of_a_cycle_is_alone_where_no_combination_matches(kind):
    """A line of both an order and its customer: that it has each of them is not enough."""
    streams = {**STREAMS, "l": pa.schema([("ok", pa.int64()), ("ck", pa.int64())])}
    on = f"{CHAIN} AND l.ck = c.ck".replace("LEFT JOIN l", f"{kind} JOIN l")
    options = {"emit": "changes", "changes": {"o": "op"}, "backend": "memory"}

    def orders(join, *rows):
        return [row for row in changed(join, "o", *rows) if row[-2:] != (None, None)]

    with MultiwayJoin(streams, on, **grouped(**options)) as join:
        lines = pa.RecordBatch.from_arrays([[7, 7, None], [1, 1, 1]], schema=streams["l"])
        found = [tuple(r.values()) for p in join.process("l", lines) for r in p.to_pylist()]
        alone = ("+I", None, None, None, 7, 1)
        assert found == [alone, alone, ("+I", None, None, None, None, 1)]
        customers = pa.record_batch([pa.array([1, 2])], schema=streams["c"])
        assert all(len(p) == p.column("o_ok").null_count for p in join.process("c", customers))
        assert orders(join, (7, 2, "+I"), (8, 1, "+I")) == []
        matched = (1, 7, 1, 7, 1)
        gone = ("-D", *alone[1:])
        assert orders(join, (7, 1, "+I"), (7, 1, "+I")) == [gone, gone, *[("+I", *matched)] * 4]
        assert orders(join, (7, 1, "-D")) == [("-D", *matched)] * 2
        assert orders(join, (7, 1, "-D"), (7, 1, "+I")) == []
        assert orders(join, (7, 1, "-D")) == [*[("-D", *matched)] * 2, alone, alone]


def test_an_equality_of_two_columns_of_a_stream_with_one_of_another():
    """In one class of equal columns would be two of a stream: it has an index of its own."""
    rows = pa.schema([("x", pa.int64()), ("y", pa.int64())])
    on = "a LEFT JOIN b ON a.x = b.x LEFT JOIN c ON c.x = a.x AND c.y = b.x AND c.x = a.y"
    streams = dict.fromkeys("abc", rows)
    with MultiwayJoin(streams, on, emit="changes", state=State(backend="memory")) as join:
        assert [str(c) for c in join.spec.graph.classes] == [
            "a.x = b.x = c.x",
            "a.y = c.x",
            "b.x = c.y",
        ]
        assert join.spec.graph.class_names == ("a.x", "a.y", "b.x")
        assert len({i.name for i in join.spec.graph.indexes}) == len(join.spec.graph.indexes)
        for name, x, y in (("a", 1, 1), ("c", 1, 1), ("c", 1, 2), ("b", 1, 5)):
            batch = pa.RecordBatch.from_pylist([{"x": x, "y": y}], schema=rows)
            found = [tuple(r.values()) for p in join.process(name, batch) for r in p.to_pylist()]
        assert found == [
            ("-D", 1, 1, None, None, None, None),
            ("+I", 1, 1, 1, 5, 1, 1),
        ]


@pytest.mark.parametrize(
    "on",
    [
        "a LEFT JOIN b ON a.x = b.x AND a.y > b.y LEFT JOIN c ON c.x = b.x",
        "a LEFT JOIN b ON a.x = b.x LEFT JOIN c ON c.y = a.y",
    ],
    ids=["compared", "a key"],
)
def test_a_long_text_is_not_copied_for_each_combination(on):
    """One of 400 KB in 2,000 combinations would be 800 MB."""
    rows = pa.schema([("x", pa.int64()), ("y", pa.string())])
    with MultiwayJoin(
        dict.fromkeys("abc", rows), on, emit="changes", state=State(backend="memory")
    ) as join:
        many = pa.record_batch([[1] * 2000, ["a"] * 2000], schema=rows)
        assert list(join.process("b", many)) == []
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        one = pa.record_batch([[1], ["k" * 400_000]], schema=rows)
        assert sum(piece.num_rows for piece in join.process("a", one)) == 2000
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 100_000


@pytest.mark.parametrize(
    ("on", "emit", "words"),
    [
        (CHAIN, "append", "use emit='changes'"),
        (
            "c ANTI JOIN o ON c.ck = o.ok RIGHT JOIN l ON c.ck = l.ok AND c.ck > l.kind",
            "changes",
            "put anti joins after the right and full ones",
        ),
        (
            CHAIN.replace("LEFT JOIN l ON o.ok", "FULL JOIN l ON c.ck") + " AND o.ok IS NULL",
            "changes",
            "'o' also where there is no row of it; compare a column",
        ),
        ("c LEFT JOIN (o JOIN l ON o.ok = l.ok) ON c.ck = o.ck", "changes", "one after the other"),
    ],
)
def test_what_does_not_fit_is_refused(on, emit, words):
    streams = {**STREAMS, "l": pa.schema([("ok", pa.int64()), ("kind", pa.int64())])}
    with pytest.raises(InvalidArgumentError, match=words):
        MultiwayJoin(streams, on, emit=emit)
