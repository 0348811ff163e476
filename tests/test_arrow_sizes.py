"""Bytes per row of Arrow batches, and the pieces they are cut into."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmstate.arrow_sizes import least_row_bytes, pieces_of, row_sizes


def sizes_of(values, kind):
    return row_sizes(pa.RecordBatch.from_arrays([pa.array(values, kind)], ["c"])).tolist()


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
        (pa.dictionary(pa.int8(), pa.string()), ["long text"], [2]),
    ],
)
def test_sizes(kind, values, expected):
    assert sizes_of(values, kind) == expected


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
