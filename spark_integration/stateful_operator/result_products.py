"""Results leave unpack as products, and Spark multiplies them.

- A row that leaves unpack is a product: per stream, an array of that stream's rows. Its results are
  all their combinations. Spark makes them by ``inline`` of one array after the other.
- So a row crosses from Python once per product, where it would cross once per result.
- A result that shares no row with its neighbours is a product of arrays of one row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.joins.local.parts.factorized import factorized
from lsmstate.joins.local.parts.row_picks import Numbers, Picked
from lsmstate.schema.arrow_sizes import RowSizes, pieces_of
from lsmstate.spark_integration.catalyst.catalyst import inlined_arrays
from lsmstate.spark_integration.columns.arrow_substitutes import carried_type
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.result_frames import RESULT_BYTES, ResultUnpacker

#: Results of one product, unless a single one is larger. They may all be in the JVM's memory: where
#: Spark generates code for several ``inline`` together, they wait until the last is made.
_PRODUCT_BYTES: Final = 4 * RESULT_BYTES


@dataclass(frozen=True)
class RowArrays:
    """The columns of products: an array of rows for each stream."""

    names: tuple[str, ...]
    rows: tuple[T.StructType, ...]
    """The columns of each stream in the result, as they travel."""

    @classmethod
    def of(cls, plan: StatefulPlan, output: T.StructType) -> "RowArrays":
        """Those of a plan with parts, and of the result it has in Spark."""
        fields = iter(output)
        rows = []
        for part in plan.parts:
            own = [next(fields) for _ in part]
            rows.append(T.StructType([_travelling(field) for field in own]))
        assert next(fields, None) is None, "the parts have all columns of the result"
        taken = {name.lower() for name in output.names}
        prefix = "rows"
        while any(name.startswith(prefix) for name in taken):
            prefix += "_"
        return cls(tuple(f"{prefix}{number}" for number in range(len(rows))), tuple(rows))

    @property
    def schema(self) -> T.StructType:
        """As unpack gives them to Spark."""
        arrays = [T.ArrayType(rows, containsNull=False) for rows in self.rows]
        return T.StructType(
            [
                T.StructField(name, array, nullable=False)
                for name, array in zip(self.names, arrays, strict=True)
            ]
        )

    def arrow_types(self, plan: StatefulPlan) -> list[pa.ListType]:
        """The same for Arrow."""
        return [
            pa.list_(
                pa.field(
                    "element",
                    pa.struct(
                        [
                            pa.field(field.name, column.type, field.nullable)
                            for field, column in zip(rows, part, strict=True)
                        ]
                    ),
                    nullable=False,
                )
            )
            for rows, part in zip(self.rows, plan.parts, strict=True)
        ]

    def multiplied(self, products: DataFrame) -> DataFrame:
        """The results."""
        return inlined_arrays(products, len(self.names))


def _travelling(field: T.StructField) -> T.StructField:
    return T.StructField(field.name, carried_type(field.dataType), field.nullable, field.metadata)


class ProductUnpacker:
    """Makes products of frames."""

    def __init__(self, plan: StatefulPlan, arrays: RowArrays) -> None:
        self._frames = ResultUnpacker(plan)
        self._names = arrays.names
        self._types = arrays.arrow_types(plan)
        self._sizes = [RowSizes(part) for part in plan.parts]

    def products(self, rows: int, payload: pa.Buffer) -> Iterator[pa.RecordBatch]:
        """The results of a frame, in batches of at most ``RESULT_BYTES`` or one product.
        CorruptionError if they are not ``rows`` many."""
        found = self._frames.found(rows, payload)
        if isinstance(found, Picked):
            yield from self._factorized(found)
            return
        starts = np.arange(found.num_rows + 1)
        columns = iter(found.columns)
        own = [[next(columns) for _ in kind.value_type] for kind in self._types]
        yield self._batch(own, [starts] * len(own))

    def _factorized(self, found: Picked) -> Iterator[pa.RecordBatch]:
        cuts = [piece.start for piece in pieces_of(found.sizes, _PRODUCT_BYTES)]
        factors = factorized(found.places, np.array(cuts, dtype=np.int64))
        sides = list(zip(found.batches, factors.places, factors.starts, strict=True))
        taken = [
            np.add.reduceat(size(rows)[places], starts[:-1])
            for size, (rows, places, starts) in zip(self._sizes, sides, strict=True)
        ]
        for piece in pieces_of(np.add.reduce(taken), RESULT_BYTES):
            bounds = slice(piece.start, piece.stop + 1)
            own = [
                _taken(rows, places[starts[piece.start] : starts[piece.stop]]).columns
                for rows, places, starts in sides
            ]
            yield self._batch(own, [s[bounds] - s[piece.start] for _, _, s in sides])

    def _batch(
        self, columns: Sequence[Sequence[pa.Array]], starts: Sequence[Numbers]
    ) -> pa.RecordBatch:
        arrays = [
            pa.ListArray.from_arrays(
                pa.array(start.astype(np.int32)),
                pa.StructArray.from_arrays(own, fields=list(kind.value_type)),
                type=kind,
            )
            for own, start, kind in zip(columns, starts, self._types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, self._names)


def _taken(batch: pa.RecordBatch, places: Numbers) -> pa.RecordBatch:
    """The rows at some places: a view where they stand side by side."""
    first = int(places[0])
    if np.array_equal(places, np.arange(first, first + len(places))):
        return batch.slice(first, len(places))
    return batch.take(pa.array(places))
