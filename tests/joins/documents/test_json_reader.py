"""The reader of JSON documents: it takes what Python's reader takes, and tells values apart."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.cython_ext.documents.attribute_values import AttributeValues, Documents
from lsmstate.cython_ext.documents.document_index import matching
from lsmstate.cython_ext.documents.json_reader import FAULTS, JsonReader
from support.document_cases import VALUES, canonical, leaves
from support.examples import examples

FAULT = {text.split(",")[0]: number for number, text in FAULTS.items()}


def read(texts: list[str | None], **options: Any) -> Documents:
    return JsonReader(AttributeValues(**options)).read(pa.array(texts, pa.string()))


@pytest.mark.parametrize("sets", [True, False])
@pytest.mark.parametrize("bits", [64, 3])
def test_values_are_equal_as_their_definition_says(sets: bool, bits: int) -> None:
    values = AttributeValues(hash_bits=bits)
    documents = JsonReader(values, sets).read(
        pa.array([json.dumps({"a": value}) for value in VALUES])
    )
    count = len(VALUES)
    first, second = np.divmod(np.arange(count * count), count)
    found = matching(documents, first, documents, second).reshape(count, count)
    for i, one in enumerate(VALUES):
        for j, other in enumerate(VALUES):
            mine, others = leaves({"a": one}, sets=sets), leaves({"a": other}, sets=sets)
            shared = mine.keys() & others.keys()
            expected = bool(shared) and all(mine[name] == others[name] for name in shared)
            assert found[i, j] == expected, (one, other)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside),
    max_leaves=8,
)  # fmt: skip


@given(JSON, JSON, st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_any_two_values(one: Any, other: Any, ascii_only: bool) -> None:
    texts = [json.dumps({"a": [value]}, ensure_ascii=ascii_only) for value in (one, other)]
    documents = read(list(texts))
    place = np.zeros(1, np.int64)
    assert documents.faults_found().tolist() == [0, 0]
    expected = canonical([one]) == canonical([other])
    assert matching(documents, place, documents, place + 1)[0] == expected


@given(st.text(st.sampled_from('{}[]",:.0123456789eE+-aun\\ truefalsenull\t\x01'), max_size=20))
@settings(max_examples=examples(300), deadline=None)
def test_what_is_json_is_what_python_reads(text: str) -> None:
    def whole(digits: str) -> int:
        if not -(2**63) <= int(digits) < 2**64:
            raise ValueError("beyond 64 bits")
        return int(digits)

    def constant(name: str) -> None:
        raise ValueError(name)

    written = '{"a":' + text + "}"
    try:
        json.loads(written, parse_int=whole, parse_constant=constant)
        is_json = True
    except ValueError:
        is_json = False
    fault = int(read([written]).faults_found()[0])
    if is_json:
        # A name or a path twice, which Python's reader does not see; a number beyond doubles.
        assert fault in (0, FAULT["has a name or a path twice"], 4)
    else:
        assert fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ('{"a": 01}', "is not JSON"),
        ('{"a": "\t"}', "is not JSON"),
        ('{"a": NaN}', "is not JSON"),
        ('{"a": 1} x', "is not JSON"),
        ("[1]", "is no JSON object"),
        ("7", "is no JSON object"),
        ('{"a": 1, "a": 1}', "has a name or a path twice"),
        ('{"a": {"b": 1, "\\u0062": 2}}', "has a name or a path twice"),
        ('{"a": [{"b": 1, "b": 1}]}', "has a name or a path twice"),
        ('{"a": {"b": {}}, "a.b": 1}', "has a name or a path twice"),
        ('{"a": 18446744073709551616}', "has a whole number beyond 64 bits"),
        ('{"a": -9223372036854775809}', "has a whole number beyond 64 bits"),
        ('{"a": 1e400}', "has a whole number beyond 64 bits"),
        ('{"a": "\\ud800"}', "has half of a surrogate pair"),
        ('{"\\udc00": 1}', "has half of a surrogate pair"),
        ('{"a":' + "[" * 600 + "]" * 600 + "}", "is nested deeper than 500 levels"),
        ('{"a":' * 600 + "1" + "}" * 600, "is nested deeper than 500 levels"),
    ],
)
def test_faults(text: str, fault: str) -> None:
    documents = read(['{"b": 1}', text, '{"b": 1}', None])
    assert documents.faults_found().tolist() == [0, FAULT[fault], 0, 0]
    assert documents.sizes().tolist() == [1, 0, 1, 0]


def test_large_documents() -> None:
    many = {f"a{number}": number for number in range(10_000)}
    long = {"text": "x" * 3_000_000, "list": list(range(100_000))}
    documents = read([json.dumps(many), json.dumps(long), json.dumps({**many, **long})])
    assert documents.sizes().tolist() == [10_000, 2, 10_002]
    twice = json.dumps(many)[:-1] + ', "a77": 1}'
    assert read([twice]).faults_found().tolist() == [FAULT["has a name or a path twice"]]


def test_names_that_count() -> None:
    text = '{"a": {"b": 1, "c": 2}, "ab": 3, "d": {"e": {"f": 4}}, "g": null}'
    assert read([text], wanted=["a", "d.e"]).paths_of(0) == ["a.b", "a.c", "d.e.f"]
    assert read([text], unwanted=["a.b", "d"]).paths_of(0) == ["a.c", "ab", "g"]
    assert read([text], wanted=["a"], unwanted=["a.c"]).paths_of(0) == ["a.b"]
    reader = JsonReader(AttributeValues(), nulls=False)
    assert reader.read(pa.array([text])).paths_of(0) == ["a.b", "a.c", "ab", "d.e.f"]


def test_slices_of_columns() -> None:
    column = pa.array(['{"x": 1}', None, '{"y": 2}', '{"z": 3}'])
    for kind in (pa.string(), pa.large_string()):
        documents = JsonReader(AttributeValues()).read(column.cast(kind).slice(1, 2))
        assert documents.sizes().tolist() == [0, 1]
        assert documents.paths_of(1) == ["y"]
