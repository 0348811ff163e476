"""Conditions that fail on a row: what the join says, and that it goes on."""

from typing import Any

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin

STREAMS = {
    "a": pa.schema([("k", pa.int64()), ("x", pa.int64())]),
    "b": pa.schema([("k", pa.int64()), ("y", pa.int64())]),
}


@pytest.mark.parametrize("options", [{}, {"algorithm": "tree"}], ids=["umjoin", "tree"])
def test_a_join_goes_on_once_the_results_that_failed_are_given_up(options: Any) -> None:
    with MultiwayJoin(STREAMS, "a.k = b.k AND 10 / a.x > b.y", **options) as join:
        join.process("b", {"k": [1, 2], "y": [1, 2]}).to_table()
        results = join.process("a", {"k": [1, 2], "x": [5, 0]})
        with pytest.raises(InvalidArgumentError, match="division by zero") as held:
            results.to_table()
        with pytest.raises(InvalidArgumentError, match=r"failed .*division by zero.*are stored"):
            join.process("a", {"k": [1], "x": [1]})
        results.close()
        assert held.value.__traceback__ is not None, "which holds what was being read"
        assert join.process("a", {"k": [1], "x": [1]}).to_table().num_rows == 1
        assert join.process("b", {"k": [1], "y": [1]}).to_table().num_rows == 2


@pytest.mark.parametrize("how", ["LEFT", "FULL"])
def test_and_does_not_judge_what_its_left_side_rules_out(how: str) -> None:
    on = f"a {how} JOIN b ON a.k = b.k AND b.y <> 0 AND a.x / b.y > 1"
    with MultiwayJoin(STREAMS, on, emit="changes") as join:
        first = join.process("b", {"k": [1, 1], "y": [0, 2]}).to_table().to_pylist()
        found = join.process("a", {"k": [1], "x": [5]}).to_table().to_pylist()
    matched = {"op": "+I", "a_k": 1, "x": 5, "b_k": 1, "y": 2}
    assert matched in found
    assert all(row["y"] != 0 or row["a_k"] is None for row in first + found)


@pytest.mark.parametrize("stream", [None, ["a"], 5], ids=str)
def test_a_stream_that_is_no_name_is_refused(stream: Any) -> None:
    with (
        MultiwayJoin(STREAMS, ["k"]) as join,
        pytest.raises(InvalidArgumentError, match=r"the stream is a .*; give its name"),
    ):
        join.process(stream, {"k": [1], "x": [1]})
