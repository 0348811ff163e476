"""The contract of ``lsmstate/store.py`` as tests. Every backend subclasses StateStoreTests and
runs the state machine of ``store_machine.py``."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cython_ext.key_codec import KeyCodec
from lsmstate.backends import open_attempt, open_store
from lsmstate.documents import SCHEMA_FREE, decode_documents, encode_documents
from lsmstate.errors import (
    InvalidArgumentError,
    LsmStateError,
    MemoryLimitError,
    StoreClosedError,
    StoreLockedError,
)
from lsmstate.options import MIB, Options
from lsmstate.store import Mutation, StreamSchema

KEY = pa.schema([("k0", pa.int64()), ("k1", pa.string())])
CUSTOMERS = StreamSchema("customers", KEY, pa.schema([("id", pa.int64()), ("name", pa.string())]))
RETURNS = StreamSchema(
    "returns",
    KEY,
    pa.schema([("id", pa.int64()), ("price", pa.decimal128(7, 2)), ("day", pa.date32())]),
)
STREAMS = (CUSTOMERS, RETURNS)


def keys_of(*keys):
    """Each key an int (k1 follows from it), a pair, or None."""
    pairs = [
        (None, "x") if k is None else k if isinstance(k, tuple) else (k, f"s{k % 3}") for k in keys
    ]
    return pa.RecordBatch.from_pylist([{"k0": a, "k1": b} for a, b in pairs], schema=KEY)


def customers(*ids, name="n"):
    rows = [{"id": i, "name": None if i % 7 == 6 else f"{name}{i}"} for i in ids]
    return pa.RecordBatch.from_pylist(rows, schema=CUSTOMERS.rows)


def returns(*ids):
    rows = [{"id": i, "price": None, "day": None} for i in ids]
    return pa.RecordBatch.from_pylist(rows, schema=RETURNS.rows)


def fetched(probe, positions, max_bytes=1 << 20):
    """position -> rows, after checking what every piece must keep."""
    found = {}
    last = -1
    for piece in probe.fetch(np.asarray(positions, dtype=np.int64), max_bytes):
        assert piece.rows.num_rows > 0
        assert len(piece.positions) == piece.rows.num_rows
        assert last <= piece.positions[0]
        assert bool(np.all(np.diff(piece.positions) >= 0))
        last = piece.positions[-1]
        for position, row in zip(piece.positions.tolist(), piece.rows.to_pylist(), strict=True):
            found.setdefault(position, []).append(row)
    return found


def scanned(store, stream, max_bytes=1 << 20):
    return [row for piece in store.scan(stream, max_bytes) for row in piece.to_pylist()]


def iterated(store, stream, **wanted):
    """(key, row) of each row, after checking that every piece has rows and as many keys."""
    found = []
    for piece in store.iterate(stream, **wanted):
        assert piece.rows.num_rows == piece.keys.num_rows > 0
        assert piece.rows.schema == store.streams[stream].rows
        assert piece.keys.schema == store.streams[stream].key
        keys = [tuple(key.values()) for key in piece.keys.to_pylist()]
        found += zip(keys, piece.rows.to_pylist(), strict=True)
    return found


def ids(rows):
    return [row["id"] for row in rows]


class StateStoreTests:
    """Subclasses name their ``backend``."""

    backend = ""
    memory_bytes = 8 * MIB

    def attempt(self, directory, pointer=None, batch_id=1, attempt_id="a0", streams=STREAMS):
        return open_attempt(
            str(directory),
            streams,
            backend=self.backend,
            pointer=pointer,
            batch_id=batch_id,
            attempt_id=attempt_id,
            options=Options(memory_bytes=self.memory_bytes),
        )

    def owned(self, directory, streams=STREAMS):
        options = Options(memory_bytes=self.memory_bytes)
        return open_store(str(directory), streams, backend=self.backend, options=options)

    @pytest.fixture
    def store(self, tmp_path):
        store = self.attempt(tmp_path)
        yield store
        store.close()

    def test_streams_come_in_their_order(self, store):
        assert list(store.streams) == ["customers", "returns"]
        assert store.streams["returns"] == RETURNS

    def test_a_probe_finds_what_was_appended_in_arrival_order(self, store):
        assert store.append("customers", customers(1, 2, 3, 4), keys_of(10, 20, 10, 30)) == 4
        assert store.append("customers", customers(5, 6), keys_of(10, 20)) == 2
        probe = store.probe("customers", keys_of(20, 99, 10))
        assert probe.counts.tolist() == [2, 0, 3]
        assert probe.row_bytes[1] == 0
        assert probe.row_bytes[0] > 0
        found = fetched(probe, [0, 2])
        assert ids(found[0]) == [2, 6]
        assert ids(found[2]) == [1, 3, 5]
        assert found[0][1] == {"id": 6, "name": None}

    def test_rows_keep_their_types(self, store):
        rows = pa.RecordBatch.from_pylist(
            [{"id": None, "price": None, "day": None}], schema=RETURNS.rows
        )
        store.append("returns", rows, keys_of(1))
        (piece,) = store.probe("returns", keys_of(1)).fetch(np.array([0]), 1 << 20)
        assert piece.rows.schema == RETURNS.rows
        assert piece.rows.equals(rows)
        (piece,) = store.scan("returns")
        assert piece.equals(rows)

    def test_keys_may_be_encoded_already(self, store):
        encoded = KeyCodec(KEY).encode(keys_of(1, None, 2, 1))
        assert store.append("customers", customers(1, 2, 3, 4), encoded) == 3
        # One batch of keys serves several streams.
        assert store.probe("returns", encoded).counts.tolist() == [0, 0, 0, 0]
        probe = store.probe("customers", encoded)
        assert probe.counts.tolist() == [2, 0, 1, 2]
        assert ids(fetched(probe, [0])[0]) == [1, 4]

    def test_rows_whose_key_holds_a_null_are_not_stored(self, store):
        keys = keys_of((1, None), None, (None, None), 5)
        assert store.append("customers", customers(1, 2, 3, 4), keys) == 1
        assert store.probe("customers", keys).counts.tolist() == [0, 0, 0, 1]
        assert ids(scanned(store, "customers")) == [4]
        assert store.append("customers", customers(1), keys_of(None)) == 0

    def test_a_key_asked_for_twice_is_found_twice(self, store):
        store.append("customers", customers(1, 2), keys_of(7, 7))
        probe = store.probe("customers", keys_of(7, 8, 7))
        assert probe.counts.tolist() == [2, 0, 2]
        found = fetched(probe, [0, 2])
        assert ids(found[0]) == ids(found[2]) == [1, 2]

    def test_only_the_positions_asked_for_are_looked_up(self, store):
        store.append("customers", customers(1, 2, 3), keys_of(1, 2, 3))
        probe = store.probe("customers", keys_of(1, 2, 3), np.array([0, 2]))
        assert probe.counts.tolist() == [1, 0, 1]
        assert set(fetched(probe, [2])) == {2}
        none = store.probe("customers", keys_of(1, 2, 3), np.array([], dtype=np.int64))
        assert none.counts.tolist() == [0, 0, 0]
        assert fetched(none, []) == {}

    def test_documents_without_a_schema(self, tmp_path):
        logs = StreamSchema("logs", KEY, SCHEMA_FREE)
        documents = [
            {"user": 1, "tags": ["a", None, 1.5], "place": {"x": -(2**63), "y": True}},
            {},
            {"text": "é\0" * 40, "bytes": b"\xff\x00", "user": "1"},
        ]
        store = self.attempt(tmp_path, streams=[logs, CUSTOMERS])
        store.append("logs", encode_documents(documents), keys_of(1, 1, 2))
        store.append("logs", encode_documents([{"a": 1}]).slice(1), keys_of())
        for bad in (
            b"",
            b"\x01",
            b"\x81\xa1a",
            b"\x81\x01\x02",
            b"\x80\x80",
            b"\x81\xa1a\xc7\x00\x05",
        ):
            rows = pa.record_batch([pa.array([b"\x80", bad])], schema=SCHEMA_FREE)
            with pytest.raises(InvalidArgumentError, match="document 1 is no msgpack document"):
                store.append("logs", rows, keys_of(1, 2))
        null = pa.record_batch([pa.array([None], pa.binary())], schema=SCHEMA_FREE)
        with pytest.raises(InvalidArgumentError, match="null"):
            store.append("logs", null, keys_of(1))
        pointer = store.commit()
        store.close()
        store = self.attempt(tmp_path, pointer, 2, streams=[logs, CUSTOMERS])
        probe = store.probe("logs", keys_of(2, 1, 9))
        assert probe.counts.tolist() == [1, 2, 0]
        found = [
            d
            for piece in probe.fetch(np.array([0, 1]), 1 << 20)
            for d in decode_documents(piece.rows)
        ]
        assert found == [documents[2], documents[0], documents[1]]
        (piece,) = store.scan("logs")
        assert piece.schema.equals(SCHEMA_FREE, check_metadata=True)
        assert decode_documents(piece) == documents
        store.close()

    def test_stats_count_what_was_asked(self, store):
        store.append("customers", customers(1, 2, 3), keys_of(1, 2, None))
        store.append("returns", _return(7), keys_of(1))
        store.probe("customers", keys_of(1, 5))
        stats = store.stats()
        assert stats.writes.appended_rows == 3
        assert stats.probes.keys == 2
        assert stats.memory_limit_bytes == self.memory_bytes
        assert 0 < stats.memory_bytes <= stats.memory_limit_bytes

    def test_streams_are_apart(self, store):
        store.append("customers", customers(1), keys_of(1))
        assert store.probe("returns", keys_of(1)).counts.tolist() == [0]
        assert scanned(store, "returns") == []

    def test_empty_batches(self, store):
        assert store.append("customers", customers(), keys_of()) == 0
        assert store.probe("customers", keys_of()).counts.tolist() == []
        assert scanned(store, "customers") == []
        store.delete("customers", keys_of())

    def test_pieces_are_bounded_and_a_key_spans_them(self, store):
        for start in range(0, 600, 100):
            rows = customers(*range(start, start + 100), name="x" * 50)
            store.append("customers", rows, keys_of(*[1] * 100))
        store.append("customers", customers(600), keys_of(2))
        probe = store.probe("customers", keys_of(1, 2))
        assert probe.counts.tolist() == [600, 1]
        total = int(probe.row_bytes.sum())
        pieces = list(probe.fetch(np.array([0, 1]), 2000))
        assert len(pieces) >= total // 2000
        # Rows are all alike, so a bound in bytes is one in rows.
        widest = 2000 * 601 // total + 2
        assert max(piece.rows.num_rows for piece in pieces) <= widest
        assert [i for piece in pieces for i in ids(piece.rows.to_pylist())] == list(range(601))

    def test_a_row_larger_than_a_piece_travels_alone(self, store):
        store.append("customers", customers(1, 2, 3, name="y" * 5000), keys_of(1, 1, 2))
        probe = store.probe("customers", keys_of(1, 2))
        assert [p.rows.num_rows for p in probe.fetch(np.array([0, 1]), 100)] == [1, 1, 1]

    def test_delete_then_append(self, store):
        store.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
        store.delete("customers", keys_of(1, 44, None))
        assert store.probe("customers", keys_of(1, 2)).counts.tolist() == [0, 1]
        assert ids(scanned(store, "customers")) == [2]
        store.append("customers", customers(4), keys_of(1))
        probe = store.probe("customers", keys_of(1))
        assert ids(fetched(probe, [0])[0]) == [4]

    def test_deletes_survive_a_commit(self, tmp_path):
        with_rows = self.attempt(tmp_path)
        with_rows.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
        first = with_rows.commit()
        with_rows.close()
        store = self.attempt(tmp_path, first, 2)
        store.delete("customers", keys_of(1))
        store.append("customers", customers(9), keys_of(1))
        second = store.commit()
        store.close()
        store = self.attempt(tmp_path, second, 3)
        assert sorted(ids(scanned(store, "customers"))) == [2, 9]
        store.close()

    def test_several_writes_are_made_as_one(self, store):
        store.append("customers", customers(1, 2), keys_of(1, 2))
        keys = KeyCodec(KEY).encode(keys_of(1, None, 3))  # shared by two streams
        mutations = [
            Mutation("append", "customers", keys, customers(3, 4, 5)),
            Mutation("delete", "customers", keys_of(2)),
            Mutation("append", "customers", keys_of(2, 1), customers(6, 7)),
            Mutation("put", "customers", keys_of(3), customers(8)),
            Mutation("append", "returns", keys, returns(9, 10, 11)),
        ]
        assert store.write(mutations) == 2 + 2 + 1 + 2
        found = fetched(store.probe("customers", keys_of(1, 2, 3)), [0, 1, 2])
        assert [ids(found[i]) for i in range(3)] == [[1, 3, 7], [6], [8]]
        assert sorted(ids(scanned(store, "returns"))) == [9, 11]
        assert store.write([]) == 0

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            (Mutation("append", "customer", keys_of(1), customers(1)), "did you mean 'customers'"),
            (Mutation("append", "customers", keys_of(1, 2), customers(1)), "one key per row"),
            (Mutation("delete", "customers", keys_of(1), customers(1)), "none to 'delete'"),
            (Mutation("put", "customers", keys_of(1)), "give rows to 'append' and 'put'"),
            (Mutation("upsert", "customers", keys_of(1), customers(1)), "'upsert' .* is no kind"),
            (Mutation("append", "customers", keys_of(1), returns(1)), "columns"),
            (Mutation("append", "customers", returns(1), customers(1)), "keys of stream"),
        ],
    )
    def test_of_several_writes_all_or_none_are_refused(self, store, bad, said):
        good = Mutation("append", "customers", keys_of(1), customers(1))
        with pytest.raises(InvalidArgumentError, match=said):
            store.write([good, bad])
        assert store.append("customers", customers(2), keys_of(1)) == 1
        assert ids(scanned(store, "customers")) == [2]

    def test_one_write_is_bounded_by_the_memory_cap(self, store):
        wide = customers(*range(8), name="w" * (self.memory_bytes // 60))
        half = Mutation("append", "customers", keys_of(*range(8)), wide)
        assert store.write([half]) == 8
        with pytest.raises(MemoryLimitError, match="split it, or raise"):
            store.write([half, half])
        assert len(scanned(store, "customers")) == 8

    def test_put_replaces_what_a_key_held(self, tmp_path):
        with self.attempt(tmp_path) as store:
            store.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
            # A key given twice gets both rows, a null none; others keep theirs.
            assert store.put("customers", customers(4, 5, 6), keys_of(1, None, 1)) == 2
            assert store.put("customers", customers(), keys_of()) == 0
            assert ids(store.get("customers", (1, "s1")).to_pylist()) == [4, 6]
            assert sorted(ids(scanned(store, "customers"))) == [2, 4, 6]
            pointer = store.commit()
            with pytest.raises(StoreClosedError, match="new attempt"):
                store.put("customers", customers(3), keys_of(3))
        with self.attempt(tmp_path, pointer, 2) as store:
            assert store.put("customers", customers(7), keys_of(1)) == 1
            assert store.append("customers", customers(8), keys_of(1)) == 1
            pointer = store.commit()
        with self.attempt(tmp_path, pointer, 3) as store:
            assert ids(store.get("customers", (1, "s1")).to_pylist()) == [7, 8]
            assert ids(scanned(store, "customers")) == [7, 8, 2]

    def test_retract_takes_the_oldest_equal_row(self, tmp_path):
        with self.attempt(tmp_path) as store:
            store.append("customers", customers(1, 2, 1, 3, 1), keys_of(1, 1, 1, 2, 1))
            pointer = store.commit()
        with self.attempt(tmp_path, pointer, 2) as store:
            before = store.probe("customers", keys_of(1, 2))
            size = int(before.row_bytes[0])
            assert store.retract("customers", customers(1, 1, 9), keys_of(1, 2, None)) == 2
            with pytest.raises(InvalidArgumentError, match="probe"):
                list(before.fetch(np.array([0]), 100))
            # Row 1 is not under key 2: that retraction waits.
            probe = store.probe("customers", keys_of(2, 1, 7))
            assert probe.counts.tolist() == [1, 3, 0]
            assert probe.row_bytes[1] * 4 == size * 3
            assert ids(fetched(probe, [1], 1)[1]) == [2, 1, 1]
            assert ids(store.get("customers", (1, "s1")).to_pylist()) == [2, 1, 1]
            assert sorted(ids(scanned(store, "customers"))) == [1, 1, 2, 3]
            pointer = store.commit()
            with pytest.raises(StoreClosedError, match="new attempt"):
                store.retract("customers", customers(3), keys_of(3))
        with self.attempt(tmp_path, pointer, 3) as store:
            assert store.append("customers", customers(1, 4), keys_of(2, 2)) == 2
            assert ids(store.get("customers", (2, "s2")).to_pylist()) == [3, 4]
            store.append("customers", customers(1), keys_of(2))
            assert ids(store.get("customers", (2, "s2")).to_pylist()) == [3, 4, 1]
            store.retract("customers", customers(1, 2, 1), keys_of(1, 1, 1))
            assert store.exists("customers", keys_of(1, 2)).tolist() == [False, True]
            found = [
                (tuple(key.values()), row["id"])
                for piece in store.iterate("customers", max_bytes=1)
                for key, row in zip(piece.keys.to_pylist(), piece.rows.to_pylist(), strict=True)
            ]
            assert found == [((2, "s2"), 3), ((2, "s2"), 4), ((2, "s2"), 1)]

    def test_deleting_a_key_forgets_its_retractions(self, store):
        for number, forget in enumerate(
            (
                lambda: store.delete("customers", keys_of(1)),
                lambda: store.put("customers", customers(), keys_of()),
                lambda: store.put("customers", customers(8), keys_of(1)),
                lambda: store.delete_range("customers", prefix=(1,)),
            )
        ):
            store.delete("customers", keys_of(1))
            store.retract("customers", customers(number, number), keys_of(1, 1))
            forget()
            store.append("customers", customers(number, number), keys_of(1, 1))
            found = ids(store.get("customers", (1, "s1")).to_pylist())
            expected = [[number] * 2, [], [8, number, number], [number] * 2][number]
            assert found == expected

    def test_rows_and_retractions_may_come_in_any_order(self, store):
        """What lives depends on neither their order nor the flushes between."""
        random = np.random.default_rng(5)
        expected = None
        for key in range(6):
            writes = [("append", i % 5) for i in range(40)] + [
                ("retract", i % 5) for i in range(25)
            ]
            for place in random.permutation(len(writes)).tolist():
                kind, number = writes[place]
                getattr(store, kind)("customers", customers(number), keys_of(key))
            found = sorted(ids(store.get("customers", (key, f"s{key % 3}")).to_pylist()))
            expected = expected or found
            assert found == expected == sorted([i % 5 for i in range(15)])

    def test_delete_a_range(self, tmp_path):
        with self.attempt(tmp_path) as store:
            numbers = range(10)
            store.append("customers", customers(*numbers), keys_of(*numbers))
            store.append("returns", _return(1), keys_of(5))
            pointer = store.commit()
        with self.attempt(tmp_path, pointer, 2) as store:
            store.append("customers", customers(10, 11), keys_of(5, 11))
            # Half-open; a bound of fewer columns stands before the keys that begin with it.
            store.delete_range("customers", low=(3,), high=(6, "s0"))
            assert sorted(ids(scanned(store, "customers"))) == [0, 1, 2, 6, 7, 8, 9, 11]
            store.delete_range("customers", low=(6, "s0"), high=(6, "s0"))
            store.delete_range("customers", low=(8,), high=(6,))
            assert store.contains("customers", (6, "s0"))
            # What comes later is there again, under a deleted key too.
            store.append("customers", customers(20), keys_of(4))
            assert ids(store.get("customers", (4, "s1")).to_pylist()) == [20]
            store.delete_range("customers", prefix=(2,))
            store.delete_range("customers", low=(9,))
            store.delete_range("customers", high=(1,))
            pointer = store.commit()
            with pytest.raises(StoreClosedError, match="new attempt"):
                store.delete_range("customers")
        with self.attempt(tmp_path, pointer, 3) as store:
            assert sorted(ids(scanned(store, "customers"))) == [1, 6, 7, 8, 20]
            assert store.probe("customers", keys_of(*range(12))).counts.tolist() == [
                *(0, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0)
            ]
            store.delete_range("customers")
            assert scanned(store, "customers") == []
            assert ids(scanned(store, "returns")) == [1]
            pointer = store.commit()
        with self.attempt(tmp_path, pointer, 4) as store:
            assert scanned(store, "customers") == []
            store.append("customers", customers(1), keys_of(3))
            assert ids(scanned(store, "customers")) == [1]

    def test_bounds_of_other_values_are_refused(self, store):
        for bound in ((1, "a", 2), ("x",), (None,), "a"):
            with pytest.raises(InvalidArgumentError, match=r"low=|key \("):
                store.delete_range("customers", low=bound)
        with pytest.raises(InvalidArgumentError, match="prefix"):
            store.delete_range("customers", low=(1,), prefix=(1,))

    def test_exists_get_and_contains(self, store):
        store.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
        keys = keys_of(2, 9, None, 1)
        assert store.exists("customers", keys).tolist() == [True, False, False, True]
        asked = store.exists("customers", keys, np.array([1, 3]))
        assert asked.tolist() == [False, False, False, True]
        assert store.contains("customers", (1, "s1"))
        assert not store.contains("customers", (1, "s2"))
        assert not store.contains("customers", (None, "s2"))
        assert ids(store.get("customers", (1, "s1")).to_pylist()) == [1, 3]
        absent = store.get("customers", (9, "s0"))
        assert absent.num_rows == 0
        assert absent.schema == CUSTOMERS.rows
        found = store.get_many("customers", keys)
        assert found.positions.tolist() == [0, 3, 3]
        assert ids(found.rows.to_pylist()) == [2, 1, 3]
        assert store.get_many("customers", keys_of()).rows.num_rows == 0

    def test_a_key_of_other_values_is_refused(self, store):
        for key in ((1,), (1, "a", 2), ("x", "a"), (1, 2), "ab", (1 << 70, "a")):
            with pytest.raises(InvalidArgumentError, match="customers"):
                store.get("customers", key)
        with pytest.raises(InvalidArgumentError, match="did you mean"):
            store.contains("customer", (1, "a"))

    def test_scan_groups_by_key_in_bounded_pieces(self, store):
        for start in range(0, 300, 30):
            numbers = range(start, start + 30)
            store.append("customers", customers(*numbers), keys_of(*[n % 10 for n in numbers]))
        pieces = list(store.scan("customers", 500))
        assert len(pieces) > 3
        groups = [i % 10 for piece in pieces for i in ids(piece.to_pylist())]
        assert len(groups) == 300
        assert sum(a != b for a, b in itertools.pairwise(groups)) == 9

    @pytest.fixture
    def ordered(self, store):
        """Keys (-2, s1) ... (2, s2), one of them in several batches, between rows of another
        stream; ids say the order of keys, a key's rows ascend by tens."""
        store.append("returns", _return(7), keys_of((5, "z")))
        store.append("customers", customers(3, 1, 0), keys_of((1, "b"), (-1, ""), (-2, "s1")))
        store.append("customers", customers(2, 13), keys_of((1, "a"), (1, "b")))
        store.append("customers", customers(4, 23), keys_of((2, "s2"), (1, "b")))
        return store

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            ({}, [0, 1, 2, 3, 13, 23, 4]),
            ({"reverse": True}, [4, 3, 13, 23, 2, 1, 0]),
            ({"low": (1,)}, [2, 3, 13, 23, 4]),
            ({"high": (1,)}, [0, 1]),
            ({"low": (-1,), "high": (2,)}, [1, 2, 3, 13, 23]),
            ({"low": (-1,), "high": (2,), "reverse": True}, [3, 13, 23, 2, 1]),
            ({"low": (1, "b"), "high": (2, "s2")}, [3, 13, 23]),
            ({"low": (1, "a"), "high": (1, "b")}, [2]),
            ({"low": (1, "a\0"), "reverse": True}, [4, 3, 13, 23]),
            ({"prefix": (1,)}, [2, 3, 13, 23]),
            ({"prefix": (1,), "reverse": True}, [3, 13, 23, 2]),
            ({"prefix": (1, "b")}, [3, 13, 23]),
            ({"prefix": (-1,)}, [1]),
            ({"prefix": (0,)}, []),
            ({"prefix": (-(2**63),)}, []),
            ({"prefix": (2**63 - 1,), "reverse": True}, []),
            ({"prefix": ()}, [0, 1, 2, 3, 13, 23, 4]),
            ({"low": (2,), "high": (1,)}, []),
            ({"low": (3,)}, []),
            ({"high": (-2,), "reverse": True}, []),
        ],
    )
    @pytest.mark.parametrize("max_bytes", [1, 1 << 20])
    def test_iterating_over_a_range(self, ordered, wanted, expected, max_bytes):
        found = iterated(ordered, "customers", max_bytes=max_bytes, **wanted)
        assert [row["id"] for _, row in found] == expected
        named = {0: (-2, "s1"), 1: (-1, ""), 2: (1, "a"), 3: (1, "b"), 4: (2, "s2")}
        assert [key for key, _ in found] == [named[i % 10] for i in expected]

    @pytest.mark.parametrize("reverse", [False, True])
    def test_iterating_gives_bounded_pieces_and_may_stop_early(self, store, reverse):
        for start in range(0, 3000, 300):
            numbers = range(start, start + 300)
            rows = customers(*numbers, name="x" * 50)
            store.append("customers", rows, keys_of(*[(n % 100, "k") for n in numbers]))
        pieces = list(store.iterate("customers", reverse=reverse, max_bytes=3000))
        assert max(piece.rows.num_rows for piece in pieces) <= 60
        expected = sorted(range(3000), key=lambda n: (-(n % 100) if reverse else n % 100, n))
        assert [i for piece in pieces for i in ids(piece.rows.to_pylist())] == expected
        begun = store.iterate("customers", low=(40,), reverse=reverse, max_bytes=100)
        assert ids(next(begun).rows.to_pylist())[0] == (99 if reverse else 40)
        begun.close()

    def test_keys_come_back_as_they_are_compared(self, tmp_path):
        schema = pa.schema([("x", pa.float64()), ("d", pa.dictionary(pa.int8(), pa.string()))])
        stream = StreamSchema("floats", schema, CUSTOMERS.rows)
        store = self.attempt(tmp_path, streams=(stream,))
        values = [float("nan"), 1.5, -0.0, float("-inf"), 0.0]
        keys = pa.record_batch([values, pa.array(["a"] * 5).dictionary_encode()], names=["x", "d"])
        store.append("floats", customers(4, 3, 1, 0, 2), keys.cast(schema))
        found = [
            (key, row["id"])
            for piece in store.iterate("floats", low=(float("-inf"),))
            for key, row in zip(piece.keys.to_pylist(), piece.rows.to_pylist(), strict=True)
        ]
        assert [i for _, i in found] == [0, 1, 2, 3, 4]
        assert [str(key["x"]) for key, _ in found] == ["-inf", "0.0", "0.0", "1.5", "nan"]
        assert {key["d"] for key, _ in found} == {"a"}  # as its plain type
        (piece,) = store.iterate("floats", prefix=(0.0, "a"))
        assert ids(piece.rows.to_pylist()) == [1, 2]
        store.close()

    @pytest.mark.parametrize(
        ("wanted", "message"),
        [
            ({"low": ("a",)}, "k0"),
            ({"low": (1.5,)}, "would become 1 in column 'k0'"),
            ({"high": (1, 2)}, "k1"),
            ({"low": (2**63,)}, "k0"),
            ({"prefix": (1, None)}, "null"),
            ({"prefix": (1, "b", 3)}, "k0, k1"),
            ({"low": 5}, "tuple"),
            ({"low": "ab"}, "tuple"),
            ({"prefix": (1,), "high": (2,)}, "both bounds"),
        ],
    )
    def test_bounds_that_are_none_are_refused(self, store, wanted, message):
        with pytest.raises(InvalidArgumentError, match=message):
            store.iterate("customers", **wanted)

    def test_a_snapshot_stays_as_it_was(self, store):
        store.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
        with store.snapshot() as snapshot:
            begun = snapshot.iterate("customers", max_bytes=1)
            next(begun)
            probe = snapshot.probe("customers", keys_of(1, 2, 3))
            assert list(snapshot.streams) == list(store.streams)
            store.append("customers", customers(4, 5, 6), keys_of(1, 3, 4))
            store.delete("customers", keys_of(2))
            store.put("customers", customers(7), keys_of(1))
            store.append("returns", _return(9), keys_of(1))
            with store.snapshot() as second:
                store.commit()
                assert ids(scanned(second, "customers")) == [7, 5, 6]
                assert ids(row for _, row in iterated(second, "returns")) == [9]
            # What was begun goes on, in any order with what begins now.
            assert ids(next(begun).rows.to_pylist()) == [3]
            assert probe.counts.tolist() == [2, 1, 0]
            found = fetched(probe, [0, 1])
            assert (ids(found[0]), ids(found[1])) == ([1, 3], [2])
            assert ids(next(begun).rows.to_pylist()) == [2]
            assert ids(scanned(snapshot, "customers")) == [1, 3, 2]
            back = iterated(snapshot, "customers", reverse=True)
            assert ids(row for _, row in back) == [2, 1, 3]
            assert snapshot.exists("customers", keys_of(2, 3)).tolist() == [True, False]
            assert ids(snapshot.get("customers", (1, "s1")).to_pylist()) == [1, 3]
            assert scanned(snapshot, "returns") == []
            assert snapshot.stats().counters["probed_keys"] > 0
        assert ids(scanned(store, "customers")) == [7, 5, 6]

    def test_snapshots_of_an_empty_and_of_a_committed_store(self, tmp_path):
        store = self.attempt(tmp_path)
        with store.snapshot() as snapshot:
            store.append("customers", customers(1), keys_of(1))
            pointer = store.commit()
            assert scanned(snapshot, "customers") == []
        with store.snapshot() as snapshot:
            assert ids(scanned(snapshot, "customers")) == [1]
        store.close()
        store = self.attempt(tmp_path, pointer, 2)
        with store.snapshot() as snapshot:
            store.append("customers", customers(2), keys_of(2))
            assert ids(scanned(snapshot, "customers")) == [1]
        store.close()

    def test_a_snapshot_ends_when_it_or_its_store_is_closed(self, tmp_path):
        store = self.owned(tmp_path)
        store.append("customers", customers(1, 2), keys_of(1, 2))
        closed, ended = store.snapshot(), store.snapshot()
        begun = closed.iterate("customers", max_bytes=1)
        probe = closed.probe("customers", keys_of(1))
        next(begun)
        closed.close()
        closed.close()
        assert ids(scanned(ended, "customers")) == [1, 2]
        store.commit()
        store.close()
        for call in (
            lambda: next(begun),
            lambda: list(probe.fetch(np.array([0]), 100)),
            lambda: closed.probe("customers", keys_of(1)),
            lambda: closed.scan("customers"),
            lambda: ended.iterate("customers"),
            ended.stats,
            store.snapshot,
        ):
            with pytest.raises(StoreClosedError, match="closed"):
                call()
        store = self.owned(tmp_path)
        assert ids(scanned(store, "customers")) == [1, 2]
        store.close()

    def test_a_snapshot_that_nobody_closed_is_closed_with_a_warning(self, store):
        store.append("customers", customers(1), keys_of(1))
        snapshot = store.snapshot()
        assert snapshot.exists("customers", keys_of(1)).tolist() == [True]
        with pytest.warns(ResourceWarning, match="never closed"):
            del snapshot

    def test_a_snapshot_inherited_over_a_fork_is_refused(self, store):
        store.append("customers", customers(1), keys_of(1))
        with store.snapshot() as snapshot:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    snapshot.probe("customers", keys_of(1))
                except StoreClosedError:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_a_key_of_another_value_is_refused_and_never_rounded(self, store):
        store.append("customers", customers(1), keys_of((1, "a")))
        for key in [(1.5, "a"), ("1", "a"), (2**63, "a"), (1, 5)]:
            with pytest.raises(InvalidArgumentError, match="column 'k"):
                store.get("customers", key)
        assert store.get("customers", (1, "a")).num_rows == 1

    def test_iterating_is_valid_until_the_next_write(self, store):
        store.append("customers", customers(1, 2), keys_of(1, 2))
        begun = store.iterate("customers", max_bytes=1)
        assert ids(next(begun).rows.to_pylist()) == [1]
        store.append("customers", customers(3), keys_of(3))
        with pytest.raises(LsmStateError, match="again"):
            next(begun)

    def test_commit_and_reopen_at_the_pointer(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1, 2), keys_of(1, 2))
        store.append("returns", _return(7), keys_of(1))
        pointer = store.commit()
        # A committed attempt reads on, but writes no more.
        assert store.probe("customers", keys_of(1)).counts.tolist() == [1]
        with pytest.raises(StoreClosedError, match="new attempt"):
            store.append("customers", customers(3), keys_of(3))
        with pytest.raises(StoreClosedError, match="new attempt"):
            store.delete("customers", keys_of(1))
        store.close()
        assert len(pointer) < 256
        assert os.sep not in pointer
        store = self.attempt(tmp_path, pointer, 2)
        assert sorted(ids(scanned(store, "customers"))) == [1, 2]
        assert store.append("customers", customers(3), keys_of(1)) == 1
        assert ids(fetched(store.probe("customers", keys_of(1)), [0])[0]) == [1, 3]
        assert ids(scanned(store, "returns")) == [7]
        store.close()

    def test_an_old_pointer_still_opens_after_newer_commits(self, tmp_path):
        pointers = [None]
        for batch_id in range(1, 6):
            store = self.attempt(tmp_path, pointers[-1], batch_id)
            store.append("customers", customers(batch_id), keys_of(batch_id % 2))
            pointers.append(store.commit())
            store.close()
        assert len(set(pointers)) == 6
        for count in (5, 2, 0, 3, 3, 1):
            store = self.attempt(tmp_path, pointers[count], 9)
            assert sorted(ids(scanned(store, "customers"))) == list(range(1, count + 1))
            store.close()

    def test_two_attempts_from_one_pointer(self, tmp_path):
        base = self.attempt(tmp_path)
        base.append("customers", customers(1), keys_of(1))
        pointer = base.commit()
        base.close()
        # The same batch and even the same attempt: a zombie and its successor.
        stores = [self.attempt(tmp_path, pointer, 2, "a1") for _ in range(3)]
        for number, store in enumerate(stores):
            store.append("customers", customers(10 + number), keys_of(1))
        stores[2].close()
        results = [store.commit() for store in stores[:2]]
        for store in stores[:2]:
            store.close()
        assert results[0] != results[1]
        for number, result in enumerate(results):
            store = self.attempt(tmp_path, result, 3)
            assert ids(fetched(store.probe("customers", keys_of(1)), [0])[0]) == [1, 10 + number]
            store.close()

    def test_what_was_not_committed_is_given_up(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        pointer = store.commit()
        store.close()
        store = self.attempt(tmp_path, pointer, 2)
        store.append("customers", customers(2), keys_of(1))
        store.close()
        store = self.attempt(tmp_path, pointer, 2)
        assert ids(scanned(store, "customers")) == [1]
        store.close()

    def test_a_commit_in_another_process(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        pointer = store.commit()
        store.close()
        command = [sys.executable, __file__, self.backend, str(tmp_path), pointer]
        here = Path(__file__).parent
        environment = {**os.environ, "PYTHONPATH": f"{here.parent}{os.pathsep}{here}"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        store = self.attempt(tmp_path, done.stdout.strip(), 3)
        assert ids(fetched(store.probe("customers", keys_of(1)), [0])[0]) == [1, 2]
        store.close()

    def test_a_closed_store_says_so(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        probe = store.probe("customers", keys_of(1))
        store.close()
        store.close()
        for call in (
            lambda: store.append("customers", customers(1), keys_of(1)),
            lambda: store.probe("customers", keys_of(1)),
            lambda: store.delete("customers", keys_of(1)),
            lambda: store.put("customers", customers(1), keys_of(1)),
            lambda: store.write([]),
            lambda: store.delete_range("customers"),
            lambda: store.retract("customers", customers(1), keys_of(1)),
            lambda: store.exists("customers", keys_of(1)),
            lambda: store.get("customers", (1, "s1")),
            lambda: list(store.scan("customers")),
            lambda: list(store.iterate("customers")),
            lambda: list(probe.fetch(np.array([0]), 100)),
            store.commit,
            store.stats,
        ):
            with pytest.raises(StoreClosedError):
                call()

    def test_a_store_inherited_over_a_fork_is_refused(self, store):
        store.append("customers", customers(1), keys_of(1))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.probe("customers", keys_of(1))
            except StoreClosedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_a_probe_is_valid_until_the_next_write(self, store):
        store.append("customers", customers(1, 2), keys_of(1, 1))
        probe = store.probe("customers", keys_of(1))
        begun = probe.fetch(np.array([0]), 1)
        assert ids(next(begun).rows.to_pylist()) == [1]
        store.append("customers", customers(3), keys_of(1))
        with pytest.raises(LsmStateError, match="probe"):
            list(probe.fetch(np.array([0]), 100))
        with pytest.raises(LsmStateError, match="probe"):
            next(begun)

    def test_other_columns_are_refused_and_nothing_is_stored(self, store):
        wrong = customers(1).rename_columns(["id", "label"])
        with pytest.raises(InvalidArgumentError, match="label"):
            store.append("customers", wrong, keys_of(1))
        typed = pa.RecordBatch.from_pylist(
            [{"id": 1, "name": "x"}], schema=pa.schema([("id", pa.int32()), ("name", pa.string())])
        )
        with pytest.raises(InvalidArgumentError, match="int32"):
            store.append("customers", typed, keys_of(1))
        with pytest.raises(InvalidArgumentError, match="2 rows but 1 keys"):
            store.append("customers", customers(1, 2), keys_of(1))
        bad_key = pa.RecordBatch.from_pylist([{"k0": "1", "k1": "s1"}])
        with pytest.raises(InvalidArgumentError, match="k0"):
            store.append("customers", customers(1), bad_key)
        with pytest.raises(InvalidArgumentError, match="k0"):
            store.probe("customers", bad_key)
        assert scanned(store, "customers") == []

    def test_bad_positions_are_refused(self, store):
        for positions in ([1, 0], [0, 0], [2], [-1]):
            with pytest.raises(InvalidArgumentError, match="positions"):
                store.probe("customers", keys_of(1, 2), np.array(positions))

    def test_an_unknown_stream_is_refused_with_the_nearest_name(self, store):
        for call in (
            lambda: store.append("customer", customers(1), keys_of(1)),
            lambda: store.probe("customer", keys_of(1)),
            lambda: store.delete("customer", keys_of(1)),
            lambda: store.put("customer", customers(1), keys_of(1)),
            lambda: store.delete_range("customer"),
            lambda: store.retract("customer", customers(1), keys_of(1)),
            lambda: store.exists("customer", keys_of(1)),
            lambda: store.scan("customer"),
            lambda: store.iterate("customer"),
        ):
            with pytest.raises(InvalidArgumentError, match="did you mean 'customers'"):
                call()

    def test_another_schema_is_refused_when_opening(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        pointer = store.commit()
        store.close()
        other = StreamSchema("customers", KEY, pa.schema([("id", pa.int64())]))
        with pytest.raises(InvalidArgumentError, match="customers"):
            self.attempt(tmp_path, pointer, 2, streams=(other, RETURNS))
        with pytest.raises(InvalidArgumentError, match="returns"):
            self.attempt(tmp_path, pointer, 2, streams=(CUSTOMERS,))
        with pytest.raises(InvalidArgumentError, match="returns"):
            self.attempt(tmp_path, pointer, 2, streams=(RETURNS, CUSTOMERS))

    def test_a_pointer_that_is_none_is_an_error(self, tmp_path):
        with pytest.raises((LsmStateError, OSError)):
            self.attempt(tmp_path, "nonsense")

    def test_stats_count_memory_and_disk(self, tmp_path):
        store = self.attempt(tmp_path)
        for start in range(0, 2000, 500):
            numbers = range(start, start + 500)
            store.append("customers", customers(*numbers, name="z" * 40), keys_of(*numbers))
        stats = store.stats()
        assert 0 < stats.memory_bytes <= self.memory_bytes
        assert stats.memory_bytes <= stats.peak_memory_bytes
        store.commit()
        assert store.stats().disk_bytes > 1000
        store.close()

    def test_a_store_of_one_process_finds_what_was_committed(self, tmp_path):
        store = self.owned(tmp_path)
        for batch in range(1, 4):
            store.append("customers", customers(batch), keys_of(1))
            store.commit()
        with pytest.raises(StoreLockedError):
            self.owned(tmp_path)
        store.close()
        store.close()
        store = self.owned(tmp_path)
        assert ids(fetched(store.probe("customers", keys_of(1)), [0])[0]) == [1, 2, 3]
        store.append("customers", customers(4), keys_of(1))
        store.commit()
        store.close()
        store = self.owned(tmp_path)
        assert ids(scanned(store, "customers")) == [1, 2, 3, 4]
        store.close()


def _return(number):
    rows = [{"id": number, "price": None, "day": None}]
    return pa.RecordBatch.from_pylist(rows, schema=RETURNS.rows)


def main() -> None:
    """What the other process of ``test_a_commit_in_another_process`` does."""
    backend, directory, pointer = sys.argv[1:]
    store = open_attempt(
        directory,
        STREAMS,
        backend=backend,
        pointer=pointer,
        batch_id=2,
        attempt_id="elsewhere",
        options=Options(memory_bytes=8 * MIB),
    )
    store.append("customers", customers(2), keys_of(1))
    print(store.commit())
    store.close()


if __name__ == "__main__":
    main()
