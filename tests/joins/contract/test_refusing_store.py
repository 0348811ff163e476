"""A batch that the store refuses at any of its calls changes nothing: it may be given again."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import MemoryLimitError
from lsmstate.join import State, similarity_join
from support.kind_cases import CASES, LAST, parts_of

WRITES = ("append", "put", "retract", "delete", "delete_range", "write", "write_all")


class Refusing:
    """Refuses the n-th write of a store from now on."""

    def __init__(self, store: Any) -> None:
        self.left = 0
        for name in WRITES:
            setattr(store, name, self._refusing(getattr(store, name)))

    def _refusing(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def refusing(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise MemoryLimitError("the test wants it so")
            return write(*args, **kwargs)

        return refusing


def store_of(join: Any) -> Any:
    """Where a join of any face keeps its rows."""
    return join._store if hasattr(join, "_store") else join._join.store


@pytest.mark.parametrize("backend", [pytest.param("lsm", marks=pytest.mark.stress), "memory"])
@pytest.mark.parametrize("name", CASES)
def test_a_batch_that_the_store_refuses_may_be_given_again(
    name: str, backend: str, tmp_path: Path
) -> None:
    case, rng = CASES[name], random.Random(3)
    tables = case.rows(60, 3)
    path = None if backend == "memory" else str(tmp_path)
    join = case.opened(backend, path)
    refusing = Refusing(store_of(join))
    found = Counter[tuple[Any, ...]]()
    refused = 0

    def count(results: Any) -> None:
        refusing.left = 0
        for row, number in case.found(results).items():
            found[row] += number

    for stream, rows in parts_of(tables, rng):
        call = 0
        while True:
            call += 1
            refusing.left = call
            try:
                results = join.process(stream, rows)
            except MemoryLimitError:
                refused += 1
                continue
            count(results)
            break
        if path is not None and rng.random() < 0.4:
            join.commit()
            join.close()
            join = case.opened(backend, path)
            refusing = Refusing(store_of(join))
    if getattr(join, "event_time", None):
        count(join.advance(LAST))
    join.close()
    assert refused
    assert {row: number for row, number in found.items() if number} == case.expected(tables)


@pytest.mark.parametrize("algorithm", ["pivots", "s3j"])
def test_a_refused_batch_leaves_no_trace_in_an_index(algorithm: str, tmp_path: Path) -> None:
    """What was learned of it is learned again, and lies in the store; no copy of its rows does."""
    rng = np.random.default_rng(5)
    points = np.repeat(rng.uniform(0, 9, (60, 4)), 20, axis=0) + rng.normal(0, 0.1, (1200, 4))
    points = points[rng.permutation(len(points))]
    schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float64()))])
    found = []
    for first in (0, 600):
        join = similarity_join(
            {"a": schema}, "a.v ~ b.v", metric="l2", threshold=0.4, algorithm=algorithm,
            state=State(backend="memory", state_dir=str(tmp_path)),
        )  # fmt: skip
        refusing = Refusing(join.store)
        rows = [{"id": at, "v": points[at].tolist()} for at in range(first, first + 600)]
        for call in range(1, 9):
            refusing.left = call
            try:
                results = join.process("a", rows)
            except MemoryLimitError:
                continue
            refusing.left = 0
            found += [(row["a_id"], row["b_id"]) for row in results.rows()]
            break
        join.commit()
        join.close()
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    wanted = {(int(i), int(j)) for i, j in np.argwhere(apart <= 0.4) if i < j}
    assert len(found) == len(wanted) > 1000
    assert {(min(pair), max(pair)) for pair in found} == wanted
