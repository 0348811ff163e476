"""The contract of a store, what reads it: probes, scans, iterating, single keys."""

import itertools
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import (
    InvalidArgumentError,
    LsmStateError,
)
from lsmstate.schema.documents import SCHEMA_FREE, decode_documents, encode_documents
from lsmstate.store import StreamSchema
from support.contract_base import BackendTests
from support.sample_streams import (
    CUSTOMERS,
    KEY,
    RETURNS,
    customers,
    fetched,
    ids,
    iterated,
    keys_of,
    returns,
    scanned,
)


class ReadTests(BackendTests):
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

    def test_rows_of_dictionaries_and_views_come_back_as_plain_types(self, tmp_path):
        tags = pa.dictionary(pa.int8(), pa.string())
        schema = pa.schema(
            {"id": pa.int64(), "tag": tags, "tags": pa.list_(tags), "text": pa.string_view()}
        )
        plain = pa.schema(
            {"id": pa.int64(), "tag": pa.string(), "tags": pa.list_(pa.string())}
        ).append(pa.field("text", pa.string()))
        store = self.attempt(tmp_path, streams=(StreamSchema("tagged", KEY, schema),))
        for start in range(0, 1000, 100):  # more tags in all than an int8 counts
            numbers = range(start, start + 100)
            names = [f"tag {n}" for n in numbers]
            columns = [pa.array(numbers), names, [[name] for name in names], ["t" * 1500] * 100]
            rows = pa.record_batch(
                [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
            )
            store.append("tagged", rows, keys_of(*[n % 7 for n in numbers]))
        store.retract("tagged", rows.slice(99), keys_of(999 % 7))
        found = store.get_many("tagged", keys_of(*range(7))).rows  # of several pieces
        assert found.nbytes > 1 << 20
        assert store.get("tagged", (77, "k")).schema == found.schema == plain
        assert sorted(ids(found.to_pylist())) == list(range(999))
        assert all(
            row["tag"] == f"tag {row['id']}" and row["tags"] == [row["tag"]]
            for row in found.to_pylist()
        )
        for piece in store.scan("tagged"):
            assert piece.schema == plain
        pointer = store.commit()
        store.close()
        store = self.attempt(tmp_path, pointer, 1, streams=(StreamSchema("tagged", KEY, schema),))
        assert store.get_many("tagged", keys_of(*range(7))).rows.num_rows == 999
        store.close()

    def test_keys_may_be_encoded_already(self, store):
        encoded = KeyCodec(KEY).encode(keys_of(1, None, 2, 1))
        assert store.append("customers", customers(1, 2, 3, 4), encoded) == 3
        # One batch of keys serves several streams.
        assert store.probe("returns", encoded).counts.tolist() == [0, 0, 0, 0]
        probe = store.probe("customers", encoded)
        assert probe.counts.tolist() == [2, 0, 1, 2]
        assert ids(fetched(probe, [0])[0]) == [1, 4]

    @pytest.mark.parametrize("derived", ["whole", "taken", "distinct"])
    def test_keys_that_were_encoded_for_other_types_are_refused(self, store, derived):
        other = pa.schema([("k0", pa.int32()), ("k1", pa.string())])
        encoded = KeyCodec(other).encode(keys_of(1, 2).cast(other))
        if derived == "taken":
            encoded = encoded.take(np.array([0, 1]))
        elif derived == "distinct":
            encoded, _ = encoded.distinct()
        said = r"encoded as \(int32, string\), expected \(int64, string\)"
        for call in (
            lambda: store.append("customers", customers(1, 2), encoded),
            lambda: store.put("customers", customers(1, 2), encoded),
            lambda: store.delete("customers", encoded),
            lambda: store.probe("customers", encoded),
            lambda: store.get_many("customers", encoded),
        ):
            with pytest.raises(InvalidArgumentError, match=said):
                call()
        assert scanned(store, "customers") == []

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
            with pytest.raises(InvalidArgumentError, match="document 1 is not a msgpack document"):
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
        store.append("returns", returns(7), keys_of(1))
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

    def test_exists_get_and_contains(self, store):
        store.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
        keys = keys_of(2, 9, None, 1)
        assert store.exists("customers", keys).tolist() == [True, False, False, True]
        asked = store.exists("customers", keys, np.array([1, 3]))
        assert asked.tolist() == [False, False, False, True]
        assert store.contains("customers", (1, "s1"))
        assert not store.contains("customers", (1, "s2"))
        assert not store.contains("customers", (None, "s2"))
        assert store.get("customers", (None, "s2")).num_rows == 0
        assert ids(store.get("customers", (1, "s1")).to_pylist()) == [1, 3]
        absent = store.get("customers", (9, "s0"))
        assert absent.num_rows == 0
        assert absent.schema == CUSTOMERS.rows
        found = store.get_many("customers", keys)
        assert found.positions.tolist() == [0, 3, 3]
        assert ids(found.rows.to_pylist()) == [2, 1, 3]
        assert store.get_many("customers", keys_of()).rows.num_rows == 0

    def test_rows_may_have_no_columns(self, tmp_path):
        stream = StreamSchema("seen", KEY, pa.schema([]))
        with closing(self.attempt(tmp_path, streams=[stream])) as store:
            nothing = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
            assert store.append("seen", nothing, keys_of(20, 10, 20)) == 3
            assert sum(entries.keys.num_rows for entries in store.iterate("seen")) == 3
            assert store.probe("seen", keys_of(10, 20, 30)).counts.tolist() == [1, 2, 0]

    def test_many_rows_at_once_stay_within_the_cap(self, tmp_path):
        stream = StreamSchema("wide", KEY, pa.schema([("text", pa.string())]))
        with closing(self.attempt(tmp_path, streams=[stream])) as store:
            batches = 6 if self.backend == "memory" else 14  # what fits under its cap
            for batch in range(batches):
                keys = keys_of(*range(2000 * batch, 2000 * (batch + 1)))
                texts = pa.RecordBatch.from_arrays([pa.array(["x" * 300] * 2000)], ["text"])
                store.append("wide", texts, keys)
            found = store.get_many("wide", keys_of(*range(2000 * batches)))
            assert found.positions.tolist() == list(range(2000 * batches))
            assert found.rows.column("text").unique().to_pylist() == ["x" * 300]
            assert store.stats().peak_memory_bytes <= self.memory_bytes

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
        store.append("returns", returns(7), keys_of((5, "z")))
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
            ({"low": np.int64(5)}, "tuple"),
            ({"low": {1}}, "tuple"),
            ({"high": {1: 2}}, "tuple"),
            ({"low": (pa.scalar("a"),)}, "k0"),
            ({"low": (pa.scalar(1.5),)}, "would become 1 in column 'k0'"),
            ({"low": "ab"}, "tuple"),
            ({"prefix": (1,), "high": (2,)}, "cannot be combined with low or high"),
        ],
    )
    def test_bounds_that_are_none_are_refused(self, store, wanted, message):
        with pytest.raises(InvalidArgumentError, match=message):
            store.iterate("customers", **wanted)

    def test_a_key_of_another_value_is_refused_and_never_rounded(self, store):
        store.append("customers", customers(1), keys_of((1, "a")))
        for key in [(1.5, "a"), ("1", "a"), (2**63, "a"), (1, 5)]:
            with pytest.raises(InvalidArgumentError, match="column 'k"):
                store.get("customers", key)
        for key in [1, None, {1, "a"}, {"k0": 1, "k1": "a"}, (1,), (1, "a", 2), "1a", np.int64(1)]:
            with pytest.raises(InvalidArgumentError, match="k0"):
                store.get("customers", key)
        assert store.get("customers", (1, "a")).num_rows == 1

    def test_values_of_a_single_key_column_stand_by_themselves(self, tmp_path):
        """Also as scalars of numpy and Arrow, whose times are exact."""
        kinds = {
            "int": (pa.int64(), [1, np.int8(1), np.array(1), pa.scalar(1, pa.int8()), 1.0]),
            "text": (pa.string(), ["ab", pa.scalar("ab"), np.str_("ab")]),
            "tag": (pa.dictionary(pa.int8(), pa.string()), ["ab", pa.scalar("ab")]),
            "time": (
                pa.timestamp("ns"),
                [pa.scalar(5, pa.timestamp("ns")), np.datetime64(5, "ns")],
            ),
            "list": (pa.list_(pa.int64()), [pa.scalar([1, 2])]),
        }
        schemas = [
            StreamSchema(n, pa.schema({"k": t}), CUSTOMERS.rows) for n, (t, _) in kinds.items()
        ]
        with self.attempt(tmp_path, streams=tuple(schemas)) as store:
            for stream, (kind, values) in kinds.items():
                stored = [pa.scalar(5, kind)] if stream == "time" else [[1, 2]]
                column = pa.array(stored if stream in ("time", "list") else values[:1], kind)
                store.append(stream, customers(1), pa.record_batch([column], names=["k"]))
                for value in values:
                    for given in (value, (value,), [value]):
                        assert store.get(stream, given).num_rows == 1
                        assert store.contains(stream, given)
                        for bounds in ({"low": given}, {"prefix": given}):
                            (found,) = store.iterate(stream, **bounds)
                            assert found.rows.num_rows == 1
                        assert list(store.iterate(stream, high=given)) == []
                with pytest.raises(InvalidArgumentError, match="k"):
                    store.get(stream, {1})
            store.delete_range("int", low=np.int64(1))
            assert not store.contains("int", 1)

    def test_iterating_is_valid_until_the_next_write(self, store):
        store.append("customers", customers(1, 2), keys_of(1, 2))
        begun = store.iterate("customers", max_bytes=1)
        assert ids(next(begun).rows.to_pylist()) == [1]
        store.append("customers", customers(3), keys_of(3))
        with pytest.raises(LsmStateError, match="again"):
            next(begun)

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

    def test_bad_positions_are_refused(self, store):
        for positions in ([1, 0], [0, 0], [2], [-1]):
            with pytest.raises(InvalidArgumentError, match="positions"):
                store.probe("customers", keys_of(1, 2), np.array(positions))
            with pytest.raises(InvalidArgumentError, match="positions"):
                store.probe("customers", keys_of(1, 2)).fetch(np.array(positions), 100)

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
