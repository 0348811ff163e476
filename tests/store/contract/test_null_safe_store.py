"""Keys compared null-safely: a null is a value of a key like any other, on every backend."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lsmstate import (
    InvalidArgumentError,
    KeyBounds,
    KeyGroups,
    Mutation,
    Options,
    RangeBounds,
    StreamSchema,
)
from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.opening import open_attempt
from lsmstate.store_base.null_safe import NullSafeStore, null_safe_streams

KEY = pa.schema([("user", pa.int64()), ("day", pa.string())])
ROWS = pa.schema([("n", pa.int64())])
STREAMS = (StreamSchema("s", KEY, ROWS),)
#: In key order: a null comes first.
KEYS = ((None, None), (None, "x"), (1, None), (1, "x"), (2, "y"))


def keys_of(*values: tuple[int | None, str | None]) -> pa.RecordBatch:
    columns = zip(*values, strict=True)
    return pa.record_batch(
        [pa.array(c, t) for c, t in zip(columns, KEY.types, strict=True)], schema=KEY
    )


def rows_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=ROWS)


@pytest.fixture(params=["lsm", "rocksdb", "memory"])
def store(request, tmp_path: Path):
    below = open_attempt(
        str(tmp_path),
        null_safe_streams(STREAMS),
        backend=request.param,
        batch_id=0,
        attempt_id="a",
        options=Options(),
    )
    with NullSafeStore(STREAMS, below) as store:
        yield store


def contents(store) -> list[tuple[int | None, str | None, int]]:
    return [
        (*key.values(), row["n"])
        for entries in store.iterate("s")
        for key, row in zip(entries.keys.to_pylist(), entries.rows.to_pylist(), strict=True)
    ]


def test_rows_under_null_keys_are_kept_and_found(store) -> None:
    assert store.append("s", rows_of(4, 3, 2, 1, 0), keys_of(*reversed(KEYS))) == 5
    assert store.streams["s"] == STREAMS[0]
    assert contents(store) == [(*key, n) for n, key in enumerate(KEYS)]
    assert store.get("s", (None, "x")).to_pylist() == [{"n": 1}]
    assert store.contains("s", (None, None))
    assert not store.contains("s", (3, None))
    found = store.get_many("s", keys_of((3, None), (1, None), (None, None)))
    assert (found.positions.tolist(), found.rows["n"].to_pylist()) == ([1, 2], [2, 0])
    assert store.exists("s", keys_of(*KEYS)).all()
    assert sum(piece.num_rows for piece in store.scan("s")) == 5


def test_ranges_begin_and_end_at_nulls(store) -> None:
    store.append("s", rows_of(*range(5)), keys_of(*KEYS))

    def numbers(**bounds: object) -> list[int]:
        return [n for e in store.iterate("s", **bounds) for n in e.rows["n"].to_pylist()]

    assert numbers(prefix=(None,)) == [0, 1]
    assert numbers(low=(1,), high=(2,)) == [2, 3]
    assert numbers(low=(None, "x"), high=(1, "x"), reverse=True) == [2, 1]
    store.delete_range("s", prefix=(None,))
    assert contents(store) == [(1, None, 2), (1, "x", 3), (2, "y", 4)]
    for bad in ("x", (1, "x", 2), (1.5,)):
        with pytest.raises(InvalidArgumentError):
            numbers(prefix=bad)


def test_every_write_takes_null_keys(store) -> None:
    none, one = keys_of(KEYS[0]), keys_of(KEYS[2])
    assert store.put("s", rows_of(1), none) == store.put("s", rows_of(2), none) == 1
    assert contents(store) == [(None, None, 2)]
    assert store.retract("s", rows_of(2), none) == 1
    changes = [Mutation("append", "s", none, rows_of(5)), Mutation("append", "s", one, rows_of(6))]
    assert store.write([*changes, Mutation("delete", "s", none)]) == 2
    bounds = KeyBounds(prefix=(None,))
    changes = [changes[0], Mutation("delete_range", "s", bounds)]
    assert store.write(changes) == 1
    assert contents(store) == [(1, None, 6)]
    with store.snapshot() as before:
        store.delete("s", one)
        assert before.get("s", KEYS[2]).to_pylist() == [{"n": 6}]
        assert before.streams["s"].key == KEY
    assert contents(store) == []


def test_a_commit_keeps_them(tmp_path: Path) -> None:
    pointer = None
    for number in range(2):
        below = open_attempt(
            str(tmp_path),
            null_safe_streams(STREAMS),
            pointer=pointer,
            batch_id=number,
            attempt_id=f"a{number}",
            options=Options(),
        )
        with NullSafeStore(STREAMS, below) as store:
            assert len(contents(store)) == 5 * number
            store.append("s", rows_of(*range(5)), keys_of(*KEYS))
            pointer = store.commit()


def test_keys_of_other_types_are_refused(store) -> None:
    other = pa.record_batch({"user": [1], "day": [2]})
    with pytest.raises(InvalidArgumentError, match=r"column 'day': expected .*string.* int64"):
        store.append("s", rows_of(1), other)
    encoded = KeyCodec(KEY).encode(keys_of(KEYS[0]))
    with pytest.raises(InvalidArgumentError, match="takes them as a record batch"):
        store.probe("s", encoded)
    with pytest.raises(InvalidArgumentError, match="no stream 't'"):
        store.get("t", KEYS[0])


def test_groups_are_what_the_store_finds_under_one_key() -> None:
    keys = pa.record_batch(
        {
            "a": pa.array([2.0, None, -0.0, 0.0, None, float("nan"), 2.0, float("nan")]),
            "b": pa.array(["x", None, "y", "y", None, "n", "z", "n"]),
        }
    )
    groups = KeyGroups.of(keys)
    assert keys["a"].take(pa.array(groups.first)).to_pylist()[:3] == [None, -0.0, 2.0]
    assert groups.first.tolist() == [1, 2, 0, 6, 5]
    assert groups.numbers.tolist() == [2, 0, 1, 1, 0, 4, 3, 4]
    nothing = KeyGroups.of(keys.slice(0, 0))
    assert len(nothing.first) == len(nothing.numbers) == 0
    many = pa.record_batch({"k": pa.array(np.arange(5000) % 7)})
    assert KeyGroups.of(many).first.tolist() == list(range(7))


def test_ranges_know_nulls_as_equal_values_but_not_as_bounds(store) -> None:
    store.append("s", rows_of(0, 1, 2, 3, 4), keys_of(*KEYS))

    def counts(**bounds) -> list[int]:
        return store.count_ranges("s", RangeBounds(**bounds)).tolist()

    users = {"user": [None, 1, 2]}
    assert counts(equal=users) == [2, 2, 1]
    assert counts(equal=users, low=["", "", ""]) == [1, 1, 1]  # SQL: null is not >= ""
    assert counts(equal=users, high=["x", "x", "x"]) == [1, 1, 0]
    assert counts(equal=users, high=["x", None, "y"], includes_high=False) == [0, 0, 0]
    assert counts(low=[1, None], high=[2, 2]) == [3, 0]
    assert counts(high=[1]) == [2]
    bounds = RangeBounds(users, low=["a", "a", None])
    (piece,) = store.probe_ranges("s", bounds, with_keys=True)
    assert piece.ranges.tolist() == [0, 1]
    assert piece.keys.to_pylist() == [{"user": None, "day": "x"}, {"user": 1, "day": "x"}]
    assert piece.rows.to_pylist() == [{"n": 1}, {"n": 3}]
    (piece,) = store.probe_ranges("s", bounds)
    assert piece.keys is None
    with pytest.raises(InvalidArgumentError, match="bounds of stream 's' are encoded"):
        store.count_ranges("s", EncodedRanges(0, None, None))
