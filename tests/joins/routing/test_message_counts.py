"""Messages, stored rows and loads of the join-biclique and the join-matrix: what the paper's
equations say, for distinct rows."""

from collections import Counter
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from bench.baselines.join_matrix import MatrixRouting
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.key_parts import KeyPart
from lsmstate.joins.protocols import Role
from lsmstate.joins.routing.biclique import BicliqueRouting

ROWS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
COUNTS = {"r": 8000, "s": 6000}
PARTS = {name: KeyPart(Column(name, "k"), pa.int64()) for name in COUNTS}


def rows_of(stream: str) -> pa.RecordBatch:
    numbers = np.arange(COUNTS[stream], dtype=np.int64)
    return pa.record_batch([numbers * 7919 % 1_000_003, numbers], schema=ROWS)


def counted(routing: BicliqueRouting | MatrixRouting) -> tuple[int, Counter[int], Counter[int]]:
    """Messages in all, rows that each unit stores, and messages that it is sent."""
    messages, stored, sent = 0, Counter[int](), Counter[int]()
    for stream in COUNTS:
        rows = rows_of(stream)
        found = routing.router(stream, ROWS, ROWS).route(rows, rows)
        assert found.roles is not None
        messages += len(found.positions)
        stored.update(found.buckets[found.roles != Role.PROBE].tolist())
        sent.update(found.buckets.tolist())
    return messages, stored, sent


@pytest.mark.parametrize(
    ("m", "n", "d", "e"), [(8, 8, 1, 1), (8, 8, 2, 2), (8, 8, 4, 4), (8, 8, 8, 8), (6, 4, 3, 2)]
)
def test_messages_and_loads_of_the_biclique_are_those_of_equation_5(
    m: int, n: int, d: int, e: int
) -> None:
    r, s = COUNTS.values()
    groups = {"r": d, "s": e}
    routing = BicliqueRouting.of({"r": m, "s": n}, m + n, PARTS, groups)
    if d == e == 1:
        assert counted(routing)[0] == counted(BicliqueRouting.of({"r": m, "s": n}, m + n))[0]
    messages, stored, sent = counted(routing)
    assert messages == (n / e + 1) * r + (m / d + 1) * s
    assert stored.total() == r + s
    for unit in range(m):
        assert abs(stored[unit] - r / m) < 6 * (r / m) ** 0.5
        assert abs(sent[unit] - (r / m + s / d)) < 6 * (r / m + s / d) ** 0.5
    for unit in range(m, m + n):
        assert abs(sent[unit] - (s / n + r / e)) < 6 * (s / n + r / e) ** 0.5


@pytest.mark.parametrize(("m", "n"), [(4, 4), (2, 3)])
def test_messages_and_loads_of_the_matrix_are_those_of_equations_2_and_6(m: int, n: int) -> None:
    r, s = COUNTS.values()
    messages, stored, sent = counted(MatrixRouting(("r", "s"), (m, n)))
    assert messages == n * r + m * s
    assert stored.total() == n * r + m * s
    for unit in range(m * n):
        assert abs(stored[unit] - (r / m + s / n)) < 6 * (r / m + s / n) ** 0.5
    assert sent == stored


@pytest.mark.parametrize("kind", ["matrix", "groups"])
def test_each_pair_meets_in_one_unit(kind: str) -> None:
    routing = (
        MatrixRouting(("r", "s"), (3, 2))
        if kind == "matrix"
        else BicliqueRouting.of({"r": 5, "s": 4}, 9, PARTS, {"r": 2, "s": 3})
    )
    keys = {name: pa.array([*range(12), *range(6), None], pa.int64()) for name in COUNTS}
    places: dict[str, dict[int, set[tuple[int, int]]]] = {}
    for stream in COUNTS:
        rows = pa.record_batch([keys[stream], pa.array(range(19), pa.int64())], schema=ROWS)
        found = routing.router(stream, ROWS, ROWS).route(rows, rows)
        assert found.roles is not None
        listed = zip(
            found.positions.tolist(), found.buckets.tolist(), found.roles.tolist(), strict=True
        )
        for position, bucket, role in listed:
            places.setdefault(stream, {}).setdefault(position, set()).add((bucket, role))
    for one, other in product(range(18), range(18)):
        if keys["r"][one] != keys["s"][other]:
            continue
        # Either comes first: the first one is stored where the other one is sent.
        for first, later in (
            (places["r"][one], places["s"][other]),
            (places["s"][other], places["r"][one]),
        ):
            stored = {bucket for bucket, role in first if role != Role.PROBE}
            assert len(stored & {bucket for bucket, _ in later}) == 1
    if kind == "groups":  # a null equals nothing
        assert 18 not in places["r"]


def test_the_first_start_fixes_groups() -> None:
    first = BicliqueRouting.of({"r": 1, "s": 1}, 8, PARTS)
    assert first.groups == {"r": 2, "s": 2}
    later = BicliqueRouting.of({"r": 3, "s": 1}, 8, PARTS)
    assert later.settled(8, first.adopted) == first
    before = BicliqueRouting.of({"r": 1, "s": 1}, 8)
    assert later.settled(8, before.adopted).groups == {}
    with pytest.raises(InvalidArgumentError, match="groups\\['r'\\]=5: the stream has 4 units"):
        BicliqueRouting.of({"r": 1, "s": 1}, 8, PARTS, {"r": 5, "s": 1})
