"""The starts of a query, told apart: which start ran a micro-batch, as a later one sees it.

    <state>/routes/start-0000000005.json   the fifth start, and the earlier ones that still count

A query that is set back runs micro-batches anew, with other rows. Tasks of the former run may still
be running on a lost executor, and may end at any time. So files that tasks leave for each other
have the number of their start. Of the files of a micro-batch, only those of the newest start that
began with it or before count. Each task has that list from its driver, so a task of an earlier
start sees the past as it was then.
"""

import json
import re
from dataclasses import dataclass
from typing import Final, Self

from lsmstate.remote.directory import remove_if_there
from lsmstate.spark_integration.checkpoint.json_records import (
    create_record_in,
    listed_files,
    read_record_in,
)
from lsmstate.state_location import StatePlace

_START: Final = re.compile(r"start-(\d{10,})\.json")


@dataclass(frozen=True, slots=True)
class Starts:
    """The starts that count: (number, first micro-batch), both ascending. Start 0 is whatever ran
    before starts were told apart."""

    counted: tuple[tuple[int, int], ...] = ((0, 0),)

    @property
    def newest(self) -> int:
        return self.counted[-1][0]

    def that_ran(self, batch_id: int) -> int:
        """The newest start that began with this micro-batch or before."""
        return self.before(batch_id + 1)

    def before(self, batch_id: int) -> int:
        """The newest start that began before this micro-batch. What was made ahead of the
        micro-batch also holds for a start that begins with it, which may repeat it."""
        found = (number for number, first in reversed(self.counted) if first < batch_id)
        return next(found, self.counted[0][0])

    def and_then(self, number: int, first: int, oldest: int) -> Self:
        """One start more, which replaces what others ran from its first micro-batch on. Starts that
        ran nothing from ``oldest`` on are left out."""
        kept = [start for start in self.counted if start[1] < first]
        while len(kept) > 1 and kept[1][1] < oldest:
            del kept[0]
        return type(self)((*kept, (number, first)))

    def to_text(self) -> str:
        return json.dumps(self.counted)

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(tuple((number, first) for number, first in json.loads(text)))


#: Where starts are not told apart.
UNTOLD: Final = Starts()


def newest_starts(place: StatePlace, directory: str) -> Starts:
    """The starts as the last one wrote them into a directory of the state. CorruptionError if that
    file is damaged."""
    return _read(place, directory, max(_numbers(place, directory), default=0))


def record_start(place: StatePlace, directory: str, first: int, oldest: int) -> Starts:
    """Record one start more, with a number of its own, and force it to disk.

    On a remote file system, two drivers that start one query within the same instant may take one
    number. Spark then fails one of them as it begins its first micro-batch.
    """
    while True:
        numbers = _numbers(place, directory)
        number = max(numbers, default=0) + 1
        starts = _read(place, directory, number - 1).and_then(number, first, oldest)
        content = {"starts": [list(start) for start in starts.counted]}
        if create_record_in(place, _name(directory, number), content, sync=True):
            break
    for old in numbers:
        remove_if_there(place.files, _name(directory, old))
    return starts


def _read(place: StatePlace, directory: str, number: int) -> Starts:
    found = read_record_in(place, _name(directory, number)) if number else None
    return UNTOLD if found is None else Starts(tuple((n, first) for n, first in found["starts"]))


def _numbers(place: StatePlace, directory: str) -> list[int]:
    names = listed_files(place, directory)
    return [int(found[1]) for found in map(_START.fullmatch, names) if found]


def _name(directory: str, number: int) -> str:
    return f"{directory}/start-{number:010d}.json"
