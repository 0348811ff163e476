"""Random work against a model, longer than what hypothesis shrinks: expiry with snapshots and
kills, and attempts that go back and leave merges half done. A failure names its seed."""

import random
import shutil

import pyarrow as pa
import pytest

from lsmstate import opening as backends
from lsmstate.expiry_rules import Expiry
from lsmstate.lsm import version_set
from lsmstate.options import KIB, MIB, Options
from lsmstate.process.background_worker import worker
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("text", pa.string())])
LIFE = 40
SEEDS = [pytest.param(seed, marks=pytest.mark.stress if seed else ()) for seed in range(24)]


def read(store, stream, chance, *, reverse=False):
    """(key, id) of every row, in order; pieces of some size."""
    found = []
    for keys, rows in store.iterate(
        stream, max_bytes=chance.choice([300, 5000, 1 << 20]), reverse=reverse
    ):
        found += zip(keys.column(0).to_pylist(), rows.column("id").to_pylist(), strict=True)
    return found


def arrow(rows):
    """(rows, keys) of (key, id, time, width)."""
    values = [{"id": i, "at": at, "text": f"{i}" * width} for _, i, at, width in rows]
    keys = [{"k": row[0]} for row in rows]
    return (
        pa.RecordBatch.from_pylist(values, schema=ROWS),
        pa.RecordBatch.from_pylist(keys, schema=KEY),
    )


class Rows:
    """Makes rows that differ, and keeps what lives of them, by stream, in order of arrival."""

    def __init__(self, chance, streams, keys):
        self.chance = chance
        self.keys = keys
        self.next_id = 0
        self.live = {stream: [] for stream in streams}

    def new(self, count, at=lambda: 0):
        width = self.chance.choice([1, 1, 60])
        rows = [
            (self.chance.randrange(self.keys), self.next_id + n, at(), width) for n in range(count)
        ]
        self.next_id += count
        return rows

    def of(self, stream, *, reverse=False):
        ordered = sorted(self.live[stream], key=lambda row: -row[0] if reverse else row[0])
        return [row[:2] for row in ordered]

    def keep(self, stream, wanted):
        self.live[stream] = [row for row in self.live[stream] if wanted(row)]


def write_something(store, rows, stream):
    """An append, a put, a retraction or the deletion of a range."""
    chance, kind = rows.chance, rows.chance.random()
    if kind < 0.5:
        new = rows.new(chance.choice([1, 20, 800]))
        store.append(stream, *arrow(new))
        rows.live[stream] += new
    elif kind < 0.7:
        new = rows.new(chance.choice([1, 30]))
        store.put(stream, *arrow(new))
        replaced = {row[0] for row in new}
        rows.keep(stream, lambda row: row[0] not in replaced)
        rows.live[stream] += new
    elif kind < 0.85:
        low = chance.randrange(rows.keys)
        high = low + chance.randrange(1, rows.keys)
        store.delete_range(stream, low=(low,), high=(high,))
        rows.keep(stream, lambda row: not low <= row[0] < high)
    elif rows.live[stream]:
        taken = chance.sample(rows.live[stream], min(5, len(rows.live[stream])))
        store.retract(stream, *arrow(taken))
        rows.keep(stream, lambda row: row not in taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_attempts_that_go_back_and_leave_merges_half_done(tmp_path, monkeypatch, seed):
    chance = random.Random(seed)
    monkeypatch.setattr(
        version_set, "LEAST_MERGE_BYTES", chance.choice([1 << 12, 1 << 16, 1 << 20])
    )
    options = Options(
        memory_bytes=8 * MIB,
        memtable_bytes=256 * KIB,
        file_bytes=64 * KIB,
        fanout=chance.choice([2, 3]),
        max_runs=chance.choice([2, 4]),
        background=chance.choice([True, False]),
        retained_batches=2,
    )
    streams = [StreamSchema(name, KEY, ROWS) for name in "ab"]
    rows = Rows(chance, "ab", 200)
    history = [(None, rows.live)]
    for attempt in range(12):
        if len(history) > 2 and chance.random() < 0.25:
            history.pop()  # the last commit was not the one that was kept
        pointer, live = history[-1]
        rows.live = {stream: list(each) for stream, each in live.items()}
        with backends.open_attempt(
            str(tmp_path),
            streams,
            pointer=pointer,
            batch_id=len(history),
            attempt_id=f"a{attempt}",
            options=options,
        ) as store:
            for stream in "ab":
                assert read(store, stream, chance) == rows.of(stream), attempt
            for _ in range(chance.randrange(5)):
                write_something(store, rows, chance.choice("ab"))
            with store.snapshot() as before:
                expected = {stream: rows.of(stream, reverse=True) for stream in "ab"}
                write_something(store, rows, chance.choice("ab"))
                for stream in "ab":
                    found = read(before, stream, chance, reverse=True)
                    assert found == expected[stream], attempt
            for stream in "ab":
                assert read(store, stream, chance, reverse=True) == rows.of(stream, reverse=True)
            if chance.random() < 0.8:
                history.append((store.commit(), rows.live))
                store.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_expiry_with_snapshots_and_kills(tmp_path, seed):
    chance = random.Random(seed)
    streams = [
        StreamSchema("timed", KEY, ROWS, expiry=Expiry("at", LIFE)),
        StreamSchema("plain", KEY, ROWS),
    ]
    options = Options(
        memory_bytes=6 * MIB,
        memtable_bytes=256 * KIB,
        file_bytes=64 * KIB,
        fanout=2,
        max_runs=3,
        sync="never",
    )
    rows = Rows(chance, ("timed", "plain"), 60)
    watermark = 0

    def is_live(row):
        _, _, at, _ = row
        return at is None or at + LIFE > watermark

    def expected():
        rows.keep("timed", is_live)
        return {stream: sorted(rows.of(stream)) for stream in rows.live}

    directory = tmp_path / "0"
    store = backends.open_store(str(directory), streams, options=options)
    store.advance("timed", watermark)
    snapshots = []
    for step in range(40):
        kind, stream = chance.random(), chance.choice(("timed", "timed", "plain"))
        base = watermark + chance.choice([-60, 0, 0, 20, 40, 100, 400])
        times = lambda base=base: chance.choice([None, *range(base, base + 30)])  # noqa: E731
        if kind < 0.5:
            new = rows.new(chance.choice([1, 5, 300]), times)
            store.append(stream, *arrow(new))
            rows.live[stream] += new
        elif kind < 0.6:
            new = rows.new(5, times)
            store.put(stream, *arrow(new))
            replaced = {row[0] for row in new}
            rows.keep(stream, lambda row, replaced=replaced: row[0] not in replaced)
            rows.live[stream] += new
        elif kind < 0.68:
            low = chance.randrange(60)
            store.delete_range(stream, low=(low,), high=(low + 20,))
            rows.keep(stream, lambda row, low=low: not low <= row[0] < low + 20)
        elif kind < 0.85:
            watermark += chance.choice([1, 7, 15, 60, 500])
            store.advance("timed", watermark)
        elif kind < 0.92:
            snapshots.append((store.snapshot(), expected()))
        else:
            for snapshot, _ in snapshots:
                snapshot.close()
            snapshots.clear()
            killed, directory = directory, tmp_path / str(step + 1)
            with worker().standing:
                shutil.copytree(killed, directory, ignore=shutil.ignore_patterns("LOCK"))
            store.close()
            store = backends.open_store(str(directory), streams, options=options)
        for stream, wanted in expected().items():
            assert sorted(read(store, stream, chance, reverse=kind < 0.5)) == wanted, step
            keys = pa.RecordBatch.from_pylist([{"k": k} for k in range(60)], schema=KEY)
            counts = store.probe(stream, keys).counts.tolist()
            assert counts == [sum(key == k for key, _ in wanted) for k in range(60)], step
    for snapshot, wanted in snapshots:
        for stream in rows.live:
            assert sorted(read(snapshot, stream, chance)) == wanted[stream]
    store._inner.check()
    store.close()
