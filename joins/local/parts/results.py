"""Results of a local join: matches that are made into rows as they are read."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.pieces import Pieces

_Piece = TypeVar("_Piece")


class Results(Pieces[pa.RecordBatch]):
    """An iterator over pieces of a join's result. After an error the result is incomplete, and each
    read raises that error again.

    A caller who sends results elsewhere, or only counts them, asks for ``picks`` or ``count``
    instead. All of them read the same results, so use one.

    Attributes:
        schema: Columns of the result; None where only the caller of the local join knows them.
        is_finished: Whether all pieces were read or given up.

    Example:
        ```python
        for row in join.process("cu", [{"id": 1, "name": "Ada"}]).rows():
            print(row)
        ```
    """

    def __init__(
        self,
        pieces: Iterable[pa.RecordBatch],
        picks: Iterable[Picked] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        """Hold results that are not read yet.

        Args:
            pieces: The rows, in bounded pieces.
            picks: The same results as picks of stored rows. None: the join makes rows at once.
            schema: Columns of the result.
        """
        super().__init__(iter(pieces), schema)
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
        while True:
            try:
                found = self._next(source)
            except StopIteration:
                return
            yield found

    def count(self) -> int:
        """Read the results to the end, and return how many there are. No row is made where the
        join has picks."""
        return sum(
            found.num_rows if isinstance(found, pa.RecordBatch) else len(found)
            for found in self.picks()
        )

    def through(self, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> "Results":
        """Return these results with ``change`` applied to each piece. Empty pieces are left out."""
        changed = map(change, self._pieces)
        self._pieces = (piece for piece in changed if piece.num_rows)
        self._picks = None
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
        self._picks = None

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
