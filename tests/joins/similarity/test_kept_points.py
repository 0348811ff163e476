"""Rows kept in memory give the pairs of tiles; too many of them are not kept."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import MemoryLimitError
from lsmstate.join import State, Time, similarity_join
from lsmstate.joins.local.similarity import kept_points
from lsmstate.process.kept_memory import KeptMemory
from lsmstate.process.memory_budget import process_memory

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("tenant", pa.string()),
        ("at", pa.timestamp("us")),
        ("v", pa.list_(pa.float64())),
    ]
)
COUNT, BATCH = 1200, 100


def rows(width: int, tenants: int) -> pa.RecordBatch:
    rng = np.random.default_rng(width)
    points = rng.random((20, width))[rng.integers(0, 20, COUNT)] + 0.05 * rng.random((COUNT, width))
    columns = [
        np.arange(COUNT),
        [f"t{number}" for number in rng.integers(0, tenants, COUNT)],
        pa.array(np.sort(rng.integers(0, 3_600_000_000, COUNT)), pa.timestamp("us")),
        points.tolist(),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def joined(
    given: pa.RecordBatch,
    streams: int = 1,
    look: Callable[[Any], None] = lambda join: None,
    **options: Any,
) -> tuple[set[Any], Any]:
    """The pairs, and what the join counted. ``look`` sees the join before it is closed."""
    time = options.get("time")
    schemas = dict.fromkeys(["a", "b"][:streams], SCHEMA)
    with similarity_join(schemas, "a.v ~ b.v", metric="l2", **options) as join:
        found: list[Any] = []
        for number, first in enumerate(range(0, COUNT, BATCH)):
            part = given.slice(first, BATCH)
            results = join.process(list(schemas)[number % streams], part)
            found += [(row["a_id"], row["b_id"]) for row in results.rows()]
            if time is not None:
                last: Any = part.column("at")[-1]
                list(join.advance(last.value - 1))
        assert len(set(found)) == len(found)
        look(join)
        return set(found), join


@pytest.mark.parametrize(
    ("width", "tenants", "streams"), [(2, 1, 1), (2, 7, 1), (9, 3, 2), (3, 700, 1), (1, 5, 2)]
)
def test_equal_columns_keep_pairs_apart(width: int, tenants: int, streams: int) -> None:
    given = rows(width, tenants)
    options: dict[str, Any] = {"threshold": 0.06, "by": "tenant"}
    found, join = joined(given, streams, **options)
    expected, other = joined(given, streams, algorithm="tiles", **options)
    assert found == expected != set()
    assert join.counts["candidate_pairs"] <= join.counts["compared_pairs"]
    assert other.counts["close_pairs"] == join.counts["close_pairs"]


@pytest.mark.parametrize("most", [0, 20_000, 100_000])
def test_without_room_for_all_rows_the_store_is_asked(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows(2, 1)
    expected, _ = joined(given, threshold=0.02, algorithm="tiles")
    grow = KeptMemory.try_grow

    def limited(memory: KeptMemory, size: int) -> bool:
        return memory.nbytes + size <= most and grow(memory, size)

    monkeypatch.setattr(KeptMemory, "try_grow", limited)
    found, _ = joined(given, threshold=0.02)
    assert found == expected != set()


def test_too_many_keys_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    given = rows(2, 50)
    expected, _ = joined(given, threshold=0.05, algorithm="tiles", by="tenant")
    monkeypatch.setattr(kept_points, "MOST_KEYS", 30)
    found, _ = joined(given, threshold=0.05, by="tenant")
    assert found == expected != set()


def test_trees_that_leave_too_many_pairs_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given = rows(8, 1)
    expected, _ = joined(given, threshold=0.5, algorithm="tiles")
    monkeypatch.setattr(kept_points, "_ENOUGH_PAIRS", 50_000)

    def look(join: Any) -> None:
        assert not join.local_join._kept._kept

    found, _ = joined(given, look=look, threshold=0.5)
    assert found == expected != set()


@pytest.mark.parametrize("late", ["drop", "join"])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_rows_that_are_over_are_not_kept_for_ever(
    late: Any, is_reopened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows(2, 3)
    monkeypatch.setattr(kept_points, "TOGETHER", 2)
    if is_reopened:
        monkeypatch.setattr(kept_points.KeptPoints, "begin", lambda _: None)
    options: dict[str, Any] = {
        "threshold": 0.05,
        "by": "tenant",
        "time": Time(event_time={"a": "at"}, within="5 minutes", late=late),
    }

    def look(join: Any) -> None:
        kept = join.local_join._joined._kept._kept
        if late == "join":
            assert not any(each.levels for each in kept.values())
        else:
            assert 0 < sum(level.rows.num_rows for level in kept["a"].levels) < COUNT / 2

    found, _ = joined(given, look=look, state=State(state_dir=str(tmp_path)), **options)
    expected, _ = joined(given, algorithm="tiles", **options)
    assert found == expected != set()


PLAIN = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float64(), 2))])


@pytest.mark.parametrize("backend", ["lsm", "memory"])
def test_memory_of_a_batch_may_be_used_again(backend: Any) -> None:
    """By whoever made the batch, from arrays of NumPy for example."""
    ids, points = np.arange(50), np.random.default_rng(1).random((50, 2))
    columns = [pa.array(ids), pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), 2)]
    batch = pa.record_batch(columns, schema=PLAIN)
    with similarity_join(
        {"a": PLAIN}, "a.v ~ b.v", metric="l2", threshold=0.0, state=State(backend=backend)
    ) as join:
        first = points.copy()
        join.process("a", batch).close()
        ids[:], points[:] = -1, 9.0
        again = {"id": np.arange(100, 150), "v": first.tolist()}
        found = {(row["a_id"], row["b_id"]) for row in join.process("a", again).rows()}
        assert found == {(n, 100 + n) for n in range(50)}


@pytest.mark.parametrize("fails_at", [1, 2, 6])
def test_rows_that_could_not_be_kept_are_read_from_the_store(
    fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has them in any case: the batch is not refused, and no pair comes twice."""
    given = rows(2, 1)
    expected, _ = joined(given, threshold=0.02, algorithm="tiles")
    add, calls = kept_points.KeptPoints._add, []

    def fails(*arguments: Any) -> bool:
        calls.append(arguments)
        if len(calls) == fails_at:
            raise MemoryError("no memory")
        return add(*arguments)

    monkeypatch.setattr(kept_points.KeptPoints, "_add", fails)
    found, _ = joined(given, threshold=0.02)
    assert found == expected != set()
    assert len(calls) >= fails_at


def test_a_load_without_memory_leaves_the_rows_in_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = rows(2, 1)
    expected, _ = joined(given, threshold=0.02, algorithm="tiles")

    def fails(*_: Any) -> Any:
        raise MemoryError("no memory")

    monkeypatch.setattr(kept_points.KeptPoints, "begin", lambda _: None)
    monkeypatch.setattr(kept_points.KeptPoints, "_load", fails)
    found, _ = joined(given, threshold=0.02)
    assert found == expected != set()


def test_stored_rows_with_more_values_than_a_dictionary_has_room_for(tmp_path: Path) -> None:
    schema = pa.schema(
        [("name", pa.dictionary(pa.int8(), pa.string())), ("v", pa.list_(pa.float64()))]
    )

    def batch(first: int) -> pa.RecordBatch:
        names = pa.array([f"n{n}" for n in range(first, first + 100)])
        points = [[float(n % 100), 0.0] for n in range(100)]
        columns = [names.dictionary_encode().cast(schema.field(0).type), points]
        return pa.record_batch(columns, schema=schema)

    found = []
    for first in (0, 100, 200, 300):
        with similarity_join(
            {"a": schema},
            "a.v ~ b.v",
            metric="l2",
            threshold=0.1,
            piece_bytes=4000,
            state=State(state_dir=str(tmp_path)),
        ) as join:
            found.append(join.process("a", batch(first)).count())
            join.commit()
    assert found == [0, 100, 200, 300]


def test_a_write_without_memory_lets_kept_rows_go() -> None:
    given = rows(2, 1)
    options: dict[str, Any] = {"metric": "l2", "threshold": 0.02}
    with similarity_join({"a": SCHEMA}, "a.v ~ b.v", **options) as join:
        join.process("a", given.slice(0, 600)).close()
        local: Any = join.local_join
        write_all, was_kept = join.store.write_all, []

        def refuse_once(parts: Any) -> int:
            was_kept.append(bool(local._kept._kept))
            if len(was_kept) == 1:
                raise MemoryLimitError("no memory")
            return int(write_all(parts))

        with patch.object(join.store, "write_all", refuse_once):
            count = join.process("a", given.slice(600)).count()
        assert was_kept == [True, False]
    with similarity_join({"a": SCHEMA}, "a.v ~ b.v", algorithm="tiles", **options) as join:
        join.process("a", given.slice(0, 600)).close()
        assert join.process("a", given.slice(600)).count() == count > 0


def test_too_many_keys_take_no_memory_and_are_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    before = process_memory().budget.usage()["probe"]
    monkeypatch.setattr(kept_points, "MOST_KEYS", 30)
    load, loads = kept_points.KeptPoints._load, []

    def counted(*arguments: Any) -> Any:
        loads.append(arguments)
        return load(*arguments)

    def look(_: Any) -> None:
        assert process_memory().budget.usage()["probe"] == before

    monkeypatch.setattr(kept_points.KeptPoints, "_load", counted)
    joined(rows(2, 50), look=look, threshold=0.05, by="tenant")
    assert not loads


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_vectors_in_another_type_are_charged_too(kind: pa.DataType) -> None:
    """A join of FLOAT with DOUBLE compares DOUBLE: those of the one stream are a copy."""
    schemas = {
        "a": pa.schema([("v", pa.list_(kind, 8))]),
        "b": pa.schema([("v", pa.list_(pa.float64(), 8))]),
    }
    points = np.random.default_rng(2).random(8000)
    column = pa.FixedSizeListArray.from_arrays(pa.array(points, pa.float64()).cast(kind), 8)
    with similarity_join(schemas, "a.v ~ b.v", metric="l2", threshold=0.1) as join:
        join.process("a", pa.record_batch([column], schema=schemas["a"])).close()
        local: Any = join.local_join
        kept = local._kept._kept["a"]
        (level,) = kept.levels
        rest = level.rows.nbytes + level.tree.nbytes + level.sizes.nbytes
        copied = 0 if kind == pa.float64() else points.nbytes
        assert kept.memory.nbytes == rest + copied
