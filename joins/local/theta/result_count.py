"""How many results a batch gives: too many are an error, or are logged."""

import logging
from typing import Final

from lsmstate.errors import InvalidArgumentError

#: A batch that gives more results a row is logged.
MANY_RESULTS: Final = 1000

_log = logging.getLogger(__name__)


class ResultCount:
    """Of one batch."""

    def __init__(self, stream: str, rows: int, most_results: float | None) -> None:
        """``most_results``: for each row; None: any number."""
        self._stream = stream
        self._rows = rows
        self._most = most_results
        self._count = 0
        self._is_told = False

    def add(self, count: int) -> None:
        """Count results. InvalidArgumentError if there are too many by now."""
        self._count += count
        most, rows = self._most, self._rows
        if most is not None and self._count > most * rows:
            raise InvalidArgumentError(
                f"process({self._stream!r}): {rows:,} rows have more than {self._count - 1:,} "
                f"results, and most_results={most!r} is the most for each row; connect the streams "
                "by a narrower condition, or raise it"
            )
        if self._count > MANY_RESULTS * rows and not self._is_told:
            self._is_told = True
            _log.warning(
                "%s rows of stream %r have more than %s results each; a narrower "
                "condition, or most_results=, keeps a query from giving as many",
                *(f"{rows:,}", self._stream, f"{MANY_RESULTS:,}"),
            )
