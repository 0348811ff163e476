"""Zones of the ranges that a join looks up: what the store may leave out is in no result."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.local.theta import dense_ranges, kept_rows, slabs, zones
from lsmstate.joins.local.theta.limits import plain
from lsmstate.joins.specs import theta
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.store import RangeMatches
from lsmstate.store_base.reads import StoreReads
from support.examples import examples
from support.theta_cases import ranges_condition
from support.theta_runs import check_one

FLOATS = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.5, 2.0, 7.0]


def holds(least: object, value: object, most: object) -> bool:
    """Whether a zone holds a value, of whatever limits are not None."""
    if value is None:
        return False
    ends = [value if each is None else each for each in (least, value, most)]
    low, held, high = ((each != each, 0 if each != each else each) for each in ends)
    return low <= held <= high


@contextmanager
def leaves_out_all_it_may() -> Iterator[list[int]]:
    """Stores that leave out each row that no range wants; how many they left out."""
    found, left_out = StoreReads.probe_ranges, [0]

    def probe(
        store: StoreReads, stream: str, bounds: Any, *args: int, **more: bool
    ) -> Iterator[RangeMatches]:
        wanted = {
            name: [None if each is None else each.to_pylist() for each in ends]
            for name, ends in bounds.zones.items()
        }
        for rows, ranges, first, stop, keys in found(store, stream, bounds, *args, **more):
            is_wanted = np.zeros(rows.num_rows, np.bool_)
            values = {name: rows.column(name).to_pylist() for name in wanted}
            for at, begin, end in zip(ranges, first, stop, strict=True):
                for row in range(begin, end):
                    is_wanted[row] |= all(
                        (low is None or low[at] is not None)
                        and (high is None or high[at] is not None)
                        and holds(low and low[at], values[name][row], high and high[at])
                        for name, (low, high) in wanted.items()
                    )
            left_out[0] += int((~is_wanted).sum())
            before = np.concatenate([[0], np.cumsum(is_wanted)])
            first, stop = before[first], before[stop]
            some = first < stop
            if some.any():
                kept = rows.filter(pa.array(is_wanted))
                yield RangeMatches(kept, ranges[some], first[some], stop[some], keys)

    with patch.object(StoreReads, "probe_ranges", probe):
        yield left_out


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_no_result_needs_what_may_be_left_out(seed: int) -> None:
    rng = random.Random(seed)
    with (
        TemporaryDirectory() as path,
        leaves_out_all_it_may(),
        patch.object(kept_rows, "READ_PART", 1e9),
        patch.object(slabs, "WORTH", rng.choice([0, slabs.WORTH])),
        patch.object(dense_ranges, "LEAST", 1),
        patch.object(dense_ranges, "OVERLAP", rng.choice([0, dense_ranges.OVERLAP])),
    ):
        check_one(seed, path, ranges_condition)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int32(), pa.int64(), pa.float16(), pa.float32()], ids=str
)
def test_limits_of_a_narrower_column_are_not_narrower(kind: pa.DataType) -> None:
    if pa.types.is_floating(kind):
        limits = pa.array([1e300, -1e300, 0.1, float("nan"), float("inf"), 1 / 3, 0.0])
    else:
        limits = pa.array([1 << 62, -(1 << 62), 5, -128, 127])
    low, high = (zones._as_stored(limits, kind, is_high=is_high) for is_high in (False, True))
    assert low.type == high.type == kind
    for least, limit, most in zip(*(plain(each) for each in (low, limits, high)), strict=True):
        fits = pa.types.is_floating(kind) or abs(limit) <= np.iinfo(kind.to_pandas_dtype()).max
        assert holds(least, limit, most) or not fits


ROWS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("x", pa.float64()), ("u", pa.float64())])
TWO = "a.x < b.x AND a.u > b.u"
KEYED = f"a.k = b.k AND {TWO}"


def made(count: int, seed: int, *, is_dependent: bool) -> pa.RecordBatch:
    """Rows with nulls, NaN and both zeros among the values of ``u``."""
    rng = np.random.default_rng(seed)
    x = rng.random(count) * 1000
    u = 0.3 * x + rng.normal(0, 0.2, count) if is_dependent else rng.random(count) * 990 + 10
    special = rng.random(count)
    u = np.where(special < 0.001, np.nan, np.where(special < 0.002, -0.0, u))
    u = np.where((special >= 0.002) & (special < 0.003), 0.0, u)
    x = np.where(rng.random(count) < 0.001, np.nan, x)
    columns = [np.arange(count) + seed * 1_000_000, rng.integers(0, 3, count), x]
    nulls = rng.random(count) < 0.01
    return pa.record_batch([*columns, pa.array(u, mask=nulls)], schema=ROWS)


def spared(join: MultiwayJoin) -> int:
    return int(join._store.stats().probes.blocks_spared)


def check_results(join: MultiwayJoin, on: str, stored: pa.Table, new: pa.RecordBatch) -> int:
    """Compare the results of new rows with DuckDB's, and return their number."""
    found = join.process("a", new).to_table().select(["a_id", "b_id"])
    with duckdb.connect() as db:
        db.register("a", pa.table(new))
        db.register("b", stored)
        expected = db.execute(f"SELECT a.id, b.id FROM a JOIN b ON {on}").fetchall()
    assert Counter(zip(*found.to_pydict().values(), strict=True)) == Counter(expected)
    return len(expected)


def opened(on: str, path: str) -> MultiwayJoin:
    return MultiwayJoin({"a": ROWS, "b": ROWS}, on, state=State(state_dir=path, memory="5m"))


@pytest.mark.parametrize("on", [TWO, KEYED])
@pytest.mark.parametrize("is_dependent", [True, False])
def test_stored_rows_beyond_memory(on: str, is_dependent: bool, tmp_path: Path) -> None:
    stored: list[pa.RecordBatch] = []
    found = blocks = 0
    for round_ in range(2):
        with opened(on, str(tmp_path)) as join:
            for part in range(3):
                batch = made(20_000, 10 * round_ + part, is_dependent=is_dependent)
                stored.append(batch)
                join.process("b", batch).close()
            join.commit()
            for size in (1, 4, 17):
                new = made(size, 100 + 10 * round_ + size, is_dependent=is_dependent)
                found += check_results(join, on, pa.Table.from_batches(stored), new)
                assert not join._join._stored._kept._kept  # type: ignore[attr-defined]
            blocks += spared(join)
    assert found > 100
    assert not is_dependent or blocks > 100, "zones spare blocks of dependent columns"


def test_a_state_without_zones_goes_on_with_them(tmp_path: Path) -> None:
    stored = [made(20_000, seed, is_dependent=True) for seed in range(3)]
    with patch.object(theta, "_zones", lambda *_: ()), opened(TWO, str(tmp_path)) as join:
        assert not any(stream.zones for stream in join._store.streams.values())
        join.process("b", stored[0]).close()
        join.commit()
    with opened(TWO, str(tmp_path)) as join:
        zoned = {name: stream.zones for name, stream in join._store.streams.items()}
        assert zoned["b by b.u to b.x (double)"] == ("x",)
        check_results(join, TWO, pa.table(stored[0]), made(8, 50, is_dependent=True))
        join.process("b", stored[1]).close()
        join.commit()
        before = spared(join)
        both = pa.Table.from_batches(stored[:2])
        assert check_results(join, TWO, both, made(8, 51, is_dependent=True))
        assert spared(join) > before


def test_how_a_zone_is_told() -> None:
    spec = ThetaSpec.create({"a": ROWS, "b": ROWS}, "a.x < b.x AND a.u < b.u AND a.k + b.k > 3")
    told = "\n".join(spec.explained())
    assert "a.x < b.x: range in b, range in a" in told
    assert "a.u < b.u: zone in b, checked on candidates, zone in a" in told
    assert {zone for schema in spec.stream_schemas for zone in schema.zones} == {"u", "k"}


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.uint16()], ids=str)
def test_a_zone_of_a_column_narrower_than_the_comparison(kind: pa.DataType) -> None:
    rows = [pa.schema([("x", pa.int64()), ("u", of)]) for of in (pa.float64(), kind)]
    on = "b.x BETWEEN a.x AND a.x + 9 AND a.u < b.u"
    streams = dict(zip("ab", rows, strict=True))
    with MultiwayJoin(streams, on, state=State(backend="memory")) as join:
        stored = [pa.array(range(9)), pa.array(range(9)).cast(kind)]
        join.process("b", pa.record_batch(stored, schema=rows[1])).close()
        given = join.process("a", pa.record_batch([[3, 3], [6.9999, 1e9]], schema=rows[0]))
        assert sorted(given.to_table()["b_u"].to_pylist()) == [7, 8]
