"""Joins of every kind take batches of every kind; results are a table, with rows or without."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from lsmstate import InvalidArgumentError
from lsmstate.join import MultiwayJoin
from support.batch_kinds import KINDS, turned
from support.grouped import grouped
from support.sampling import each_value

TIME = datetime(2026, 1, 1)
KEYED = pa.schema([("k", pa.int64()), ("v", pa.string())])
TWICE = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("v", pa.string())])
TIMED = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.string())])
CHANGED = pa.schema([("op", pa.string()), *KEYED])
CODED = pa.schema([("k", pa.int64()), ("v", pa.dictionary(pa.int32(), pa.string()))])
VIEWED = pa.schema([("k", pa.string_view()), ("v", pa.string_view())])
BY_TWO = {"a": KEYED, "b": TWICE, "c": pa.schema([("j", pa.int64()), ("v", pa.string())])}
IN_TIME = "a.k = b.k AND b.t BETWEEN a.t - INTERVAL 1 HOUR AND a.t + INTERVAL 1 HOUR"

JOINS: dict[str, tuple[Mapping[str, pa.Schema], dict[str, Any]]] = {
    "one key": ({"a": KEYED, "b": KEYED}, {"on": "a.k = b.k"}),
    "tree": ({"a": KEYED, "b": KEYED}, {"on": "a.k = b.k", "algorithm": "tree"}),
    "several keys": (BY_TWO, {"on": "a.k = b.k AND b.j = c.j"}),
    "tree of several keys": (BY_TWO, {"on": "a.k = b.k AND b.j = c.j", "algorithm": "tree"}),
    "left": ({"a": KEYED, "b": KEYED}, {"on": "a LEFT JOIN b ON a.k = b.k", "emit": "changes"}),
    "changelog": (
        {"a": CHANGED, "b": KEYED},
        {"on": "a.k = b.k", "emit": "changes", "changes": {"a": "op"}},
    ),
    "changelog by several keys": (
        {**BY_TWO, "a": CHANGED},
        {"on": "a.k = b.k AND b.j = c.j", "emit": "changes", "changes": {"a": "op"}},
    ),
    "left by several keys": (
        BY_TWO,
        {"on": "a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON c.j = b.j", "emit": "changes"},
    ),
    "in time": (
        {"a": TIMED, "b": TIMED},
        {"on": IN_TIME, "event_time": {"a": "t", "b": "t"}},
    ),
    "final": (
        {"a": TIMED, "b": TIMED},
        {
            "on": f"a LEFT JOIN b ON {IN_TIME}",
            "emit": "final",
            "event_time": {"a": "t", "b": "t"},
        },
    ),
    "dictionaries": ({"a": CODED, "b": KEYED}, {"on": "a.k = b.k"}),
    "views": ({"a": VIEWED, "b": VIEWED}, {"on": "a.k = b.k"}),
}
#: Types of the same values that callers may have instead.
OTHERS = {
    pa.int64(): pa.int32(),
    pa.string(): pa.large_string(),
    pa.timestamp("us"): pa.timestamp("ns"),
}


def rows_of(schema: pa.Schema, stream: str) -> pa.Table:
    key = "{}" if schema.field(0).type == pa.string_view() else None
    made = []
    for number in (5, 6, 5):
        filled = {"op": "+I", "j": 7, "t": TIME, "v": f"{stream}{number}"}
        made.append({**filled, "k": number if key is None else key.format(number)})
    return pa.Table.from_pylist(made, schema=schema)


def cast(table: pa.Table) -> pa.Table:
    plain = [OTHERS.get(field.type, field.type) for field in table.schema]
    fields = zip(table.column_names, plain, strict=True)
    return table.cast(pa.schema(list(fields)))


def counted(results: Any) -> Counter[Any]:
    return Counter(tuple(row.items()) for row in results)


@contextmanager
def opened(kind: str, backend: str = "memory") -> Iterator[MultiwayJoin]:
    streams, asked = JOINS[kind]
    with MultiwayJoin(streams, **grouped(backend=backend, **asked)) as join:
        yield join


def fed(kind: str, make: Any, backend: str = "memory") -> Counter[Any]:
    """Results of a join that is given every stream, the first one twice."""
    streams, _ = JOINS[kind]
    found: Counter[Any] = Counter()
    with opened(kind, backend) as join:
        for name in (*streams, next(iter(streams))):
            table = join.process(name, make(rows_of(streams[name], name))).to_table()
            assert table.schema.equals(join.output_schema)
            found += counted(table.to_pylist())
        if kind == "final":
            found += counted(join.advance(datetime(2026, 1, 2)).rows())
    return found


def plainly(table: pa.Table) -> pa.RecordBatch:
    (batch,) = table.combine_chunks().to_batches()
    return batch


@each_value(times=2, join=JOINS, kind=KINDS)
def test_every_join_takes_every_kind_of_batch(join: str, kind: str) -> None:
    expected = fed(join, plainly)
    assert expected
    assert fed(join, lambda table: KINDS[kind](turned(table))) == expected
    assert fed(join, lambda table: KINDS[kind](cast(table))) == expected


@each_value(join=JOINS, backend=["lsm", "rocksdb"])
def test_on_every_backend(join: str, backend: str) -> None:
    assert fed(join, lambda table: turned(cast(table)), backend) == fed(join, plainly)


@pytest.mark.parametrize("kind", JOINS)
def test_results_without_rows_have_their_columns(kind: str) -> None:
    streams, _ = JOINS[kind]
    first = next(iter(streams))
    with opened(kind) as join:
        for _ in range(2):
            empty = join.process(first, rows_of(streams[first], first).slice(0, 0))
            table = empty.to_table()
            assert table.schema.equals(join.output_schema)
            assert table.num_rows == 0
        frame = join.process(first, []).to_pandas()
        assert list(frame.columns) == join.output_schema.names
        assert len(frame) == 0
        assert list(join.process(first, []).rows()) == []
        if kind in ("in time", "final"):
            done = join.advance(TIME)
            assert done.to_table().equals(join.output_schema.empty_table())


@pytest.mark.parametrize("kind", JOINS)
def test_a_refused_batch_is_not_stored(kind: str) -> None:
    """What is refused: another type, a value that changes, a column too few or too many."""
    streams, _ = JOINS[kind]
    first = next(iter(streams))
    good = rows_of(streams[first], first)
    number = good.schema.get_field_index("v")
    wrong = [
        (good.set_column(number, "v", pa.array([1, 2, 3])), rf"process\('{first}'\): column 'v': "),
        (good.append_column("w", pa.array([1, 2, 3])), "columns unknown 'w'"),
        (good.drop_columns(["v"]), "columns missing 'v'"),
        ([{"k": object()}], "columns missing"),
        (7, "given a int; give a pyarrow"),
    ]
    if kind != "views":
        k = good.schema.get_field_index("k")
        half = good.set_column(k, "k", pa.array([5.0, 6.0, 6.5]))
        wrong.append((half, "column 'k', row 2: 6.5 of double would change as int64"))
    expected = fed(kind, plainly)
    found: Counter[Any] = Counter()
    with opened(kind) as join:
        for name in (*streams, first):
            for given, said in wrong:
                with pytest.raises(InvalidArgumentError, match=said):
                    join.process(first, given)
            found += counted(join.process(name, rows_of(streams[name], name)).rows())
        with pytest.raises(InvalidArgumentError, match="stream"):
            join.process("nobody", good)
        if kind == "final":
            found += counted(join.advance(datetime(2026, 1, 2)).rows())
    assert found == expected


def test_results_are_read_in_part_or_given_up() -> None:
    with MultiwayJoin({"a": KEYED, "b": KEYED}, "a.k = b.k", piece_bytes=200) as join:
        join.process("a", {"k": [1] * 100, "v": ["x"] * 100}).close()
        results = join.process("b", [{"k": 1, "v": "y"}])
        first = next(results)
        assert 0 < first.num_rows < 100
        assert results.to_table().num_rows == 100 - first.num_rows
        assert results.is_finished
        results = join.process("b", [{"k": 1, "v": "z"}])
        rows = results.rows()
        assert next(rows) == {"a_k": 1, "a_v": "x", "b_k": 1, "b_v": "z"}
        with pytest.raises(InvalidArgumentError, match="not consumed to the end"):
            join.process("b", [])
        results.close()
        assert join.process("b", []).to_table().num_rows == 0


def test_late_rows_have_the_declared_columns() -> None:
    streams, asked = JOINS["in time"]
    with MultiwayJoin(streams, **grouped(late="side", **asked)) as join:
        join.advance(datetime(2026, 1, 2))
        list(join.process("a", turned(cast(rows_of(TIMED, "a"))).to_pandas()))
        assert join.late_rows is not None
        assert join.late_rows.schema.equals(TIMED)
        assert join.late_rows.to_pylist() == rows_of(TIMED, "a").to_pylist()


def test_a_sample_may_be_any_batch() -> None:
    streams = {"a": KEYED, "b": KEYED, "c": KEYED}
    sample = {name: rows_of(KEYED, name).to_pandas() for name in streams}
    with MultiwayJoin(streams, ["k"], algorithm="tree", order="best", sample=sample) as join:
        assert join.tried_orders is not None
    with pytest.raises(InvalidArgumentError, match=r"sample\['b'\]: columns missing 'k'"):
        MultiwayJoin(
            streams, ["k"], algorithm="tree", order="best", sample={**sample, "b": {"v": ["x"]}}
        )
