"""Random streams and conditions of all classes on Spark: equal to brute force, by every routing,
through restarts, with joins of all types."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.options import ROUTINGS
from lsmstate.spark import Skew, State, multiway_join
from support.spark_streams import BACKEND, FileStream, committed, run_to_end
from support.theta_cases import SCHEMA, batch, every, expected, random_condition, rows
from support.theta_sides import JOINS, Oracle

pytestmark = [
    pytest.mark.spark,
    pytest.mark.stress,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("few_partitions"),
]

DDL = (
    "id BIGINT, i BIGINT, n INT, big BIGINT, d DOUBLE, f FLOAT, m DECIMAL(9,2), s STRING, "
    "t TIMESTAMP_NTZ, e DATE"
)
#: Files of a stream, half of which come before the restart.
FILES = 4


def found_in(out: Path, names: list[str], *, is_changing: bool) -> Counter[tuple[Any, ...]]:
    """The ids of all results, net of what was taken back."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path in committed(out):
        table = pq.read_table(path)
        signs = table.column("op").to_pylist() if is_changing else ["+I"] * table.num_rows
        ids = zip(*(table.column(name).to_pylist() for name in names), strict=True)
        for sign, row in zip(signs, ids, strict=True):
            found[row] += 1 if sign == "+I" else -1
    assert min(found.values(), default=0) >= 0
    return +found


def fits(joined: Any, routing: str | None) -> bool:
    """Whether the routing is one for the join; the default always is."""
    try:
        joined()
    except InvalidArgumentError:
        if routing is None:
            raise
        return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_any_condition_by_every_routing_and_through_a_restart(
    spark: Any, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    streams = ["a", "b", "c", "d"][: rng.choice([2, 2, 2, 3, 4])]
    kind = rng.choice(list(JOINS)) if len(streams) == 2 and rng.random() < 0.5 else "inner"
    condition = every([random_condition(streams, rng) for _ in range(rng.choice([1, 2, 3]))])
    count = {2: 40, 3: 16, 4: 8}[len(streams)]
    tables = {name: rows(rng.randint(FILES, count), rng, rng.choice([2, 6])) for name in streams}
    names = [f"{name}_id" for name in streams]
    wanted = expected(condition, tables)
    if kind != "inner":
        there = [Counter(row["id"] for row in tables[name]) for name in streams]
        wanted = Oracle(kind, condition, tables).joined(*there)
        names = ["id"] if kind in ("semi", "anti") else names
    options: dict[str, Any] = {} if kind == "inner" else {"how": kind, "emit": "changes"}
    is_run = False
    for routing in (None, *ROUTINGS):
        home = tmp_path / str(routing)
        files = {name: FileStream(home / name, DDL).add() for name in streams}
        state = State(backend=BACKEND, memory="8m", buckets=1 if kind == "full" else 3)

        def joined(routing: Any = routing, files: Any = files, state: Any = state) -> Any:
            frames = {name: stream.read(spark) for name, stream in files.items()}
            skew = Skew(routing=routing)
            return multiway_join(frames, condition.sql, skew=skew, state=state, **options)

        if not fits(joined, routing):
            continue
        for half in range(2):
            for name, stream in files.items():
                size = -(-len(tables[name]) // FILES)
                for at in range(half * FILES // 2, (half + 1) * FILES // 2):
                    part = tables[name][at * size : (at + 1) * size]
                    stream.add(pa.Table.from_batches([batch(part)], schema=SCHEMA))
            run_to_end(joined(), home / "checkpoint", home / "out")
        found = found_in(home / "out", names, is_changing=kind != "inner")
        assert found == wanted, (condition.sql, routing, kind)
        is_run = True
    assert is_run
