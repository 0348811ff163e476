"""Groups of results and their partial aggregates, in bounded memory.

Aggregation goes before combination (Yan and Larson, "Eager Aggregation and Lazy Aggregation",
VLDB 1995): rows of each side of a product that agree in key and group become one, which knows how
many they are. Only then the sides are combined. What a side sums up counts as often as the other
sides together have rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import evaluated
from lsmstate.joins.conditions.predicate import Expression, columns_of
from lsmstate.joins.local.aggregates.exact import as_type, multiplied, parts_array
from lsmstate.joins.local.aggregates.reduced import (
    Reduced,
    ValueOf,
    as_floats,
    concatenated,
    grouped,
    lifted,
    repeated,
    taken,
)
from lsmstate.joins.local.aggregates.stretch_sums import (
    covered,
    sums_of_covering,
    sums_of_stretches,
)
from lsmstate.joins.local.parts.cross_product import Side, cross_product
from lsmstate.joins.local.parts.products import LargeSide, Product, RangeProduct
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.specs.aggregates import OPERATION_STREAM, Aggregates, Partial, streams_read

#: How many rows a side's row stands for.
_ROWS: Final = Partial("count")
#: Groups that wait to be added up, beside as many as there are.
_WAITING_ROWS: Final = 1 << 16
_NO_LIMIT: Final = 1 << 40


class Groups:
    """The groups of the results of one micro-batch, until they are handed out."""

    def __init__(
        self, aggregates: Aggregates, streams: Mapping[str, pa.Schema], most_bytes: int
    ) -> None:
        """Prepare for results.

        Args:
            aggregates: What is wanted.
            streams: The columns of each stream that are part of a result.
            most_bytes: What the groups may take; then they are handed out and begun anew.
        """
        self.schema = aggregates.schema(streams)
        self._streams = streams
        self._by = aggregates.by
        self._partials = aggregates.partials
        self._most_bytes = most_bytes
        self._sides = {name: _SideWork.of(name, aggregates) for name in streams}
        needed = {name for name, work in self._sides.items() if work.is_needed}
        self._needed = frozenset(needed | (aggregates.streams_read & {OPERATION_STREAM}))
        self._together = [
            at for at, partial in enumerate(self._partials) if _stream_of(partial.of) is None
        ]
        self._waiting: list[Reduced] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._least_rows = 0

    def add(self, results: Results) -> Iterator[pa.RecordBatch]:
        """Read results to the end. What comes back are groups that had to be handed out."""
        for product in results.products(self._streams, self._needed):
            if isinstance(product, RangeProduct):
                for part in self._ranged(product):
                    yield from self._keep(grouped(self._partials, part))
                continue
            if not len(product.times):
                continue
            found = self._flat(product) if product.is_flat else self._combined(product)
            for part in found:
                yield from self._keep(grouped(self._partials, part))

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Hand out all groups, and begin anew."""
        if self._waiting:
            self._compact()
            found, self._waiting = self._waiting[0], []
            self._waiting_rows = self._waiting_bytes = self._least_rows = 0
            yield self._handed_out(found)

    def _flat(self, product: Product) -> Iterator[Reduced]:
        """Results each of which is a key by itself."""
        sides = product.sides
        value_of = _values(sides, len(product.times))
        values = lifted(self._partials, value_of, len(product.times))
        if not (product.times == 1).all():
            values = repeated(self._partials, values, pa.array(product.times))
        yield Reduced([value_of(each) for each in self._by], values)

    def _ranged(self, product: RangeProduct) -> Iterator[Reduced]:
        """Of each row what the stretch beside it adds up to, or each pair."""
        left, right = product.left[0], product.right[0]
        for own, other in ((left, right), (right, left)):
            found = self._stretched(product, own) if self._adds_up(own, other) else None
            if found is not None:
                yield found
                return
        for pairs in product.enumerated():
            yield from self._flat(pairs)

    def _adds_up(self, own: str, other: str) -> bool:
        """Whether groups, and all but counts and sums, are of one stream alone, and each count and
        sum is of one of them alone."""
        if not all(streams_read(by) <= {own} for by in self._by):
            return False
        return all(
            streams_read(each.of) <= {own}
            or (each.function in ("count", "sum") and streams_read(each.of) <= {other})
            for each in self._partials
        )

    def _stretched(self, product: RangeProduct, own: str) -> Reduced | None:
        """One row for each row of a stream, or for each of its stretches; None where sums would not
        be exact."""
        is_left = own == product.left[0]
        (_, rows), (other, partners) = (
            (product.left, product.right) if is_left else (product.right, product.left)
        )
        value_of = _values({own: _whole(rows)}, rows.num_rows)
        other_of = _values({other: _whole(partners)}, partners.num_rows)
        if is_left:
            places, times = product.owners, product.stop - product.first
        else:
            times = covered(product, np.ones(len(product.owners), dtype=np.int64))
            places = np.flatnonzero(times)
            times = times[places]
        at, counted = pa.array(places), pa.array(times)
        values = []
        for partial in self._partials:
            if streams_read(partial.of) <= {own}:
                (value,) = lifted([partial], value_of, rows.num_rows)
                (found,) = repeated([partial], [value.take(at)], counted)
            else:
                (value,) = lifted([partial], other_of, partners.num_rows)
                summed = sums_of_stretches if is_left else sums_of_covering
                sums = summed(product, value)
                if sums is None:
                    return None
                found = sums if is_left else sums.take(at)
            values.append(found)
        return Reduced([value_of(by).take(at) for by in self._by], values)

    def _combined(self, product: Product) -> Iterator[Reduced]:
        names = [name for name in self._sides if name in {*product.sides, *product.pieces}]
        works = [self._sides[name] for name in names]
        operation = product.operation
        whole = {
            name: self._sides[name].reduced(side, operation) for name, side in product.sides.items()
        }
        for pieces in self._parts_of_large(list(product.pieces.items()), operation):
            parts = [{**whole, **pieces}[name] for name in names]
            yield from self._multiplied(works, parts, product.times)

    def _parts_of_large(
        self, sides: Sequence[tuple[str, LargeSide]], operation: str | None
    ) -> Iterator[Mapping[str, Reduced]]:
        """Each combination of bounded parts of large sides. One that is larger than that, although
        rows that agree are one, is read again for each part of those before it."""
        if not sides:
            yield {}
            return
        (name, side), *others = sides
        for part in self._sides[name].reduced_pieces(side(), self._most_bytes, operation):
            for rest in self._parts_of_large(others, operation):
                yield {name: part, **rest}

    def _multiplied(
        self, works: "Sequence[_SideWork]", parts: Sequence[Reduced], times: Numbers
    ) -> Iterator[Reduced]:
        """Parts of all sides, combined key by key."""
        keys = [np.asarray(part.groups[0]) for part in parts]
        numbers = np.arange(len(times) + 1)
        nothing = pa.RecordBatch.from_arrays([], names=[])
        sides = [
            Side(nothing, np.searchsorted(own, numbers), np.ones(len(own), dtype=np.int64))
            for own in keys
        ]
        for found in cross_product(sides, _NO_LIMIT):
            own_key = keys[0][found.places[0]]
            rows = [taken(part, at) for part, at in zip(parts, found.places, strict=True)]
            yield self._product_of(works, rows, times[own_key])

    def _product_of(
        self, works: "Sequence[_SideWork]", rows: Sequence[Reduced], times: Numbers
    ) -> Reduced:
        """Rows of all sides, side by side, as results. The last value of a side says how many of
        its rows each of them stands for."""
        counts = [side.values[-1] for side in rows]
        values: list[pa.Array | None] = [None] * len(self._partials)
        total = pa.array(times)
        carried: dict[Expression, pa.Array] = {}
        for place, (work, side) in enumerate(zip(works, rows, strict=True)):
            others = pa.array(times)
            for count in (*counts[:place], *counts[place + 1 :]):
                others = multiplied(others, count)
            total = multiplied(total, counts[place])
            own = [self._partials[at] for at in work.own]
            for at, value in zip(work.own, repeated(own, side.values[:-1], others), strict=True):
                values[at] = value
            carried |= zip(work.carried, side.groups[1:], strict=True)
        value_of = _computed(carried, len(times))
        mixed = [self._partials[at] for at in self._together]
        of_all = repeated(mixed, lifted(mixed, value_of, len(times)), total)
        for at, value in zip(self._together, of_all, strict=True):
            values[at] = value
        return Reduced([value_of(each) for each in self._by], values)

    def _keep(self, found: Reduced) -> Iterator[pa.RecordBatch]:
        self._waiting.append(found)
        self._waiting_rows += len(found)
        self._waiting_bytes += found.nbytes
        if (
            self._waiting_rows > 2 * self._least_rows + _WAITING_ROWS
            or self._waiting_bytes > self._most_bytes
        ):
            self._compact()
            if self._waiting_bytes > self._most_bytes // 2:
                yield from self.rows()

    def _compact(self) -> None:
        """Make one row of each group."""
        found = grouped(self._partials, concatenated(self._waiting))
        self._waiting = [found]
        self._waiting_rows = self._least_rows = len(found)
        self._waiting_bytes = found.nbytes

    def _handed_out(self, found: Reduced) -> pa.RecordBatch:
        """The groups as rows. What does not fit into its type is in further rows of its group."""
        width = len(found.groups)
        columns: list[pa.Array] = list(found.groups)
        further: list[tuple[int, int, int]] = []  # (row, partial, part)
        for at, (partial, value) in enumerate(zip(self._partials, found.values, strict=True)):
            kind = self.schema.field(width + at).type
            if partial.function in ("min", "max"):
                columns.append(as_floats(value, kind) if pa.types.is_floating(kind) else value)
                continue
            first, more = as_type(value, kind, wraps=partial.wraps)
            columns.append(first)
            further += [(row, at, part) for row, part in more]
        rows = pa.RecordBatch.from_arrays(
            [_in_type(c, f.type) for c, f in zip(columns, self.schema, strict=True)],
            schema=self.schema,
        )
        if not further:
            return rows
        return pa.concat_batches([rows, self._further_rows(rows, further)])

    def _further_rows(
        self, rows: pa.RecordBatch, further: Sequence[tuple[int, int, int]]
    ) -> pa.RecordBatch:
        """One row for each further part, with nothing else that would change a group."""
        width = len(self._by)
        groups = rows.take(pa.array([row for row, _, _ in further])).columns[:width]
        values = []
        for at, field in enumerate(self.schema):
            if at < width:
                continue
            function = self._partials[at - width].function
            nothing = 0 if function == "count" else None
            own = [part if place == at - width else nothing for _, place, part in further]
            is_whole = function in ("count", "sum") and not pa.types.is_floating(field.type)
            values.append(
                parts_array(own, field.type) if is_whole else pa.nulls(len(further), field.type)
            )
        return pa.RecordBatch.from_arrays([*groups, *values], schema=self.schema)


class _SideWork:
    """What is done with the rows of one stream before they are combined with others."""

    def __init__(
        self,
        stream: str,
        carried: Sequence[Expression],
        own: Sequence[int],
        partials: Sequence[Partial],
    ) -> None:
        self._stream = stream
        self.carried = carried
        """What must be equal in rows that become one, beside their key."""
        self.own = own
        """The partial aggregates over this stream alone."""
        self._partials = (*(partials[at] for at in own), _ROWS)

    @classmethod
    def of(cls, stream: str, aggregates: Aggregates) -> "_SideWork":
        carried: dict[Expression, None] = {}
        own = []
        for by in aggregates.by:
            if _stream_of(by) == stream:
                carried[by] = None
            elif _stream_of(by) is None:
                carried |= _columns(by, stream)
        for at, partial in enumerate(aggregates.partials):
            if _stream_of(partial.of) == stream:
                own.append(at)
            elif partial.of is not None and _stream_of(partial.of) is None:
                carried |= _columns(partial.of, stream)
        return cls(stream, list(carried), own, aggregates.partials)

    @property
    def is_needed(self) -> bool:
        return bool(self.carried or self.own)

    def reduced(self, side: Side, operation: str | None = None) -> Reduced:
        """The rows by key and by what is carried, in the order of keys; as the last value how many
        they are. ``operation``: that of all results."""
        counts = np.diff(side.starts)
        keys = pa.array(np.repeat(np.arange(len(counts), dtype=np.int64), counts))
        rows = len(side.sizes)
        value_of = _values({self._stream: side}, rows, operation)
        found = Reduced(
            [keys, *(value_of(each) for each in self.carried)],
            lifted(self._partials, value_of, rows),
        )
        found = grouped(self._partials, found)
        # Groups come in the order of a hash table.
        return taken(found, np.argsort(np.asarray(found.groups[0]), kind="stable"))

    def reduced_pieces(
        self, pieces: Iterator[Side], most_bytes: int, operation: str | None
    ) -> Iterator[Reduced]:
        """The same for a side that comes in pieces: in parts of about ``most_bytes``."""
        found = self.reduced(next(pieces), operation)
        for piece in pieces:
            if found.nbytes > most_bytes:
                yield found
                found = self.reduced(piece, operation)
            else:
                both = concatenated([found, self.reduced(piece, operation)])
                found = grouped(self._partials, both)
        yield found


def _values(sides: Mapping[str, Side], rows: int, operation: str | None = None) -> ValueOf:
    """Values of expressions over the rows of sides, in the order of their places. ``operation``:
    that of all results; None: it has a side."""
    known: dict[Expression, pa.Array] = {}

    def column(of: Column) -> pa.Array:
        if of not in known and of.stream not in sides:
            assert of.stream == OPERATION_STREAM, f"{of} has no side"
            known[of] = pa.repeat(pa.scalar(operation, pa.string()), rows)
        if of not in known:
            side = sides[of.stream]
            values = side.rows.column(of.name)
            known[of] = values if side.order is None else values.take(pa.array(side.order))
        return known[of]

    def value_of(expression: Expression) -> pa.Array:
        if isinstance(expression, Column):
            return column(expression)
        if expression not in known:
            known[expression] = evaluated(expression, column, rows)
        return known[expression]

    return value_of


def _whole(rows: pa.RecordBatch) -> Side:
    """All rows, each under a key of its own."""
    count = rows.num_rows
    ones = np.ones(count, dtype=np.int64)
    return Side(rows, np.arange(count + 1, dtype=np.int64), ones)


def _computed(carried: Mapping[Expression, pa.Array], rows: int) -> ValueOf:
    """Values of expressions over what sides carry."""

    def value_of(expression: Expression) -> pa.Array:
        found = carried.get(expression)
        return evaluated(expression, carried.__getitem__, rows) if found is None else found

    return value_of


def _stream_of(expression: Expression | None) -> str | None:
    """The one stream that says what an expression is; None: several do, or none. The operation is
    the same for all rows of a product, so that any stream has it too."""
    read = streams_read(expression)
    own = read - {OPERATION_STREAM} or read
    return next(iter(own)) if len(own) == 1 else None


def _columns(expression: Expression, stream: str) -> dict[Expression, None]:
    return {column: None for column in columns_of(expression) if column.stream == stream}


def _in_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else values.cast(kind)
