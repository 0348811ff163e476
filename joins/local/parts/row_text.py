"""Rows as messages and metrics show them: any row that a stream may hold, valid text or not."""

from typing import Any

import pyarrow as pa


def shown_row(rows: pa.RecordBatch, position: int) -> dict[str, Any]:
    """The values of one row by column, as ``shown_value`` gives them."""
    return {
        name: shown_value(column[position])
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }


def shown_value(scalar: pa.Scalar) -> Any:
    """Its Python value. Where Python has none, a replacement character stands for bytes that are
    no UTF-8, Arrow's number for a day or an instant after the year 9999 or before 1 or of an
    unknown time zone, and pairs for a struct that has a name twice."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError, KeyError):
        kind = scalar.type
        if isinstance(scalar, pa.DictionaryScalar | pa.ExtensionScalar):
            return shown_value(scalar.value)
        if isinstance(scalar, pa.StructScalar):
            names = [field.name for field in kind]
            pairs = [(name, shown_value(scalar[place])) for place, name in enumerate(names)]
            return dict(pairs) if len(set(names)) == len(names) else pairs
        if isinstance(scalar, pa.ListScalar):
            return [shown_value(value) for value in scalar.values]
        if pa.types.is_temporal(kind):
            return scalar.value
        return scalar.as_buffer().to_pybytes().decode(errors="replace")
