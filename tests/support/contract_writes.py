"""The contract of a store, what writes to it: appends, deletes, several writes as one."""

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import (
    InvalidArgumentError,
    MemoryLimitError,
    StoreClosedError,
)
from lsmstate.expiry_rules import Expiry
from lsmstate.store import KeyBounds, Mutation, StreamSchema
from support.contract_base import BackendTests
from support.sample_streams import (
    KEY,
    STREAMS,
    customers,
    fetched,
    ids,
    iterated,
    keys_of,
    returns,
    scanned,
)


class WriteTests(BackendTests):
    def test_empty_batches(self, store):
        assert store.append("customers", customers(), keys_of()) == 0
        assert store.probe("customers", keys_of()).counts.tolist() == []
        assert scanned(store, "customers") == []
        store.delete("customers", keys_of())

    def test_delete_then_append(self, store):
        store.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
        store.delete("customers", keys_of(1, 44, None))
        assert store.probe("customers", keys_of(1, 2)).counts.tolist() == [0, 1]
        assert ids(scanned(store, "customers")) == [2]
        store.append("customers", customers(4), keys_of(1))
        probe = store.probe("customers", keys_of(1))
        assert ids(fetched(probe, [0])[0]) == [4]

    @pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
    def test_slices_count_as_their_rows(self, tmp_path, kind):
        """Views and dictionaries share buffers: any slice has those of the whole."""
        texts = pa.array([f"{number:0100d}" for number in range(100_000)])
        whole = texts.dictionary_encode() if pa.types.is_dictionary(kind) else texts.cast(kind)
        schema = pa.schema({"text": kind})
        rows = pa.RecordBatch.from_arrays([whole], schema=schema).slice(500, 3)
        assert rows.nbytes > self.memory_bytes
        with self.attempt(tmp_path, streams=(StreamSchema("texts", KEY, schema),)) as store:
            assert store.append("texts", rows, keys_of(1, 2, 3)) == 3
            assert store.put("texts", rows, keys_of(1, 1, 2)) == 3
            assert store.append("texts", rows.slice(1, 1), keys_of(4)) == 1
            assert store.put("texts", rows.slice(2, 1), keys_of(4)) == 1
            assert store.retract("texts", rows.slice(0, 2), keys_of(1, 3)) == 2
            assert scanned(store, "texts")[0] == {"text": texts[501].as_py()}
            assert store.probe("texts", keys_of(1, 2, 3, 4)).counts.tolist() == [1, 1, 1, 1]

    def test_a_null_in_a_column_that_takes_none_is_refused(self, tmp_path):
        schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
        rows = pa.record_batch([pa.array([1, None])], names=["n"])
        with self.attempt(tmp_path, streams=(StreamSchema("numbers", KEY, schema),)) as store:
            for write in (store.append, store.put, store.retract):
                with pytest.raises(InvalidArgumentError, match="'n' is not nullable but"):
                    write("numbers", rows, keys_of(1, 2))
            assert store.append("numbers", rows.slice(0, 1), keys_of(1)) == 1
            assert scanned(store, "numbers") == [{"n": 1}]

    def test_rows_are_taken_as_the_store_gives_them(self, tmp_path):
        """Where a stream has dictionaries and views, that is as plain types."""
        schema = pa.schema({"d": pa.dictionary(pa.int8(), pa.string_view()), "v": pa.string_view()})
        texts = pa.array(["a", "b"], pa.string_view())
        dictionary = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), texts)
        rows = pa.record_batch([dictionary, texts], schema=schema)
        with self.attempt(tmp_path, streams=(StreamSchema("texts", KEY, schema),)) as store:
            store.append("texts", rows, keys_of(1, 2))
            found = store.get_many("texts", keys_of(1, 2)).rows
            assert found.schema.types == [pa.string(), pa.string()]
            assert found.to_pylist() == rows.to_pylist()
            assert store.put("texts", found, keys_of(1, 2)) == 2
            assert store.retract("texts", found.slice(1), keys_of(2)) == 1
            assert scanned(store, "texts") == [{"d": "b", "v": "a"}]
        with self.attempt(tmp_path, streams=(StreamSchema("texts", schema, schema),)) as store:
            store.append("texts", rows, rows)
            (piece,) = store.iterate("texts")
            assert piece.keys.schema.types == [pa.string(), pa.string()]
            assert store.exists("texts", piece.keys).all()
            assert store.append("texts", piece.rows, piece.keys) == 2
            store.delete("texts", piece.keys.slice(1))
            assert store.get_many("texts", piece.keys).positions.tolist() == [0, 0]
            assert store.get("texts", ("a", "b")).num_rows == 2
            other = schema.set(0, pa.field("d", pa.large_string()))
            assert store.exists("texts", piece.keys.cast(other)).tolist() == [True, False]
            numbers = piece.keys.set_column(0, "d", pa.array([1, 2]))
            with pytest.raises(InvalidArgumentError, match=r"'d': expected dict.*given int64"):
                store.exists("texts", numbers)

    def test_rows_of_one_large_value_count_each(self, tmp_path):
        schema = pa.schema({"text": pa.dictionary(pa.int8(), pa.string())})
        values = pa.array(["x" * (1 << 19)])
        column = pa.DictionaryArray.from_arrays(pa.array([0] * 4, pa.int8()), values)
        rows = pa.RecordBatch.from_arrays([column], schema=schema)
        assert rows.nbytes < self.memory_bytes // 8
        with self.attempt(tmp_path, streams=(StreamSchema("texts", KEY, schema),)) as store:
            with pytest.raises(MemoryLimitError, match="bytes of rows in one write"):
                store.put("texts", rows, keys_of(1, 2, 3, 4))
            assert store.append("texts", rows, keys_of(1, 2, 3, 4)) == 4

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
            (Mutation("put", "customers", keys_of(1)), "give rows to 'append', 'put'"),
            (Mutation("delete_range", "customers", keys_of(1)), "give KeyBounds"),
            (Mutation("delete", "customers", KeyBounds((1,))), "KeyBounds .* 'delete_range'"),
            (Mutation("delete_range", "customers", KeyBounds(("x",))), "not of the type"),
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

    def test_one_write_may_retract_and_delete_ranges(self, store):
        store.append("customers", customers(1, 2), keys_of(1, 2))
        store.retract("customers", customers(9), keys_of(1))  # waits for its row
        assert (
            store.write(
                [
                    Mutation("append", "customers", keys_of(1, 1, 3, 4), customers(3, 4, 5, 6)),
                    Mutation("retract", "customers", keys_of(1, 1, 3), customers(1, 4, 7)),
                    Mutation("append", "customers", keys_of(3, 1), customers(7, 9)),
                    Mutation("delete_range", "customers", KeyBounds(low=(2,), high=(4,))),
                    Mutation("append", "customers", keys_of(3, 2), customers(7, 8)),
                    Mutation("retract", "customers", keys_of(4, 5), customers(6, 10)),
                    Mutation("delete", "customers", keys_of(5)),
                    Mutation("append", "customers", keys_of(5), customers(10)),
                ]
            )
            == 4 + 3 + 2 + 2 + 2 + 1
        )
        found = {key[0]: [] for key, _ in iterated(store, "customers")}
        for key, row in iterated(store, "customers"):
            found[key[0]].append(row["id"])
        assert found == {1: [3], 2: [8], 3: [7], 5: [10]}
        assert store.probe("customers", keys_of(1, 2, 3, 4, 5)).counts.tolist() == [1, 1, 1, 0, 1]

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
            store.append("returns", returns(1), keys_of(5))
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

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            ({"k0": 1, "k1": "a"}, "'k0': 1 is a int; give a list of values|columns missing"),
            ([1], "row 0 is 1, a int; give a pyarrow, polars or pandas table"),
            (None, "given a NoneType; give a pyarrow|have no keys; give keys="),
            (pa.array([1]), "a Int64Array that is no table of columns"),
        ],
    )
    def test_what_is_no_batch_is_refused_by_its_type(self, tmp_path, bad, said):
        """Of a stream with an expiry too."""
        expiring = StreamSchema(
            "timed", KEY, pa.schema({"at": pa.int64()}), expiry=Expiry("at", 10)
        )
        timed = pa.record_batch([pa.array([1])], schema=expiring.rows)
        with self.attempt(tmp_path, streams=(*STREAMS, expiring)) as store:
            for stream, rows in (("customers", customers(1)), ("timed", timed)):
                for refused in (
                    lambda stream=stream: store.probe(stream, bad),
                    lambda stream=stream: store.probe(stream, bad, [0]),
                    lambda stream=stream: store.exists(stream, bad),
                    lambda stream=stream: store.get_many(stream, bad),
                    lambda stream=stream: store.delete(stream, bad),
                    lambda stream=stream, rows=rows: store.append(stream, rows, bad),
                    lambda stream=stream, rows=rows: store.put(stream, rows, bad),
                    lambda stream=stream, rows=rows: store.retract(stream, rows, bad),
                    lambda stream=stream: store.append(stream, bad, keys_of(1)),
                    lambda stream=stream: store.retract(stream, bad, keys_of(1)),
                    lambda stream=stream: store.write([Mutation("delete", stream, bad)]),
                ):
                    with pytest.raises(InvalidArgumentError, match=said):
                        refused()
                assert scanned(store, stream) == []

    def test_other_columns_are_refused_and_nothing_is_stored(self, store):
        wrong = customers(1).rename_columns(["id", "label"])
        with pytest.raises(InvalidArgumentError, match="label"):
            store.append("customers", wrong, keys_of(1))
        typed = pa.RecordBatch.from_pylist(
            [{"id": "1", "name": "x"}],
            schema=pa.schema([("id", pa.string()), ("name", pa.string())]),
        )
        with pytest.raises(InvalidArgumentError, match="'id': expected int64, given string"):
            store.append("customers", typed, keys_of(1))
        with pytest.raises(InvalidArgumentError, match="2 rows but 1 keys"):
            store.append("customers", customers(1, 2), keys_of(1))
        bad_key = pa.RecordBatch.from_pylist([{"k0": "1", "k1": "s1"}])
        with pytest.raises(InvalidArgumentError, match="k0"):
            store.append("customers", customers(1), bad_key)
        with pytest.raises(InvalidArgumentError, match="k0"):
            store.probe("customers", bad_key)
        assert scanned(store, "customers") == []
