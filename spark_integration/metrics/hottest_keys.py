"""The hottest keys of a micro-batch: how a bucket says its own, and what is made of all of them.

Spark adds up numbers and takes maxima, so each bucket says one text, whose maximum is the hottest
key's, and competes for one of a few places with those that have the same.
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
    """A key, and its rows of late, in all streams."""

    key: str
    rows: int
    """As they are stored, in the buckets whose hottest key it is: where one stream of three or more
    is spread, a row of the others counts in each."""
    share: float
    """Of all rows that are stored in the buckets of the micro-batch, counted in the same way."""
    spread: str = ""
    """Whose rows of the key lie in several buckets: the name of one stream, of three or more;
    BOTH, of two; empty: it is not spread."""


def packed(bucket: int, key: str, rows: float, spread: str = "") -> str:
    """The text of the n-th bucket: of two for one place that with more rows is the greater."""
    parts = f"{int(rows):018d}", spread.replace(_SEPARATOR, "_"), key
    return place_prefix(bucket % HOTTEST) + _SEPARATOR.join(parts)


def place_prefix(place: int) -> str:
    """How the texts for a place begin."""
    return f"{place}{_SEPARATOR}"


def hottest_keys(texts: Sequence[str | None], watched_rows: int) -> tuple[HotKey, ...]:
    """What stands at the places, the most rows first; a key of several buckets is one, with what
    all of them stored."""
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
