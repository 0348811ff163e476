"""What a crash may leave of a log: any of the sectors that were not forced to the disk, as they
were at any time since."""

import itertools
import os
from collections.abc import Iterator
from random import Random

#: What disks write as a whole, or not at all.
SECTORS = (512, 4096)


class LogTrace:
    """A fault hook (see lsmstate.cython_ext.base.file) that follows the only log of a directory."""

    def __init__(self) -> None:
        #: Where the log ended after each append, and up to where it was forced then.
        self.moments: list[tuple[int, int]] = []
        self._forced = 0

    def __call__(self, operation: str, path: str, offset: int, size: int) -> None:
        if not os.path.basename(path).startswith("changelog-"):
            return
        if operation == "append":
            self.moments.append((offset + size, self._forced))
        elif operation == "sync":
            self._forced = os.path.getsize(path)
            self.moments.append((self._forced, self._forced))


def states(
    data: bytes, moments: list[tuple[int, int]], sector_bytes: int, most: int, chance: Random
) -> Iterator[tuple[bytes, int, int]]:
    """What a power cut may leave at each moment, ``most`` states of each, with how many bytes were
    forced and where the log ended."""
    for number, (end, forced) in enumerate(moments):
        ends = sorted({each for each, _ in moments[: number + 1] if each >= forced} | {forced})
        for left in _left(data, ends, sector_bytes, most, chance):
            yield left, forced, end


def _left(
    data: bytes, ends: list[int], sector_bytes: int, most: int, chance: Random
) -> Iterator[bytes]:
    """``ends``: where the log was forced, and where it ended after each append since."""
    forced, end = ends[0], ends[-1]
    sizes = {*ends, *(each for each in range(forced, end) if each % sector_bytes == 0)}
    sizes |= {chance.randint(forced, end) for _ in range(3)}
    for size in sizes:
        yield data[:size]
    first = forced - forced % sector_bytes
    sectors = range(first, end, sector_bytes)
    # Each sector as it was forced (all zeros behind that), or after any of the appends since.
    versions = [
        sorted({min(max(each, sector), sector + sector_bytes) for each in ends})
        for sector in sectors
    ]
    count = 1
    for each in versions:
        count *= len(each)
    chosen = (
        itertools.product(*versions)
        if count <= most
        else ([chance.choice(each) for each in versions] for _ in range(most))
    )
    for kept in chosen:
        left = bytearray(data[:first])
        for sector, until in zip(sectors, kept, strict=True):
            left += data[sector:until].ljust(sector_bytes, b"\0")
        yield bytes(left[: chance.choice([*ends[1:], end, end])])
        yield bytes(left)  # the file's length may be known by blocks only
