"""Codes lose no close pair, in every set of instructions, and joins by codes give the pairs of
brute force."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.cython_ext.distances import code_tiles
from lsmstate.errors import InvalidArgumentError
from lsmstate.join import State, Time, similarity_join
from lsmstate.joins.local.similarity import coded
from lsmstate.joins.local.similarity.codes import Basis
from support.sampling import each_value
from support.similar_cases import all_distances


def points(rng: Any, count: int, width: int) -> Any:
    """Of few leading directions, around a place that is not zero."""
    found = rng.standard_normal((count, width)) * np.arange(1, width + 1) ** -0.7 + 2
    turn, _ = np.linalg.qr(rng.standard_normal((width, width)))
    return found @ turn


def joined(chunks: Any) -> tuple[Any, Any]:
    ends = np.cumsum([0, *map(len, chunks.codes)]).astype(np.int32)
    return np.frombuffer(b"".join(chunks.codes), np.uint8), ends


def candidates(basis: Basis, queries: Any, rows: Any, reach: float, level: int) -> Any:
    numbers = np.arange(1000, 1000 + len(rows))
    stored, ends = joined(basis.chunks(basis.components(rows), numbers, 0))
    panels = basis.panels(basis.components(queries), reach)
    at, found, looked = 0, [], 0
    while at < len(ends) - 1:
        own, others, at, count = panels.candidates(stored, ends, at, level)
        found += zip(own.tolist(), (others - 1000).tolist(), strict=True)
        looked += count
    assert looked == len(rows)
    assert len(set(found)) == len(found)
    return set(found)


@each_value(
    times=2,
    width=[16, 17, 47, 130, 600],
    scale=[1e-12, 1.0, 1e9],
    part=[0.0, 0.002, 0.05, 1.0],
)
def test_codes_lose_no_pair_with_any_level(width: int, scale: float, part: float) -> None:
    rng = np.random.default_rng(width)
    rows = points(rng, 330, width)
    queries = rows[:53] * (1 + 0.01 * rng.standard_normal((53, width)))
    queries[:3] = rows[:3]
    apart = all_distances("l2", queries, rows)
    reach = float(np.quantile(apart, part)) * (1 + 1e-9)
    basis = Basis.of(rows * scale, reach * scale)
    assert basis is not None
    basis = Basis.from_numbers(basis.to_numbers())
    close = {(int(q), int(x)) for q, x in np.argwhere(apart <= reach)}
    found = [
        candidates(basis, queries * scale, rows * scale, reach * scale, level)
        for level in range(code_tiles.LEVEL + 1)
    ]
    assert close <= found[0]
    assert all(each == found[0] for each in found)
    if part < 0.01:
        assert len(found[0]) < 0.05 * apart.size


@pytest.mark.parametrize("far", [30.0, 1e6, 1e200])
def test_points_beyond_the_scale_lose_no_pair(far: float) -> None:
    """A basis is of what came before: others are longer, or lie in other directions."""
    rng = np.random.default_rng(1)
    basis = Basis.of(points(rng, 300, 40), 1.0)
    assert basis is not None
    others = rng.standard_normal((140, 40))
    others[::7] *= far
    others[3::7] += far
    queries = others[:40] * (1 + 1e-3 * rng.standard_normal((40, 40)))
    with np.errstate(over="ignore"):
        apart = all_distances("l2", queries, others)
    expected = {(int(q), int(x)) for q, x in np.argwhere(apart <= 1.0)}
    expected |= {(at, at) for at in range(40) if np.array_equal(queries[at], others[at])}
    for level in range(code_tiles.LEVEL + 1):
        assert expected <= candidates(basis, queries, others, 1.0, level)


def test_queries_of_which_most_lie_at_the_centre_lose_no_pair() -> None:
    """Their numbers have a scale that is nearly zero."""
    rng = np.random.default_rng(3)
    some = points(rng, 200, 20)
    basis = Basis.of(np.concatenate([some, -some]), 1.0)
    assert basis is not None
    basis = replace(basis, centre=np.zeros(20))
    queries = np.full((500, 20), 1e-240)
    queries[::100] = some[:5]
    for level in range(code_tiles.LEVEL + 1):
        found = candidates(basis, queries, some, 1.0, level)
        assert found >= {(100 * at, at) for at in range(5)}


@pytest.mark.parametrize("count", [1, 15, 17])
def test_all_pairs_of_as_many_rows_as_one_call_has_room_for(count: int) -> None:
    rng = np.random.default_rng(4)
    rows = points(rng, 6 * code_tiles.MOST_ROWS, 20)
    basis = Basis.of(rows, 1.0)
    assert basis is not None
    for level in range(code_tiles.LEVEL + 1):
        found = candidates(basis, rows[:count], rows, 1e6, level)
        assert len(found) == count * len(rows)


def test_points_that_are_all_equal_or_too_small_have_no_basis() -> None:
    for value in (0.0, 3.0, 1e-200):
        assert Basis.of(np.full((300, 20), value), 1.0) is None


def test_chunks_that_do_not_fit_are_refused() -> None:
    rng = np.random.default_rng(2)
    basis = Basis.of(points(rng, 300, 20), 1.0)
    assert basis is not None
    some = basis.components(points(rng, 10, 20))
    panels = basis.panels(some, 1.0)
    stored, ends = joined(basis.chunks(some, np.arange(10), 0))
    with pytest.raises(InvalidArgumentError, match="a chunk of 3 bytes does not hold"):
        panels.candidates(stored, np.array([0, 3], np.int32), 0)
    with pytest.raises(InvalidArgumentError, match=r"does not hold 10 codes"):
        panels.candidates(stored, np.array([0, ends[1] - 1], np.int32), 0)
    with pytest.raises(InvalidArgumentError, match=r"chunk 0 goes from 0 to"):
        panels.candidates(stored, np.array([0, ends[1] + 1], np.int32), 0)
    with pytest.raises(InvalidArgumentError, match="five terms for each query"):
        code_tiles.CodePanels(
            np.zeros((2, 16), np.int8), np.zeros((2, 16), np.int16), np.zeros((4, 2)), 0, 0, 0, 1
        )
    with pytest.raises(InvalidArgumentError, match="they must fit"):
        code_tiles.rounded(np.zeros((2, 4)), 0, 5, 1.0, 127, np.zeros((2, 16), np.int8), 0)


SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("v", pa.list_(pa.float32()))])
HOUR = 3_600_000_000


@each_value(
    times=2,
    metric=["l2", "cosine", "angular"],
    algorithm=["auto", "tiles"],
    streams=["a", "ab"],
    is_timed=[False, True],
    backend=["lsm", "rocksdb", "memory"],
    seed=range(6),
)
def test_joins_by_codes_give_the_pairs_of_brute_force(
    metric: Any,
    algorithm: Any,
    streams: str,
    is_timed: bool,
    backend: Any,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where bases change, rows came before the first one, and the join is opened again."""
    monkeypatch.setattr(coded, "_FIRST_ROWS", 40)
    monkeypatch.setattr(coded, "_AGAIN", 2)
    monkeypatch.setattr(coded, "_STEP_PAIRS", 500)
    rng, chance = np.random.default_rng(seed), random.Random(seed)
    count, width = 300, chance.choice([17, 24, 100])
    vectors = points(rng, count, width)
    vectors[count // 2 :] = vectors[: count // 2] * (1 + 0.02 * rng.standard_normal((1, width)))
    vectors[200:260] = rng.standard_normal((60, width)) @ rng.standard_normal((width, width))
    vectors = vectors.astype(np.float32).astype(np.float64)
    times = np.sort(rng.integers(0, 5, count)) * HOUR
    owners = [chance.choice(streams) for _ in range(count)]
    apart = all_distances(metric, vectors, vectors)
    threshold = float(np.quantile(apart[np.triu_indices(count, 1)], chance.choice([0.01, 0.2])))
    margin = 1e-9 * max(threshold, 1e-3)
    options: dict[str, Any] = {"metric": metric, "threshold": threshold, "algorithm": algorithm}
    if is_timed:
        options["time"] = Time(event_time=dict.fromkeys(streams, "at"), within="1 hour")
    state = State(backend=backend, state_dir=None if backend == "memory" else str(tmp_path))

    def opened() -> Any:
        schemas = dict.fromkeys(streams, SCHEMA)
        return similarity_join(schemas, "a.v ~ b.v", state=state, piece_bytes=9000, **options)

    join, at, found, compared = opened(), 0, [], 0
    while at < count:
        if state.state_dir is not None and chance.random() < 0.3:
            join.commit()
            compared += join.counts["compared_pairs"]
            join.close()
            join = opened()
        size = chance.choice([1, 15, 60])
        for stream in streams:
            some = [i for i in range(at, min(count, at + size)) if owners[i] == stream]
            rows = [{"id": i, "at": int(times[i]), "v": vectors[i].tolist()} for i in some]
            batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
            found += [(r["a_id"], r["b_id"]) for r in join.process(stream, batch).rows()]
        at += size
        if is_timed and at < count and chance.random() < 0.5:
            join.advance(np.datetime64(int(times[at]) - 1, "us").item())
    compared += join.counts["compared_pairs"]
    join.close()
    assert compared
    pairs = {tuple(sorted(pair)) if len(streams) == 1 else pair for pair in found}
    assert len(pairs) == len(found)
    may_pair = np.ones((count, count), np.bool_)
    if is_timed:
        may_pair = np.abs(times[:, None] - times) <= HOUR
    if len(streams) == 1:
        may_pair &= np.triu(np.ones((count, count), np.bool_), 1)
    else:
        owner = np.array(owners)
        may_pair &= (owner[:, None] == "a") & (owner == "b")
    sure = {(int(i), int(j)) for i, j in np.argwhere(may_pair & (apart <= threshold - margin))}
    perhaps = {(int(i), int(j)) for i, j in np.argwhere(may_pair & (apart <= threshold + margin))}
    assert sure <= pairs <= perhaps
    if threshold < np.quantile(apart, 0.1):
        assert compared


def test_few_points_are_read_where_few_are_close() -> None:
    """Of many rows, codes leave about those that are results."""
    rng = np.random.default_rng(0)
    vectors = points(rng, 1500, 48).astype(np.float32)
    vectors[1000:1020] = vectors[:20] * np.float32(1.001)
    kind = pa.list_(pa.float32(), 48)
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    found = []
    with similarity_join({"a": schema}, "a.v ~ b.v", metric="l2", threshold=0.1) as join:
        for first in range(0, 1500, 300):
            some = pa.FixedSizeListArray.from_arrays(
                pa.array(vectors[first : first + 300].ravel()), 48
            )
            rows = pa.record_batch([range(first, first + 300), some], schema)
            found += list(join.process("a", rows).rows())
        assert len(found) == 20
        assert join.counts["candidate_pairs"] < 40
        assert join.counts["compared_pairs"] >= 1500 * 1499 // 2
