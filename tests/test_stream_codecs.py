"""Codecs kept by the process serve the schemas they were made for, and no others."""

import pyarrow as pa

from lsmstate import stream_codecs
from lsmstate.store import StreamSchema
from lsmstate.stream_codecs import MOST_KEPT, codecs_of

KEY = pa.schema([("k", pa.int64())])


def stream(
    name: str, row_type: pa.DataType, metadata: dict[str, str] | None = None
) -> StreamSchema:
    return StreamSchema(name, KEY, pa.schema([pa.field("v", row_type, metadata=metadata)]))


def test_equal_schemas_are_served_by_the_same_codecs():
    made = codecs_of(stream("s", pa.int64()))
    assert codecs_of(stream("s", pa.int64())) is made


def test_another_schema_of_the_same_name_gets_its_own():
    codecs_of(stream("s", pa.int64()))
    assert codecs_of(stream("s", pa.string())).rows.schema.field("v").type == pa.string()
    marked = codecs_of(stream("s", pa.string(), {"unit": "m"}))
    assert marked.rows.schema.field("v").metadata == {b"unit": b"m"}


def test_only_so_many_are_kept():
    for number in range(2 * MOST_KEPT + 1):
        codecs_of(stream(f"s{number}", pa.int64()))
    assert 0 < len(stream_codecs._kept) <= MOST_KEPT
