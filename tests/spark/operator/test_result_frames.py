"""Frames of results give the results that went in, whichever way they travel."""

from collections.abc import Collection
from decimal import Decimal
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.multi_key import GraphSpec, KeyClass
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.opening import open_store
from lsmstate.options import Options
from lsmstate.schema.arrow_sizes import row_sizes
from support.arrow_cases import batches
from support.examples import examples

pytest.importorskip("pyspark", reason="lsmstate works without PySpark; these are frames for it")

from pyspark.sql import types as T

from lsmstate.spark_integration.columns.decimals import Unscaling, unscaled
from lsmstate.spark_integration.stateful_operator import result_frames
from lsmstate.spark_integration.stateful_operator.result_frames import (
    RESULT_BYTES,
    ResultPacker,
    ResultUnpacker,
)
from lsmstate.spark_integration.stateful_operator.result_products import (
    ProductUnpacker,
    RowArrays,
)


def plan_of(sides: list[pa.RecordBatch]) -> Any:
    """What packer and unpacker know of a join of these streams."""
    fields = [
        field.with_name(f"{number}_{field.name}")
        for number, side in enumerate(sides)
        for field in side.schema
    ]
    return SimpleNamespace(parts=tuple(s.schema for s in sides), output=pa.schema(fields))


def picked_of(sides: list[pa.RecordBatch], at: list[np.ndarray]) -> Picked:
    widths = [row_sizes(side)[place] for side, place in zip(sides, at, strict=True)]
    return Picked(sides, at, np.add.reduce(widths))


def expected(plan: Any, sides: list[pa.RecordBatch], at: list[np.ndarray]) -> pa.Table:
    columns = [
        column.take(pa.array(place))
        for side, place in zip(sides, at, strict=True)
        for column in side.columns
    ]
    return pa.Table.from_arrays(columns, schema=plan.output)


def travelled(plan: Any, found: Any, integers: Collection[int] = ()) -> tuple[pa.Table, list[bool]]:
    """What comes out of unpack, and which frames held rows and places."""
    frames = list(ResultPacker(plan).frames([found]))
    unpacker = ResultUnpacker(plan, integers)
    pieces = [p for f in frames for p in unpacker.results(f.rows, pa.py_buffer(f.payload))]
    is_picked = [frame.payload.startswith(b"picked") for frame in frames]
    return pa.Table.from_batches(pieces, Unscaling(plan.output, integers).schema), is_picked


def multiplied(plan: Any, found: Any) -> list[pa.RecordBatch]:
    """The results of the products that come out of unpack, and how Spark would make them."""
    output = T.StructType([T.StructField(field.name, T.NullType()) for field in plan.output])
    unpacker = ProductUnpacker(plan, RowArrays.of(plan, output))
    results = []
    for frame in ResultPacker(plan).frames([found]):
        for batch in unpacker.products(frame.rows, pa.py_buffer(frame.payload)):
            batch.validate(full=True)
            assert batch.num_rows <= 1 or batch.nbytes <= 2 * RESULT_BYTES
            for number in range(batch.num_rows):
                sides = [column[number].values for column in batch.columns]
                chosen = list(product(*(range(len(side)) for side in sides)))
                columns = [
                    column.take(pa.array([places[number] for places in chosen], pa.int64()))
                    for number, side in enumerate(sides)
                    for column in side.flatten()
                ]
                results.append(pa.RecordBatch.from_arrays(columns, schema=plan.output))
    return results


# Spark has neither dictionaries nor views, and frames carry none.
PLAIN = batches(maps=True, columns=(1, 4), most=6).filter(
    lambda batch: not any(word in str(batch.schema) for word in ("dictionary", "view"))
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(PLAIN, min_size=1, max_size=3),
    st.integers(0, 40),
    st.integers(0, 99),
    st.sampled_from([-(1 << 40), 1 << 40]),
)
def test_results_of_any_types_come_out_as_they_went_in(sides, count, seed, least_saved):
    rng = np.random.default_rng(seed)
    count = count if all(side.num_rows for side in sides) else 0
    at = [rng.integers(0, max(1, side.num_rows), count) for side in sides]
    plan = plan_of(sides)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(result_frames, "_LEAST_SAVED_BYTES", least_saved)
        found, is_picked = travelled(plan, picked_of(sides, at))
    assert is_picked == ([True] if least_saved < 0 else [False] * len(is_picked))
    assert found.schema == plan.output
    wanted = expected(plan, sides, at)
    codec = RowCodec(plan.output)  # NaN is none, and dates go beyond Python's
    encoded = [
        [row for batch in table.to_batches() for row in codec.encode(batch).to_pylist()]
        for table in (found, wanted)
    ]
    assert encoded[0] == encoded[1]
    found.validate(full=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(result_frames, "_LEAST_SAVED_BYTES", least_saved)
        products = multiplied(plan, picked_of(sides, at))
    rows = [row for batch in products for row in codec.encode(batch).to_pylist()]
    assert sorted(rows) == sorted(encoded[1])


def test_rows_that_are_in_many_results_travel_once():
    left = pa.record_batch({"k": list(range(300)), "text": ["x" * 1000] * 300})
    right = pa.record_batch({"n": list(range(100, 400))})
    at = [np.repeat(np.arange(50, 70), 500), np.tile(np.arange(10, 210), 50)]
    plan = plan_of([left, right])
    frames = list(ResultPacker(plan).frames([picked_of([left, right], at)]))
    assert [frame.rows for frame in frames] == [10_000]
    assert len(frames[0].payload) < 20 * 1100 + 200 * 16 + 10_000 * 8 + 4096
    found, is_picked = travelled(plan, picked_of([left, right], at))
    assert is_picked == [True]
    assert found == expected(plan, [left, right], at)


def test_rows_that_are_in_one_result_travel_as_results():
    left = pa.record_batch({"k": list(range(20_000)), "text": ["x" * 100] * 20_000})
    right = pa.record_batch({"n": list(range(20_000))})
    at = [np.arange(20_000), np.arange(20_000)[::-1].copy()]
    plan = plan_of([left, right])
    found, is_picked = travelled(plan, picked_of([left, right], at))
    assert is_picked == [False] * 3
    assert found == expected(plan, [left, right], at)


def test_what_unpack_gives_is_bounded_however_wide_a_row_is():
    left = pa.record_batch({"text": ["x" * 600_000, "y"]})
    right = pa.record_batch({"n": [1, 2]})
    at = [np.repeat([0, 1], 40), np.tile([0, 1], 40)]
    plan = plan_of([left, right])
    (frame,) = ResultPacker(plan).frames([picked_of([left, right], at)])
    assert len(frame.payload) < 700_000
    pieces = list(ResultUnpacker(plan).results(frame.rows, pa.py_buffer(frame.payload)))
    assert max(piece.nbytes for piece in pieces) <= RESULT_BYTES
    assert sum(piece.num_rows for piece in pieces) == 80


def test_a_row_crosses_to_spark_once_per_product():
    left = pa.record_batch({"k": list(range(300)), "text": ["x" * 1000] * 300})
    right = pa.record_batch({"n": list(range(100, 400))})
    at = [np.repeat(np.arange(50, 70), 500), np.tile(np.arange(10, 210), 50)]
    plan = plan_of([left, right])
    batches = multiplied(plan, picked_of([left, right], at))
    rows = [row for batch in batches for row in batch.to_pylist()]
    wanted = expected(plan, [left, right], at).to_pylist()
    assert sorted(rows, key=str) == sorted(wanted, key=str)
    assert len(batches) < 100


def test_small_results_travel_together():
    sides = [pa.record_batch({"n": [1, 2, 3]}), pa.record_batch({"text": ["a" * 100]})]
    plan = plan_of(sides)
    one = picked_of(sides, [np.array([0, 1, 2]), np.zeros(3, np.int64)])
    frames = list(ResultPacker(plan).frames([one] * 5000))
    assert len(frames) == 2
    assert sum(frame.rows for frame in frames) == 15_000


@pytest.mark.parametrize("times", [1, 5000], ids=["results", "rows and places"])
def test_a_frame_that_holds_other_rows_than_it_says_is_refused(times):
    sides = [pa.record_batch({"n": [1, 2, 3]}), pa.record_batch({"text": ["a" * 100]})]
    at = [np.tile([0, 1, 2], times), np.zeros(3 * times, np.int64)]
    plan = plan_of(sides)
    (frame,) = ResultPacker(plan).frames([picked_of(sides, at)])
    assert frame.payload.startswith(b"picked") == (times > 1)
    with pytest.raises(CorruptionError, match=f"frame of {frame.rows + 1} rows holds {frame.rows}"):
        list(ResultUnpacker(plan).results(frame.rows + 1, pa.py_buffer(frame.payload)))


ROWS = {
    "a": pa.schema([("k", pa.int64()), ("x", pa.string())]),
    "b": pa.schema([("k", pa.int64())]),
}


def store_of(spec: JoinSpec | GraphSpec, directory: Path) -> Any:
    return open_store(str(directory), spec.stream_schemas, backend="memory", options=Options())


def same_results(plan: Any, making: Any, picking: Any, name: str, batch: pa.RecordBatch) -> int:
    """How many there are of the batch, made here or from frames of picks."""
    made = pa.Table.from_batches(making.process(Batch(name, batch)), plan.output)
    found = [travelled(plan, picked)[0] for picked in picking.process(Batch(name, batch)).picks()]
    table = pa.concat_tables([plan.output.empty_table(), *found])
    assert sorted(table.to_pylist(), key=str) == sorted(made.to_pylist(), key=str)
    return int(made.num_rows)


@pytest.mark.parametrize("is_hot", [False, True])
def test_picks_are_the_results_that_process_gives(is_hot, tmp_path):
    spec = JoinSpec(ROWS, {name: ["k"] for name in ROWS})
    rng = np.random.default_rng(7)
    arrivals = []
    for number in range(6):
        keys = pa.array(np.zeros(150, np.int64) if is_hot else rng.integers(0, 50, 150))
        texts = pa.array([f"{number}-{place}" for place in range(150)])
        name = "ab"[number % 2]
        columns = [keys, texts] if name == "a" else [keys]
        arrivals.append((name, pa.RecordBatch.from_arrays(columns, schema=ROWS[name])))
    plan = SimpleNamespace(parts=tuple(ROWS.values()), output=spec.output_schema)
    with store_of(spec, tmp_path / "1") as one, store_of(spec, tmp_path / "2") as other:
        making, picking = UMJoin(spec, one, 4096), UMJoin(spec, other, 4096)
        rows = [same_results(plan, making, picking, *arrival) for arrival in arrivals]
    assert rows[-1] > 400


def test_picks_by_several_keys_are_the_results_that_process_gives(tmp_path):
    streams = {
        "a": pa.schema([("k", pa.int64()), ("x", pa.string())]),
        "b": pa.schema([("k", pa.int64()), ("j", pa.int64())]),
        "c": pa.schema([("j", pa.int64())]),
    }
    classes = (
        KeyClass({"a": "k", "b": "k"}, pa.int64(), {"a": "k", "b": "k"}),
        KeyClass({"b": "j", "c": "j"}, pa.int64(), {"b": "j", "c": "j"}),
    )
    spec = GraphSpec(streams, classes, {name: len(rows) for name, rows in streams.items()})
    plan = SimpleNamespace(parts=tuple(spec.shown_rows.values()), output=spec.output_schema)
    rng = np.random.default_rng(7)
    with store_of(spec, tmp_path / "1") as one, store_of(spec, tmp_path / "2") as other:
        making, picking = GraphJoin(spec, one, 4096), GraphJoin(spec, other, 4096)
        for number in range(9):
            name = "abc"[number % 3]
            columns = [
                pa.array(rng.integers(0, 20, 120)).cast(field.type) for field in streams[name]
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=streams[name])
            rows = same_results(plan, making, picking, name, batch)
    assert rows > 3000


def test_picks_are_refused_while_results_of_the_call_before_are_not_consumed(tmp_path):
    spec = JoinSpec(ROWS, {name: ["k"] for name in ROWS})
    with store_of(spec, tmp_path) as store:
        join = UMJoin(spec, store)
        batch = pa.record_batch({"k": [1]})
        join.process(Batch("b", batch)).picks()
        with pytest.raises(InvalidArgumentError, match=r"process\('b'\).*not consumed"):
            join.process(Batch("b", batch))


def small_decimals(length: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Decimals of two precisions around a column of another type; one is null."""
    cents = [
        None if n % 10 == 0 else Decimal(int(n)) / 100 for n in rng.integers(-999, 999, length)
    ]
    units = [Decimal(int(n)) for n in rng.integers(-(10**18) + 1, 10**18, length)]
    columns = {
        "cents": pa.array(cents, pa.decimal128(5, 2)),
        "text": pa.array([str(n) for n in range(length)]),
        "units": pa.array(units, pa.decimal128(18, 0)),
    }
    return pa.record_batch(columns)


@pytest.mark.parametrize("times", [1, 400])
def test_small_decimals_come_out_unscaled_whichever_way_they_travel(times):
    rng = np.random.default_rng(7)
    sides = [small_decimals(20, rng), small_decimals(30, rng).slice(3)]
    at = [np.tile(np.arange(20), times), np.tile(np.arange(20) + 5, times)]
    plan = plan_of(sides)
    got, is_picked = travelled(plan, picked_of(sides, at), [0, 2, 5])
    assert is_picked[0] == (times > 1)
    wanted = expected(plan, sides, at)
    for place, scale in [(0, 100), (2, 1), (5, 1)]:
        values = [v if v is None else int(v * scale) for v in wanted.column(place).to_pylist()]
        assert got.column(place).to_pylist() == values
    for place in (1, 3, 4):
        assert got.column(place).equals(wanted.column(place))


@given(
    st.lists(st.none() | st.decimals("-9999999999999999.99", "9999999999999999.99", places=2)),
    st.integers(0, 3),
)
def test_small_decimals_become_their_unscaled_values(values, skipped):
    found = unscaled(pa.array(values, pa.decimal128(18, 2)).slice(skipped), "price")
    found.validate(full=True)
    assert found.to_pylist() == [v if v is None else int(v * 100) for v in values[skipped:]]


def test_a_decimal_with_more_digits_than_its_type_is_refused_but_not_below_a_null():
    long = pa.py_buffer((1 << 70).to_bytes(16, "little") + (7).to_bytes(16, "little"))
    small = pa.decimal128(18, 2)
    with pytest.raises(InvalidArgumentError, match=r"'price' .* more digits .*18, 2"):
        unscaled(pa.Array.from_buffers(small, 2, [None, long]), "price")
    second_only = pa.py_buffer(b"\x02")
    below_null = pa.Array.from_buffers(small, 2, [second_only, long])
    assert unscaled(below_null, "price").to_pylist() == [None, 7]
