"""A stream as a mapping, against a dict."""

import math

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lsmstate import SCHEMA_FREE, StoreMapping, StreamSchema, encode_documents, open_store
from lsmstate.errors import InvalidArgumentError
from lsmstate.options import MIB, Options
from support.examples import examples
from support.sample_streams import STREAMS

WORDS = StreamSchema(
    "words",
    pa.schema([("word", pa.string())]),
    pa.schema([("count", pa.int64()), ("page", pa.string())]),
)
LOGS = StreamSchema("logs", pa.schema([("user", pa.int64())]), SCHEMA_FREE)
OPTIONS = Options(memory_bytes=8 * MIB)


@pytest.fixture(params=["lsm", "rocksdb", "memory"])
def store(request, tmp_path):
    with open_store(
        str(tmp_path), [WORDS, LOGS, *STREAMS], backend=request.param, options=OPTIONS
    ) as opened:
        yield opened


def test_rows_without_a_schema_are_dictionaries(store):
    logs = StoreMapping(store, "logs")
    logs[7] = [{"page": "/a"}, {}, {"error": [1, None], "who": {"id": 2.5}}]
    assert logs[7] == [{"page": "/a"}, {}, {"error": [1, None], "who": {"id": 2.5}}]
    logs[8] = encode_documents([{"page": "/b"}])
    assert StoreMapping(store, "logs", unique=True)[8] == {"page": "/b"}
    StoreMapping(store, "logs", unique=True)[8] = {"page": "/c"}
    assert logs.pop(8) == [{"page": "/c"}]
    with pytest.raises(InvalidArgumentError, match="document 0 cannot be stored"):
        logs[9] = [{"when": object()}]
    with pytest.raises(InvalidArgumentError, match="document 0 is 'page', a str"):
        logs[9] = ["page"]
    assert list(logs) == [7]


def test_a_key_holds_a_list_of_rows(store):
    words = StoreMapping(store, "words")
    words["b"] = [{"count": 1, "page": "x"}, {"count": 2}]
    words["a"] = [{"count": 3, "page": "y"}]
    words["c"] = []
    assert words["b"] == [{"count": 1, "page": "x"}, {"count": 2, "page": None}]
    assert list(words) == ["a", "b"]
    assert len(words) == 2
    assert "a" in words
    assert "c" not in words
    assert words.get("c") is None
    words["b"] = [{"count": 9, "page": "z"}]
    assert words.pop("b") == [{"count": 9, "page": "z"}]
    words["a"] = []
    assert dict(words) == {}
    with pytest.raises(KeyError):
        words["a"]
    with pytest.raises(KeyError):
        del words["a"]


def test_unique_gives_the_row_itself_and_keys_may_be_tuples(store):
    names = StoreMapping(store, "customers", unique=True)
    names[2, "b"] = {"id": 1, "name": "n"}
    names[2, "a"] = {"id": 2, "name": None}
    names[-1, ""] = {"id": 3, "name": "m"}
    assert list(names.items()) == [
        ((-1, ""), {"id": 3, "name": "m"}),
        ((2, "a"), {"id": 2, "name": None}),
        ((2, "b"), {"id": 1, "name": "n"}),
    ]
    names.clear()
    assert len(names) == 0
    StoreMapping(store, "customers")[2, "a"] = [{"id": 1}, {"id": 2}]
    with pytest.raises(InvalidArgumentError, match="2 rows"):
        names[2, "a"]


def test_what_can_be_no_key_is_absent(store):
    """As in any mapping; getting it without a default says what is wrong with it. A key that is
    merely not there is KeyError."""
    names = StoreMapping(store, "customers", unique=True)
    names[1, "a"] = {"id": 1}
    for key in (1, "ab", (1,), ("x", "a"), (1.5, "a"), (2**70, "a"), None, {}, [], (1, "a", 2)):
        assert key not in names
        assert names.get(key) is None
        assert names.get(key, "default") == "default"
        assert names.pop(key, None) is None
        assert names.pop(key, default=5) == 5
        for refused in (names.pop, names.__getitem__, names.__delitem__):
            with pytest.raises(InvalidArgumentError, match="customers"):
                refused(key)
    with pytest.raises(InvalidArgumentError, match="would become 1"):
        names[1.5, "a"]
    assert names.get((1, "a"))["id"] == 1
    with pytest.raises(KeyError):
        names.pop((1, "b"))
    assert names.pop((1, "a"), None)["id"] == 1


def test_keys_backward(store):
    words = StoreMapping(store, "words")
    words.update({"b": [{"count": 1}, {"count": 2}], "a": [{"count": 3}], "c": [{"count": 4}]})
    assert list(reversed(words)) == ["c", "b", "a"]


def test_what_does_not_fit_is_refused(store):
    names = StoreMapping(store, "customers", unique=True)
    for key in (1, "ab", (1,), ("x", "a"), (None, "a")):
        with pytest.raises(InvalidArgumentError, match="customers"):
            names[key] = {"id": 1}
    for value in ({"other": 1}, [{"id": 1}], {"id": "x"}, 5):
        with pytest.raises(InvalidArgumentError, match="customers"):
            names[1, "a"] = value
    assert len(names) == 0
    with pytest.raises(InvalidArgumentError, match="did you mean 'words'"):
        StoreMapping(store, "word")


def test_rows_may_come_from_any_iterable(store):
    """A generator is read once."""
    words = StoreMapping(store, "words")
    words["a"] = ({"count": number} for number in range(3))
    words["b"] = ({"count": 1},)
    assert [row["count"] for row in words["a"]] == [0, 1, 2]
    assert len(words) == 2
    for value in ({}, {"count": 1}, None, 5, "text"):
        with pytest.raises(InvalidArgumentError, match="words"):
            words["a"] = value
    assert len(words["a"]) == 3


@pytest.mark.parametrize("backend", ["lsm", "rocksdb", "memory"])
def test_a_key_that_is_not_equal_to_itself_is_one_key(tmp_path, backend):
    stream = StreamSchema("floats", pa.schema([("x", pa.float64())]), WORDS.rows)
    with open_store(str(tmp_path), [stream], backend=backend, options=OPTIONS) as store:
        floats = StoreMapping(store, "floats")
        floats[math.nan] = [{"count": 1}, {"count": 2}]
        floats[-0.0] = [{"count": 3}]
        floats[0.0] = [{"count": 4}]
        assert [repr(key) for key in floats] == ["0.0", "nan"]
        assert len(floats) == 2
        assert [row["count"] for row in floats[math.nan]] == [1, 2]
        del floats[math.nan]
        assert list(floats) == [0.0]


def test_an_iteration_ends_where_the_store_is_written_to(store):
    words = StoreMapping(store, "words", unique=True)
    words.update({"a": {"count": 1}, "b": {"count": 2}})
    with pytest.raises(InvalidArgumentError, match="written to or flushed"):  # noqa: PT012
        for key in words:
            del words[key]


def mapping_machine(tmp_path_factory, backend):
    """A unittest.TestCase: random operations on a mapping and on a dict."""

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            directory = tmp_path_factory.mktemp("mapping")
            self.store = open_store(str(directory), [WORDS], backend=backend, options=OPTIONS)
            self.mapping = StoreMapping(self.store, "words", unique=True)
            self.model = {}

        @rule(key=st.text(max_size=2), count=st.integers(-5, 5))
        def put(self, key, count):
            self.mapping[key] = {"count": count, "page": None}
            self.model[key] = {"count": count, "page": None}

        @rule(key=st.text(max_size=2))
        def pop(self, key):
            assert self.mapping.pop(key, None) == self.model.pop(key, None)

        @rule(key=st.text(max_size=2))
        def setdefault(self, key):
            row = {"count": 7, "page": "p"}
            assert self.mapping.setdefault(key, row) == self.model.setdefault(key, row)

        @rule()
        def clear(self):
            self.mapping.clear()
            self.model.clear()

        @invariant()
        def equal(self):
            assert list(self.mapping.items()) == sorted(self.model.items())

        def teardown(self):
            self.store.close()

    Machine.TestCase.settings = settings(
        max_examples=examples(10),
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    return Machine.TestCase


@pytest.mark.parametrize("backend", ["lsm", "memory"])
def test_random_operations_equal_a_dict(tmp_path_factory, backend):
    mapping_machine(tmp_path_factory, backend)("runTest").runTest()
