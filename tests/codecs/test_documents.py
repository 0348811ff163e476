"""Documents: what is stored comes back, and nothing else passes for one."""

import datetime
import decimal

import msgpack
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lsmstate import SCHEMA_FREE, InvalidArgumentError, decode_documents, encode_documents
from lsmstate.schema.documents import check_document_rows
from support.examples import examples

#: Deep documents take a loaded machine a while to draw.
RANDOM = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner, max_size=20)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.text(max_size=40), VALUES, max_size=18)


def column(*packed):
    return pa.record_batch([pa.array(packed, pa.binary())], schema=SCHEMA_FREE)


@RANDOM
@given(st.lists(DOCUMENTS, max_size=6), st.integers(0, 3))
def test_documents_come_back(documents, start):
    rows = encode_documents(documents)
    assert rows.schema.equals(SCHEMA_FREE, check_metadata=True)
    assert decode_documents(rows) == documents
    assert decode_documents(rows.slice(start, 2)) == documents[start : start + 2]


@pytest.mark.parametrize("bad", [None, 5, "text", [("a", 1)], []])
def test_what_is_no_map_is_named(bad):
    with pytest.raises(InvalidArgumentError, match=r"^document 1 is .*; give a dict for each row"):
        encode_documents([{}, bad])


def readable(packed):
    """What msgpack itself says: one map with text keys everywhere, without extensions."""
    try:
        found = msgpack.unpackb(packed, strict_map_key=True, unicode_errors="replace")
    except (ValueError, msgpack.UnpackException):
        return False
    return isinstance(found, dict) and is_plain(found)


def is_plain(value):
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return not isinstance(value, msgpack.ExtType | msgpack.Timestamp)


@RANDOM
@given(DOCUMENTS, st.data())
@example({}, None)
def test_the_check_agrees_with_msgpack_on_damaged_documents(document, data):
    packed = bytearray(msgpack.packb(document))
    if data is not None:
        for _ in range(data.draw(st.integers(0, 3))):
            place = data.draw(st.integers(0, len(packed) - 1))
            packed[place] = data.draw(st.integers(0, 255))
        packed = packed[: data.draw(st.integers(0, len(packed)))] or packed
    try:
        check_document_rows(column(bytes(packed)))
    except InvalidArgumentError:
        assert not readable(bytes(packed))
    else:
        assert readable(bytes(packed))


@RANDOM
@given(st.binary(max_size=30).map(lambda rest: b"\x82" + rest))
def test_the_check_agrees_with_msgpack_on_noise(packed):
    try:
        check_document_rows(column(packed))
    except InvalidArgumentError:
        assert not readable(packed)
    else:
        assert readable(packed)


def test_a_length_that_is_not_there_allocates_nothing():
    """Each array claims four billion items; decoding them unchecked would reserve the room."""
    packed = b"\x81\xa1a" + b"\xdd\xff\xff\xff\xff" * 50
    with pytest.raises(InvalidArgumentError, match="ends too early"):
        decode_documents(column(packed))


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"\x93\x01\x02\x03", "not a map"),
        (b"\x81\xa1a\xc1", "no meaning"),
        (b"\x80\x00", "follow its end"),
        (b"\x81\xc4\x01a\x01", "key of a map is not text"),
        (b"\x81\xa1a\xd6\xff\x00\x00\x00\x00", "extension"),
        (b"\x81\xa1a" + b"\x91" * 100 + b"\x00", "over 100 levels"),
    ],
)
def test_what_is_refused_and_why(packed, why):
    with pytest.raises(InvalidArgumentError, match=why):
        check_document_rows(column(b"\x80", packed))


def test_text_that_is_no_utf8_is_refused_when_it_is_read():
    with pytest.raises(InvalidArgumentError, match=r"document 0: .*utf-8"):
        decode_documents(column(b"\x81\xa1a\xa1\xff"))


@pytest.mark.parametrize(
    "value",
    [decimal.Decimal(1), datetime.date(2020, 1, 1), {1, 2}, (1, 2), 2**64, {1: 2}, object()],
)
def test_values_without_a_msgpack_type_are_refused(value):
    with pytest.raises(InvalidArgumentError, match="document 1"):
        encode_documents([{}, {"a": value}])


def test_other_rows_are_no_documents():
    with pytest.raises(InvalidArgumentError, match="SCHEMA_FREE"):
        decode_documents(pa.record_batch({"document": pa.array([1])}))
