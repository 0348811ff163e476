"""Reads of a state that another process may replace meanwhile.

A commit deletes obsolete files, so a missing file may have been replaced since the state was found.
The state is then found again. A file that the newest state still names, and that is missing again,
is lost.
"""

from collections.abc import Callable
from typing import TypeVar

from lsmstate.errors import LsmStateError
from lsmstate.tools.inspection import READ_ERRORS, State, find_state

Seen = TypeVar("Seen")

#: Most retries after the state was replaced during a read.
_MOST_STATES = 20


class GoneError(Exception):
    """A file of a state was missing for the first time. Never leaves this package."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class StateWatch:
    """The state as far as it is known, and which of its files are lost."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._lost: set[str] = set()
        self._states = 1

    def miss(self, name: str) -> None:
        """Note a missing file: raise GoneError, unless it is lost. A file that is missing in two
        states, the second found later, is lost: no commit names a deleted file again."""
        if name not in self._lost:
            raise GoneError(name)

    def look_again(self, gone: GoneError) -> None:
        """Find the state again. LsmStateError if it was replaced too often."""
        self._lost.add(gone.name)
        newest = self._newest()
        if newest is None or newest.pointer == self.state.pointer:
            return
        if self._states == _MOST_STATES:
            raise LsmStateError(
                f"{self.state.directory}: {_MOST_STATES} times a commit replaced files before they "
                "were read; look again when less is committed, or at a checkpoint or an export"
            )
        self._states += 1
        self.state = newest

    def _newest(self) -> State | None:
        try:
            return find_state(self.state.directory) if self.state.is_newest else None
        except READ_ERRORS:
            return None  # an unreadable state replaces nothing


def settled(state: State, look: Callable[[StateWatch], Seen]) -> Seen:
    """Call ``look`` with the state, and again with its successor if it is replaced meanwhile."""
    watch = StateWatch(state)
    while True:
        try:
            return look(watch)
        except GoneError as gone:
            watch.look_again(gone)
