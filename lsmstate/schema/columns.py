"""Columns are matched by name: a batch may have them in any order."""

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError


def by_name(batch: pa.RecordBatch, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """Return the batch with its columns in the order of a schema.

    Args:
        batch: Columns in any order.
        schema: The columns that are expected.
        what: What the batch is, for messages.

    Raises:
        InvalidArgumentError: A column is missing, unknown, or there twice.

    Cost:
        Nothing is copied.
    """
    given = batch.schema.names
    if given == schema.names:
        return batch
    missing = [name for name in schema.names if name not in given]
    unknown = [name for name in given if name not in schema.names]
    twice = sorted({name for name in given if given.count(name) > 1})
    found = [
        f"{kind} {', '.join(map(repr, names))}"
        for kind, names in (("missing", missing), ("unknown", unknown), ("given twice", twice))
        if names
    ]
    if found:
        raise InvalidArgumentError(
            f"{what}: columns {'; '.join(found)}; give each of {', '.join(schema.names)} once, in "
            "any order"
        )
    return batch.select(schema.names)


def keys_by_name(keys: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return key columns in the order of a schema, where they have its names.

    Keys are often columns of another stream, under their own names. Those are taken as they stand.
    """
    given = keys.schema.names
    if given != schema.names and sorted(given) == sorted(schema.names):
        return keys.select(schema.names)
    return keys
