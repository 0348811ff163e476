"""Results of a local join: pieces of rows, computed as they are read."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError


class Results(Iterator[pa.RecordBatch]):
    """An iterator over pieces of a join's result. After an error the result is incomplete, and each
    read raises that error again."""

    def __init__(self, pieces: Iterator[pa.RecordBatch]) -> None:
        self._pieces = pieces
        self._error: BaseException | None = None
        self.is_finished = False

    def __next__(self) -> pa.RecordBatch:
        if self._error is not None:
            raise self._error
        if self.is_finished:
            raise StopIteration
        try:
            return next(self._pieces)
        except StopIteration:
            self.is_finished = True
            raise
        except BaseException as error:
            self._error = error
            raise

    def through(self, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> "Results":
        """Return these results with ``change`` applied to each piece. Empty pieces are left out."""
        changed = map(change, self._pieces)
        self._pieces = (piece for piece in changed if piece.num_rows)
        return self

    def close(self) -> None:
        """Give up the results that were not read yet."""
        self.is_finished = True
        self._pieces = iter(())

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_finished(call: str, earlier: Results | None) -> None:
    """InvalidArgumentError if the results of the previous call were not read to the end or
    closed."""
    if earlier is not None and not earlier.is_finished:
        raise InvalidArgumentError(
            f"{call}: the results of the previous call were not consumed to the "
            "end; iterate over them, or close() them to give up the rest"
        )
