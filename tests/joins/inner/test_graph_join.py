"""GraphJoin against DuckDB: random join graphs, any arrival order, cut into batches and restart."""

import itertools
import resource
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.parts.bound_rows import coalesced
from lsmstate.joins.local.parts.probe_order import ProbeOrder
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.multi_key import create_spec
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from lsmstate.schema.arrow_sizes import row_sizes
from support.join_cases import attempt, on_all_stores, run
from support.multi_key_cases import CHAIN, INTS, graph_joins, rows
from support.oracle import counted, joined_graph


def check(case, backend, piece_bytes):
    spec, *_ = case
    found = run(lambda store: GraphJoin(spec, store, piece_bytes), *case, backend)
    assert all(batch.schema == spec.output_schema for batch in found)
    assert all(batch.num_rows > 0 for batch in found)
    assert counted(found) == joined_graph(spec, case[1])


test_on_memory, test_on_lsm, test_many_on_every_store = on_all_stores(
    check, graph_joins(), memory=70, lsm=25, many=1500
)


def test_a_stream_has_an_index_per_set_of_keys_it_is_looked_up_by():
    spec = create_spec(INTS, CHAIN)
    assert [index.name for index in spec.indexes] == ["c(ck)", "o(ck)", "o(ok)", "l(ok)"]
    assert [c.name for c in spec.classes] == ["c.ck", "o.ok"]
    two = pa.schema([("x", pa.int8()), ("y", pa.int8())])
    triangle = create_spec(dict.fromkeys("abc", two), "a.x = b.x AND b.y = c.y AND a.y = c.x")
    assert [i.name for i in triangle.indexes] == ["a(x)", "a(y)", "b(x)", "b(y)", "c(x)", "c(y)"]
    parallel = create_spec(dict.fromkeys("abc", two), "a.x = b.x AND a.y = b.y AND b.y = c.y")
    assert [i.name for i in parallel.indexes] == ["a(x, y)", "a(y)", "b(x, y)", "b(y)", "c(y)"]


def test_a_common_key_stays_a_common_key():
    spec = create_spec({"a": INTS["c"], "b": INTS["o"]}, "a.ck = b.ck")
    assert isinstance(spec, JoinSpec)


def test_a_chain_is_found_from_either_end_and_from_the_middle():
    batches = {
        "c": rows("c", [1, 2, None], ["x", "y", "z"]),
        "o": rows("o", [10, 11, 12], [1, 1, 2], [5, 6, 7]),
        "l": rows("l", [10, 10, 12, None], [0.5, 1.5, 2.5, 3.5]),
    }
    for order in itertools.permutations("col"):
        with MultiwayJoin(INTS, CHAIN, state=State(memory="8m")) as join:
            found = [piece for name in order for piece in join.process(name, batches[name])]
        got = sorted((r["seg"], r["day"], r["price"]) for b in found for r in b.to_pylist())
        assert got == [("x", 5, 0.5), ("x", 5, 1.5), ("y", 7, 2.5)], order


def test_no_row_is_fetched_where_a_neighbour_has_no_partner(tmp_path):
    spec = create_spec(INTS, CHAIN)
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = GraphJoin(spec, store)
        many = list(range(1000))
        list(join.process(Batch("c", rows("c", many, ["s"] * 1000))))
        fetched = store.stats().counters.get("fetched_rows", 0)
        assert list(join.process(Batch("o", rows("o", many, many, many)))) == []
        assert store.stats().counters.get("fetched_rows", 0) == fetched


def test_in_a_cycle_each_combination_takes_the_fewest_rows(tmp_path):
    """Of 1,000 rows of c on either side of the cycle, one matches both a and b."""
    number = pa.int64()
    streams = {
        "a": pa.schema([("x", number), ("y", number)]),
        "b": pa.schema([("y", number), ("z", number)]),
        "c": pa.schema([("x", number), ("z", number)]),
    }
    spec = create_spec(streams, "a.x = c.x AND a.y = b.y AND b.z = c.z")
    many = range(1000)
    given = {
        "b": [(1, 0), (2, 10)],
        "c": [*((0, z) for z in many if z != 10), *((x, 10) for x in many)],
        "a": [(0, 1), (7, 2)],
    }
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = GraphJoin(spec, store)
        for name, values in given.items():
            columns = [pa.array(column, number) for column in zip(*values, strict=True)]
            batch = pa.record_batch(columns, schema=streams[name])
            before = store.stats().counters.get("fetched_rows", 0)
            found = [row for piece in join.process(Batch(name, batch)) for row in piece.to_pylist()]
        assert len(found) == 2
        assert store.stats().counters["fetched_rows"] - before < 10


class _Backwards(ProbeOrder):
    """Looks into streams in the reverse order."""

    def order(self, asking, others, filters=None):
        return super().order(asking, others, filters)[::-1]


def test_results_come_in_one_order_whatever_index_is_looked_into_first(tmp_path):
    """As a micro-batch that is run again needs it. c is in reach by (x, y) and by (y, z) at once;
    of the two combinations one has as many rows in either."""
    columns = {"a": "wx", "b": "wyz", "c": "xyz", "d": "xy"}
    streams = {s: pa.schema([(c, pa.int64()) for c in own]) for s, own in columns.items()}
    on = "a.w = b.w AND a.x = c.x AND b.y = c.y AND b.z = c.z AND d.x = c.x AND d.y = c.y"
    spec = create_spec(streams, on)
    given = {
        "b": [(1, 1, 0), (2, 2, 0)],
        "c": [(1, 1, 0), (1, 1, 5), (2, 2, 0), (2, 7, 9)],
        "d": [(1, 1), (2, 2)],
        "a": [(1, 1), (2, 2)],
    }
    found = []
    for order in (ProbeOrder(lambda: 0.0), _Backwards(lambda: 0.0)):
        with closing(attempt(tmp_path, spec, "memory")) as store:
            join = GraphJoin(spec, store, probe_order=order)
            for name, values in given.items():
                arrays = [pa.array(column, pa.int64()) for column in zip(*values, strict=True)]
                batch = pa.record_batch(arrays, schema=streams[name])
                pieces = [piece.to_pylist() for piece in join.process(Batch(name, batch))]
        found.append(pieces)
    assert sum(map(len, found[0])) == 2
    assert found[0] == found[1]


def test_a_hot_key_comes_in_bounded_pieces(tmp_path):
    spec = create_spec(INTS, CHAIN)
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = GraphJoin(spec, store, 20_000)
        list(join.process(Batch("c", rows("c", [1] * 300, ["x" * 40] * 300))))
        list(join.process(Batch("l", rows("l", [7] * 200, [float(n) for n in range(200)]))))
        seen = np.zeros(200, dtype=np.int64)
        for piece in join.process(Batch("o", rows("o", [7, 7], [1, 1], [0, 1]))):
            assert row_sizes(piece).sum() <= 20_000
            np.add.at(seen, piece.column("price").to_numpy().astype(int), 1)
        assert seen.tolist() == [600] * 200


def test_pieces_whose_dictionaries_have_too_many_values_together_stay_apart():
    """An index of 8 bits counts 128 values."""
    kind = pa.dictionary(pa.int8(), pa.string())
    texts = [f"t{n}" for n in range(200)]
    parts = [pa.array(texts[first : first + 50]) for first in range(0, 200, 50)]
    pieces = [pa.record_batch({"t": part.dictionary_encode().cast(kind)}) for part in parts]
    found = list(coalesced(iter(pieces), 1 << 20))
    assert [text for piece in found for text in piece["t"].to_pylist()] == texts
    assert all(piece.schema == pieces[0].schema for piece in found)
    assert len(list(coalesced(iter(pieces[:2] * 50), 1 << 20))) == 1


def test_a_large_key_is_not_copied_for_each_combination(tmp_path):
    """A key of 200 KB in 2,000 combinations would be 400 MB."""
    text, number = pa.string(), pa.int64()
    streams = {
        "a": pa.schema([("x", number), ("y", text)]),
        "b": pa.schema([("x", number)]),
        "c": pa.schema([("y", text), ("z", number)]),
    }
    spec = create_spec(streams, "a.x = b.x AND a.y = c.y")
    key = "k" * 200_000
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = GraphJoin(spec, store)
        for name, row in (("a", {"x": 1, "y": key}), ("c", {"y": key + "!", "z": 3})):
            list(join.process(Batch(name, pa.RecordBatch.from_pylist([row], schema=streams[name]))))
        many = pa.RecordBatch.from_pylist([{"x": 1}] * 2000, schema=streams["b"])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert list(join.process(Batch("b", many))) == []
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 100_000


def test_rows_with_many_indexes_are_stored_under_a_small_cap(tmp_path):
    """The writes of all indexes are made as one, which may take an eighth of the cap."""
    names = [f"d{number}" for number in range(6)]
    keys = [(f"k{number}", pa.int64()) for number in range(6)]
    streams = {"fact": pa.schema([*keys, ("text", pa.string())])}
    streams |= {name: pa.schema([("k", pa.int64())]) for name in names}
    spec = create_spec(streams, " AND ".join(f"fact.k{n} = d{n}.k" for n in range(6)))
    many = pa.array(range(3000), pa.int64())
    facts = pa.record_batch([*[many] * 6, ["x" * 900] * 3000], schema=streams["fact"])
    options = Options(memory_bytes=16 << 20)
    opened = LsmStore.open_attempt(
        str(tmp_path), spec.stream_schemas, batch_id=1, attempt_id="a", options=options
    )
    with closing(opened) as store:
        join = GraphJoin(spec, store)
        assert list(join.process(Batch("fact", facts))) == []
        one = pa.array([2999], pa.int64())
        for name in names:
            found = list(join.process(Batch(name, pa.record_batch([one], schema=streams[name]))))
        assert sum(piece.num_rows for piece in found) == 1


def test_streams_that_nothing_connects_are_refused():
    streams = {**INTS, "d": INTS["c"], "e": INTS["c"]}
    with pytest.raises(InvalidArgumentError, match="'d' is not connected to 'c', 'o', 'l'"):
        create_spec(streams, CHAIN + " AND d.ck = e.ck")


def test_a_store_with_other_streams_is_refused(tmp_path):
    spec = create_spec(INTS, CHAIN)
    other = create_spec({"a": INTS["c"], "b": INTS["o"]}, "a.ck = b.ck")
    with (
        closing(attempt(tmp_path, other, "memory")) as store,
        pytest.raises(InvalidArgumentError, match=r"the join needs c\(ck\), o\(ck\)"),
    ):
        GraphJoin(spec, store)


def test_results_must_be_consumed_before_the_next_call(tmp_path):
    spec = create_spec(INTS, CHAIN)
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = GraphJoin(spec, store)
        unread = join.process(Batch("c", rows("c", [1], ["x"])))
        with pytest.raises(InvalidArgumentError, match="not consumed"):
            join.process(Batch("c", rows("c", [1], ["x"])))
        unread.close()
        assert list(join.process(Batch("l", rows("l", [1], [0.0])))) == []
