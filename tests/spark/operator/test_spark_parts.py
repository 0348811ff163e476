"""The parts of the Spark integration that need no Spark: buckets, frames, pinned settings."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.joins.protocols import Role

pytest.importorskip("pyspark")

from lsmstate.spark_integration.checkpoint.json_records import create_record
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    FILE_NAME,
    adopt_or_pin,
    file_name,
    newest_settings,
    with_pins,
)
from lsmstate.spark_integration.plan.bucket_ids import bucket_ids, spark_hash_long
from lsmstate.spark_integration.plan.stateful_plan import Wanted
from lsmstate.spark_integration.stateful_operator.frames import (
    FRAME_BYTES,
    FramePacker,
    FrameSpool,
    Source,
    cut,
    joined,
)
from support.examples import examples

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@given(buckets=st.integers(1, 40), partitions=st.integers(1, 16))
def test_bucket_ids_spread_evenly_over_the_partitions(buckets: int, partitions: int) -> None:
    ids = bucket_ids(buckets, partitions)
    assert len(set(ids)) == buckets
    places = [spark_hash_long(i) % partitions for i in ids]
    assert places == [bucket % partitions for bucket in range(buckets)]
    others = bucket_ids(buckets + 1, partitions, taken=ids)
    assert not set(others) & set(ids)
    assert [spark_hash_long(i) % partitions for i in others] == [
        bucket % partitions for bucket in range(buckets + 1)
    ]


def test_the_hash_is_sparks() -> None:
    # SELECT hash(0L), hash(1L), hash(-5L), hash(123456789012L) on Spark 4.3
    assert [spark_hash_long(v) for v in SPARK_HASHES] == list(SPARK_HASHES.values())


SPARK_HASHES = {0: -1670924195, 1: -1712319331, -5: 424949597, 123456789012: -1439831649}


def _flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def _ids(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return _flat(batch.column(0).to_pylist() for batch in batches)


def _rows(ids: list[int], width: int = 10) -> pa.RecordBatch:
    texts = [str(i % 10) * width for i in ids]
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(texts)], schema=SCHEMA)


def _pack(
    batches: list[pa.RecordBatch], buckets: list[list[int]], partition: int = 0
) -> pd.DataFrame:
    packer = FramePacker(0, partition)
    found = []
    for batch, numbers in zip(batches, buckets, strict=True):
        found += list(packer.add(batch, np.array(numbers, np.int64)))
    found += list(packer.finish())
    assert found, "nothing was packed"
    return pa.Table.from_batches(found).to_pandas()


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data(), memory_bytes=st.sampled_from([0, 3000, 1 << 20]))
def test_frames_keep_every_row_and_one_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, memory_bytes: int
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    batches, buckets, start = [], [], 0
    for size in sizes:
        batches.append(_rows(list(range(start, start + size)), width=100))
        buckets.append(data.draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size)))
        start += size
    expected = [i for i, b in enumerate(_flat(buckets)) if b == 1]
    if all(b < 0 for b in _flat(buckets)):
        return
    frames = _pack(batches, buckets)
    frames = frames[frames.bucket == 1]
    shuffled = frames.iloc[data.draw(st.permutations(range(len(frames))))]
    spool = FrameSpool(str(tmp_path_factory.getbasetemp()), memory_bytes)
    for i in range(len(shuffled)):
        spool.add(shuffled.iloc[i : i + 1])
    assert _ids(batch for _, batch in spool.in_order([SCHEMA])) == expected
    spool.close()
    spool.close()


def test_frames_spill_past_their_bound_and_leave_no_file(tmp_path: Path) -> None:
    frames = _pack([_rows(list(range(5000)), width=200)], [[0] * 5000])
    spool = FrameSpool(str(tmp_path), 64 * 1024)
    spool.add(frames)
    assert spool.spilled_bytes > 5000 * 200
    assert _ids(batch for _, batch in spool.in_order([SCHEMA])) == list(range(5000))
    assert os.listdir(str(tmp_path)) == []
    spool.close()


def test_small_batches_share_a_frame_and_a_huge_row_travels_alone() -> None:
    small = [_rows([i]) for i in range(200)]
    assert len(_pack(small, [[0]] * 200)) == 1
    big = pa.concat_batches([_rows([1, 2]), _rows([3], width=3 * FRAME_BYTES), _rows([4])])
    frames = _pack([big], [[0] * 4])
    assert frames.rows.sum() == 4
    assert len(frames) >= 2
    assert sorted(frames.payload.map(len))[-2] < FRAME_BYTES


def test_many_buckets_do_not_hold_many_rows_back() -> None:
    packer = FramePacker(0, 0)
    handed = 0
    for i in range(40):
        batch = _rows(list(range(1000 * i, 1000 * i + 1000)), width=1000)
        for frames in packer.add(batch, np.arange(1000, dtype=np.int64)):
            handed += sum(frames.column("rows").to_pylist())
    assert handed > 25_000


def test_joined_batches_keep_rows_order_and_streams() -> None:
    stored, copied, other = Source(0, Role.STORE), Source(0, Role.COPY), Source(1, Role.STORE)
    sources = [stored, stored, stored, other, other, copied, stored]
    frames = [(s, _rows([10 * i, 10 * i + 1], width=40)) for i, s in enumerate(sources)]
    size = frames[0][1].nbytes
    found = list(joined(frames, size + 1))
    assert [(s, _ids([batch])) for s, batch in found] == [
        (stored, [0, 1, 10, 11]),
        (stored, [20, 21]),
        (other, [30, 31, 40, 41]),
        (copied, [50, 51]),
        (stored, [60, 61]),
    ]
    assert list(joined(iter(frames), 1)) == frames
    assert list(joined([], 1)) == []


def test_cut_bounds_bytes_and_keeps_the_order() -> None:
    pieces = list(cut(_rows(list(range(1000)), width=100), 5000))
    assert all(piece.nbytes <= 5000 for piece in pieces)
    assert _ids(pieces) == list(range(1000))


WANTED = Wanted(
    settings={"streams": ["a", "b"], "condition": "a.x = b.y", "backend": "lsm"},
    buckets=None,
    default_buckets=4,
    state_dir=None,
)


def test_the_first_start_pins_and_later_starts_adopt(tmp_path: Path) -> None:
    root = str(tmp_path / "state")
    first = adopt_or_pin(root, WANTED, 2, "q")
    assert (first.buckets, first.partitions, len(first.bucket_ids)) == (4, 2, 4)
    again = adopt_or_pin(root, replace(WANTED, default_buckets=9), 7, "q")
    assert again == first
    assert Wanted.from_json(WANTED.to_json()) == WANTED
    assert os.listdir(root) == [FILE_NAME]


def test_a_query_that_has_run_before_pins_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="has run before, but its state is not in"):
        adopt_or_pin(str(tmp_path), WANTED, 2, "q", is_new=False)
    assert os.listdir(tmp_path) == []
    first = adopt_or_pin(str(tmp_path), WANTED, 2, "q")
    assert adopt_or_pin(str(tmp_path), WANTED, 2, "q", is_new=False) == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"condition": "a.x = b.z"}, ["condition", "a.x = b.y", "a.x = b.z"]),
        ({"streams": ["b", "a"]}, ["streams", "(a, b)", "(b, a)"]),
        ({"backend": "memory"}, ["backend", "lsm", "memory"]),
    ],
)
def test_another_setting_is_refused_with_both_values(
    tmp_path: Path, change: dict[str, object], words: list[str]
) -> None:
    adopt_or_pin(str(tmp_path), WANTED, 2, "q")
    with pytest.raises(InvalidArgumentError) as refusal:
        adopt_or_pin(str(tmp_path), replace(WANTED, settings=WANTED.settings | change), 2, "q")
    for word in [*words, "new checkpoint location"]:
        assert word in str(refusal.value)


def test_conditions_of_a_checkpoint_that_pinned_none_are_not_compared(tmp_path: Path) -> None:
    adopt_or_pin(str(tmp_path), WANTED, 2, "q")
    more = replace(WANTED, settings=WANTED.settings | {"other conditions": ["a.x < 1"]})
    assert adopt_or_pin(str(tmp_path), more, 2, "q").buckets == 4


@pytest.mark.parametrize("pins", [{"backend": "x"}, {"buckets": "4"}, {"v": 1}])
def test_pins_are_text_and_no_settings_of_the_join(pins: dict[str, str]) -> None:
    (name,) = pins
    with pytest.raises(InvalidArgumentError, match=rf"pins\['{name}'\]"):
        with_pins(WANTED.settings, pins)


def test_another_bucket_count_or_query_is_refused(tmp_path: Path) -> None:
    adopt_or_pin(str(tmp_path), WANTED, 2, "q")
    with pytest.raises(InvalidArgumentError, match=r"buckets = 4.*buckets = 8"):
        adopt_or_pin(str(tmp_path), replace(WANTED, buckets=8), 2, "q")
    with pytest.raises(InvalidArgumentError, match="belongs to query q, this is query r"):
        adopt_or_pin(str(tmp_path), WANTED, 2, "r")


def test_the_newest_version_of_the_settings_counts(tmp_path: Path) -> None:
    root = str(tmp_path)
    first = adopt_or_pin(root, WANTED, 2, "q")
    _, settings = newest_settings(root)
    assert settings is not None
    ids = bucket_ids(3, 2, taken=first.bucket_ids)
    rescaled = {"first batch": 7, "pointers": {str(ids[0]): "a pointer"}}
    content = settings | {"buckets": 3, "bucket_ids": list(ids), "rescaled": rescaled}
    assert create_record(os.path.join(root, file_name(2)), content)
    assert not create_record(os.path.join(root, file_name(2)), settings), "written over"
    found = adopt_or_pin(root, WANTED, 2, "q")
    assert (found.buckets, found.bucket_ids, found.version) == (3, ids, 2)
    assert (found.first_batch, found.pointers) == (7, {ids[0]: "a pointer"})
    assert sorted(os.listdir(root)) == sorted([FILE_NAME, file_name(2)])
    with pytest.raises(InvalidArgumentError, match=r"buckets = 3.*buckets = 4"):
        adopt_or_pin(root, replace(WANTED, buckets=4), 2, "q")


def test_damaged_and_newer_settings_are_told_apart(tmp_path: Path) -> None:
    adopt_or_pin(str(tmp_path), WANTED, 2, "q")
    path = os.path.join(str(tmp_path), FILE_NAME)
    with open(path) as file:
        whole = file.read()
    for damaged in (whole.replace("a.x", "a.y"), whole[:-20], "", "[]"):
        with open(path, "w") as file:
            file.write(damaged)
        with pytest.raises(CorruptionError, match=r"query\.json"):
            adopt_or_pin(str(tmp_path), WANTED, 2, "q")
    with open(path, "w") as file:
        json.dump(json.loads(whole) | {"format_version": 2}, file)
    with pytest.raises(FormatVersionError, match="version 2"):
        adopt_or_pin(str(tmp_path), WANTED, 2, "q")


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = os.path.join(str(tmp_path), "file")
    with open(path, "w") as file:
        file.write("x")
    with pytest.raises(InvalidArgumentError, match="cannot be written to"):
        adopt_or_pin(os.path.join(path, "state"), WANTED, 2, "q")
