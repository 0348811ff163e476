"""Generated keys: texts and sets that are close share a key, so an equi-join finds candidates.

- Texts at most t edits apart are equal after at most t deletions in each (Bocek et al., *Fast
  similarity search in large dictionaries*, 2007). Where those would be too many, one of t + 1
  segments of the stored text stands in the other, at most t places away (Li et al., *Pass-Join*,
  VLDB 2011).
- Sets whose Jaccard similarity is at least s share one of the |x| - ceil(s|x|) + 1 rarest members,
  in any fixed order of members (Bayardo et al., *Scaling up all pairs similarity search*, 2007).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, Final

from lsmstate.cython_ext.base.compression import checksum

#: Most keys of deletions of a text; a text with more has segments.
MOST_DELETIONS: Final = 64
#: The key of the empty set.
_EMPTY: Final = 0
_SIGN: Final = 1 << 63


class EditKeys:
    """Keys of texts at most some edits apart."""

    def __init__(self, edits: int) -> None:
        self._edits = edits
        #: Longest text with keys of deletions.
        self._longest = 0 if edits else 1 << 31
        while edits and _deletions(self._longest + 1, edits) <= MOST_DELETIONS:
            self._longest += 1

    def stored(self, text: str) -> set[int]:
        """The keys under which a text is found."""
        if len(text) <= self._longest:
            return {_number("d", key) for key in self._shortened(text)}
        return {
            _number(f"{len(text)} {at}", text[first:stop])
            for at, (first, stop) in enumerate(_segments(len(text), self._edits + 1))
        }

    def asked(self, text: str) -> set[int]:
        """The keys of all texts that may be close to a text."""
        edits = self._edits
        found = set()
        if len(text) <= self._longest + edits:
            found = {_number("d", key) for key in self._shortened(text)}
        for length in range(max(self._longest + 1, len(text) - edits), len(text) + edits + 1):
            for at, (first, stop) in enumerate(_segments(length, edits + 1)):
                for begin in range(max(0, first - edits), first + edits + 1):
                    part = text[begin : begin + stop - first]
                    if len(part) == stop - first:
                        found.add(_number(f"{length} {at}", part))
        return found

    def _shortened(self, text: str) -> Iterator[str]:
        """The text without any of its characters up to as many as there are edits."""
        places = range(len(text))
        for count in range(min(self._edits, len(text)) + 1):
            for gone in combinations(places, count):
                yield (
                    "".join(text[p] for p in places if p not in gone)
                    if count > 1
                    else (text[: gone[0]] + text[gone[0] + 1 :] if count else text)
                )


def _deletions(length: int, edits: int) -> int:
    return sum(math.comb(length, count) for count in range(edits + 1))


def _segments(length: int, count: int) -> Iterator[tuple[int, int]]:
    """The text's length in so many parts of almost equal lengths."""
    for at in range(count):
        yield at * length // count, (at + 1) * length // count


class SetKeys:
    """Keys of sets by their rarest members.

    Members are ordered by how often they were seen when a *ranking* was made, unknown ones first.
    A key names its ranking, so later rankings leave earlier keys as they are.
    """

    def __init__(self, similarity: float, rankings: Iterable[Mapping[int, int]] = ()) -> None:
        self._similarity = similarity
        #: By ranking, how often members were seen.
        self.rankings = list(rankings)

    def begin(self, sets: Iterable[Iterable[int]], most: int) -> Mapping[int, int]:
        """Begin a ranking from some sets: of the most frequent members."""
        counts = Counter(member for each in sets for member in set(each))
        self.rankings.append(dict(counts.most_common(most)))
        return self.rankings[-1]

    def stored(self, members: set[int]) -> set[int]:
        """The keys under which a set is found: those of the newest ranking."""
        return self._keys(members, len(self.rankings) - 1)

    def asked(self, members: set[int]) -> set[int]:
        """The keys of all sets that may be close to a set."""
        return {
            key for ranking in range(len(self.rankings)) for key in self._keys(members, ranking)
        }

    def _keys(self, members: set[int], ranking: int) -> set[int]:
        if not members:
            return {_EMPTY}
        counts = self.rankings[ranking]
        ordered = sorted(members, key=lambda each: (counts.get(each, 0), each))
        most = len(ordered) - math.ceil(self._similarity * len(ordered) - 1e-9) + 1
        return {_mixed(each, ranking) for each in ordered[: max(1, most)]}


def members_of(values: Iterable[Any]) -> set[int]:
    """The members of a set as numbers; two members may have one."""
    return {
        _signed(checksum(each.encode() if isinstance(each, str) else repr(each).encode()))
        for each in values
    }


def _mixed(member: int, ranking: int) -> int:
    return _signed((member ^ (ranking * 0x9E3779B97F4A7C15)) & ((1 << 64) - 1))


def _number(kind: str, key: str) -> int:
    return _signed(checksum(f"{kind}\0{key}".encode("utf-8", "surrogatepass")))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= _SIGN else number
