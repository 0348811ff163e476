"""Looking at a state that another process may replace meanwhile.

A commit deletes what it made needless, so a file that is missing may have been replaced since the
state was found. Then it is found anew. What the newest state names still, and what is missing all
the same, is lost.
"""

from collections.abc import Callable
from typing import TypeVar

from lsmstate.errors import LsmStateError
from lsmstate.tools.inspection import READ_ERRORS, State, find_state

Seen = TypeVar("Seen")

#: Each time all of it was replaced while it was looked at.
_MOST_STATES = 20


class GoneError(Exception):
    """A file of a state was missing for the first time. Never leaves this package's looks."""

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
        """Something is missing: GoneError, unless it is known to be lost. A name that is missing
        in two states, the second found later, is lost: no commit names a deleted file again."""
        if name not in self._lost:
            raise GoneError(name)

    def look_again(self, gone: GoneError) -> None:
        """Take up the state that counts by now. LsmStateError if it was replaced too often."""
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
            return None  # what cannot be read took nothing's place


def settled(state: State, look: Callable[[StateWatch], Seen]) -> Seen:
    """``look`` at the state, again from the start with the one that took its place."""
    watch = StateWatch(state)
    while True:
        try:
            return look(watch)
        except GoneError as gone:
            watch.look_again(gone)
