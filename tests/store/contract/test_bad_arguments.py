"""Values that do not fit are refused in one sentence: the value, the cause, the remedy."""

import os
import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

import lsmstate
from lsmstate import Expiry, InvalidArgumentError, Mutation, StoreMapping, StreamSchema, open_store
from lsmstate.cython_ext.errors import MOST_MESSAGE, CorruptionError
from lsmstate.join import MultiwayJoin, State
from lsmstate.opening import BACKENDS, open_attempt, open_checkpoint, open_commit
from support.grouped import grouped

KEY = pa.schema([("k", pa.int64())])
TEXT = pa.schema([("k", pa.string())])
ROWS = pa.schema([("k", pa.int64()), ("v", pa.string())])
NAIVE = pa.schema([("t", pa.timestamp("us"))])
ZONED = pa.schema([("t", pa.timestamp("us", "UTC"))])
EMPTY = pa.schema([])
AWARE = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
HUGE = "x" * 200_000
TWO = {"a": ROWS, "b": ROWS}

backends = pytest.mark.parametrize("backend", BACKENDS)


def refused(call, *words: str) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    text = str(caught.value)
    assert len(text) < 1200
    for word in words:
        assert word in text
    return text


@pytest.fixture
def opened(tmp_path):
    stores = []

    def make(key=KEY, rows=ROWS, backend="lsm", expiry=None):
        stream = StreamSchema("s", key, rows, expiry=expiry)
        path = tmp_path / str(len(stores))
        stores.append(open_store(path, [stream], backend=backend))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


# Streams without columns ------------------------------------------------------------------


@pytest.mark.parametrize(
    "on", ["a.k = b.k", ["k"], [], {"a": ["k"], "b": ["k"]}, "a LEFT JOIN b ON a.k = b.k"]
)
@pytest.mark.parametrize("empty", ["a", "b"])
def test_a_join_needs_columns(on, empty):
    streams = {**TWO, empty: EMPTY}
    refused(lambda: MultiwayJoin(streams, on), f"stream '{empty}' has no columns; give it")


@backends
def test_a_store_needs_key_columns_and_no_others(opened, backend):
    refused(lambda: opened(EMPTY, backend=backend), "the key has no columns; name at least one")
    store = opened(rows=EMPTY, backend=backend)
    keys = pa.record_batch([pa.array([1, 1, 2])], schema=KEY)
    assert store.append("s", keys.select([]), keys) == 3
    assert store.get("s", 1).num_rows == 2
    assert sum(piece.num_rows for piece in store.scan("s")) == 3


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"streams": None}, "streams=None is a NoneType; give the schema of each stream"),
        ({"streams": [ROWS, ROWS]}, "is a list; give the schema of each stream"),
        ({"streams": {"a": ["k"], "b": ROWS}}, "streams['a'] is a list; give a pyarrow.Schema"),
        ({"streams": {1: ROWS, "b": ROWS}}, "streams[1] is a Schema; give"),
        ({"on": None}, "on=None: give a condition in SQL"),
        ({"on": 5}, "on=5: give a condition in SQL"),
        ({"piece_bytes": "1m"}, "piece_bytes='1m': give a number of bytes"),
        ({"piece_bytes": -1}, "piece_bytes=-1: must be at least 1"),
        ({"backend": None}, "backend=None is unknown"),
        ({"algorithm": None}, "algorithm=None is unknown"),
        ({"state_dir": 5}, "state_dir=5 is a int; give a path"),
        ({"state_dir": ""}, "state_dir='' is no path; name a local directory"),
        ({"state_dir": "a\0b"}, "is no path; name a local directory"),
    ],
)
def test_arguments_of_other_types_are_refused(change, word):
    given = {"streams": TWO, "on": "a.k = b.k", **change}
    refused(lambda: MultiwayJoin(**grouped(**given)), word)


# URLs -------------------------------------------------------------------------------------

URLS = ["s3://bucket/x", "gs://b/x", "hdfs://n/x", "abfss://c@a/x", "file:///tmp/x", Path("s3://b")]


@pytest.mark.parametrize("url", URLS, ids=str)
def test_a_url_is_no_local_directory(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    streams = [StreamSchema("s", KEY, ROWS)]
    remedy = "is a URL, but the state lies in a local directory; give a local path"
    for backend in BACKENDS:
        refused(lambda b=backend: open_store(url, streams, backend=b), "directory='", remedy)
        refused(
            lambda b=backend: MultiwayJoin(TWO, ["k"], state=State(state_dir=url, backend=b)),
            "state_dir='",
            remedy,
        )
        refused(
            lambda b=backend: open_attempt(url, streams, backend=b, batch_id=0, attempt_id="a"),
            remedy,
        )
    refused(lambda: open_checkpoint(url, "c"), remedy)
    refused(lambda: open_commit(url, "p"), remedy)
    refused(lambda: lsmstate.export(url, "backup"), remedy)
    refused(lambda: lsmstate.restore("backup", url), remedy)
    assert os.listdir(tmp_path) == []


# Times with a zone ------------------------------------------------------------------------


@backends
def test_a_time_with_a_zone_is_no_key_of_a_column_without(opened, backend):
    store = opened(NAIVE, backend=backend)
    for given in (AWARE, pa.scalar(AWARE), datetime(2026, 1, 1, tzinfo=UTC)):
        call = refused(lambda g=given: store.get("s", g), "time without a time zone")
        assert "would become datetime.datetime(2026, 1, 1" in call
        refused(lambda g=given: store.contains("s", g), "time without a time zone")
        refused(lambda g=given: list(store.iterate("s", low=(g,))), "without a time zone")
        refused(lambda g=given: store.delete_range("s", low=(g,)), "without a time zone")
    for kind, given in (
        (pa.list_(pa.timestamp("us")), [[AWARE]]),
        (pa.struct([("x", pa.timestamp("ns"))]), ({"x": AWARE},)),
        (pa.time64("us"), time(12, tzinfo=UTC)),
        (pa.date32(), AWARE),
    ):
        nested = opened(pa.schema([("t", kind)]), backend=backend)
        refused(lambda s=nested, g=given: s.get("s", g), "would become")


def test_a_time_without_a_zone_is_utc_where_there_is_one(opened):
    store = opened(ZONED)
    keys = pa.record_batch([pa.array([AWARE], pa.timestamp("us", "UTC"))], schema=ZONED)
    store.append("s", pa.record_batch([[1], ["x"]], schema=ROWS), keys)
    for given in (AWARE, datetime(2026, 1, 1, 10), pa.scalar(datetime(2026, 1, 1, 10))):
        assert store.get("s", given).num_rows == 1


def test_a_mapping_refuses_it_in_rows_too(opened):
    mapping = StoreMapping(opened(rows=NAIVE), "s")
    refused(lambda: mapping.__setitem__(1, [{"t": AWARE}]), "row", "would become", "column 't'")
    mapping[1] = [{"t": AWARE.replace(tzinfo=None)}]
    assert mapping[1] == [{"t": datetime(2026, 1, 1, 12)}]


def test_a_watermark_with_a_zone_is_refused_for_a_column_without(opened):
    store = opened(rows=NAIVE, expiry=Expiry("t", timedelta(days=1)))
    refused(lambda: store.advance("s", AWARE), "a datetime without a time zone")
    store.advance("s", date(2026, 1, 1))


# Long values ------------------------------------------------------------------------------


def test_messages_do_not_repeat_long_values(opened, tmp_path):
    store = opened()
    text = store.get
    for call in (
        lambda: text("s", HUGE),
        lambda: text("s", HUGE.encode()),
        lambda: text("s", (HUGE, HUGE)),
        lambda: text("s", list(range(100_000))),
        lambda: text(HUGE, 1),
        lambda: list(store.iterate("s", low=(HUGE,))),
        lambda: StoreMapping(store, "s").__setitem__(1, [{"k": HUGE, "v": "x"}]),
        lambda: StoreMapping(store, "s").__setitem__(1, [{"k": 1, HUGE: "x"}]),
        lambda: StoreMapping(store, "s").__setitem__(HUGE, []),
        lambda: store.write([HUGE]),
        lambda: store.write([Mutation(HUGE, "s", pa.record_batch([[1]], schema=KEY))]),
        lambda: store.checkpoint(HUGE),
        lambda: store.checkpoints.delete(HUGE),
        lambda: open_store(tmp_path / "z", HUGE),
        lambda: open_store(tmp_path / "z", [StreamSchema("s", KEY, ROWS)], backend=HUGE),
        lambda: MultiwayJoin(TWO, "a.k = b." + HUGE),
        lambda: MultiwayJoin(TWO, "a.k = b.k AND '" + HUGE),
        lambda: MultiwayJoin(TWO, ["k"], how=HUGE),
        lambda: MultiwayJoin(TWO, ["k"], state=State(memory=HUGE)),
        lambda: store.append("s", pa.record_batch([[1]], names=[HUGE]), None),
    ):
        refused(call)


def test_what_is_shortened_still_says_what_it_was():
    error = InvalidArgumentError(f"key '{HUGE}' of stream 's' isn't 'y'; give a number")
    assert str(error).startswith("key 'xxx")
    assert str(error).endswith("xxx' of stream 's' isn't 'y'; give a number")
    assert "(200002 characters)" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    many = str(InvalidArgumentError(", ".join(map(repr, range(100_000))) + "; give fewer"))
    assert len(many) < MOST_MESSAGE + 100
    assert many.endswith("; give fewer")
    damage = CorruptionError("'" + HUGE + "' is wrong", "path", 7)
    assert (damage.path, damage.offset) == ("path", 7)
    assert str(damage).startswith("path at offset 7: ")
    assert str(InvalidArgumentError("'a' is short")) == "'a' is short"


# Values of other kinds ---------------------------------------------------------------------


@backends
@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda s: s.write(None), "list of Mutation"),
        (lambda s: s.write_all(None), "lists of Mutation"),
        (lambda s: s.write_all([None]), "lists of Mutation"),
        (lambda s: s.write_all([[None]]), "Mutation(kind"),
        (lambda s: s.append("s", {"k": [1], "v": ["x"]}, key=5), "key=['k']"),
        (lambda s: s.append("s", {"k": [1], "v": ["x"]}, key=[5]), "key=['k']"),
        (lambda s: s.append(["s"], {"k": [1], "v": ["x"]}, key="k"), "Known: s"),
        (lambda s: s.scan("s", max_bytes=None), "1 << 20"),
        (lambda s: s.iterate("s", max_bytes="1m"), "1 << 20"),
        (lambda s: s.probe("s", {"k": [1]}).fetch(["a"], 100), "whole numbers"),
        (lambda s: s.probe("s", {"k": [1]}).fetch([0.5], 100), "whole numbers"),
        (lambda s: s.probe("s", {"k": [1]}).fetch([0], -5), "max_bytes=-5"),
        (lambda s: s.probe("s", {"k": [1]}).fetch([0], "x"), "max_bytes='x'"),
        (lambda s: StoreMapping(None, "s"), "open_store"),
    ],
)
def test_values_of_another_kind(opened, backend, call, word):
    store = opened(backend=backend)
    store.append("s", {"k": [1], "v": ["x"]}, key="k")
    refused(lambda: call(store), word)
    assert [rows.num_rows for rows in store.scan("s")] == [1]


@pytest.mark.parametrize("name", [None, 5, "", "a/b"])
def test_names_of_checkpoints_and_exports(opened, tmp_path, name):
    store = opened()
    refused(lambda: store.checkpoint(name), repr(name), "1 to 128 letters")
    store.close()
    if name is not None:
        refused(
            lambda: lsmstate.export(tmp_path / "0", tmp_path / "x", name=name), "1 to 128 letters"
        )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("place", [None, 5, ""])
def test_places_of_exports(opened, tmp_path, place):
    opened().close()
    for call in (
        lambda: lsmstate.export(tmp_path / "0", place),
        lambda: lsmstate.restore(place, tmp_path / "y"),
        lambda: lsmstate.list_exports(place),
        lambda: lsmstate.delete_export(place, "x"),
    ):
        refused(call, repr(place))
    refused(lambda: lsmstate.restore(tmp_path / "0", place), f"directory={place!r}")
    refused(lambda: lsmstate.export(tmp_path / "0", tmp_path, filesystem=5), "pyarrow.fs")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"time": lsmstate.join.Time(event_time="t")}, 'as in {"a": "at"}'),
        ({"time": lsmstate.join.Time(event_time=5)}, 'as in {"a": "at"}'),
        ({"changes": "op"}, 'as in {"a": "op"}'),
        ({"changes": ["a"]}, 'as in {"a": "op"}'),
        ({"on": b"a.k = b.k"}, "a condition as text"),
        ({"on": [5]}, "name of a column"),
        ({"on": {"a": 5, "b": ["k"]}}, "a list of columns"),
        ({"algorithm": "tree", "order": 5}, "names of the streams in a list"),
        ({"algorithm": "tree", "order": "best", "sample": 5}, 'as in {"a": rows}'),
    ],
)
def test_options_of_another_kind(options, word):
    refused(lambda: MultiwayJoin(TWO, **{"on": "a.k = b.k", **options}), word)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize(
    ("call", "called"),
    [
        ("checkpoint('monday')", lambda store: store.checkpoint("monday")),
        ("checkpoints", lambda store: store.checkpoints),
        ("flush()", lambda store: store.flush()),
        ("compact()", lambda store: store.compact()),
    ],
    ids=["checkpoint", "checkpoints", "flush", "compact"],
)
def test_only_lsm_has_checkpoints_flushes_and_merges(tmp_path, backend, call, called):
    """An error names the backend and what to do, also with an expiry and inside a join."""
    timed = StreamSchema(
        "timed",
        pa.schema([("id", pa.int64())]),
        pa.schema([("at", pa.timestamp("us"))]),
        Expiry("at", timedelta(days=1)),
    )
    schemas = {name: pa.schema([("id", pa.int64())]) for name in "ab"}
    with (
        open_store(tmp_path / "plain", [StreamSchema("s", KEY, ROWS)], backend=backend) as plain,
        open_store(tmp_path / "timed", [timed], backend=backend) as expiring,
        MultiwayJoin(schemas, "a.id = b.id", state=State(backend=backend)) as join,
    ):
        for store in (plain, expiring, join.store):
            with pytest.raises(InvalidArgumentError, match="choose backend='lsm'") as refused:
                called(store)
            assert f"{call}: backend='{backend}'" in str(refused.value)
            store.commit()  # it can still be used
