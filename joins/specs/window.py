"""Windows of event time, one description for all joins: rows meet if some window holds all of them.

- A window is ``size_us`` long. One begins at 1970-01-01 00:00 and one every ``slide_us`` before and
  after, as in Spark's ``window``. Where both are equal, the windows *tumble*.
- Rows that share several windows are one result, not one for each window.
- Rows share a window if any two of them do: the windows of a row are neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.specs.event_time import duration_us

#: The length of windows, or their length and their slide.
WindowLike = str | timedelta | Sequence[str | timedelta]


@dataclass(frozen=True)
class TimeWindow:
    """Windows of event time: ``size_us`` long, one beginning every ``slide_us``."""

    size_us: int
    slide_us: int

    def hold_both(
        self, first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Which pairs of times, in microseconds, lie in one window."""
        low, high = np.minimum(first, second), np.maximum(first, second)
        # The last window that begins by ``low`` reaches furthest.
        return np.asarray(high < low // self.slide_us * self.slide_us + self.size_us)


def time_window(given: object) -> TimeWindow:
    """The windows that a user asked for. InvalidArgumentError if they are none."""
    parts: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    if not 1 <= len(parts) <= 2 or not all(isinstance(part, str | timedelta) for part in parts):
        raise InvalidArgumentError(
            f'window={given!r}: give the length of windows, as in "10 minutes", or their length '
            'and their slide, as in ("1 hour", "15 minutes")'
        )
    size, slide = (duration_us("window", part) for part in (parts[0], parts[-1]))
    if not 0 < slide <= size:
        raise InvalidArgumentError(
            f"window={given!r}: the slide must be more than nothing, and at most the length"
        )
    return TimeWindow(size, slide)
