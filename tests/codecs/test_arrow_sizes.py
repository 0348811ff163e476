"""Bytes per row of Arrow batches, and the pieces they are cut into."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.schema.arrow_sizes import least_row_bytes, pieces_of, row_sizes, same_sizes, sizes_of


def measured(values, kind):
    if pa.types.is_dictionary(kind):
        column = pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    else:
        column = pa.array(values, kind)
    return row_sizes(pa.RecordBatch.from_arrays([column], ["c"])).tolist()


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int64(), [1, None], [9, 9]),
        (pa.bool_(), [True, None], [2, 2]),
        (pa.decimal128(9, 2), [None], [17]),
        (pa.string(), ["", "abc", None, "ä"], [9, 12, 9, 11]),
        (pa.large_binary(), [b"\0" * 100], [109]),
        (pa.list_(pa.int8()), [[1, 2, 3], [], None], [15, 9, 9]),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": "xy"}], [17]),
        (pa.map_(pa.string(), pa.int8()), [[("k", 1)], []], [22, 9]),
        (pa.null(), [None], [0]),
        (pa.list_(pa.int8(), 3), [[1, 2, 3], None], [7, 7]),
        (pa.list_(pa.string(), 2), [["abc", None], None], [22, 19]),
        (
            pa.dictionary(pa.int8(), pa.string()),
            ["long text", None, "", "long text"],
            [18, 9, 9, 18],
        ),
        (pa.dictionary(pa.int8(), pa.int64()), [1, None, 1], [9, 9, 9]),
        (pa.string_view(), ["abc", None, "more than twelve bytes"], [12, 9, 31]),
        (pa.list_(pa.binary_view()), [[b"abc", b"x" * 20], None], [50, 9]),
        (pa.list_view(pa.string()), [["a", "bc"], None, []], [30, 9, 9]),
        (pa.large_list_view(pa.int8()), [[1], [2, 3]], [11, 13]),
        (pa.list_view(pa.int8()), [], []),
        (pa.json_(), ["{}", None], [11, 9]),
    ],
)
def test_sizes(kind, values, expected):
    assert measured(values, kind) == expected


def test_sizes_of_a_slice_are_those_of_its_rows():
    kind = pa.list_(pa.string())
    batch = pa.RecordBatch.from_arrays(
        [pa.array([["a"], ["bb", "c"], None, [], ["dddd"]], kind), pa.array([1, 2, 3, 4, 5])],
        ["l", "n"],
    )
    whole = row_sizes(batch).tolist()
    for first in range(5):
        for count in range(5 - first + 1):
            sliced = batch.slice(first, count)
            assert row_sizes(sliced).tolist() == whole[first : first + count]


TEXT = [f"{number:0100d}" for number in range(1000)]
LARGE = {
    "views": pa.array(TEXT, pa.string_view()),
    "dictionary": pa.array(TEXT).dictionary_encode(),
    "structs": pa.StructArray.from_arrays([pa.array(TEXT, pa.binary_view())], ["x"]),
    "dictionary of views": pa.DictionaryArray.from_arrays(
        pa.array(range(1000)), pa.array(TEXT, pa.string_view())
    ),
    "dictionary of lists": pa.DictionaryArray.from_arrays(
        pa.array(range(1000)), pa.array([[text] for text in TEXT])
    ),
    "lists of dictionaries": pa.ListArray.from_arrays(
        pa.array(range(1001), pa.int32()), pa.array(TEXT).dictionary_encode()
    ),
    "list views": pa.ListViewArray.from_arrays(
        pa.array([0] * 1000, pa.int32()), pa.array([1] * 1000, pa.int32()), TEXT
    ),
    "fixed-size lists": pa.FixedSizeListArray.from_arrays(pa.array(TEXT, pa.string_view()), 1),
}


@pytest.mark.parametrize("kind", LARGE)
def test_slices_take_what_their_rows_decode_to(kind):
    """A slice of them has the buffers of the whole."""
    batch = pa.RecordBatch.from_arrays([LARGE[kind]], ["c"]).slice(500, 3)
    codec = RowCodec(batch.schema)
    plain = codec.decode(codec.encode(batch).to_pylist())
    assert row_sizes(batch).tolist() == row_sizes(plain).tolist()
    assert plain.nbytes <= sizes_of(batch.schema).total(batch) < 1000 < batch.nbytes


def test_rows_of_one_large_value_take_it_each():
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 400), pa.array(["x" * 10_000]))
    batch = pa.RecordBatch.from_arrays([rows], ["c"])
    assert batch.nbytes < 20_000
    assert sizes_of(batch.schema).total(batch) == 400 * 10_009


def test_no_row_is_smaller_than_the_least():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int8()))])
    assert least_row_bytes(schema) == 9 + 9 + 9
    assert least_row_bytes(pa.schema([])) == 0


@given(st.lists(st.integers(0, 20)), st.integers(1, 40))
def test_pieces_cover_all_and_are_bounded(sizes, max_bytes):
    pieces = list(pieces_of(np.array(sizes, dtype=np.int64), max_bytes))
    assert [n for piece in pieces for n in range(piece.start, piece.stop)] == list(
        range(len(sizes))
    )
    for piece in pieces:
        assert sum(sizes[piece]) <= max_bytes or piece.stop - piece.start == 1


@given(st.integers(0, 50), st.integers(0, 9), st.integers(1, 40))
def test_pieces_of_one_size_are_those_of_as_many_sizes(size, count, max_bytes):
    whole = np.full(count, size, dtype=np.int64)
    same = same_sizes(size, count)
    assert same.tolist() == whole.tolist()
    covered = list(pieces_of(same, max_bytes))
    if size:
        assert covered == list(pieces_of(whole, max_bytes))
    assert [n for piece in covered for n in range(piece.start, piece.stop)] == list(range(count))
