"""The hottest keys of a micro-batch: what each bucket reports, and how the reports are combined.

Spark can only sum numbers and take maxima. So each bucket reports one text whose maximum is the
text of the hottest key. Buckets share a few places and compete for them.
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


def packed(bucket: int, key: str, rows: float, spread: str = "") -> str:
    """The text of the n-th bucket. Of two texts for one place, that with more rows is the
    greater."""
    parts = f"{int(rows):018d}", spread.replace(_SEPARATOR, "_"), key
    return place_prefix(bucket % HOTTEST) + _SEPARATOR.join(parts)


def place_prefix(place: int) -> str:
    """The beginning of the texts for a place."""
    return f"{place}{_SEPARATOR}"


def hottest_keys(texts: Sequence[str | None], watched_rows: int) -> tuple[HotKey, ...]:
    """The keys at the places, the one with the most rows first. A key of several buckets counts
    once, with the rows of all of them."""
    rows: dict[str, int] = {}
    spread: dict[str, str] = {}
    for text in texts:
        if text is not None:
            _, count, spread_of, key = text.split(_SEPARATOR, 3)
            rows[key] = rows.get(key, 0) + int(count)
            spread[key] = spread.get(key) or spread_of
    order = sorted(rows, key=lambda key: (-rows[key], key))
    return tuple(
        HotKey(key, rows[key], rows[key] / max(1, watched_rows), spread[key]) for key in order
    )
