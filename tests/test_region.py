"""The columns of a large batch share one mapping: it lives as long as any of them, no longer."""

import gc
import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from cython_ext.errors import CorruptionError
from cython_ext.gather import Gatherer
from cython_ext.row_codec import RowCodec

COUNT = 24_000


def large(seed: int) -> pa.RecordBatch:
    """Every kind of column whose place in a region is known beforehand, and some whose is not."""
    rng = random.Random(seed)
    numbers = [rng.randrange(1 << 40) if rng.random() < 0.9 else None for _ in range(COUNT)]
    texts = [None if n is None else "x" * (n % 9) for n in numbers]
    lists = [None if n is None else [n] * (n % 3) for n in numbers]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(numbers, pa.int64()),
            pa.array(numbers, pa.int64()).cast(pa.decimal128(38, 0)),
            pa.array(texts, pa.string()),
            pa.array(texts, pa.large_binary()),
            pa.array(lists, pa.list_(pa.int64())),
            pa.array(lists, pa.large_list(pa.int64())),
            pa.array([n and n % 2 == 0 for n in numbers], pa.bool_()),
            pa.array([{"n": n} for n in numbers]),
            pa.nulls(COUNT),
        ],
        names=[*"abcdefghi"],
    )


def test_columns_outlive_their_batch_and_the_next_one_overwrites_none() -> None:
    given = [large(seed) for seed in range(3)]
    codec = RowCodec(given[0].schema)
    rows = [codec.encode(batch).to_pylist() for batch in given]
    columns = []
    for number in random.Random(1).choices(range(3), k=6):
        found = codec.decode(rows[number])
        found.validate(full=True)
        place = random.Random(number).randrange(found.num_columns)
        columns.append((number, place, found.column(place).slice(7)))
        assert found.equals(given[number])
        del found
        gc.collect()
    for number, place, column in columns:
        assert column.equals(given[number].column(place).slice(7))


def test_batches_may_be_let_go_by_any_thread() -> None:
    given = large(4)
    codec = RowCodec(given.schema)
    rows = codec.encode(given).to_pylist()

    def decoded(number: int) -> bool:
        kept = codec.decode(rows).column(number % given.num_columns)
        return bool(kept.equals(given.column(number % given.num_columns)))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(decoded, range(12)))


def test_an_error_in_the_middle_of_a_large_batch_leaves_the_codec_usable() -> None:
    given = large(5)
    codec = RowCodec(given.schema)
    rows = codec.encode(given).to_pylist()
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"row {COUNT - 1}"):
            codec.decode([*rows[:-1], rows[-1][:-1]])
        assert codec.decode(rows).equals(given)


def test_large_results_are_gathered_alike() -> None:
    given = large(6)
    sources = Gatherer([given.schema], given.schema).sources([given])
    places = list(range(COUNT - 1, -1, -1))
    found = sources.gather([pa.array(places, pa.int64()).to_numpy()])
    found.validate(full=True)
    assert found.equals(given.take(pa.array(places)))
