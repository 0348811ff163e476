"""One stream of a store as a Python mapping.

- A key is the Python value of the key column, or a tuple if there are several key columns.
- A value is the list of the key's rows as dicts, in arrival order. With ``unique=True`` it is the
  only row.
- Rows of a stream without a schema are documents: dicts of any shape.
- Each access goes to the store for one key. Use the store itself for batches."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.schema.batches import is_arrow
from lsmstate.schema.documents import decode_documents, encode_documents, is_schema_free
from lsmstate.schema.python_values import shown
from lsmstate.store import MultimapStore
from lsmstate.store_base.checks import checked_rows, stream_of
from lsmstate.store_base.key_values import one_key
from lsmstate.store_base.reads import StoreReads

Row = dict[str, Any]

_NO_DEFAULT: Final = object()


class StoreMapping(MutableMapping[Any, Any]):
    """The live rows of one stream by key, in key order.

    - The mapping never closes or commits the store.
    - A write to the store ends an iteration with InvalidArgumentError.
    - ``len`` reads all keys and rows; ``in`` reads no row.
    - Rows whose key holds a null are not stored: such a key is absent, and assigning to it raises.
    - A value that cannot be a key of the stream, such as text for a column of numbers, is absent
      for ``in``, and for ``get`` and ``pop`` with a default. Elsewhere it raises
      InvalidArgumentError, not KeyError, just as an unhashable key raises TypeError in a dict.

    Args:
        store: The store.
        stream: Name of the stream.
        unique: Whether each key has one row, which is then the value itself.

    Example:
        ```python
        orders = StoreMapping(store, "orders")
        orders[7] = [{"amount": 3}]
        orders[7]  # [{"amount": 3}]
        logs = StoreMapping(store, "logs")  # rows=SCHEMA_FREE
        logs["a"] = [{"page": "/"}, {"error": [1, None]}]
        ```
    """

    def __init__(self, store: MultimapStore, stream: str, *, unique: bool = False) -> None:
        if not isinstance(getattr(store, "streams", None), Mapping):
            raise InvalidArgumentError(
                f"store={store!r} is a {type(store).__name__}; give a store of lsmstate.open_store"
            )
        self._store = store
        self._schema = stream_of(store.streams, stream)
        self._unique = unique
        self._has_documents = is_schema_free(self._schema.rows)

    def __getitem__(self, key: Any) -> Any:
        """Return the rows of a key; with ``unique`` its only row.

        Raises:
            KeyError: The key has no rows.
            InvalidArgumentError: The value cannot be a key of the stream, or ``unique`` is set and
                the key has several rows.
        """
        found = self._store.get(self._schema.name, self._values(key))
        rows = decode_documents(found) if self._has_documents else found.to_pylist()
        if not rows:
            raise KeyError(key)
        if not self._unique:
            return rows
        if len(rows) > 1:
            raise InvalidArgumentError(
                f"key {shown(key)} of stream {self._schema.name!r} has {len(rows)} rows; make the "
                "mapping without unique=True"
            )
        return rows[0]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Replace the rows of a key, in one write: a list of dicts, or a table of any library. An
        empty one removes the key."""
        rows = self._rows(value)
        one = self._key(key)
        if rows.num_rows == 0:
            self._store.delete(self._schema.name, one)
            return
        keys = pa.RecordBatch.from_arrays(
            [pa.concat_arrays([column] * rows.num_rows) for column in one.columns],
            schema=one.schema,
        )
        self._store.put(self._schema.name, rows, keys)

    def __delitem__(self, key: Any) -> None:
        """Remove a key; raise KeyError if it is absent."""
        one = self._key(key)
        with self._calling():
            if not self._store.exists(self._schema.name, one)[0]:
                raise KeyError(key)
            self._store.delete(self._schema.name, one)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the rows of a key, or the default if it is absent or cannot be a key."""
        return default if self._one_key(key) is None else super().get(key, default)

    def pop(self, key: Any, default: Any = _NO_DEFAULT) -> Any:
        """Remove a key and return its rows, or the default if it is absent or cannot be a key.

        Raises:
            KeyError: The key is absent and there is no default.
        """
        with self._calling():
            if default is _NO_DEFAULT:
                return super().pop(key)
            return default if self._one_key(key) is None else super().pop(key, default)

    def popitem(self) -> tuple[Any, Any]:
        """Remove the first key; return it with its rows. KeyError if there is none."""
        with self._calling():
            return super().popitem()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the rows of a key; if it is absent, assign the default first."""
        with self._calling():
            return super().setdefault(key, default)

    def __contains__(self, key: object) -> bool:
        """Test whether a key has rows; False for a value that cannot be a key."""
        one = self._one_key(key)
        return one is not None and bool(self._store.exists(self._schema.name, one)[0])

    def _calling(self) -> AbstractContextManager[None]:
        """Return the context of an access that reads and then writes."""
        return self._store.calling() if isinstance(self._store, StoreReads) else nullcontext()

    def _one_key(self, key: Any) -> pa.RecordBatch | None:
        try:
            return one_key(self._schema, self._values(key))
        except InvalidArgumentError:
            return None

    def __iter__(self) -> Iterator[Any]:
        """Yield each key once, ascending. Cost: rows are read too; memory: one piece."""
        return self._keys(reverse=False)

    def __reversed__(self) -> Iterator[Any]:
        """Yield each key once, descending. Cost: the same as forward."""
        return self._keys(reverse=True)

    def _keys(self, *, reverse: bool) -> Iterator[Any]:
        last: bytes | None = None
        for piece in self._store.iterate(self._schema.name, reverse=reverse):
            columns = [column.to_pylist() for column in piece.keys.columns]
            # Encoded keys are compared: a NaN does not equal itself, but is one key.
            names = KeyCodec(piece.keys.schema).encode(piece.keys).to_pylist()
            for name, key in zip(names, zip(*columns, strict=True), strict=True):
                if name != last:
                    last = name
                    yield key if len(self._schema.key) > 1 else key[0]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Remove all keys. Cost: independent of the number of rows."""
        self._store.delete_range(self._schema.name)

    def __repr__(self) -> str:
        return f"StoreMapping(stream={self._schema.name!r}, unique={self._unique})"

    def _values(self, key: Any) -> Sequence[Any]:
        if len(self._schema.key) == 1:
            return (key,)
        if not isinstance(key, tuple):
            raise InvalidArgumentError(
                f"key {shown(key)} of stream {self._schema.name!r}: give a tuple with values of "
                f"the key columns {self._schema.key.names}"
            )
        return key

    def _key(self, key: Any) -> pa.RecordBatch:
        one = one_key(self._schema, self._values(key))
        if any(column.null_count for column in one.columns):
            raise InvalidArgumentError(
                f"key {shown(key)} of stream {self._schema.name!r} holds a null, which is never "
                "stored; give a value for each key column"
            )
        return one

    def _rows(self, value: Any) -> pa.RecordBatch:
        if is_arrow(value):
            return self._rows_of_table(value)
        if not self._unique and (isinstance(value, Mapping) or not isinstance(value, Iterable)):
            raise InvalidArgumentError(
                f"rows {shown(value)} of stream {self._schema.name!r}: give a list of dicts, or "
                "make the mapping with unique=True"
            )
        rows = [value] if self._unique else list(value)
        if self._has_documents:
            return encode_documents(rows)
        names = set(self._schema.rows.names)
        for row in rows:
            if not isinstance(row, dict) or not names.issuperset(row):
                raise InvalidArgumentError(
                    f"row {shown(row)} of stream {self._schema.name!r}: give a dict with columns "
                    f"of {self._schema.rows.names}"
                )
        # A column that every row lacks is null.
        full = [{name: row.get(name) for name in self._schema.rows.names} for row in rows]
        return checked_rows(self._schema, full)

    def _rows_of_table(self, value: Any) -> pa.RecordBatch:
        rows = checked_rows(self._schema, value)
        if self._unique and rows.num_rows != 1:
            raise InvalidArgumentError(
                f"{rows.num_rows} rows for a key of stream {self._schema.name!r}: give one row, or "
                "make the mapping without unique=True"
            )
        return rows
