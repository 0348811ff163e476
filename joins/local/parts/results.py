"""Results of a local join: matches that are made into rows as they are read."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.names import resolved
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.local.parts.products import Product, RangeProduct, product_of
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.pieces import Pieces

#: What a condition on results calls them, and the column of ``counts``.
_RESULT: Final = "result"
_COUNT: Final = "count"
#: Groups that wait to be added up, beside as many as there are.
_WAITING_ROWS: Final = 1 << 16

_Piece = TypeVar("_Piece")
#: Makes the results as products, of which only some streams have sides.
MakesProducts = Callable[[Collection[str]], Iterator[Product | RangeProduct]]


class Results(Pieces[pa.RecordBatch]):
    """An iterator over pieces of a join's result. After an error the result is incomplete, and each
    read raises that error again.

    A caller who sends results elsewhere, or only counts them, asks for ``picks``, ``count`` or
    ``counts`` instead. All of them read the same results, so use one. ``where`` leaves some out
    before.

    Attributes:
        schema: Columns of the result; None where only the caller of the local join knows them.
        is_finished: Whether all pieces were read or given up.

    Example:
        ```python
        for row in join.process("cu", [{"id": 1, "name": "Ada"}]).rows():
            print(row)
        large = join.process("sr", returns).where("euros > 100")
        print(large.counts(by="name"))
        ```
    """

    def __init__(
        self,
        pieces: Iterable[pa.RecordBatch],
        picks: Iterable[Picked] | None = None,
        schema: pa.Schema | None = None,
        products: MakesProducts | None = None,
    ) -> None:
        """Hold results that are not read yet.

        Args:
            pieces: The rows, in bounded pieces.
            picks: The same results as picks of stored rows. None: the join makes rows at once.
            schema: Columns of the result.
            products: The same results as products, where the join has fewer rows of them.
        """
        super().__init__(iter(pieces), schema)
        self._products = products
        self._picks = None if picks is None else iter(picks)
        self._calling: Callable[[], AbstractContextManager[None]] = nullcontext
        self._error: BaseException | None = None
        self.is_finished = False

    def __next__(self) -> pa.RecordBatch:
        return self._next(self._pieces)

    def picks(self) -> Iterator[Picked | pa.RecordBatch]:
        """The results as picks of rows, which somebody else makes; as rows where the join has no
        picks."""
        source: Iterator[Picked] | Iterator[pa.RecordBatch] = (
            self._pieces if self._picks is None else self._picks
        )
        yield from self._read(source)

    def _read(self, source: Iterator[_Piece]) -> Iterator[_Piece]:
        while True:
            try:
                found = self._next(source)
            except StopIteration:
                return
            yield found

    def products(
        self, streams: Mapping[str, pa.Schema], needed: Collection[str]
    ) -> Iterator[Product | RangeProduct]:
        """The results as products, for who aggregates them.

        Args:
            streams: Whose columns, side by side, are those of a result.
            needed: Those of which columns are read. Others may have no sides.
        """
        if self._products is None:
            return (product_of(found, streams) for found in self.picks())
        return self._read(self._products(needed))

    def count(self) -> int:
        """Read the results to the end, and return how many there are. No row is made where the
        join has picks."""
        return sum(map(len_of, self.picks()))

    def counts(self, by: str | Sequence[str]) -> pa.Table:
        """Read the results to the end, and return how many there are in each group.

        Args:
            by: The columns whose values make a group; nulls are values.

        Returns:
            One row for each group: these columns, and ``count``.

        Raises:
            InvalidArgumentError: There is no such column, or ``count`` is one of them.

        Cost:
            The groups are in memory. Where the join has picks, no other column is read.
        """
        schema = self._known("counts()")
        names = [by] if isinstance(by, str) else list(by) if isinstance(by, Iterable) else []
        names = [resolved("column", name, schema.names) for name in names]
        if not names or _COUNT in names:
            raise InvalidArgumentError(
                f"counts(by={by!r}): name at least one column, and none that is called {_COUNT!r}"
            )
        kinds = [schema.field(name).type for name in names]
        if any(pa.types.is_nested(kind) for kind in kinds):
            raise InvalidArgumentError(
                f"counts(by={by!r}): {', '.join(map(str, kinds))}: nested values make no groups; "
                "name columns of plain types"
            )
        groups = _Groups(pa.schema([schema.field(name) for name in names]))
        for found in self.picks():
            groups.add([_column_of(found, schema, name) for name in names])
        return groups.table()

    def where(self, condition: str) -> "Results":
        """Return the results that a condition holds for; no row is made to judge them where the
        join has picks.

        Args:
            condition: SQL over the columns of the results, such as ``"price > 5 AND kind <> 'x'"``,
                in the language of join conditions.

        Returns:
            These results, without the others.

        Raises:
            InvalidArgumentError: A syntax error, an unknown column, or a part that is not known.
        """
        schema = self._known(f"where({condition!r})")
        if not isinstance(condition, str):
            raise InvalidArgumentError(
                f"where({condition!r}): the condition is a {type(condition).__name__}; give SQL as "
                'text, such as "price > 5"'
            )
        columns = {_RESULT: schema.names}
        parsed = parse_conjuncts(condition, columns)
        conditions = tuple(PairCondition(each.predicate) for each in parsed)
        for each in conditions:
            each.check({_RESULT: schema})
            each.check_names_columns()
        return self.keeping(conditions, lambda column: column.name)

    def keeping(
        self, conditions: Sequence[PairCondition], named: Callable[[Column], str]
    ) -> "Results":
        """Return the results that all conditions hold for; later ones judge what earlier ones keep.
        ``named``: of a column in a condition, its name in the result."""
        pieces, picks, schema = self._pieces, self._picks, self._known("where()")

        def value(found: pa.RecordBatch | Picked, column: Column) -> pa.Array:
            return _column_of(found, schema, named(column))

        def kept(found: _Found) -> _Found:
            for each in conditions:
                if not len_of(found):
                    break
                holds = each.holds(partial(value, found))
                if not holds.all():
                    found = _at(found, holds)
            return found

        self._pieces = (piece for piece in map(kept, pieces) if piece.num_rows)
        if picks is not None:
            self._picks = (picked for picked in map(kept, picks) if len(picked))
        self._products = None
        return self

    def _known(self, call: str) -> pa.Schema:
        if self.schema is None:
            raise InvalidArgumentError(
                f"{call}: these results of a local join have no schema; ask the join that was "
                "opened by a face, or set it"
            )
        return self.schema

    def through(self, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> "Results":
        """Return these results with ``change`` applied to each piece. Empty pieces are left out."""
        changed = map(change, self._pieces)
        self._pieces = (piece for piece in changed if piece.num_rows)
        self._picks = self._products = None
        return self

    def inside(self, calling: Callable[[], AbstractContextManager[None]]) -> "Results":
        """Make each piece inside this context, which keeps other threads out."""
        self._calling = calling
        return self

    def close(self) -> None:
        """Give up the results that were not read yet."""
        self.is_finished = True
        self._error = None  # whose traceback holds what was being read
        self.let_go()

    def let_go(self) -> None:
        """Release what the results read, which is being closed. Reading on is an error there."""
        super().close()
        self._picks = self._products = None

    @property
    def error(self) -> BaseException | None:
        """What the results failed with; None: nothing."""
        return self._error

    def _next(self, source: Iterator[_Piece]) -> _Piece:
        if self._error is not None:
            raise self._error
        if self.is_finished:
            raise StopIteration
        with self._calling():
            try:
                return next(source)
            except StopIteration:
                self.is_finished = True
                raise
            except BaseException as error:
                self._error = error
                raise

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Found = TypeVar("_Found", pa.RecordBatch, Picked)


def len_of(found: pa.RecordBatch | Picked) -> int:
    """How many results there are."""
    return found.num_rows if isinstance(found, pa.RecordBatch) else len(found)


def _column_of(found: pa.RecordBatch | Picked, schema: pa.Schema, name: str) -> pa.Array:
    if isinstance(found, pa.RecordBatch):
        return found.column(name)
    return found.column(schema.get_field_index(name))


def _at(found: _Found, holds: npt.NDArray[np.bool_]) -> _Found:
    if isinstance(found, pa.RecordBatch):
        return found.filter(pa.array(holds))  # type: ignore[no-any-return]
    return found.at(np.flatnonzero(holds))


class _Groups:
    """Counts by the values of some columns, of which few pieces wait to be added up."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema.append(pa.field(_COUNT, pa.int64()))
        self._waiting: list[pa.Table] = [self._schema.empty_table()]
        self._rows = 0

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Count the rows of these columns."""
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(columns[0]))
        found = self._summed(pa.Table.from_arrays([*columns, ones], schema=self._schema))
        self._waiting.append(found)
        self._rows += found.num_rows
        if self._rows > 2 * self._waiting[0].num_rows + _WAITING_ROWS:
            self._waiting = [self.table()]
            self._rows = self._waiting[0].num_rows

    def table(self) -> pa.Table:
        """All groups so far."""
        return self._summed(pa.concat_tables(self._waiting))

    def _summed(self, table: pa.Table) -> pa.Table:
        names = self._schema.names[:-1]
        found = table.group_by(names, use_threads=False).aggregate([(_COUNT, "sum")])
        columns = [*map(found.column, names), found.column(f"{_COUNT}_sum")]
        return pa.Table.from_arrays(columns, schema=self._schema)


def check_finished(call: str, earlier: Results | None) -> None:
    """InvalidArgumentError if the results of the previous call were not read to the end or
    closed."""
    if earlier is None or earlier.is_finished:
        return
    if earlier.error is not None:
        raise InvalidArgumentError(
            f"{call}: the results of the previous call were not consumed, since they failed "
            f"({str(earlier.error)[:200]}); its rows are stored all the same: close() the results "
            "to go on without the rest of them"
        )
    raise InvalidArgumentError(
        f"{call}: the results of the previous call were not consumed to the "
        "end; iterate over them, or close() them to give up the rest"
    )
