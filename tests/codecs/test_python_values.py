"""Keys and rows of Python values: none becomes another one on its way through Arrow."""

import contextlib
import datetime
import uuid
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.lsm.store import LsmStore
from lsmstate.mapping import StoreMapping
from lsmstate.opening import open_store
from lsmstate.options import Options
from lsmstate.store import StreamSchema

HOUR = datetime.timedelta(hours=1)
#: The second 2:30 of the night on which Berlin sets its clocks back.
SECOND = datetime.datetime(2021, 10, 31, 1, 30, tzinfo=datetime.UTC)
NAMED = pa.struct([("a", pa.int32()), ("b", pa.string())])


@contextlib.contextmanager
def stored(directory, kind, keys):
    """A store with the rows 1, 2, ... of the keys."""
    stream = StreamSchema("s", pa.schema([("k", kind)]), pa.schema([("v", pa.int64())]))
    with LsmStore.open(str(directory), [stream], options=Options()) as store:
        rows = pa.record_batch([pa.array(range(1, len(keys) + 1))], schema=stream.rows)
        store.append("s", rows, pa.record_batch([pa.array(keys, kind)], schema=stream.key))
        yield store


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.list_(pa.string()), [["a", "b"], ["ab"], [], ["a", None]]),
        (pa.large_list(pa.int32()), [[1], [1, 2], []]),
        (pa.list_(pa.int32(), 1), [[1], [2]]),
        (pa.list_view(pa.int8()), [[1], [1, 2], []]),
        (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([1, 2, 4])]),
        (NAMED, [{"a": 1, "b": None}, {"a": 1, "b": "x"}]),
    ],
    ids=str,
)
def test_the_value_of_a_single_key_column_may_stand_by_itself(tmp_path, kind, keys):
    with stored(tmp_path, kind, keys) as store:
        for number, key in enumerate(keys, 1):
            for given in (key, (key,)):
                assert store.get("s", given).to_pylist() == [{"v": number}]
        store.delete_range("s", prefix=keys[1])
        left = [key for piece in store.iterate("s") for key in piece.keys["k"].to_pylist()]
        assert sorted(map(str, left)) == sorted(str(key) for key in keys if key != keys[1])


@pytest.mark.parametrize(
    ("kind", "key", "wrong"),
    [
        (pa.list_(pa.string()), ["a", "b"], ["ab", ("ab",)]),
        (pa.list_(pa.int32()), [1, 2], [([1.5, 2],), [1, 2.5], (b"\1\2",)]),
        (NAMED, {"a": 1, "b": None}, [{"a": 1.5}, {"a": 1, "zz": 7}]),
        (pa.list_(NAMED), [{"a": 1, "b": None}], [[{"a": 1.5}], [{"zz": 1}]]),
    ],
    ids=str,
)
def test_no_key_is_taken_for_another(tmp_path, kind, key, wrong):
    with stored(tmp_path, kind, [key]) as store:
        mapping = StoreMapping(store, "s")
        for given in wrong:
            with pytest.raises(InvalidArgumentError, match=r"would become|is not of the type"):
                store.get("s", given)
            with pytest.raises(InvalidArgumentError):
                store.delete_range("s", prefix=given)
            alone = given[0] if isinstance(given, tuple) else given
            assert alone not in mapping
        assert key in mapping


@pytest.mark.parametrize("backend", ["lsm", "rocksdb", "memory"])
@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (pa.timestamp("us", "Europe/Berlin"), SECOND.astimezone(ZoneInfo("Europe/Berlin"))),
        (pa.date32(), datetime.date(2021, 1, 1)),
        (pa.string(), "a"),
        (pa.string_view(), "a" * 20),
        (pa.list_(pa.string()), ["a"]),
        (NAMED, {"a": 1, "b": None}),
    ],
    ids=str,
)
def test_keys_in_a_dictionary(tmp_path, backend, kind, key):
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array([key], kind))
    stream = StreamSchema("s", pa.schema([("k", keys.type)]), pa.schema([("v", pa.int64())]))
    with open_store(str(tmp_path), [stream], backend=backend, options=Options()) as store:
        rows = pa.record_batch([pa.array([1, 2])], schema=stream.rows)
        store.append("s", rows, pa.record_batch([keys], schema=stream.key))
        for given in (key, (key,)):
            assert store.get("s", given).equals(rows)
            assert store.contains("s", given)
            assert [piece.keys["k"].to_pylist() for piece in store.iterate("s", low=given)] == [
                [key, key]
            ]
        if not isinstance(key, dict | list):
            mapping = StoreMapping(store, "s")
            assert list(mapping) == [key]
            mapping[key] = [{"v": 3}, {"v": 4}]
            assert mapping[key] == [{"v": 3}, {"v": 4}]
            del mapping[key]
        store.delete_range("s", prefix=key)
        assert not store.contains("s", key)


@pytest.mark.parametrize(
    "given", [b"a", bytearray(b"a"), memoryview(b"a")], ids=lambda given: type(given).__name__
)
def test_bytes_of_any_kind_are_one_value(tmp_path, given):
    with stored(tmp_path / "binary", pa.binary(), [b"a"]) as store:
        for key in (given, (given,)):
            assert store.get("s", key).to_pylist() == [{"v": 1}]
            assert [piece.rows.to_pylist() for piece in store.iterate("s", prefix=key)] == [
                [{"v": 1}]
            ]
    for kind, key in ((pa.int64(), 97), (pa.list_(pa.int64()), [97])):
        with stored(tmp_path / str(kind), kind, [key]) as store:
            for wrong in (given, (given,)):
                with pytest.raises(InvalidArgumentError, match=r"would become|is not of the type"):
                    store.get("s", wrong)
                with pytest.raises(InvalidArgumentError):
                    store.delete_range("s", prefix=wrong)


@pytest.mark.parametrize("given", [{1}, {1, 2}, {1: 2}.values(), {1, 2, 3}], ids=str)
def test_a_set_is_no_list_of_fixed_size(tmp_path, given):
    pair = pa.list_(pa.int64(), 2)
    stream = StreamSchema("s", pa.schema([("k", pair)]), pa.schema([("v", pa.list_(pair))]))
    with LsmStore.open(str(tmp_path), [stream], options=Options()) as store:
        with pytest.raises(InvalidArgumentError, match=r"would become|is not of the type"):
            store.get("s", (given,))
        mapping = StoreMapping(store, "s")
        assert given not in mapping
        with pytest.raises(InvalidArgumentError, match=r"would become|is not of the type"):
            mapping[[1, 2]] = [{"v": [[1, 2], given]}]


@pytest.mark.parametrize("time", [SECOND - HOUR, SECOND], ids=["first", "second"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_times_of_an_hour_that_comes_twice_are_told_apart(tmp_path, time, zone):
    kind = pa.timestamp("us", zone)
    with stored(tmp_path, pa.struct([("at", kind)]), [{"at": SECOND - HOUR}, {"at": SECOND}]) as (
        store
    ):
        for given in (time, time.astimezone(ZoneInfo("Europe/Berlin"))):
            expected = [{"v": 1 + (time == SECOND)}]
            assert store.get("s", ({"at": given},)).to_pylist() == expected
            assert StoreMapping(store, "s")[{"at": given}] == expected


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *((pa.timestamp("s"), number) for number in (2**53, -(2**53))),
        (pa.timestamp("us", "Europe/Berlin"), 2**62),
        (pa.timestamp("ns"), 1),
        (pa.date32(), 2**30),
        (pa.date64(), 86_400_000 * 2**30),
        (pa.duration("s"), 2**53),
        (pa.duration("ns"), 1),
        (pa.time64("ns"), 1),
        (pa.timestamp("us", "UTC"), datetime.datetime.min.replace(tzinfo=datetime.timezone(HOUR))),
    ],
    ids=str,
)
def test_times_that_python_has_none_of(tmp_path, kind, given):
    with stored(tmp_path, pa.list_(kind), [[given]]) as store:
        mapping = StoreMapping(store, "s")
        assert store.get("s", ([given],)).to_pylist() == mapping[[given]] == [{"v": 1}]
        mapping[[given]] = [{"v": 2}, {"v": 3}]
        assert mapping[[given]] == [{"v": 2}, {"v": 3}]
        assert [given, given] not in mapping
        with pytest.raises(InvalidArgumentError, match="would become"):
            store.get("s", ({given},))
    stream = StreamSchema("s", pa.schema([("k", pa.int64())]), pa.schema([("v", kind)]))
    with LsmStore.open(str(tmp_path / "rows"), [stream], options=Options()) as store:
        StoreMapping(store, "s")[1] = [{"v": given}]
        assert store.get("s", 1)["v"].equals(pa.array([given], kind))


@pytest.mark.parametrize(
    ("kind", "given", "key"),
    [
        (pa.date32(), np.datetime64("2021-01-01"), datetime.date(2021, 1, 1)),
        (pa.date64(), np.datetime64("2021-01-01"), datetime.date(2021, 1, 1)),
        (pa.date32(), np.datetime64("2021-02"), datetime.date(2021, 2, 1)),
        (pa.timestamp("us"), np.datetime64("2021-01-01"), datetime.datetime(2021, 1, 1)),
        (pa.timestamp("ms"), np.datetime64("2021-01-01T05"), datetime.datetime(2021, 1, 1, 5)),
        (pa.timestamp("s"), np.datetime64(2, "10s"), 20),
        (pa.timestamp("s"), np.datetime64(2**53, "s"), 2**53),
        (pa.timestamp("us"), np.datetime64(10**7, "D"), None),
        (pa.timestamp("us"), np.datetime64(1, "ns"), None),
        (pa.date32(), np.datetime64("2021-01-01T05"), None),
        (pa.duration("s"), np.timedelta64(3, "D"), datetime.timedelta(3)),
        (pa.duration("s"), np.timedelta64(3, "M"), None),
    ],
    ids=str,
)
def test_times_of_numpy(tmp_path, kind, given, key):
    with stored(tmp_path, kind, [1 if key is None else key]) as store:
        if key is None:
            with pytest.raises(InvalidArgumentError, match=r"would become|is not of the type"):
                store.get("s", given)
        else:
            assert store.get("s", given).to_pylist() == [{"v": 1}]
        assert (given in StoreMapping(store, "s")) == (key is not None)


def test_a_uuid_may_be_given_as_its_bytes(tmp_path):
    key = uuid.UUID(int=7)
    with stored(tmp_path, pa.uuid(), [key]) as store:
        for given in (key, key.bytes):
            assert store.get("s", given).to_pylist() == [{"v": 1}]
            assert given in StoreMapping(store, "s")
        with pytest.raises(InvalidArgumentError, match="is not of the type"):
            store.get("s", b"short")


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (pa.int64(), 1.5, False),
        (pa.int64(), 2.0, True),
        (pa.list_(pa.int8()), [1, 2.9], False),
        (pa.list_(pa.int8()), (1, 2), True),
        (pa.map_(pa.string(), pa.int8()), [("a", 1.5)], False),
        (pa.map_(pa.string(), pa.int8()), [("a", 1), ("b", None)], True),
        (pa.float32(), 0.1, True),
        (pa.timestamp("us", "UTC"), 5, True),
        (pa.timestamp("s"), 1.5, False),
        (pa.timestamp("s"), SECOND, False),  # of which zone the column is is not known
        (pa.timestamp("s"), SECOND.replace(tzinfo=None), True),
        (pa.timestamp("s"), SECOND + HOUR / 7, False),
        (pa.timestamp("ns"), pd.Timestamp(5, unit="ns"), True),
        (pa.timestamp("us"), pd.Timestamp(5, unit="ns"), False),
        (pa.duration("s"), HOUR / 7, False),
        (pa.date32(), datetime.date(2021, 1, 1), True),
        (pa.date32(), SECOND, False),
        (pa.time32("s"), datetime.time(1, 2, 3), True),
        (pa.time32("s"), datetime.time(1, 2, 3, 4), False),
        (pa.string(), None, True),
    ],
    ids=str,
)
def test_a_mapping_stores_rows_as_they_are_given_or_not_at_all(tmp_path, kind, given, kept):
    stream = StreamSchema("s", pa.schema([("k", pa.int64())]), pa.schema([("v", kind)]))
    with LsmStore.open(str(tmp_path), [stream], options=Options()) as store:
        mapping = StoreMapping(store, "s")
        if kept:
            mapping[1] = [{"v": given}]
            assert mapping[1] == [{"v": pa.scalar(given, kind).as_py()}]
        else:
            with pytest.raises(InvalidArgumentError, match="would become"):
                mapping[1] = [{"v": given}]
            assert 1 not in mapping


def test_flushes_of_a_standalone_store_are_counted(tmp_path):
    with stored(tmp_path, pa.int64(), [1, 2]) as store:
        assert store.stats().writes.flushes == 0
        store.flush()
        assert store.stats().writes.flushes == 1
        store.flush()
        assert store.stats().writes.flushes == 1
