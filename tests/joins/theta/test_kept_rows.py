"""Rows that two ranges are asked of are kept in memory: the same results, within the cap."""

import gc
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import MemoryLimitError
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.local.theta import kept_rows
from lsmstate.process.memory_budget import process_memory

ON = "a.x < b.y AND a.u > b.v"
A = pa.schema([("x", pa.float64()), ("u", pa.float64())])
B = pa.schema([("y", pa.float64()), ("v", pa.float64()), ("name", pa.string())])


def made(count: int, seed: int, schema: pa.Schema) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    x = rng.random(count)
    u = pa.array(0.3 * x + rng.normal(0, 0.1, count), mask=rng.random(count) < 0.05)
    columns = [x, u]
    if len(schema) > 2:
        columns.append(pa.array([f"row {n}" for n in range(count)]))
    return pa.record_batch(columns, schema=schema)


def brute_force(new: pa.RecordBatch, stored: list[pa.RecordBatch]) -> int:
    (x, u), (y, v) = (
        [each.column(at).fill_null(np.nan).to_numpy() for at in range(2)]
        for each in (new, pa.Table.from_batches(stored).combine_chunks().to_batches()[0])
    )
    with np.errstate(invalid="ignore"):  # NaN stands for null here
        return int(((x[:, None] < y) & (u[:, None] > v)).sum())


def _tuples(rows: pa.RecordBatch | pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def kept_bytes() -> int:
    gc.collect()
    return process_memory().budget.usage()["probe"]


@pytest.mark.parametrize("chunk", [100, 1 << 16])
def test_added_rows_are_found_and_merged(chunk: int) -> None:
    before = kept_bytes()
    with (
        patch.object(kept_rows, "CHUNK", chunk),
        MultiwayJoin({"a": A, "b": B}, ON, state=State(memory="16m")) as join,
    ):
        stored = [made(700, 1, B)]
        join.process("b", stored[0]).close()
        for at in range(40):
            new = made(30, 100 + at, A)
            results = join.process("a", new).to_table()
            assert results.num_rows == brute_force(new, stored)
            rows = {(y, v, name) for each in stored for y, v, name in _tuples(each)}
            assert rows.issuperset(_tuples(results.select(["y", "v", "name"])))
            if at == 5:
                assert kept_bytes() > before, "nothing is kept after many reads"
            stored.append(made(50 + at, 200 + at, B))
            join.process("b", stored[-1]).close()
        (kept,) = join._join._stored._kept._kept.values()  # type: ignore[attr-defined]
        levels = [level for level, _ in kept.added]
        assert levels == sorted(levels, reverse=True)
        assert max(levels) >= 2
        assert all(levels.count(level) < kept_rows.TOGETHER for level in levels)
        held = sum(chunk.nbytes for chunk in kept.chunks())
        assert kept.memory.nbytes == held
    del join, kept, results
    assert kept_bytes() == before


def test_rows_beyond_a_quarter_of_the_cap_are_not_kept() -> None:
    before = kept_bytes()
    with MultiwayJoin({"a": A, "b": B}, ON, state=State(memory="8m")) as join:
        stored = [made(20_000, seed, B) for seed in range(4)]
        for each in stored:
            join.process("b", each).close()
        for at in range(3):
            new = made(20, 100 + at, A)
            assert join.process("a", new).count() == brute_force(new, stored)
            assert not join._join._stored._kept._kept  # type: ignore[attr-defined]
            assert kept_bytes() <= before + (1 << 20)


def test_a_write_without_memory_lets_kept_rows_go() -> None:
    with MultiwayJoin({"a": A, "b": B}, ON, state=State(memory="8m")) as join:
        stored = [made(5000, 1, B)]
        join.process("b", stored[0]).close()
        for at in range(3):
            join.process("a", made(20, 100 + at, A)).close()
            new = made(20, 200 + at, A)
            assert join.process("a", new).count() == brute_force(new, stored)
        store, refused = join._store, [True]
        kept = join._join._stored._kept  # type: ignore[attr-defined]
        assert kept._kept
        write_all = store.write_all

        def refuse_once(parts: object) -> int:
            if refused.pop() if refused else False:
                raise MemoryLimitError("no memory")
            return int(write_all(parts))  # type: ignore[arg-type]

        with patch.object(store, "write_all", refuse_once):
            stored.append(made(1000, 2, B))
            join.process("b", stored[1]).close()
        assert not kept._kept
        new = made(20, 300, A)
        assert join.process("a", new).count() == brute_force(new, stored)


def test_rows_that_could_not_be_kept_are_read_from_the_store() -> None:
    def fails(*_: object) -> bool:
        raise MemoryError("no memory")

    with MultiwayJoin({"a": A, "b": B}, ON, state=State(memory="16m")) as join:
        stored = [made(700, 1, B)]
        join.process("b", stored[0]).close()
        kept = join._join._stored._kept  # type: ignore[attr-defined]
        for at in range(8):
            join.process("a", made(30, 100 + at, A)).close()
            assert join.process("a", made(30, 200 + at, A)).count()
        assert kept._kept
        stored.append(made(300, 2, B))
        with patch.object(kept, "_add", fails):
            join.process("b", stored[1]).close()
        assert not kept._kept
        new = made(30, 300, A)
        assert join.process("a", new).count() == brute_force(new, stored)
