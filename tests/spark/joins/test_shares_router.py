"""Rows of a preserved stream meet all their partners, also those with a null in one key."""

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.shares import JoinGraph, choose
from lsmstate.joins.routing.shares_router import SharesRouting
from lsmstate.spark_integration.rescale.plan import check_can_move

GRAPH = JoinGraph(rows={"a": 1, "b": 1, "c": 1}, classes={"k": ("a", "b"), "j": ("a", "c")})


def buckets_of(stream: str, keys: pa.RecordBatch, *, is_preserved: bool) -> list[set[int]]:
    """Of each row the buckets it goes to."""
    shares = choose(GRAPH, 4, {"k": 2, "j": 2})
    preserved = frozenset([stream] if is_preserved else [])
    routing = SharesRouting(GRAPH, shares, by_part_of_keys=True, routes_null_keys=preserved)
    routed = routing.router(stream, keys.schema, keys.schema).route(keys, keys)
    found: list[set[int]] = [set() for _ in range(len(keys))]
    for position, bucket in zip(routed.positions, routed.buckets, strict=True):
        found[position].add(int(bucket))
    return found


def test_a_null_in_one_key_matches_by_the_other() -> None:
    numbers = pa.array(range(50), pa.int64())
    nulls = pa.nulls(50, pa.int64())
    partners = {
        "b": buckets_of("b", pa.record_batch({"k": numbers}), is_preserved=False),
        "c": buckets_of("c", pa.record_batch({"j": numbers}), is_preserved=False),
    }
    for k, j, partner in ((numbers, nulls, "b"), (nulls, numbers, "c")):
        rows = buckets_of("a", pa.record_batch({"k": k, "j": j}), is_preserved=True)
        assert all(len(row) == 1 for row in rows), "a preserved row lies in exactly one bucket"
        assert all(row <= other for row, other in zip(rows, partners[partner], strict=True))
    neither = buckets_of("a", pa.record_batch({"k": nulls, "j": nulls}), is_preserved=True)
    assert all(len(row) == 1 for row in neither)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"joins other than inner": "a LEFT JOIN b", "adopted": {"shares": "{}"}}, "several keys"),
        ({"adopted": {"shares": [None, "{}"]}}, "several joins in one operator"),
        ({"conditions of the joins": ["a.x < b.y"]}, "with the condition a.x < b.y"),
    ],
)
def test_states_whose_spread_is_not_told_are_not_rescaled(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        check_can_move("state", {"backend": "lsm", **settings})


def test_a_kind_that_no_rescale_knows_is_refused() -> None:
    settings = {"backend": "lsm", "adopted": {"join": {"kind": "cross join", "spec": {}}}}
    with pytest.raises(InvalidArgumentError, match="of the kind 'cross join', which cannot be"):
        check_can_move("state", settings)
