"""The hottest keys of a micro-batch: what each bucket reports, and how the reports are combined.

Each bucket reports its hottest key as a text. Texts of more rows are greater, and Spark keeps the
greatest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Keys of a micro-batch that are shown at most.
HOTTEST: Final = 8
_SEPARATOR: Final = "|"
#: Of a key that is spread in a join of two streams.
BOTH: Final = "both"


@dataclass(frozen=True, slots=True)
class HotKey:
    """A hot key and its recent rows, in all streams."""

    key: str
    rows: int
    """Rows stored in the buckets whose hottest key it is. If one stream of three or more is spread,
    a row of the other streams counts in each bucket."""
    share: float
    """Share of all rows stored in the buckets of the micro-batch, counted in the same way."""
    spread: str = ""
    """Which rows of the key are spread over several buckets: the name of one stream in a join of
    three or more, BOTH in a join of two, empty if none."""


def packed(key: str, rows: float, spread: str = "") -> str:
    """The text of a bucket. Of two texts, that with more rows is the greater."""
    return _SEPARATOR.join((f"{int(rows):018d}", spread.replace(_SEPARATOR, "_"), key))


def hottest_keys(texts: Sequence[str], watched_rows: int) -> tuple[HotKey, ...]:
    """The keys, the one with the most rows first. A key of several buckets counts once, with the
    rows of all of them."""
    rows: dict[str, int] = {}
    spread: dict[str, str] = {}
    for text in texts:
        count, spread_of, key = text.split(_SEPARATOR, 2)
        rows[key] = rows.get(key, 0) + int(count)
        spread[key] = spread.get(key) or spread_of
    order = sorted(rows, key=lambda key: (-rows[key], key))
    return tuple(
        HotKey(key, rows[key], rows[key] / max(1, watched_rows), spread[key]) for key in order
    )
