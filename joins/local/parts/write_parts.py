"""The writes of a large batch, for a store that goes through them twice."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from lsmstate.store import Mutation


class WriteParts:
    """Writes that are made anew each time they are gone through, so that no more than one of them
    is in memory; see ``MultimapStore.write_all``."""

    def __init__(self, make: Callable[[], Iterable[Sequence[Mutation]]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Sequence[Mutation]]:
        return iter(self._make())
