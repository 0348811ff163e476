"""Files that nobody needs any more, deleted by the background worker.

To give back the pages of a merged-away run takes the system as long as many appends take. A file
that cannot be deleted costs space only, and the next collection finds it again.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

_log = logging.getLogger(__name__)


class Removal:
    """See background_worker.Job: ``delete`` each of ``names``, one a slice. It has no store to
    report to, and where there is no thread its owner finishes it."""

    #: A flush may need the space.
    is_urgent = True

    def __init__(self, names: Iterable[str], delete: Callable[[str], None]) -> None:
        self._waiting = deque(names)
        self._delete = delete
        self._lock = threading.Lock()

    def advance(self, max_bytes: int) -> bool:
        """See background_worker.Job."""
        with self._lock:
            if self._waiting:
                name = self._waiting.popleft()
                try:
                    self._delete(name)
                except OSError as error:
                    _log.warning("a file that is not needed stays for now: %s", error)
            return not self._waiting

    def finish(self) -> None:
        """Delete what is left of them, here and now."""
        while not self.advance(0):
            pass
