"""Rows without a schema: a stream whose rows are documents, stored as msgpack.

    logs = StreamSchema("logs", key, SCHEMA_FREE)
    store.append("logs", encode_documents([{"user": 1, "tags": ["a", None]}]), keys)
    for found in probe.fetch(positions, 1 << 20):
        print(decode_documents(found.rows))

- A document is a map with text keys. Its values have the types of JSON, or are bytes.
- The rows of such a stream are one binary column, which other programs may have made.
- Each append checks the column (``cython_ext/rows/msgpack_check.pyx``). Nothing in it is executed.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.rows.msgpack_check import check_documents
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.batches import as_batch
from lsmstate.store import BatchLike

#: The rows of a stream without a schema: one msgpack document each.
SCHEMA_FREE: Final = pa.schema(
    [pa.field("document", pa.binary(), nullable=False)], metadata={"lsmstate.rows": "msgpack"}
)


def is_schema_free(rows: pa.Schema) -> bool:
    """Test whether rows of this schema are msgpack documents."""
    return bool(rows.equals(SCHEMA_FREE, check_metadata=True))


def encode_documents(documents: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Encode documents as rows of a stream without a schema.

    Args:
        documents: Maps with text keys.

    Returns:
        One row per document, of the schema ``SCHEMA_FREE``.

    Raises:
        InvalidArgumentError: A document is not a map with text keys, or holds a value that msgpack
            has no type for, such as a date, a decimal, a set or a huge integer.
    """
    if not isinstance(documents, Iterable) or isinstance(documents, Mapping | str | bytes):
        raise InvalidArgumentError(
            f"documents={str(documents)[:80]!r} is a {type(documents).__name__}; give a list of "
            "dicts, one for each row"
        )
    packer = msgpack.Packer(strict_types=True)
    packed = []
    for position, document in enumerate(documents):
        if not isinstance(document, Mapping):
            raise InvalidArgumentError(
                f"document {position} is {str(document)[:80]!r}, a {type(document).__name__}; give "
                "a dict for each row, which may be empty"
            )
        try:
            packed.append(packer.pack(dict(document)))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"document {position} cannot be stored: {error}; its values may be None, booleans, "
                "integers of 64 bits, floats, text, bytes, lists and dicts"
            ) from error
    column = pa.array(packed, pa.binary())
    rows = pa.RecordBatch.from_arrays([column], schema=SCHEMA_FREE)
    check_document_rows(rows)
    return rows


def decode_documents(rows: BatchLike) -> list[dict[str, Any]]:
    """Decode rows of a stream without a schema.

    Args:
        rows: Fetched or scanned rows, such as ``Matches.rows``.

    Returns:
        One document per row.

    Raises:
        InvalidArgumentError: A row is not a document. This is checked first, so memory stays in
            proportion to the bytes of the rows.
    """
    given = rows if isinstance(rows, pa.RecordBatch) else as_batch(rows, SCHEMA_FREE, "documents")
    if not given.schema.equals(SCHEMA_FREE):
        raise InvalidArgumentError(
            f"rows with the columns {given.schema.names} are not documents; give rows of a stream "
            "whose rows= is SCHEMA_FREE"
        )
    check_document_rows(given)
    data, offsets = _bytes_of(given)
    documents: list[dict[str, Any]] = []
    for position, (start, end) in enumerate(itertools.pairwise(offsets.tolist())):
        try:
            documents.append(msgpack.unpackb(data[start:end], strict_map_key=True))
        except (ValueError, msgpack.UnpackException) as error:
            raise InvalidArgumentError(f"document {position}: {error}") from error
    return documents


def check_document_rows(rows: pa.RecordBatch) -> None:
    """Raise InvalidArgumentError unless each row is a msgpack document.

    Cost: each byte that begins a value is read once.
    """
    if rows.column(0).null_count:
        raise InvalidArgumentError("a document is null; give an empty dict for an empty document")
    check_documents(*_bytes_of(rows))


def _bytes_of(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the bytes of the column, and the offset of each document and of the end."""
    column = rows.column(0)
    if len(column) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    _, offsets, data = column.buffers()
    found = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data or b"", np.uint8), found
