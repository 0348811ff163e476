"""Gathered rows are what pyarrow's take gives, whatever the types."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsmstate.cython_ext.errors import InvalidArgumentError
from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.schema.arrow_sizes import row_sizes
from support.arrow_cases import array, batches
from support.paths import ROOT


def places(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def side_by_side(*sides: pa.RecordBatch) -> tuple[Gatherer, pa.Schema]:
    schema = pa.schema(
        [
            field.with_name(f"{number}_{field.name}")
            for number, side in enumerate(sides)
            for field in side.schema
        ]
    )
    return Gatherer([side.schema for side in sides], schema), schema


@st.composite
def gatherings(draw: st.DrawFn) -> tuple[list[pa.RecordBatch], list[np.ndarray]]:
    """Batches, and as many places of each."""
    sides = draw(st.lists(batches(maps=True, most=6), min_size=1, max_size=3))
    count = draw(st.integers(0, 12)) if all(side.num_rows for side in sides) else 0
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return sides, [rng.integers(0, max(1, side.num_rows), count) for side in sides]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(gatherings())
def test_gathered_rows_are_those_of_the_places(gathering):
    sides, at = gathering
    gatherer, schema = side_by_side(*sides)
    found = gatherer.sources(sides).gather(at)
    assert found.schema == schema
    found.validate(full=True)
    codec = RowCodec(schema)
    encoded = codec.encode(found).to_pylist() if len(schema) else []
    for row, side_places in enumerate(zip(*at, strict=True) if encoded else ()):
        parts = [side.slice(place, 1) for side, place in zip(sides, side_places, strict=True)]
        one = pa.RecordBatch.from_arrays([c for part in parts for c in part.columns], schema=schema)
        assert codec.encode(one).to_pylist() == [encoded[row]]


def test_a_slice_of_a_batch_is_gathered_by_its_own_places():
    batch = pa.record_batch({"n": [1, None, 3, 4], "t": ["a", "bb", None, "dddd"]}).slice(1)
    gatherer, schema = side_by_side(batch)
    found = gatherer.sources([batch]).gather([places(2, 0, 0)])
    assert found == pa.RecordBatch.from_pylist(
        [{"0_n": 4, "0_t": "dddd"}, *[{"0_n": None, "0_t": "bb"}] * 2], schema=schema
    )


NUMBERS = pa.dictionary(pa.int32(), pa.int64())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (NUMBERS, [7, None, 7]),
        (pa.struct([("x", NUMBERS)]), [{"x": 7}, None, {"x": None}]),
        (pa.list_(NUMBERS), [[7, 8], None, [7, None]]),
        (pa.list_(NUMBERS, 2), [[7, 8], None, [7, None]]),
        (pa.large_list(pa.struct([("x", NUMBERS)])), [[{"x": 7}], None, []]),
        (pa.map_(pa.string(), NUMBERS), [[("a", 7)], None, [("b", 8), ("c", None)]]),
    ],
    ids=str,
)
def test_numbers_in_a_dictionary(kind, values):
    """Arrow casts no numbers to it, nor lists of any to lists of dictionaries."""
    batch = pa.record_batch([array(values, kind)], pa.schema([("n", kind)]))
    gatherer, schema = side_by_side(batch)
    found = gatherer.sources([batch]).gather([places(2, 1, 0, 1, 1, 0)])
    found.validate(full=True)
    assert found.schema == schema
    assert found.column(0).type == kind
    assert found.column(0).to_pylist() == [values[i] for i in (2, 1, 0, 1, 1, 0)]


NULLS = pa.list_(pa.null())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            pa.struct([("x", NULLS), ("y", pa.binary_view())]),
            [{"x": [None] * 3, "y": b"a"}, {"x": None, "y": b"b"}, None, {"x": [None], "y": None}],
        ),
        (
            pa.map_(pa.string_view(), NULLS),
            [[("a", [None] * 3)], None, [], [("b", None), ("c", [None, None])]],
        ),
        (
            pa.list_(pa.struct([("x", NULLS), ("y", pa.string_view())])),
            [[{"x": [None] * 3, "y": "a"}], None, [{"x": [None], "y": "b"}, None], []],
        ),
        (
            pa.list_(pa.struct([("x", NULLS), ("y", pa.string_view())]), 1),
            [[{"x": [None] * 3, "y": "a"}], None, [{"x": [None], "y": "b"}], [None]],
        ),
        (
            pa.large_list(pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            [[["a", "b"]], None, [["c"], []], [None, ["d", "e", "f"]]],
        ),
        (
            pa.dictionary(pa.int8(), pa.list_(pa.string_view())),
            [["a", "b"], None, ["c"], ["a", "b"]],
        ),
    ],
    ids=str,
)
def test_slices_of_nested_views_and_dictionaries(kind, values):
    """Arrow's own cast of a list of nulls gives it too few of them."""
    if pa.types.is_dictionary(kind):
        lists = pa.array([["c"], ["a", "b"]], kind.value_type)
        column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int8()), lists)
    else:
        column = pa.array(values, kind)
    whole = pa.record_batch([column], ["n"])
    gatherer, _ = side_by_side(whole)
    for start in range(len(values)):
        for length in range(len(values) - start + 1):
            batch = whole.slice(start, length)
            found = gatherer.sources([batch]).gather([np.arange(length)])
            found.validate(full=True)
            assert found.column(0).type == kind
            assert found.column(0).to_pylist() == values[start : start + length]
            plain = RowCodec(whole.schema).plain(batch)
            plain.validate(full=True)
            assert plain.column(0).to_pylist() == values[start : start + length]


def test_of_a_dictionary_only_what_is_used_is_decoded():
    code = """
import numpy as np, pyarrow as pa
from lsmstate.cython_ext.rows.row_codec import RowCodec
inner = pa.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), ["x" * 1000])
column = pa.DictionaryArray.from_arrays(pa.array([5, None, 99_999], pa.int32()), inner)
batch = pa.record_batch([column], ["d"])
plain = RowCodec(batch.schema).plain(batch)
assert plain.column(0).to_pylist() == ["x" * 1000, None, "x" * 1000]
print(pa.default_memory_pool().max_memory())
"""
    root = str(ROOT)
    peak = subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True)
    assert 0 < int(peak) < 1 << 20


def test_empty_lists_without_an_offset():
    """Arrow's format lets an empty list leave out its only offset."""
    kind = pa.list_(pa.string_view())
    column = pa.Array.from_buffers(kind, 0, [None, None], children=[pa.nulls(0, pa.string_view())])
    plain = RowCodec(pa.schema([("n", kind)])).plain(pa.record_batch([column], ["n"]))
    plain.validate(full=True)
    assert plain.column(0) == pa.nulls(0, pa.list_(pa.string()))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_null_that_hides_places_in_an_empty_dictionary(depth):
    """As pa.array makes it."""
    kind = pa.dictionary(pa.int8(), pa.string())
    for _ in range(depth):
        kind = pa.struct([("a", kind)])
    batch = pa.record_batch([pa.array([None, None], kind)], ["n"])
    assert row_sizes(batch).tolist() == [9 + depth] * 2
    plain = RowCodec(batch.schema).plain(batch)
    plain.validate(full=True)
    assert plain.column(0).to_pylist() == [None, None]
    gatherer, _ = side_by_side(batch)
    found = gatherer.sources([batch]).gather([places(1)])
    assert found.column(0).to_pylist() == [None]


def test_list_views_without_values_over_a_dictionary_of_lists():
    lists = pa.array([[7]], pa.list_(pa.int8()))
    values = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), lists)
    column = pa.ListViewArray.from_arrays(
        pa.array([1, 0, None], pa.int32()), pa.array([1, 0, 2], pa.int32()), values
    )
    batch = pa.record_batch([column], ["n"])
    for part, expected in ((batch, [[[7]], [], None]), (batch.slice(1), [[], None])):
        plain = RowCodec(batch.schema).plain(part)
        plain.validate(full=True)
        assert plain.column(0).to_pylist() == expected


def test_lists_in_a_dictionary():
    lists = pa.array([[7], [7, 8]], pa.list_(pa.int8()))
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint8()), lists)
    batch = pa.record_batch([column], ["n"])
    gatherer, schema = side_by_side(batch)
    found = gatherer.sources([batch]).gather([places(0, 1, 2, 2)])
    assert found.schema == schema
    assert found.column(0).to_pylist() == [[7, 8], None, [7], [7]]
    assert found.column(0).null_count == 1


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.int8()), [[7], [7, 8], [], None]),
        (pa.struct([("x", pa.float64())]), [{"x": 1.5}, {"x": None}, None]),
        (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [("b", 1)], None]),
    ],
    ids=str,
)
def test_equal_nested_values_stand_in_a_dictionary_once(kind, values):
    most = [values[i % len(values)] for i in range(1000)]
    plain = pa.record_batch([pa.array(most, kind)], ["n"])
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), plain.column(0).slice(0, 1))
    gatherer, _ = side_by_side(pa.record_batch([column], ["n"]))
    found = gatherer.sources([plain]).gather([np.arange(1000)]).column(0)
    assert found.to_pylist() == most
    assert len(found.dictionary) == len(values) - 1


def test_more_values_than_a_dictionary_counts():
    kind = pa.dictionary(pa.int8(), pa.int64())
    gatherer, _ = side_by_side(pa.record_batch([array([1], kind)], ["n"]))
    most = pa.record_batch([pa.array(range(128), pa.int64())], ["n"])
    found = gatherer.sources([most]).gather([np.arange(128)])
    assert found.column(0).to_pylist() == list(range(128))
    more = pa.record_batch([pa.array(range(129), pa.int64())], ["n"])
    with pytest.raises(InvalidArgumentError, match="129 values in a column of dictionary"):
        gatherer.sources([more]).gather([np.arange(129)])


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("start", range(5))
def test_list_views_in_any_order_that_share_values(large, start):
    """pyarrow casts them to lists whose offsets are wrong."""
    views = pa.LargeListViewArray if large else pa.ListViewArray
    width = pa.int64() if large else pa.int32()
    texts = pa.array(["a", "b", "c", None, "e"], pa.string_view())
    column = views.from_arrays(
        pa.array([3, 0, None, 1, 0], width), pa.array([2, 3, 1, 0, 1], width), texts
    )
    values = [[None, "e"], ["a", "b", "c"], None, [], ["a"]]
    nested = pa.StructArray.from_arrays([column], ["x"])
    whole = pa.record_batch([column, nested], ["n", "s"])
    gatherer, _ = side_by_side(whole)
    batch = whole.slice(start)
    found = gatherer.sources([batch]).gather([np.arange(5 - start)])
    found.validate(full=True)
    plain = RowCodec(whole.schema).plain(batch)
    plain.validate(full=True)
    assert found.schema.types == whole.schema.types
    for made in (found, plain):
        assert made.column(0).to_pylist() == values[start:]
        assert made.column(1).to_pylist() == [{"x": value} for value in values[start:]]
    lists = KeyCodec(plain.schema).encode(plain)
    assert KeyCodec(whole.schema).encode(batch).to_pylist() == lists.to_pylist()


def test_list_views_that_hold_more_values_than_lists_count():
    """A view costs eight bytes, whatever it holds."""
    count = 1 << 16
    column = pa.ListViewArray.from_arrays(
        pa.array(np.zeros(count, np.int32)),
        pa.array(np.full(count, count, np.int32)),
        pa.nulls(count),
    )
    with pytest.raises(InvalidArgumentError, match="hold 4294967296 values in all, list<item: nul"):
        RowCodec(pa.schema([("n", column.type)])).plain(pa.record_batch([column], ["n"]))


def test_what_a_null_hides_is_not_copied():
    offsets = np.array([0, 100, 101], dtype=np.int32)
    buffers = [pa.py_buffer(b"\2"), pa.py_buffer(offsets), pa.py_buffer(b"x" * 101)]
    hidden = pa.Array.from_buffers(pa.string(), 2, buffers)
    batch = pa.record_batch([hidden], ["t"])
    gatherer, _ = side_by_side(batch)
    found = gatherer.sources([batch]).gather([places(0, 1, 0)]).column(0)
    assert found.to_pylist() == [None, "x", None]
    assert found.buffers()[2].size == 1


@pytest.mark.parametrize("place", [-1, 2])
def test_a_place_that_is_not_there(place):
    batch = pa.record_batch({"n": [1, 2]})
    gatherer, _ = side_by_side(batch, batch)
    with pytest.raises(IndexError, match=rf"side 1: place {place} of 2 rows"):
        gatherer.sources([batch, batch]).gather([places(0), places(place)])


def test_sides_and_places_must_agree():
    batch = pa.record_batch({"n": [1, 2]})
    gatherer, schema = side_by_side(batch, batch)
    with pytest.raises(InvalidArgumentError, match="are not those of the schema"):
        Gatherer([batch.schema], schema)
    with pytest.raises(InvalidArgumentError, match="1 batches for 2 sides"):
        gatherer.sources([batch])
    with pytest.raises(InvalidArgumentError, match=r"\(n: string\)"):
        gatherer.sources([batch, pa.record_batch({"n": ["a"]})])
    with pytest.raises(InvalidArgumentError, match="places of 1 sides, not of 2"):
        gatherer.sources([batch, batch]).gather([places(0)])
    with pytest.raises(InvalidArgumentError, match="2 places in side 0, 1 in side 1"):
        gatherer.sources([batch, batch]).gather([places(0, 1), places(0)])
