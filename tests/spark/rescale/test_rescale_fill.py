"""Buckets of joins that forget and of changelogs, filled anew without Spark: the joins go on."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.kinds import local_join
from lsmstate.joins.local.changes.one_key_join import ChangeJoin
from lsmstate.joins.local.timed.event_time_join import LATE_ROWS
from lsmstate.joins.protocols import Batch, Context, LocalJoin
from lsmstate.joins.routing.hash import bucket_of
from lsmstate.joins.routing.shares import JoinGraph, Shares, choose
from lsmstate.joins.specs.changes import ChangeSpec
from lsmstate.joins.specs.event_time import EventTime, TimedSpec, time_bounds
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.joins.specs.typed_condition import typed_condition
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.spark_integration.joins.late_rows import LateRows
from lsmstate.spark_integration.plan.bucket import Bucket, InputBatch
from lsmstate.spark_integration.plan.stateful_plan import InputPlan
from lsmstate.spark_integration.rescale.fill import Contents, fill, misplaced
from lsmstate.spark_integration.rescale.places import GridPlaces, HashPlaces
from lsmstate.state_location import StatePlace, bucket_directory_name
from lsmstate.store import MultimapStore, StreamSchema

START = datetime(2026, 1, 1, tzinfo=UTC)
KEY = pa.schema([("k", pa.int64())])
OPTIONS = Options(memory_bytes=8 << 20)


def opened(
    root: Path, bucket: int, streams: Sequence[StreamSchema], pointer: str | None, batch: int
) -> MultimapStore:
    directory = root / bucket_directory_name(bucket)
    directory.mkdir(exist_ok=True)
    return open_attempt(
        str(directory),
        streams,
        pointer=pointer,
        batch_id=batch,
        attempt_id=f"test{batch}",
        options=OPTIONS,
    )


def part(rows: pa.RecordBatch, bucket: int, buckets: int) -> pa.RecordBatch:
    """The rows of a bucket, by their column k."""
    mine = bucket_of(KeyCodec(KEY).encode(rows.select(["k"])), buckets) == bucket
    return rows.filter(pa.array(mine))


def rescaled(
    root: Path, pointers: dict[int, str], buckets: int, grid: GridPlaces | None = None
) -> dict[int, str]:
    """The pointers of as many new buckets, whose ids begin at 100."""
    plan = {
        "batch": 7,
        "buckets": buckets,
        "bucket_ids": list(range(100, 100 + buckets)),
        "original buckets": list(pointers),
        "original": {str(bucket): pointer for bucket, pointer in pointers.items()},
    }
    place = StatePlace(str(root))
    contents = Contents.of(place, pointers)
    places = grid or HashPlaces(len(pointers), buckets)
    records = [fill(place, plan, contents, n, places, OPTIONS) for n in range(buckets)]
    assert misplaced(records, places) is None
    return {100 + number: record["pointer"] for number, record in enumerate(records)}


def timed_rows(name: str, rows: list[tuple[int, float, int]]) -> pa.RecordBatch:
    """(key, minute, number) of each row."""
    keys, minutes, numbers = zip(*rows, strict=True)
    times = pa.array([START + timedelta(minutes=m) for m in minutes], pa.timestamp("us", "UTC"))
    return pa.record_batch({"k": keys, "at": times, f"n{name}": numbers})


def test_rows_that_are_not_due_move_and_the_watermark_with_them(tmp_path: Path) -> None:
    schemas = {name: timed_rows(name, [(0, 0, 0)]).schema for name in "ab"}
    spec = JoinSpec.create(schemas, {"a": ["k"], "b": ["k"]})
    bounds, _ = time_bounds(schemas, ["b.at BETWEEN a.at AND a.at + INTERVAL 10 MINUTES"])
    timing = EventTime.create(spec, {"a": "at", "b": "at"}, bounds, {}, "drop")
    streams = timing.store_streams(spec)
    rows = timed_rows("a", [(k, minute, k * 100 + minute) for k in range(40) for minute in (1, 9)])
    pointers = {}
    for bucket, minute in enumerate((5, 12)):  # called for the last time at these
        with closing(opened(tmp_path, bucket, streams, None, 0)) as store:
            join = local_join(TimedSpec(spec, timing), store, Context())
            list(join.process(Batch("a", part(rows, bucket, 2))))
            join.advance(int((START + timedelta(minutes=minute)).timestamp() * 1_000_000))
            pointers[bucket] = store.commit()
    assert [s for s in Contents.of(StatePlace(str(tmp_path)), pointers).streams if s.expiry] == [
        s for s in streams if s.expiry
    ]
    found: Counter[tuple[int, int]] = Counter()
    late = 0
    new = rescaled(tmp_path, pointers, 3)
    asked = timed_rows("b", [(k, minute, k) for k in range(40) for minute in (10, 15)])
    for number, (bucket, pointer) in enumerate(new.items()):
        with closing(opened(tmp_path, bucket, streams, pointer, 8)) as store:
            join = local_join(TimedSpec(spec, timing), store, Context())
            for result in join.process(Batch("b", part(asked, number, 3))):
                found.update(zip(result["na"].to_pylist(), result["nb"].to_pylist(), strict=True))
            late += join.counts[LATE_ROWS]
    # Of minute 1 all are due by the latest watermark, 12, by which also b's of 10 are late.
    assert found == Counter((k * 100 + 9, k) for k in range(40))
    assert late == 40


def test_indexes_of_a_join_by_several_keys_move_with_their_time(tmp_path: Path) -> None:
    schemas = {
        name: pa.schema([*timed_rows(name, [(0, 0, 0)]).schema, ("j", pa.int64())])
        for name in "abc"
    }
    spec = GraphSpec.create(schemas, "a.k = b.k AND b.j = c.j")
    near = ["b.at BETWEEN a.at AND a.at + INTERVAL 9 MINUTES", "c.at BETWEEN b.at AND b.at"]
    bounds, _ = time_bounds(schemas, near)
    timing = EventTime.create(spec, dict.fromkeys("abc", "at"), bounds, {}, "drop")
    streams = timing.store_streams(spec)
    graph = JoinGraph(
        rows=dict.fromkeys("abc", 1), classes={c.name: tuple(c.columns) for c in spec.classes}
    )
    names = list(graph.classes)
    old = choose(graph, 6, {names[0]: 2, names[1]: 2})
    new = choose(graph, 6, {names[0]: 3, names[1]: 2})
    columns = tuple(c.columns for c in spec.classes)
    places = GridPlaces(old, new, columns)

    def rows(name: str, minute: int) -> pa.RecordBatch:
        found = timed_rows(name, [(k % 9, minute, k) for k in range(27)])
        return found.append_column("j", pa.array([k % 5 for k in range(27)]))

    def arrive(
        shares: Shares, number: int, join: LocalJoin, name: str, minute: int
    ) -> Counter[tuple[int, ...]]:
        batch = rows(name, minute)
        mine = (places.cells(shares, name, batch) == number).any(axis=1)
        found: Counter[tuple[int, ...]] = Counter()
        for result in join.process(Batch(name, batch.filter(pa.array(mine)))):
            numbers = (result[column].to_pylist() for column in ("na", "nb", "nc"))
            found.update(zip(*numbers, strict=True))
        return found

    pointers = {}
    for bucket in range(old.cells):
        with closing(opened(tmp_path, bucket, streams, None, 0)) as store:
            join = local_join(TimedSpec(spec, timing), store, Context())
            for name, minute in (("a", 1), ("a", 5), ("b", 12)):
                assert not arrive(old, bucket, join, name, minute)
            join.advance(int((START + timedelta(minutes=11)).timestamp() * 1_000_000))
            pointers[bucket] = store.commit()
    found: Counter[tuple[int, ...]] = Counter()
    for number, (bucket, pointer) in enumerate(rescaled(tmp_path, pointers, 6, places).items()):
        with closing(opened(tmp_path, bucket, streams, pointer, 8)) as store:
            found += arrive(
                new, number, local_join(TimedSpec(spec, timing), store, Context()), "c", 12
            )
    # Rows of a of minute 1 are due by 11; each other combination is found in one bucket.
    every = product(range(27), repeat=3)
    assert found == Counter((a, b, c) for a, b, c in every if a % 9 == b % 9 and b % 5 == c % 5)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 5), (5, 3)])
def test_late_rows_move_once_wherever_they_lie(tmp_path: Path, before: int, after: int) -> None:
    rows = timed_rows("a", [(k, 1, k) for k in range(20)])
    source = InputPlan("a", rows.schema, KEY, (0,), pa.schema([]), ())
    spec = JoinSpec.create({"a": rows.schema, "b": rows.schema}, {"a": ["k"], "b": ["k"]})
    bounds, _ = time_bounds(spec.streams, ["b.at BETWEEN a.at AND a.at + INTERVAL 9 MINUTES"])
    timing = EventTime.create(spec, {"a": "at", "b": "at"}, bounds, {}, "side")
    late = LateRows.of([source], timing, None)
    streams = [*timing.store_streams(spec), *late.streams.values()]
    pointers = {}
    for number in range(before):
        with closing(opened(tmp_path, number, streams, None, 0)) as store:
            mine = rows.slice(number, 2)
            batch = InputBatch("a", mine, mine.select(["k"]))
            late.keep(Bucket(number, number + 3, rows.schema), store, batch, mine, 7)
            pointers[number] = store.commit()
    found: Counter[tuple[int, int]] = Counter()
    for bucket, pointer in rescaled(tmp_path, pointers, after).items():
        with closing(opened(tmp_path, bucket, streams, pointer, 8)) as store:
            for piece in store.scan("a (late)"):
                found.update(zip(*(piece[n].to_pylist() for n in ("na", "_batch")), strict=True))
    assert found == Counter((n + k, n + 3) for n in range(before) for k in (0, 1))


def test_a_lane_that_nothing_is_kept_of_moves_too(tmp_path: Path) -> None:
    schemas = {name: timed_rows(name, [(0, 0, 0)]).schema for name in "ab"}
    spec = JoinSpec.create(schemas, {"a": ["k"], "b": ["k"]})
    bounds, _ = time_bounds(schemas, ["b.at BETWEEN a.at AND a.at + INTERVAL 10 MINUTES"])
    streams = EventTime.create(spec, {"a": "at", "b": "at"}, bounds, {}, "drop").store_streams(spec)
    with closing(opened(tmp_path, 0, streams, None, 0)) as store:
        rows = timed_rows("a", [(k, 1, k) for k in range(20)])
        store.append("a", rows, rows.select(["k"]))
        pointer = store.commit()
    new = rescaled(tmp_path, {0: pointer}, 2)
    total = 0
    for bucket, moved in new.items():
        with closing(opened(tmp_path, bucket, streams, moved, 8)) as store:
            total += sum(piece.num_rows for piece in store.scan("a"))
            assert list(store.scan("b")) == []
    assert total == 20


def change(rows: list[tuple[str, int | None, str]]) -> pa.RecordBatch:
    operations, keys, texts = zip(*rows, strict=True)
    return pa.record_batch({"op": operations, "k": pa.array(keys, pa.int64()), "text": texts})


@pytest.mark.parametrize("buckets", [1, 5])
def test_what_changelogs_took_back_does_not_come_again(tmp_path: Path, buckets: int) -> None:
    schemas = {name: pa.schema([("k", pa.int64()), ("text", pa.string())]) for name in "ab"}
    on = typed_condition({n: s.names for n, s in schemas.items()}, ["k"], "left")
    keys = JoinSpec.create(schemas, {"a": ["k"], "b": ["k"]})
    spec = ChangeSpec.of(keys, on.tree, "changes", {"b": "op"})
    streams = spec.stream_schemas
    lefts = pa.record_batch({"k": range(30), "text": [f"a{k}" for k in range(30)]})
    comes = change([("+I", k % 30, f"b{k}") for k in range(90)])
    goes = change([("-D", k % 30, f"b{k}") for k in range(60)])
    pointers = {}
    for bucket in range(3):
        with closing(opened(tmp_path, bucket, streams, None, 0)) as store:
            join = ChangeJoin(spec, store, unmatched="error")
            for stream, rows in (("a", lefts), ("b", comes), ("b", goes)):
                list(join.process(Batch(stream, part(rows, bucket, 3))))
            pointers[bucket] = store.commit()
    said: Counter[tuple[Any, ...]] = Counter()
    for number, (bucket, pointer) in enumerate(rescaled(tmp_path, pointers, buckets).items()):
        with closing(opened(tmp_path, bucket, streams, pointer, 8)) as store:
            join = ChangeJoin(spec, store, unmatched="error")
            rest = change([("-D", k % 30, f"b{k}") for k in range(60, 90)])
            for result in join.process(Batch("b", part(rest, number, buckets))):
                said.update(tuple(row.values()) for row in result.to_pylist())
    gone = {("-D", k, f"a{k}", k, f"b{k + 60}") for k in range(30)}
    assert said == Counter([*gone, *(("+I", k, f"a{k}", None, None) for k in range(30))])
