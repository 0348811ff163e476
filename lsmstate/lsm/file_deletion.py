"""Deletion of unneeded files by the background worker.

Freeing the pages of a replaced run takes the system as long as many appends. A file that cannot be
deleted only costs space: the next collection finds it again.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

_log = logging.getLogger(__name__)


class Removal:
    """A ``background_worker.Job`` that deletes ``names``, one per slice. It reports to no store. If
    there is no thread, its owner finishes it."""

    #: Urgent: a flush may need the space.
    is_urgent = True

    def __init__(self, names: Iterable[str], delete: Callable[[str], None]) -> None:
        self._waiting = deque(names)
        self._delete = delete
        self._lock = threading.Lock()

    def advance(self, max_bytes: int) -> bool:
        """Delete the next file."""
        with self._lock:
            if self._waiting:
                name = self._waiting.popleft()
                try:
                    self._delete(name)
                except OSError as error:
                    _log.warning("a file that is not needed stays for now: %s", str(error))
            return not self._waiting

    def finish(self) -> None:
        """Delete all remaining files now."""
        while not self.advance(0):
            pass
