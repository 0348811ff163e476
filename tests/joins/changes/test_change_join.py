"""ChangeJoin against DuckDB after every batch: any types, any changes, any restart."""

import random
from collections import Counter
from contextlib import closing
from functools import partial

import duckdb
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError, MemoryLimitError
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.local.changes.one_key_join import ChangeJoin
from lsmstate.joins.local.parts.changelog import OPERATIONS
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.choose import create_join
from lsmstate.schema.arrow_sizes import row_sizes
from support.changing_cases import changing_trees, check_changes
from support.grouped import grouped
from support.join_cases import attempt, on_all_stores
from support.oracle import database, joined_tree
from support.watched_store import WatchedStore


def check(case, backend, piece_bytes):
    with database() as db:
        expected = partial(joined_tree, db)
        check_changes(case, ChangeJoin, expected, backend, piece_bytes)


test_on_memory, test_on_lsm, test_many_on_every_store = on_all_stores(
    check, changing_trees(), memory=30, lsm=12, many=1000
)


ORDERS = pa.schema([("id", pa.int64()), ("what", pa.string())])
PAYMENTS = pa.schema([("op", pa.string()), ("of", pa.int32()), ("euros", pa.int64())])
STREAMS = {"o": ORDERS, "p": PAYMENTS}


def changed(join, name, *rows):
    """What a batch of rows changes."""
    schema = STREAMS[name]
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows), schema)]  # noqa: B905
    found = join.process(name, pa.RecordBatch.from_arrays(arrays, schema=schema))
    return [tuple(row.values()) for piece in found for row in piece.to_pylist()]


def changes_join(how="left", **options):
    options = {"emit": "changes", "changes": {"p": "op"}, "backend": "memory", **options}
    return MultiwayJoin(STREAMS, "o.id = p.of", **grouped(how=how, **options))


def test_what_comes_and_what_is_taken_back():
    with changes_join() as join:
        assert join.output_schema.names == ["op", "id", "what", "of", "euros"]
        found = changed(join, "o", (1, "pen"), (None, "cup"))
        alone = [("+I", 1, "pen", None, None), ("+I", None, "cup", None, None)]
        assert sorted(found, key=str) == sorted(alone, key=str)
        found = changed(join, "p", ("+I", 1, 5), ("+I", None, 7), ("+I", 2, 9))
        assert found == [("-D", 1, "pen", None, None), ("+I", 1, "pen", 1, 5)]
        found = changed(join, "p", ("+U", 1, 6), ("-U", 1, 5))
        assert found == [("-D", 1, "pen", 1, 5), ("+I", 1, "pen", 1, 6)]
        assert changed(join, "p", ("+I", 1, 6), ("-D", 1, 6)) == []
        found = changed(join, "p", ("-D", 1, 6), ("-D", None, 7))
        assert found == [("-D", 1, "pen", 1, 6), ("+I", 1, "pen", None, None)]
        assert join.unmatched_retractions == 0


def test_rows_with_null_keys_are_taken_back_once():
    with changes_join("full") as join:
        assert changed(join, "p", ("+I", None, 7)) == [("+I", None, None, None, 7)]
        found = changed(join, "p", ("-D", None, 7), ("-D", None, 7), ("-D", None, 8))
        assert found == [("-D", None, None, None, 7)]
        assert join.unmatched_retractions == 2


def test_a_semi_join_of_rows_that_stay_takes_nothing_back():
    streams = {"o": ORDERS, "p": PAYMENTS.remove(0)}
    with MultiwayJoin(
        streams, "o SEMI JOIN p ON o.id = p.of", state=State(backend="memory")
    ) as join:
        assert join.output_schema == ORDERS
        order = pa.RecordBatch.from_pylist([{"id": 1, "what": "pen"}], schema=ORDERS)
        payment = pa.RecordBatch.from_pylist([{"of": 1, "euros": 5}], schema=streams["p"])
        assert list(join.process("o", order)) == []
        assert [p.to_pylist() for p in join.process("p", payment)] == [order.to_pylist()]
        assert list(join.process("p", payment)) == []
        assert [p.to_pylist() for p in join.process("o", order)] == [order.to_pylist()]


def test_inner_joins_may_say_what_changes():
    with changes_join("inner") as join:
        assert changed(join, "p", ("+I", 1, 5)) == []
        assert changed(join, "o", (1, "pen")) == [("+I", 1, "pen", 1, 5)]
        assert changed(join, "p", ("-D", 1, 5)) == [("-D", 1, "pen", 1, 5)]


def test_retractions_of_rows_that_are_not_there_are_counted_or_refused():
    lost = [("-D", 1, 5), ("-D", 1, 6), ("-D", None, 7)]
    with changes_join() as join:
        changed(join, "o", (1, "pen"))
        changed(join, "p", ("+I", 1, 6))
        found = changed(join, "p", *lost)
        assert found == [("-D", 1, "pen", 1, 6), ("+I", 1, "pen", None, None)]
        # A null key is in no result of this join: such rows are not kept to compare with.
        assert join.unmatched_retractions == 1
    with changes_join(unmatched="error") as join:
        changed(join, "p", ("+I", 1, 6))
        with pytest.raises(InvalidArgumentError, match=r"1 rows are retracted .* 'euros': 5"):
            changed(join, "p", *lost)
        # Nothing of that batch counts.
        assert changed(join, "o", (1, "pen")) == [("+I", 1, "pen", 1, 6)]


def test_a_lost_row_is_named_whatever_its_values_are():
    strange = pa.record_batch(
        {
            "k": pa.array([b"a\xff"]).view(pa.string()),
            "at": pa.array([2**62]).view(pa.timestamp("us", "UTC")),
            "op": ["-D"],
        }
    )
    streams = {"a": strange.schema, "b": strange.schema.remove(2)}
    with (
        MultiwayJoin(
            streams, ["k"], emit="changes", changes={"a": "op"}, unmatched="error"
        ) as join,
        pytest.raises(InvalidArgumentError, match=f"'k': 'a\ufffd', 'at': {2**62}"),
    ):
        list(join.process("a", strange))


def test_a_retraction_may_wait_for_its_row(tmp_path):
    spec = create_join(STREAMS, "o.id = p.of", "left", "changes", {"p": "op"})
    rows = {
        sign: pa.RecordBatch.from_pylist([{"op": sign, "of": 1, "euros": 5}], schema=PAYMENTS)
        for sign in OPERATIONS
    }
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = ChangeJoin(spec, store, unmatched="error")
        assert list(join.process(Batch("p", rows["-D"], is_more_coming=True))) == []
        assert list(join.process(Batch("p", rows["+I"], is_more_coming=True))) == []
        assert list(join.process(Batch("p", rows["-U"], is_more_coming=True))) == []
        assert list(join.process(Batch("p", rows["-U"], is_more_coming=True))) == []
        with pytest.raises(InvalidArgumentError, match="2 rows are retracted"):
            join.process(Batch("p", rows["-U"].slice(1)))
        large = pa.RecordBatch.from_arrays([["-D"], [1], [5]], schema=PAYMENTS)
        large = pa.concat_batches([large] * 400_000)
        with pytest.raises(MemoryLimitError, match="400002 retractions"):
            join.process(Batch("p", large, is_more_coming=True))


def test_a_hot_key_comes_in_bounded_pieces(tmp_path):
    wide = pa.schema([("k", pa.int64())] + [(f"c{n}", pa.int64()) for n in range(60)])
    thin = pa.schema([("k", pa.int64())])
    spec = create_join({"a": thin, "b": thin, "c": wide}, ["k"], "full", "changes")
    ones = pa.RecordBatch.from_arrays([pa.array([1] * 300)], schema=thin)
    with closing(attempt(tmp_path, spec, "memory")) as store:
        watched = WatchedStore(store)
        join = ChangeJoin(spec, watched, 20_000)
        for name, expected in (("a", {"+I": 300}), ("b", {"-D": 300, "+I": 90_000})):
            rows = Counter()
            for piece in join.process(Batch(name, ones)):
                rows[piece.column("op")[0].as_py()] += piece.num_rows
                assert row_sizes(piece).sum() <= 20_000 + 10 * piece.num_rows
            assert rows == expected
        assert watched.largest <= 2 * 20_000


def test_a_stream_that_changes_no_others_results_is_not_asked_for_its_own_rows(tmp_path):
    spec = create_join(STREAMS, "o.id = p.of", "left", "changes", {"p": "op"})
    row = pa.RecordBatch.from_pylist([{"id": 1, "what": "pen"}], schema=ORDERS)
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = ChangeJoin(spec, store)
        before = store.stats().counters["probed_keys"]
        list(join.process(Batch("o", row)))
        assert store.stats().counters["probed_keys"] == before + 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"emit": "append", "changes": None}, "use emit='changes', which adds a column"),
        ({"how": "inner", "emit": "append"}, "retracts results; use emit='changes'"),
        ({"emit": "final"}, "cannot be retracted; use emit='changes'"),
        ({"emit": "all"}, "emit='all' is unknown"),
        ({"unmatched": "drop"}, "unmatched='drop' is unknown; did you mean 'error'"),
        ({"changes": {"p": "euros"}}, "'euros' is int64, operations are text"),
        ({"changes": {"q": "op"}}, "no stream 'q'"),
        ({"changes": {"p": "ops"}}, "no column 'ops' in stream 'p'; did you mean 'op'"),
        ({"algorithm": "tree"}, "leave algorithm out"),
        ({"event_time": {"o": "at"}}, "applies to append-only inner joins"),
        ({"changes": {}}, "the inputs have one already"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        changes_join(**options)


@pytest.mark.parametrize("operation", ["insert", "", None])
def test_an_operation_that_is_none_is_refused_before_anything_changes(operation):
    with changes_join("inner") as join:
        changed(join, "o", (1, "pen"))
        with pytest.raises(InvalidArgumentError, match=f"{operation!r} in row 1 .* none of"):
            changed(join, "p", ("+I", 1, 5), (operation, 1, 6))
        assert changed(join, "p", ("+I", 1, 7)) == [("+I", 1, "pen", 1, 7)]


def test_a_part_of_the_key_is_no_operation_column():
    streams = {"a": pa.schema([("k", pa.string())]), "b": pa.schema([("k", pa.string())])}
    with pytest.raises(InvalidArgumentError, match=r"a\.k is part of the key"):
        MultiwayJoin(streams, ["k"], emit="changes", changes={"a": "k"})


def test_a_kept_join_goes_on_where_it_was_committed(tmp_path):
    options = {"path": str(tmp_path / "state"), "backend": "lsm"}
    with changes_join("full", **options) as join:
        changed(join, "p", ("+I", 1, 5), ("+I", None, 5))
        join.commit()
    with changes_join("full", **options) as join:
        assert changed(join, "p", ("-D", None, 5)) == [("-D", None, None, None, 5)]
        found = changed(join, "o", (1, "pen"))
        assert found == [("-D", None, None, 1, 5), ("+I", 1, "pen", 1, 5)]


def test_a_state_that_spills_and_loses_a_third_of_its_rows_again_and_again():
    rng = random.Random(2)
    schema = pa.schema([("op", pa.string()), ("k", pa.int64()), ("text", pa.string())])
    live = {"a": [], "b": []}
    shown = Counter()
    with MultiwayJoin(
        {"a": schema, "b": schema},
        ["k"],
        how="full",
        emit="changes",
        changes={"a": "op", "b": "op"},
        unmatched="error",
        state=State(memory="5m"),
    ) as join:
        for number in range(16):
            name = "ab"[number % 2]
            rng.shuffle(live[name])
            cut = len(live[name]) * 2 // 3
            gone, live[name] = live[name][cut:], live[name][:cut]
            come = [(rng.randrange(9000), f"{number}-{i}" * 12) for i in range(4000)]
            live[name] += come
            changes = [("-U", *row) for row in gone] + [("+U", *row) for row in come]
            columns = [pa.array(column) for column in zip(*changes, strict=True)]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            for piece in join.process(name, batch):
                rows = Counter(zip(*(c.to_pylist() for c in piece.columns[1:]), strict=True))
                if piece.column("op")[0].as_py() == "+I":
                    shown.update(rows)
                else:
                    shown.subtract(rows)
            join.commit()
        assert join.stats().spilled_bytes > 0
    tables = {
        name: pa.table(list(zip(*rows, strict=True)), ["k", "x"]) for name, rows in live.items()
    }
    with duckdb.connect() as db:
        for name, table in tables.items():
            db.register(name, table)
        sql = "SELECT a.k, a.x, b.k, b.x FROM a FULL JOIN b ON a.k = b.k"
        assert +shown == Counter(db.execute(sql).fetchall())
    assert min(shown.values()) >= 0
