"""Batches of every kind become the same columns; what is no batch is refused with the reason."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate import SCHEMA_FREE, KeyGroups, decode_documents, encode_documents
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.batches import as_batch
from support.batch_kinds import KINDS, turned

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("share", pa.float64()),
        ("at", pa.timestamp("us")),
    ]
)
TABLE = pa.table(
    {
        "id": [1, 2, 3],
        "name": ["a", None, "c"],
        "share": [0.5, 1.0, 2.5],
        "at": [dt.datetime(2026, 1, day) for day in (1, 2, 3)],
    },
    schema=SCHEMA,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [lambda table: table, turned], ids=["in order", "turned"])
def test_every_kind_of_batch_gives_the_same_columns(kind: str, order: Any) -> None:
    found = as_batch(KINDS[kind](order(TABLE)), SCHEMA, "rows")
    assert isinstance(found, pa.RecordBatch)
    found.validate(full=True)
    assert found.schema.equals(SCHEMA)
    assert found.to_pylist() == TABLE.to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch_is_cast(kind: str) -> None:
    wide = pa.schema(
        [
            ("id", pa.uint64()),
            ("name", pa.large_string()),
            ("share", pa.float32()),
            ("at", pa.timestamp("ns")),
        ]
    )
    found = as_batch(KINDS[kind](TABLE.cast(wide)), SCHEMA, "rows")
    assert found.schema.equals(SCHEMA)
    assert found.to_pylist() == TABLE.to_pylist()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "in chunks" not in kind])
def test_every_kind_may_be_empty(kind: str) -> None:
    """An empty list has no columns that could be wrong."""
    found = as_batch(KINDS[kind](TABLE.slice(0, 0)), SCHEMA, "rows")
    assert found.schema.equals(SCHEMA)
    assert found.num_rows == 0


def test_a_batch_of_the_schema_is_taken_as_it_is() -> None:
    batch = as_batch(TABLE, SCHEMA, "rows")
    assert as_batch(batch, SCHEMA, "rows") is batch
    required = pa.schema([field.with_nullable(False) for field in SCHEMA])
    assert as_batch(batch, required, "rows") is batch


def test_rows_without_columns_are_counted() -> None:
    assert as_batch([{}, {}], pa.schema([]), "rows").num_rows == 2
    assert as_batch(TABLE.select([]), pa.schema([]), "rows").num_rows == 3


def test_a_column_that_a_row_lacks_is_null_there() -> None:
    rows = [{"id": 1}, {"id": 2, "name": "b", "share": 1, "at": None}]
    found = as_batch(rows, SCHEMA, "rows").to_pylist()
    assert found == [{"id": 1, "name": None, "share": None, "at": None}, rows[1]]
    with pytest.raises(InvalidArgumentError, match="missing 'share', 'at'"):
        as_batch([{"id": 1}, {"name": "b"}], SCHEMA, "rows")


def test_floats_of_python_are_rounded_and_those_of_a_table_are_not() -> None:
    narrow = pa.schema([("x", pa.float32())])
    assert as_batch([{"x": 0.1}], narrow, "rows")["x"].equals(pa.array([0.1], pa.float32()))
    with pytest.raises(InvalidArgumentError, match=r"'x', row 0: 0\.1 of double would change"):
        as_batch({"x": np.array([0.1])}, narrow, "rows")


def test_values_of_an_object_column_keep_their_types() -> None:
    schema = pa.schema([("d", pa.decimal128(6, 2)), ("t", pa.timestamp("us", "UTC"))])
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    given = {"d": np.array([Decimal("1.5"), 2, None], object), "t": [moment, None, moment]}
    found = as_batch(given, schema, "rows")
    assert found["d"].to_pylist() == [Decimal("1.50"), Decimal("2.00"), None]
    assert found["t"].to_pylist() == [moment, None, moment]


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
        pa.string_view(),
    ],
    ids=str,
)
def test_declared_dictionaries_and_views(kind: pa.DataType) -> None:
    """A join has them as they were declared; a store keeps plain types and takes both."""
    schema, stored = pa.schema([("s", kind)]), pa.schema([("s", pa.string())])
    for given in ({"s": ["a", "b", "a"]}, pa.table({"s": ["a", "b", "a"]})):
        found = as_batch(given, schema, "rows")
        assert found.schema.types == [kind]
        assert found["s"].to_pylist() == ["a", "b", "a"]
    for own in (found, pa.record_batch({"s": ["a"]})):
        assert as_batch(own, schema, "rows", stored=stored) is own
    large = pa.record_batch({"s": pa.array(["a"], pa.large_string())})
    assert as_batch(large, schema, "rows", stored=stored).num_rows == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "rows: given a int; give a pyarrow, polars or pandas table"),
        ("id", "rows: given a str; give"),
        (None, "rows: given a NoneType; give"),
        pytest.param((row for row in ()), "rows: given a generator; give", id="generator"),
        ([1, 2], "rows: row 0 is 1, a int; give"),
        (["x" * 1000], r"rows: row 0 is 'x{79}\.\.\., a str; give"),
        (pa.array([1]), "rows: a Int64Array that is no table of columns"),
        ({"id": [1], 3: [1]}, "the column name 3 is a int; give a text"),
        ({"id": [1], "nam": ["x"]}, "columns missing 'name'; unknown 'nam'; give each of id, name"),
        ({"id": 1, "name": "x"}, "column 'id': 1 is a int; give a list of values, one per row"),
        ({"id": [1], "name": "x"}, "column 'name': 'x' is a str; give a list of values"),
        ({"id": [1], "name": ["x", "y"]}, "columns of different lengths: id 1, name 2; give each"),
        ({"id": [1, 2**40], "name": ["x", "y"]}, "'id', row 1: 1099511627776 is not of the type"),
        ({"id": [1.5], "name": ["x"]}, "'id', row 0: 1.5 would become 1 as int32; give values of"),
        ([{"id": 1, "name": "x"}, {"id": "2"}], "'id', row 1: '2' is not of the type int32"),
        ({"id": np.array([1, 2**40]), "name": ["x"] * 2}, "row 1: 1099511627776 of int64 would ch"),
        (
            pa.table({"id": ["x"], "name": ["y"]}),
            "'id': expected int32, given string, such as 'x'",
        ),
        (pa.table({"id": [True], "name": ["y"]}), "'id': expected int32, given bool, such as True"),
        (pa.table([[1], [1], ["x"]], ["id", "id", "name"]), "columns given twice 'id'; give each"),
    ],
    ids=str,
)
def test_what_is_no_such_batch_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        as_batch(given, SCHEMA.remove(3).remove(2), "rows")


def test_the_first_value_that_does_not_fit_is_named() -> None:
    values = np.arange(100_000)
    values[[70_001, 70_005]] = 2**31
    with pytest.raises(InvalidArgumentError, match="'id', row 70001: 2147483648 of int64"):
        as_batch({"id": values}, SCHEMA.remove(3).remove(2).remove(1), "rows")


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_any_columns_are_grouped(kind: str) -> None:
    keys = pa.table({"user": [7, 8, 7], "page": ["a", "b", "a"]})
    groups = KeyGroups.of(KINDS[kind](keys))
    assert groups.first.tolist() == [0, 1]
    assert groups.numbers.tolist() == [0, 1, 0]
    with pytest.raises(InvalidArgumentError, match="keys: given a int; give a pyarrow"):
        KeyGroups.of(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"column 'user': .*; give values of one type"):
        KeyGroups.of({"user": [1, "x"]})


def test_documents_of_a_whole_table() -> None:
    documents: list[dict[str, Any]] = [{"page": "/a"}, {}, {"error": [1, None]}]
    table = pa.Table.from_batches(
        [encode_documents(documents[:1]), encode_documents(documents[1:])]
    )
    assert table.schema.equals(SCHEMA_FREE)
    assert decode_documents(table) == documents


def test_a_value_that_python_has_none_for_is_refused_in_words() -> None:
    far = pa.table({"id": pa.array([10**17], pa.timestamp("s"))})
    with pytest.raises(InvalidArgumentError, match="such as what Python has no value for; cast"):
        as_batch(far, pa.schema([("id", pa.int64())]), "rows")
    with pytest.raises(InvalidArgumentError, match="row 0: what Python has no value for of timest"):
        as_batch(far, pa.schema([("id", pa.timestamp("ns"))]), "rows")


@pytest.mark.parametrize("names", [("usr", "item"), ("item", "usr")])
def test_keys_of_which_one_name_is_right_are_not_taken_by_their_places(
    names: tuple[str, str],
) -> None:
    keys = pa.schema([("user", pa.int64()), ("item", pa.int64())])
    given = dict(zip(names, ([2], [1]), strict=True))
    with pytest.raises(InvalidArgumentError, match="columns missing 'user'; unknown 'usr'"):
        as_batch(given, keys, "keys", is_renamed=True)
    renamed = as_batch({"k0": [2], "k1": [1]}, keys, "keys", is_renamed=True)
    assert renamed.to_pylist() == [{"user": 2, "item": 1}]


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1e300, pa.float32()), (1e-300, pa.float32()), (True, pa.float64())],
    ids=str,
)
def test_numbers_out_of_a_floats_range_are_refused(value: Any, kind: pa.DataType) -> None:
    schema = pa.schema([("f", kind)])
    with pytest.raises(InvalidArgumentError, match=r"column 'f', row 1: .* would become"):
        as_batch({"f": [0.5, value]}, schema, "rows")
    kept = as_batch({"f": [float("inf"), 0.0, 0.1, None]}, schema, "rows")
    assert kept.column("f").null_count == 1
