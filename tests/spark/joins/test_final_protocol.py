"""emit="final" in the calls of a bucket, without Spark: repeated, broken off, on a full disk."""

import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lsmstate.joins.specs.final import FinalSpec
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.typed_condition import typed_condition
from lsmstate.spark_integration.joins.late_rows import LateRows
from lsmstate.spark_integration.joins.run_join import run_join
from support.faults import Faults, faults
from support.timed_protocol_cases import INTERVAL, MINUTE_MS, ROWS, Query, Row, plan_of

ON = f"a FULL JOIN b ON a.k = b.k AND {INTERVAL}"


def final_query(root: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    tree = typed_condition({name: rows.names for name, rows in ROWS.items()}, ON).tree
    assert tree is not None
    times = {"a": "at", "b": "at"}
    spec = FinalSpec.of(GraphSpec.create(ROWS, "a.k = b.k"), tree, times, {}, "drop")
    plan = plan_of(spec.stream_schemas, spec.output_schema)
    late = LateRows.of(plan.inputs, spec.event_time, None)
    return Query(root, monkeypatch, plan, run_join(spec, plan.inputs, late=late))


def full_join(rows: list[Row]) -> Counter[tuple[int | None, int | None]]:
    a, b = ([row[1:] for row in rows if row[0] == name] for name in "ab")
    pairs = [(m, n) for k, s, m in a for j, t, n in b if k == j and -10 <= t - s <= 5]
    alone = [(m, None) for _, _, m in a if m not in {m for m, _ in pairs}]
    alone_too = [(None, n) for _, _, n in b if n not in {n for _, n in pairs}]
    return Counter([*pairs, *alone, *alone_too])


def test_calls_that_fail_or_are_repeated_leave_each_result_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    query = final_query(tmp_path, monkeypatch)
    kept: Any = None
    arrived: list[Row] = []
    shown: Counter[tuple[int, int]] = Counter()
    watermark_ms, failures = 0, 0
    for batch in range(16):
        rows: list[Row] = []
        if batch % 4 != 3 and batch < 15:  # else a batch without data
            for _ in range(12):
                at = 60 + batch * 4 + rng.randrange(4)
                rows.append((rng.choice("ab"), rng.randrange(30), at, len(arrived) + len(rows)))
        full = Faults(
            rng.randrange(3), tear=rng.choice([None, 0.5]), operations=("create", "append")
        )
        with faults(full), suppress(OSError):
            query.attempt(batch, rows, kept, watermark_ms)
        failures += full.failed
        query.broken_off(batch, rows, kept, watermark_ms)
        attempts = [query.attempt(batch, rows, kept, watermark_ms) for _ in range(2)]
        assert attempts[0][0] == attempts[1][0]
        found, _ = rng.choice(attempts)  # Spark shows one, and keeps the pointer of either
        kept = rng.choice(attempts)[1].getOption
        shown += Counter((row["na"], row["nb"]) for row in found)
        arrived += rows
        latest = max((at for _, _, at, _ in arrived), default=0)
        watermark_ms = (latest + 100 * (batch == 14)) * MINUTE_MS
    assert shown == full_join(arrived)
    assert sum(None in pair for pair in shown) > 5
    assert failures > 8
