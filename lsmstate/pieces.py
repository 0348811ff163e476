"""Pieces of a result, which are computed as they are read."""

from collections.abc import Iterator
from typing import Any, TypeVar

import pyarrow as pa

T = TypeVar("T")


class Pieces(Iterator[T]):
    """An iterator over the pieces of a result, which also gives what is left of it as one.

    Attributes:
        schema: Columns of ``to_table``, also of a result without rows.

    Example:
        ```python
        store.scan("clicks").to_pandas()
        for row in store.scan("clicks").rows():
            print(row["page"])
        ```
    """

    def __init__(self, pieces: Iterator[T], schema: pa.Schema) -> None:
        self.schema = schema
        self._pieces = pieces

    def __next__(self) -> T:
        return next(self._pieces)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that are left as dictionaries. Cost: memory for one piece."""
        for piece in self:
            yield from self._batch(piece).to_pylist()

    def to_table(self) -> pa.Table:
        """Return what is left as one table. Cost: all of it is in memory."""
        return pa.Table.from_batches(map(self._batch, self), schema=self.schema)

    def to_pandas(self) -> Any:
        """Return what is left as a pandas DataFrame. Cost: all of it is in memory, twice."""
        return self.to_table().to_pandas()

    def close(self) -> None:
        """Give up what was not read yet."""
        self._pieces = iter(())

    def _batch(self, piece: T) -> pa.RecordBatch:
        return piece


def entry_schema(keys: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """Return the columns of keys and rows side by side.

    A key column whose name is also a row's has ``key_`` before its name, more than once if need be.
    """
    taken = {*keys.names, *rows.names}
    fields = []
    for field in keys:
        name = field.name
        if name in rows.names:
            while name in taken:
                name = f"key_{name}"
            taken.add(name)
        fields.append(field.with_name(name))
    return pa.schema([*fields, *rows])
