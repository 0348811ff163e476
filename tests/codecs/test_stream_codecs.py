"""Codecs kept by the process serve the schemas they were made for, and no others."""

import pyarrow as pa
import pytest

from lsmstate.schema import codecs
from lsmstate.schema.codecs import MOST_COLUMNS, codecs_of
from lsmstate.store import StreamSchema

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


def test_two_streams_of_one_name_do_not_evict_each_other():
    """Two queries in one worker, each with a stream of that name."""
    made = [codecs_of(stream("s", kind)) for kind in (pa.int64(), pa.string())]
    assert [codecs_of(stream("s", kind)) for kind in (pa.int64(), pa.string())] == made


@pytest.mark.parametrize("width", [300, MOST_COLUMNS])
def test_only_so_many_columns_are_kept(width):
    wide = pa.schema([(f"v{number}", pa.int64()) for number in range(width)])
    for number in range(MOST_COLUMNS // width + 2):
        made = codecs_of(StreamSchema(f"s{number}", KEY, wide))
    kept = codecs._kept
    assert kept[-1] is made
    assert len(kept) == 1 or sum(codecs.columns for codecs in kept) <= MOST_COLUMNS
