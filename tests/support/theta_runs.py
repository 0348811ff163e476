"""Runs of joins by any condition: random cuts, orders and restarts, beside brute force."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from lsmstate.join import MultiwayJoin
from lsmstate.joins.options import State
from support.theta_cases import (
    SCHEMA,
    Condition,
    batch,
    every,
    expected,
    random_condition,
    rows,
)


def found_ids(join: MultiwayJoin, results: object, streams: list[str]) -> Counter[tuple[int, ...]]:
    names = [f"{name}_id" for name in streams]
    found: Counter[tuple[int, ...]] = Counter()
    for piece in results:  # type: ignore[attr-defined]
        columns = (piece.column(name).to_pylist() for name in names)
        found.update(zip(*columns, strict=True))
    return found


def check_one(
    seed: int,
    path: str,
    one_condition: Callable[[Sequence[str], random.Random], Condition] = random_condition,
) -> None:
    rng = random.Random(seed)
    streams = ["a", "b", "c", "d"][: rng.choice([2, 2, 2, 3, 3, 4])]
    count = {2: 30, 3: 12, 4: 6}[len(streams)]
    tables = {name: rows(rng.randint(1, count), rng, rng.choice([2, 6, 20])) for name in streams}
    condition = every([one_condition(streams, rng) for _ in range(rng.choice([1, 2, 3]))])
    schemas = dict.fromkeys(streams, SCHEMA)
    backend = rng.choice(["lsm", "memory"])
    state = State(backend=backend, state_dir=path if backend == "lsm" else None)
    piece_bytes = rng.choice([1 << 20, 3000, 1])
    join = MultiwayJoin(schemas, condition.sql, piece_bytes=piece_bytes, state=state)
    found: Counter[tuple[int, ...]] = Counter()
    waiting = {name: list(of) for name, of in tables.items()}
    try:
        while waiting:
            name = rng.choice(sorted(waiting))
            size = rng.choice([1, 3, 50])
            part, waiting[name] = waiting[name][:size], waiting[name][size:]
            if not waiting[name]:
                del waiting[name]
            found += found_ids(join, join.process(name, batch(part)), streams)
            if backend == "lsm" and rng.random() < 0.2:
                join.commit()
                join.close()
                join = MultiwayJoin(schemas, condition.sql, piece_bytes=piece_bytes, state=state)
    finally:
        join.close()
    assert found == expected(condition, tables), condition.sql
