"""UMJoin against DuckDB: any streams, any arrival order, any cut into batches, any restart."""

import datetime
from collections import Counter
from contextlib import closing

import duckdb
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError, MemoryLimitError
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.local.inner.umjoin import SLICE_ROWS, UMJoin
from lsmstate.joins.local.parts.cross_product import Side, cross_product
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.schema.arrow_sizes import row_sizes
from support.examples import examples
from support.grouped import grouped
from support.join_cases import DAY, NAN, PIECES, QUICK, D, attempt, run
from support.one_key_cases import INT, batch_of, joins
from support.oracle import counted, joined
from support.watched_store import WatchedStore


def check(case, backend, piece_bytes):
    spec, *_ = case
    found = run(lambda store: UMJoin(spec, store, piece_bytes), *case, backend)
    assert all(batch.schema == spec.output_schema for batch in found)
    assert all(batch.num_rows > 0 for batch in found)
    assert counted(found) == joined(spec, case[1])


@settings(QUICK, max_examples=examples(70))
@given(joins(), PIECES)
def test_the_result_equals_duckdb(case, piece_bytes):
    check(case, "memory", piece_bytes)


@settings(QUICK, max_examples=examples(8))
@given(joins(), st.sampled_from([60, 1 << 20]))
def test_the_result_equals_duckdb_on_rocksdb(case, piece_bytes):
    check(case, "rocksdb", piece_bytes)


@settings(QUICK, max_examples=examples(40))
@given(joins(), PIECES)
def test_the_result_equals_duckdb_on_lsm(case, piece_bytes):
    check(case, "lsm", piece_bytes)


def memory_join(names=("a", "b", "c"), piece_bytes=1 << 20, schema=INT, on=("id",)):
    return MultiwayJoin(
        dict.fromkeys(names, schema),
        list(on),
        piece_bytes=piece_bytes,
        state=State(backend="memory", memory="256m"),
    )


def test_a_hot_key_comes_in_bounded_pieces():
    with memory_join(piece_bytes=20_000) as join:
        wide = ["x" * 40 + str(n) for n in range(300)]
        assert list(join.process("a", batch_of([1] * 300, wide))) == []
        assert list(join.process("b", batch_of([1] * 200))) == []
        pieces = rows = 0
        total = np.zeros((2, 300), dtype=np.int64)
        for piece in join.process("c", batch_of([1, 1])):
            assert row_sizes(piece).sum() <= 20_000
            pieces += 1
            rows += piece.num_rows
            firsts = piece.column("a_v").to_pylist()
            for n, c in zip(firsts, piece.column("c_v").to_pylist(), strict=True):
                total[int(c[1:]), int(n[40:])] += 1
        assert rows == 2 * 300 * 200
        assert bool((total == 200).all())
        assert pieces >= rows * 90 // 20_000


def null_rows(spec, stream, ids):
    schema = spec.streams[stream]
    columns = [pa.array(ids, pa.int64())]
    columns += [pa.nulls(len(ids), field.type) for field in list(schema)[1:]]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@pytest.mark.parametrize("keys", [[1] * 1000, list(range(1000))])
def test_rows_that_are_small_only_when_stored_are_fetched_in_bounded_pieces(tmp_path, keys):
    # 60 columns of nulls: a few bytes each in a store, half a kilobyte in Arrow.
    wide = pa.schema([("id", pa.int64())] + [(f"c{n}", pa.int64()) for n in range(60)])
    spec = JoinSpec.create({"a": wide, "b": wide}, ["id"])
    with closing(attempt(tmp_path, spec, "rocksdb")) as store:
        watched = WatchedStore(store)
        join = UMJoin(spec, watched, 50_000)
        list(join.process(Batch("a", null_rows(spec, "a", keys))))
        found = list(join.process(Batch("b", null_rows(spec, "b", sorted(set(keys))))))
        assert sum(piece.num_rows for piece in found) == watched.rows == 1000
        assert watched.largest <= 2 * 50_000


def test_the_first_piece_of_a_huge_result_comes_at_once():
    # 10 ** 15 combinations: nothing may be proportional to them.
    with memory_join(("a", "b", "c", "d", "e"), piece_bytes=50_000) as join:
        for name in "abcd":
            with join.process(name, batch_of([1] * 1000)) as results:
                assert next(results, None) is None
        with join.process("e", batch_of([1] * 1000)) as results:
            piece = next(results)
            assert 0 < row_sizes(piece).sum() <= 50_000


def test_a_result_row_larger_than_a_piece_travels_alone():
    with memory_join(("a", "b"), piece_bytes=100) as join:
        list(join.process("a", batch_of([1, 1, 2], ["y" * 500] * 3)))
        pieces = list(join.process("b", batch_of([2, 1])))
        assert [piece.num_rows for piece in pieces] == [1, 1, 1]


def test_results_have_the_types_of_the_streams_whatever_is_stored():
    kinds = [pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
    schema = pa.schema([("id", pa.int64()), ("v", kinds[0]), ("d", kinds[1])])
    words = pa.array(["x", "y"])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 1]), words.cast(kinds[0]), words.cast(kinds[1])], schema=schema
    )
    with MultiwayJoin({"a": schema, "b": pa.schema([("k", pa.int64())])}, on="a.id = b.k") as join:
        found = [*join.process("a", batch)]
        for _ in range(2):  # stored rows for one that arrives, and one that is stored
            found += join.process("b", pa.record_batch({"k": [1]}))
            found += join.process("a", batch)
    assert {piece.schema.field(1).type for piece in found} == {kinds[0]}
    assert {piece.schema.field(2).type for piece in found} == {kinds[1]}
    rows = [sorted(piece.column(1).to_pylist()) for piece in found]
    assert rows == [sorted(["x", "y"] * n) for n in (1, 1, 2, 2)]


def test_more_combinations_than_can_be_numbered_are_refused():
    one = pa.RecordBatch.from_arrays([pa.array([1] * 10_000)], names=["x"])
    side = Side(one, np.array([0, 10_000]), row_sizes(one))
    with pytest.raises(MemoryLimitError, match=r"1\.0e\+20"):
        next(cross_product([side] * 5, 100))


def test_a_batch_larger_than_a_slice():
    count = 2 * SLICE_ROWS + 17
    with memory_join(("a", "b")) as join:
        list(join.process("a", batch_of([n % 5000 for n in range(count)])))
        found = list(join.process("b", batch_of(list(range(count)))))
        assert sum(piece.num_rows for piece in found) == count
        for piece in found:
            assert piece.column("a_id").equals(piece.column("b_id"))


@pytest.mark.parametrize("count", [5, 2 * SLICE_ROWS])
def test_keys_may_be_given_encoded_or_not(tmp_path, count):
    spec = JoinSpec.create({"a": INT, "b": INT}, ["id"])
    batch = batch_of(list(range(count)))
    keys = spec.key_batch("a", batch)
    encoded = KeyCodec(spec.key_schema).encode(keys)
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = UMJoin(spec, store)
        assert list(join.process(Batch("a", batch, encoded))) == []
        assert sum(p.num_rows for p in join.process(Batch("b", batch, keys))) == count
        for given_keys in (encoded, keys):
            with pytest.raises(InvalidArgumentError, match="give one key per row"):
                join.process(Batch("b", batch.slice(1), given_keys))


def test_rows_of_one_batch_do_not_see_each_other():
    with memory_join(("a", "b")) as join:
        assert list(join.process("a", batch_of([1, 1]))) == []
        assert sum(p.num_rows for p in join.process("b", batch_of([1]))) == 2
        assert sum(p.num_rows for p in join.process("a", batch_of([1]))) == 1


def test_the_same_data_as_two_streams():
    with memory_join(("a", "b")) as join:
        rows = batch_of([1, 2, 2, None])
        found = list(join.process("a", rows)) + list(join.process("b", rows))
        assert sum(piece.num_rows for piece in found) == 1 + 4
        assert join.output_schema.names == ["a_id", "a_v", "b_id", "b_v"]


def test_null_keys_never_match_and_are_not_stored():
    with memory_join(("a", "b")) as join:
        list(join.process("a", batch_of([None, None, 3])))
        assert list(join.process("b", batch_of([None, 4]))) == []
        assert join.stats().counters["appended_rows"] == 2


def one_match(left, right, left_value, right_value):
    """Whether two values of two key types match."""
    with MultiwayJoin(
        {"a": pa.schema([("k", left)]), "b": pa.schema([("k", right)])},
        ["k"],
        state=State(backend="memory"),
    ) as join:
        list(join.process("a", pa.RecordBatch.from_arrays([pa.array([left_value], left)], ["k"])))
        rows = pa.RecordBatch.from_arrays([pa.array([right_value], right)], ["k"])
        found = list(join.process("b", rows))
        for piece in found:
            assert piece.schema.types == [left, right]
        return bool(found)


@pytest.mark.parametrize(
    ("left", "right", "a", "b", "expected"),
    [
        (pa.int32(), pa.int64(), -5, -5, True),
        (pa.int32(), pa.int64(), 1, 1 + 2**32, False),
        (pa.uint64(), pa.int64(), 2**63, -(2**63), False),
        (pa.uint64(), pa.int8(), 5, 5, True),
        (pa.decimal128(5, 2), pa.decimal128(20, 4), D("1.50"), D("1.5000"), True),
        (pa.decimal128(5, 2), pa.int64(), D("3.00"), 3, True),
        (pa.decimal128(5, 2), pa.int64(), D("3.01"), 3, False),
        (pa.decimal128(38, 0), pa.decimal128(38, 18), D(2), D("1.9"), True),
        (pa.decimal128(5, 2), pa.float64(), D("0.10"), 0.1, True),
        (pa.int64(), pa.float64(), 2**53 + 1, float(2**53), True),
        (pa.float32(), pa.float64(), 0.5, 0.5, True),
        (pa.float32(), pa.float64(), 0.1, 0.1, False),
        (pa.float64(), pa.float64(), NAN, -NAN, True),
        (pa.float32(), pa.float64(), NAN, NAN, True),
        (pa.float64(), pa.float64(), -0.0, 0.0, True),
        (pa.float64(), pa.int8(), -0.0, 0, True),
        (pa.string(), pa.large_string(), "ä", "ä", True),
        (pa.string(), pa.dictionary(pa.int8(), pa.string()), "a", "a", True),
        (pa.date32(), pa.timestamp("us"), DAY, datetime.datetime(2020, 2, 28), True),
        (pa.date32(), pa.timestamp("us"), DAY, datetime.datetime(2020, 2, 28, 1), False),
        (pa.timestamp("ms"), pa.timestamp("us"), *[datetime.datetime(2020, 1, 1)] * 2, True),
        (pa.int64(), pa.int64(), None, None, False),
        (pa.null(), pa.int64(), None, None, False),
    ],
)
def test_keys_are_coerced_as_spark_does(left, right, a, b, expected):
    assert one_match(left, right, a, b) is expected


def test_a_date_is_midnight_in_the_zone_of_the_time_it_is_compared_with():
    berlin = pa.timestamp("us", "Europe/Berlin")
    midnight = datetime.datetime(2020, 2, 27, 23, tzinfo=datetime.UTC)
    assert one_match(pa.date32(), berlin, DAY, midnight)
    assert not one_match(pa.date32(), pa.timestamp("us", "UTC"), DAY, midnight)


def test_keys_with_dictionaries_of_nested_values_inside():
    inner = pa.array([{"x": 1}, {"x": 2}])
    coded = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), inner)
    keys = pa.StructArray.from_arrays([coded], names=["b"])
    plain = pa.StructArray.from_arrays([inner], names=["b"])
    schemas = {"a": pa.schema([("ka", keys.type)]), "b": pa.schema([("kb", plain.type)])}
    with MultiwayJoin(schemas, "a.ka = b.kb") as join:
        assert not list(join.process("a", pa.record_batch([keys], schema=schemas["a"])))
        (found,) = join.process("b", pa.record_batch([plain], schema=schemas["b"]))
        assert found.schema.types == [keys.type, plain.type]
        rows = sorted(found.to_pylist(), key=str)
        assert rows == [{name: {"b": {"x": x}} for name in ("ka", "kb")} for x in (1, 2)]


def test_results_must_be_consumed_before_the_next_batch():
    with memory_join(("a", "b")) as join:
        list(join.process("a", batch_of([1, 2])))
        results = join.process("b", batch_of([1]))
        with pytest.raises(InvalidArgumentError, match="not consumed"):
            join.process("a", batch_of([5]))
        assert sum(piece.num_rows for piece in results) == 1
        join.process("b", batch_of([1])).close()
        # Giving up results gives up no rows.
        assert sum(p.num_rows for p in join.process("a", batch_of([1]))) == 2


def test_a_failed_result_is_not_taken_for_a_whole_one(tmp_path):
    spec = JoinSpec.create({"a": INT, "b": INT}, ["id"])
    store = attempt(tmp_path, spec, "memory")
    join = UMJoin(spec, store, 10)
    list(join.process(Batch("a", batch_of([1, 1, 1]))))
    results = join.process(Batch("b", batch_of([1])))
    next(results)
    store.append("a", batch_of([9]), spec.key_batch("a", batch_of([9])))
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="probe"):
            list(results)
    with pytest.raises(InvalidArgumentError, match="not consumed"):
        join.process(Batch("a", batch_of([1])))
    store.close()


def test_unknown_streams_and_columns_are_refused():
    with memory_join(("first", "second")) as join:
        with pytest.raises(InvalidArgumentError, match="did you mean 'second'"):
            join.process("secnd", batch_of([1]))
        with pytest.raises(InvalidArgumentError, match="label"):
            join.process("first", batch_of([1]).rename_columns(["id", "label"]))


def test_an_absent_key_ends_the_probing():
    with memory_join(("a", "b", "c")) as join:
        list(join.process("a", batch_of(list(range(10)))))
        before = join.stats().counters["probed_keys"]
        # 100 keys asked for in a, of which 10 are there; only those are asked for in c.
        list(join.process("b", batch_of(list(range(100)))))
        assert join.stats().counters["probed_keys"] - before == 110
        # By now c is known to let nothing through, and is asked first.
        before = join.stats().counters["probed_keys"]
        list(join.process("b", batch_of(list(range(100)))))
        assert join.stats().counters["probed_keys"] - before == 100
        assert join.stats().counters["fetched_rows"] == 0


@pytest.mark.parametrize("backend", ["memory", "rocksdb", "lsm"])
def test_a_kept_join_goes_on_where_it_was_committed(tmp_path, backend):
    streams = {"a": INT, "b": INT}
    path = str(tmp_path / "state")
    with MultiwayJoin(streams, "a.id = b.id", state=State(backend=backend, state_dir=path)) as join:
        list(join.process("a", batch_of([1, 2])))
        join.commit()
    with MultiwayJoin(streams, "b.ID = a.id", state=State(backend=backend, state_dir=path)) as join:
        (piece,) = join.process("b", batch_of([2, 3]))
        assert piece.to_pylist() == [{"a_id": 2, "a_v": "v1", "b_id": 2, "b_v": "v0"}]
        assert piece.schema == join.output_schema


NOT_NULL = pa.field("item", pa.int32(), nullable=False)


@pytest.mark.parametrize(
    ("left", "right", "values", "matches"),
    [
        (pa.list_(pa.int32()), pa.large_list(pa.int64()), [[1, None], [], [None], None], 3),
        (pa.list_(NOT_NULL), pa.list_(pa.int32()), [[1], [], None], 2),
        (
            pa.struct([NOT_NULL.with_name("x"), ("y", pa.list_(pa.string()))]),
            pa.struct([("x", pa.int32()), ("y", pa.large_list(pa.large_string()))]),
            [{"x": 1, "y": ["a", None]}, {"x": 1, "y": None}, None],
            2,
        ),
        (pa.duration("s"), pa.duration("us"), [datetime.timedelta(1), None], 1),
    ],
)
def test_nested_keys_compare_by_value_and_inner_nulls_are_equal(left, right, values, matches):
    schemas = {"a": pa.schema([("k", left)]), "b": pa.schema([("k", right)])}
    with MultiwayJoin(schemas, on=["k"], state=State(memory="8m")) as join:
        for name, schema in schemas.items():
            batch = pa.record_batch([pa.array(values, schema.field("k").type)], schema=schema)
            found = list(join.process(name, batch))
    rows = [row for piece in found for row in piece.to_pylist()]
    assert len(rows) == matches
    assert all(row["a_k"] == row["b_k"] for row in rows)


def test_nested_keys_of_other_types_are_refused():
    floats = pa.list_(pa.float64())
    for left, right in ((pa.list_(pa.int32()), floats), (pa.float64(), floats)):
        schemas = {"a": pa.schema([("k", left)]), "b": pa.schema([("k", right)])}
        with pytest.raises(InvalidArgumentError, match="cannot be compared"):
            JoinSpec.create(schemas, ["k"])


def test_a_refused_argument_leaves_the_state_closed(tmp_path):
    streams = {"a": pa.schema([("id", pa.int64())]), "b": pa.schema([("id", pa.int64())])}
    for _ in range(2):  # a store that stayed open would hold the directory's lock
        with pytest.raises(InvalidArgumentError, match="piece_bytes=0"):
            MultiwayJoin(streams, ["id"], piece_bytes=0, state=State(state_dir=str(tmp_path)))
    with MultiwayJoin(streams, ["id"], state=State(state_dir=str(tmp_path))) as join:
        assert join.stats().probes.keys == 0


@pytest.mark.parametrize(
    ("on", "options"),
    [
        ("a.k = b.k AND b.k = c.k", {}),
        ("a.k = b.k AND b.k = c.k", {"algorithm": "tree", "order": [["a", "c"], "b"]}),
        ("a FULL JOIN b ON a.k = b.k LEFT JOIN c ON b.k = c.k", {"emit": "changes"}),
    ],
)
def test_integers_that_meet_over_a_float_are_compared_as_floats(on, options):
    """And 2**53 + 1 with 2**53 in between, which SQL never compares as integers here."""
    big = 2**53
    values = {"a": [big, big + 1, 5], "b": [float(big), float(big + 2)], "c": [big + 1, big + 2, 5]}
    kinds = {"a": pa.int64(), "b": pa.float64(), "c": pa.int64()}
    batches = {name: pa.record_batch({"k": pa.array(values[name], kinds[name])}) for name in "abc"}
    found = Counter()
    with MultiwayJoin({n: b.schema for n, b in batches.items()}, on, **grouped(**options)) as join:
        for name, batch in batches.items():
            for row in (row for piece in join.process(name, batch) for row in piece.to_pylist()):
                sign = -1 if row.pop("op", "+I") == "-D" else 1
                found[tuple(row.values())] += sign
    with duckdb.connect() as db:
        for name, batch in batches.items():
            db.register(name, pa.Table.from_batches([batch]))
        source = on if "JOIN" in on else f"a, b, c WHERE {on}"
        assert +found == Counter(db.execute(f"SELECT a.k, b.k, c.k FROM {source}").fetchall())
    assert found[big, float(big), big + 1] == 1
