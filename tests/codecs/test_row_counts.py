"""Counts of retracted rows: the hash that stands for a row, parts, and what a table takes."""

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.rows.retraction_counts import RowCounts, row_hash
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.options import KIB, MIB

CODEC = RowCodec(pa.schema([("v", pa.int64())]))
SECRET = bytes(range(16))


def encoded(values):
    return CODEC.encode(pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], ["v"]))


def groups_of(values, group=0):
    return np.full(len(values), group, dtype=np.int64)


def add(table, values, group=0):
    return table.add_rows(groups_of(values, group), encoded(values))


def take(table, values, group=0):
    taken = np.zeros(len(values), dtype=np.uint8)
    table.take_rows(groups_of(values, group), encoded(values), 0, len(values), taken)
    return taken.tolist()


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (b"", "3b62a9ba6258f5610f83e264f31497b4"),
        (bytes(range(8, 15)), "5493e99933b0a8117e08ec0f97cfc3d9"),
    ],
)
def test_the_hash_is_siphash_of_the_group_and_the_row(row, expected):
    """Values of the authors' vectors for SipHash-2-4 with 128 bits: 8 and 15 bytes 0, 1, 2, ..."""
    group = int.from_bytes(bytes(range(8)), "little")
    assert row_hash(SECRET, group, row).hex() == expected


def test_each_row_is_taken_as_often_as_it_was_added():
    table = RowCounts(Budget(MIB), "probe", 64 * KIB)
    table.begin(10)
    assert add(table, [1, 2, 1, None]) == 4
    assert add(table, [1], group=5) == 1
    assert take(table, [3, 1, 1, 1, 2, 2, None, None]) == [0, 1, 1, 0, 1, 0, 1, 0]
    assert take(table, [1, 1], group=5) == [1, 0]
    assert take(table, [1], group=4) == [0]
    table.begin(10)
    assert take(table, [1, 2, None], group=5) == [0, 0, 0]


def test_a_part_of_the_rows_is_counted_and_the_parts_are_all():
    table = RowCounts(Budget(MIB), "probe", 64 * KIB)
    taken = np.zeros(500, dtype=np.int64)
    for part in range(7):
        table.begin(100, part, 7)
        assert add(table, range(500)) == 500
        found = take(table, range(500))
        assert 30 < sum(found) < 120
        taken += found
    assert taken.tolist() == [1] * 500


def test_a_table_grows_up_to_its_bound_and_then_says_where_it_is_full():
    budget = Budget(MIB)
    table = RowCounts(budget, "probe", 4 * KIB)
    assert table.begin(2) >= 2
    assert table.nbytes == budget.usage()["probe"] < 200
    assert add(table, range(1000)) == table.most_rows == 127
    assert table.nbytes == budget.usage()["probe"] <= 4 * KIB
    assert add(table, [5, 126, 127]) == 2  # those that are known need no room
    assert take(table, [*range(128), 5]) == [1] * 127 + [0, 1]
    assert table.begin(5000) == 127
    del table
    assert budget.usage()["probe"] == 0


def test_a_table_is_smaller_where_the_budget_has_no_more():
    budget = Budget(MIB)
    budget.hold("frames", MIB - 200 * KIB)
    table = RowCounts(budget, "probe", MIB)
    room = table.begin(30_000)
    assert 2048 < room < 200 * KIB // 24
    assert add(table, range(30_000)) >= room
    assert budget.total_bytes <= MIB
    budget.hold("frames", budget.limit - budget.total_bytes)
    other = RowCounts(budget, "probe", MIB)
    assert other.begin(30_000) > 500  # so many in any case
    assert budget.total_bytes - MIB <= 48 * KIB


def test_what_does_not_belong_together_is_refused():
    table = RowCounts(Budget(MIB), "probe", 4 * KIB)
    table.begin(2)
    with pytest.raises(ValueError, match="3 rows of 2 groups"):
        table.add_rows(groups_of([1, 2]), encoded([1, 2, 3]))
    with pytest.raises(ValueError, match="rows 0 to 4 of 3"):
        table.take_rows(groups_of([1] * 3), encoded([1, 2, 3]), 0, 4, np.zeros(3, dtype=np.uint8))
    with pytest.raises(ValueError, match="secret of 3 bytes"):
        row_hash(b"abc", 0, b"")
