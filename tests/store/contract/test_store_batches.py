"""Stores take batches of every kind, by name, wherever they take one; and give what is read as
one."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate import Expiry, InvalidArgumentError, Mutation, StoreMapping, StreamSchema, open_store
from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.store_base.null_safe import NullSafeStore, null_safe_streams
from support.batch_kinds import KINDS, turned
from support.sampling import each_value

BACKENDS = ("lsm", "rocksdb", "memory")
KEY = pa.schema([("user", pa.int64()), ("day", pa.int32())])
ROWS = pa.schema([("page", pa.string()), ("n", pa.int32())])
#: What callers have: keys and rows in one table, in another order and in other types.
TABLE = pa.table(
    {
        "n": pa.array([1, 2, 3, 4], pa.int64()),
        "user": pa.array([7, 8, 7, 9], pa.int32()),
        "page": pa.array(["a", "b", None, "d"], pa.large_string()),
        "day": pa.array([1, 1, 1, 2], pa.int64()),
    }
)
#: By key, what is stored.
STORED = {
    (7, 1): [{"page": "a", "n": 1}, {"page": None, "n": 3}],
    (8, 1): [{"page": "b", "n": 2}],
    (9, 2): [{"page": "d", "n": 4}],
}
NAMES = ["user", "day"]


def opened(directory: Path, backend: str, streams: list[StreamSchema] | None = None) -> Any:
    return open_store(
        str(directory), streams or [StreamSchema("clicks", KEY, ROWS)], backend=backend
    )


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with opened(tmp_path, request.param) as found:
        yield found


def held(store: Any, stream: str = "clicks") -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for entries in store.iterate(stream):
        for key, row in zip(entries.keys.to_pylist(), entries.rows.to_pylist(), strict=True):
            found.setdefault(tuple(key.values()), []).append(row)
    return found


def without(*keys: Any) -> dict[Any, list[dict[str, Any]]]:
    return {key: rows for key, rows in STORED.items() if key not in keys}


@pytest.mark.parametrize("kind", KINDS)
def test_every_write_takes_every_kind_of_batch(store: Any, kind: str) -> None:
    make = KINDS[kind]
    assert store.append("clicks", make(TABLE), key=NAMES) == 4
    assert held(store) == STORED
    rows, keys = TABLE.select(["n", "page"]), TABLE.select(["day", "user"])
    assert store.append("clicks", make(rows), make(keys)) == 4
    assert held(store) == {key: rows * 2 for key, rows in STORED.items()}
    assert store.put("clicks", make(rows), make(keys)) == 4
    assert held(store) == STORED
    assert store.put("clicks", make(TABLE), key=NAMES[::-1]) == 4
    assert held(store) == STORED
    assert store.retract("clicks", make(TABLE.slice(0, 2)), key=NAMES) == 2
    assert held(store) == {**without((8, 1)), (7, 1): STORED[7, 1][1:]}
    store.append("clicks", make(rows.slice(1, 1)), make(keys.slice(1, 1)))
    assert store.retract("clicks", make(rows.slice(1, 1)), make(keys.slice(1, 1))) == 1
    store.delete("clicks", make(keys.slice(0, 1)))
    assert held(store) == without((7, 1), (8, 1))
    store.delete("clicks", make(TABLE), key=NAMES)
    assert held(store) == {}
    writes = [
        Mutation("append", "clicks", make(keys), make(rows)),
        Mutation("put", "clicks", make(keys.slice(3)), make(rows.slice(3))),
        Mutation("delete", "clicks", make(keys.slice(1, 1))),
    ]
    assert store.write(writes) == 5
    assert held(store) == without((8, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_several_writes_are_gone_through_twice(store: Any, kind: str) -> None:
    """Also those of batches that can be read only once."""
    make = KINDS[kind]
    rows, keys = TABLE.select(["n", "page"]), TABLE.select(["day", "user"])
    parts = [
        [Mutation("append", "clicks", make(keys.slice(n, 1)), make(rows.slice(n, 1)))]
        for n in range(4)
    ]
    huge = pa.table({"n": range(6000), "page": ["x" * 1000] * 6000})
    many = pa.table({"user": [1] * 6000, "day": [0] * 6000})
    parts.append([Mutation("append", "clicks", make(many), make(huge))])
    assert store.write_all([*parts, [Mutation("delete", "clicks", make(many.slice(0, 1)))]]) == 6004
    assert held(store) == STORED


@pytest.mark.parametrize("kind", KINDS)
def test_every_read_takes_every_kind_of_batch(store: Any, kind: str) -> None:
    make = KINDS[kind]
    store.append("clicks", TABLE, key=NAMES)
    asked = pa.table({"day": [1, 5, 2], "user": [7, 7, 9]})
    with store.snapshot() as snapshot:
        for reads in (store, snapshot):
            probe = reads.probe("clicks", make(asked))
            assert probe.counts.tolist() == [2, 0, 1]
            assert reads.probe("clicks", make(asked), np.array([2])).counts.tolist() == [0, 0, 1]
            assert reads.exists("clicks", make(asked)).tolist() == [True, False, True]
            found = reads.get_many("clicks", make(asked))
            assert found.positions.tolist() == [0, 0, 2]
            assert found.rows.to_pylist() == [*STORED[7, 1], *STORED[9, 2]]


def test_keys_under_their_own_names(store: Any) -> None:
    """Rows keep what they have; a key column that the rows do not have goes into the key alone."""
    own = TABLE.rename_columns(["n", "customer", "page", "date"])
    store.append("clicks", own, key=["customer", "date"])
    assert held(store) == STORED
    keys = own.select(["customer", "date"])
    assert store.exists("clicks", keys).all()
    store.delete("clicks", own.slice(0, 2), key=("customer", "date"))
    assert held(store) == without((7, 1), (8, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_key_column_that_is_also_a_column_of_the_rows(tmp_path: Path, backend: str) -> None:
    stream = StreamSchema("s", pa.schema([("user", pa.int64())]), pa.schema([("user", pa.int32())]))
    with opened(tmp_path, backend, [stream]) as store:
        store.append("s", [{"user": 1}, {"user": None}, {"user": 3}], key="user")
        assert held(store, "s") == {(1,): [{"user": 1}], (3,): [{"user": 3}]}
        assert store.iterate("s").to_table().to_pydict() == {"key_user": [1, 3], "user": [1, 3]}


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (TABLE, {}, "rows of stream 'clicks' have no keys; give keys=, one key per row, or key="),
    (TABLE, {"key": ["user"]}, "has the key columns user, day; name one column of the batch for"),
    (TABLE, {"key": ["user", "user"]}, "has the key columns user, day"),
    (TABLE, {"key": ["user", "date"]}, "columns missing 'date'; unknown 'day'"),
    (TABLE, {"key": NAMES, "keys": TABLE.select(NAMES)}, "keys= and key=.* are both given"),
    (TABLE, {"keys": TABLE.select(NAMES)}, "columns unknown 'user', 'day'; give each of page, n"),
    (TABLE.select(ROWS.names), {"keys": TABLE.select(["day"])}, "missing 'user'"),
    (TABLE.select(ROWS.names), {"keys": [{"user": 1, "day": 2}]}, "4 rows but 1 keys"),
    (TABLE.select(ROWS.names), {"keys": 5}, "keys of stream 'clicks': given a int; give a pyar"),
    (
        TABLE.set_column(0, "n", pa.array([1, 2, 2**31, 4])),
        {"key": NAMES},
        "rows of stream 'clicks': column 'n', row 2: 2147483648 of int64 would change as int32",
    ),
    (
        TABLE.set_column(3, "day", pa.array([1, 2, 2**31, 4])),
        {"key": NAMES},
        "column 'day', row 2: 2147483648 of int64 would change as int32",
    ),
    (
        TABLE.set_column(1, "user", pa.array(["7", "8", "7", "9"])),
        {"key": NAMES},
        "column 'user': expected int64, given string, such as '7'; cast the column to int64 first",
    ),
]


@pytest.mark.parametrize(("rows", "given", "said"), REFUSED, ids=[said for _, _, said in REFUSED])
def test_what_does_not_fit_changes_nothing(
    store: Any, rows: Any, given: dict[str, Any], said: str
) -> None:
    store.append("clicks", TABLE, key=NAMES)
    for write in (store.append, store.put, store.retract):
        with pytest.raises(InvalidArgumentError, match=said):
            write("clicks", rows, **given)
    assert held(store) == STORED
    if "keys" in given and "key" not in given and "unknown" not in said and "4 rows" not in said:
        for call in (store.delete, store.probe, store.exists, store.get_many):
            with pytest.raises(InvalidArgumentError, match=said):
                call("clicks", given["keys"])
    assert held(store) == STORED


def test_encoded_keys_have_no_columns(store: Any) -> None:
    encoded = KeyCodec(KEY).encode(pa.record_batch({"user": [7], "day": [1]}, schema=KEY))
    assert store.append("clicks", [{"page": "a", "n": 1}], encoded) == 1
    with pytest.raises(InvalidArgumentError, match="are encoded, and have no column"):
        store.delete("clicks", encoded, key=NAMES)
    store.delete("clicks", encoded)
    assert held(store) == {}


def test_a_mapping_takes_rows_of_a_table(store: Any) -> None:
    clicks = StoreMapping(store, "clicks")
    clicks[7, 1] = TABLE.select(["n", "page"]).slice(0, 2)
    assert clicks[7, 1] == [{"page": "a", "n": 1}, {"page": "b", "n": 2}]
    clicks[7, 1] = TABLE.select(["n", "page"]).slice(0, 0)
    assert (7, 1) not in clicks
    one = StoreMapping(store, "clicks", unique=True)
    one[8, 1] = TABLE.select(["n", "page"]).slice(1, 1).to_pandas()
    assert one[8, 1] == {"page": "b", "n": 2}
    with pytest.raises(InvalidArgumentError, match="2 rows for a key of stream 'clicks': give one"):
        one[8, 1] = TABLE.select(["n", "page"]).slice(0, 2)


@each_value(kind=KINDS, backend=BACKENDS)
def test_a_stream_with_an_expiry_takes_every_kind(tmp_path: Path, backend: str, kind: str) -> None:
    rows = pa.schema([("at", pa.timestamp("us")), ("user", pa.int64())])
    stream = StreamSchema("seen", KEY, rows, expiry=Expiry("at", timedelta(days=7)))
    make = KINDS[kind]
    days = [datetime(2026, 1, day) for day in (1, 2, 20)]
    table = pa.table({"user": [1, 2, 3], "at": pa.array(days, pa.timestamp("ns")), "day": [0] * 3})
    with opened(tmp_path, backend, [stream]) as store:
        store.append("seen", make(table), key=NAMES)
        store.put("seen", make(table.select(["user", "at"])), make(table.select(NAMES)))
        assert store.exists("seen", make(table.select(NAMES))).all()
        assert store.scan("seen").to_table().num_rows == 3
        store.retract("seen", make(table.slice(1, 1)), key=NAMES)
        store.advance("seen", datetime(2026, 1, 10))
        found = store.get_many("seen", make(table.select(["day", "user"])))
        assert found.to_table().to_pylist() == [{"at": days[2], "user": 3}]
        store.delete("seen", make(table), key=NAMES)
        assert store.scan("seen").to_table().equals(pa.schema(rows).empty_table())


@each_value(kind=KINDS, backend=BACKENDS)
def test_a_null_safe_store_takes_every_kind(tmp_path: Path, backend: str, kind: str) -> None:
    streams = [StreamSchema("clicks", KEY, ROWS)]
    make = KINDS[kind]
    with opened(tmp_path, backend, null_safe_streams(streams)) as below:
        store = NullSafeStore(streams, below)
        store.append("clicks", make(TABLE), key=NAMES)
        rows, keys = TABLE.select(["page", "n"]), TABLE.select(["day", "user"])
        store.put("clicks", make(rows), make(keys))
        assert store.exists("clicks", make(keys)).all()
        assert held(store) == STORED
        store.retract("clicks", make(TABLE.slice(1, 1)), key=NAMES)
        store.delete("clicks", make(TABLE.slice(3)), key=NAMES)
        assert held(store) == without((8, 1), (9, 2))
        assert store.append("clicks", [{"page": "x", "n": 0}], [{"user": None, "day": 1}]) == 1
        assert store.get("clicks", (None, 1)).to_pylist() == [{"page": "x", "n": 0}]


# What reads give. ------------------------------------------------------------------------------


@each_value(backend=BACKENDS, expires=[False, True])
def test_what_is_read_is_a_table_also_without_rows(
    tmp_path: Path, backend: str, expires: bool
) -> None:
    kinds = pa.schema(
        [
            ("at", pa.timestamp("us")),
            ("word", pa.dictionary(pa.int8(), pa.string())),
            ("parts", pa.list_(pa.int32())),
            pa.field("n", pa.int64(), nullable=False),
        ]
    )
    key = pa.schema([("n", pa.int64()), ("key_n", pa.string())])
    expiry = Expiry("at", timedelta(days=7)) if expires else None
    given = [
        {"at": datetime(2026, 1, 1), "word": "a", "parts": [1], "n": 1, "key_n": "x"},
        {"at": None, "word": None, "parts": None, "n": 2, "key_n": "y"},
    ]
    with opened(tmp_path, backend, [StreamSchema("s", key, kinds, expiry)]) as store:
        names = ["at", "word", "parts", "n"]
        for count in (0, 2):
            if count:
                store.append("s", given, key=["n", "key_n"])
            rows = [{name: row[name] for name in names} for row in given[:count]]
            entries = [
                {
                    "key_key_n": row["n"],
                    "key_n": row["key_n"],
                    **{name: row[name] for name in names},
                }
                for row in given[:count]
            ]
            with store.snapshot() as snapshot:
                for reads in (store, snapshot):
                    check_reads(reads, names, rows, entries)


def check_reads(reads: Any, names: list[str], rows: Any, entries: Any) -> None:
    by_n = sorted(rows, key=lambda row: row["n"])
    scanned = reads.scan("s").to_table()
    assert scanned.column_names == names
    assert sorted(scanned.to_pylist(), key=lambda row: row["n"]) == by_n
    assert sorted(reads.scan("s").rows(), key=lambda row: row["n"]) == by_n
    assert list(reads.scan("s").to_pandas().columns) == names
    assert len(reads.scan("s").to_pandas()) == len(rows)
    found = reads.iterate("s").to_table()
    assert found.column_names == ["key_key_n", "key_n", *names]
    assert found.to_pylist() == entries
    assert list(reads.iterate("s").rows()) == entries
    assert reads.iterate("s").to_pandas()["n"].tolist() == [row["n"] for row in rows]
    asked = [{"n": 1, "key_n": "x"}, {"n": 2, "key_n": "y"}]
    many = reads.get_many("s", asked)
    assert many.to_table().to_pylist() == rows
    assert many.to_table().schema.equals(scanned.schema)
    assert many.to_pandas()["n"].tolist() == [row["n"] for row in rows]
    for piece in reads.iterate("s"):
        assert piece.to_table().column_names == found.column_names
        assert piece.to_pandas()["key_n"].tolist() == piece.keys["key_n"].to_pylist()
    reading = reads.scan("s")
    reading.close()
    assert list(reading) == []


def test_pieces_give_what_is_left(store: Any) -> None:
    many = {"user": range(1000), "day": [0] * 1000, "page": ["x" * 100] * 1000, "n": range(1000)}
    store.append("clicks", turned(pa.table(many)), key=NAMES)
    reading = store.scan("clicks", max_bytes=10_000)
    first = next(reading)
    assert 0 < first.num_rows < 500
    rest = reading.to_table()
    assert first["n"].to_pylist() + rest["n"].to_pylist() == list(range(1000))
    assert reading.to_table().num_rows == 0
