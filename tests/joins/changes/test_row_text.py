"""Rows in messages: whatever a stream may hold is shown, and nothing raises."""

import pyarrow as pa
import pytest

from lsmstate.joins.local.parts.row_text import shown_row

BAD = pa.array([b"a\xff"]).view(pa.string())


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array(["x"]), "x"),
        (BAD, "a\ufffd"),
        (pa.array([2**40], pa.int64()).cast(pa.timestamp("s")), 2**40),
        (pa.StructArray.from_arrays([BAD], ["x"]), {"x": "a\ufffd"}),
        (
            pa.StructArray.from_arrays([BAD, pa.array([1])], ["x", "x"]),
            [("x", "a\ufffd"), ("x", 1)],
        ),
        (pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), BAD), ["a\ufffd"]),
        (pa.ExtensionArray.from_storage(pa.json_(pa.string()), BAD), "a\ufffd"),
        (pa.array([0], pa.timestamp("s", "Nowhere/At_All")), 0),
        (pa.array([None], pa.struct([("x", pa.int64()), ("x", pa.int64())])), None),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_value_is_shown(column: pa.Array, shown: object) -> None:
    rows = pa.RecordBatch.from_arrays([column], ["c"])
    assert shown_row(rows, 0) == {"c": shown}
