"""Generated keys: texts and sets that are close share a key, so an equi-join finds candidates.

- Texts at most t edits apart are equal after at most t deletions in each (Bocek et al., *Fast
  similarity search in large dictionaries*, 2007). Where those would be too many, one of t + 1
  segments of the stored text stands in the other, where edits before it may have moved it (Li et
  al., *Pass-Join*, VLDB 2011).
- Sets whose Jaccard similarity is at least s share one of the |x| - ceil(s|x|) + 1 rarest members,
  in any fixed order of members (Bayardo et al., *Scaling up all pairs similarity search*, 2007).
  How many members stand behind it bounds how many more they share (Xiao et al., *PPJoin*, 2008).
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.distances.edit_keys import edit_keys
from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.distinct import distinct

Numbers = npt.NDArray[np.int64]

#: Most keys of deletions of a text; a text with more has segments.
MOST_DELETIONS: Final = 64
#: The key of the empty set.
_EMPTY: Final = 0
_SIGN: Final = 1 << 63
_GOLDEN: Final = 0x9E3779B97F4A7C15


class Keys(NamedTuple):
    """Keys of texts or sets."""

    owners: Numbers
    """Beside each key the place of its text or set."""
    keys: Numbers
    sizes: Numbers | None = None
    """Of sets: how many members the set has."""
    places: Numbers | None = None
    """Of sets: how many of them stand before the key's."""

    def at(self, where: npt.NDArray[Any]) -> "Keys":
        """Some of the keys, by places or by a mask."""
        sizes = None if self.sizes is None else self.sizes[where]
        places = None if self.places is None else self.places[where]
        return Keys(self.owners[where], self.keys[where], sizes, places)


class EditKeys:
    """Keys of texts at most some edits apart."""

    def __init__(self, edits: int) -> None:
        self._edits = edits
        #: Longest text with keys of deletions.
        self._longest = 0 if edits else 1 << 31
        while edits and _deletions(self._longest + 1, edits) <= MOST_DELETIONS:
            self._longest += 1

    def stored(self, texts: Sequence[str]) -> Keys:
        """The keys under which texts are found."""
        return self._keys(texts, is_stored=True)

    def asked(self, texts: Sequence[str]) -> Keys:
        """The keys of all texts that may be close to some."""
        return self._keys(texts, is_stored=False)

    def _keys(self, texts: Sequence[str], *, is_stored: bool) -> Keys:
        joined = "".join(texts).encode("utf-32-le", "surrogatepass")
        characters = np.frombuffer(joined, "<u4").astype(np.uint32, copy=False)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        return Keys(*edit_keys(characters, ends, self._edits, self._longest, is_stored))


def _deletions(length: int, edits: int) -> int:
    return sum(math.comb(length, count) for count in range(edits + 1))


class Ranking(NamedTuple):
    """How often members were seen, by member."""

    members: Numbers
    counts: Numbers

    @classmethod
    def of(cls, members: Iterable[int], counts: Iterable[int]) -> "Ranking":
        """From members in any order."""
        found = np.array(list(members), np.int64), np.array(list(counts), np.int64)
        order = np.argsort(found[0])
        return cls(found[0][order], found[1][order])

    def seen(self, members: Numbers) -> Numbers:
        """How often each was seen; 0: it is not known."""
        if not len(self.members):
            return np.zeros(len(members), np.int64)
        at = np.minimum(np.searchsorted(self.members, members), len(self.members) - 1)
        return np.where(self.members[at] == members, self.counts[at], 0)


class SetKeys:
    """Keys of sets by their rarest members.

    Members are ordered by how often they were seen when a *ranking* was made, unknown ones first.
    A key names its ranking, so later rankings leave earlier keys as they are.
    """

    def __init__(self, similarity: float, rankings: Iterable[Ranking] = ()) -> None:
        self._similarity = similarity
        self.rankings = list(rankings)

    def begin(self, sets: pa.Array, most: int) -> Ranking:
        """Begin a ranking from some sets: of the most frequent members."""
        _, members = members_of(sets)
        found, counts = np.unique(members, return_counts=True)
        often = np.argsort(-counts, kind="stable")[:most]
        self.rankings.append(Ranking.of(found[often].tolist(), counts[often].tolist()))
        return self.rankings[-1]

    def stored(self, sets: pa.Array) -> Keys:
        """The keys under which sets are found: those of the newest ranking."""
        return self._keys(sets, [len(self.rankings) - 1])

    def asked(self, sets: pa.Array) -> Keys:
        """The keys of all sets that may be close to some."""
        return self._keys(sets, range(len(self.rankings)))

    def _keys(self, sets: pa.Array, rankings: Iterable[int]) -> Keys:
        owners, members = members_of(sets)
        sizes = np.bincount(owners, minlength=len(sets)).astype(np.int64)
        most = sizes - np.ceil(self._similarity * sizes - 1e-9).astype(np.int64) + 1
        within = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        is_first = within < np.maximum(most, 1)[owners]
        empty = np.flatnonzero(sizes == 0)
        none = np.full(len(empty), 0, np.int64)
        whose, keys, places = [empty], [none + _EMPTY], [none]
        for ranking in rankings:
            counts = self.rankings[ranking].seen(members)
            order = np.lexsort((members, counts, owners))[is_first]
            whose.append(owners[order])
            mixer = np.int64(_signed(ranking * _GOLDEN & ((1 << 64) - 1)))
            keys.append(members[order] ^ mixer)
            places.append(within[is_first])
        found = np.concatenate(whose)
        return Keys(found, np.concatenate(keys), sizes[found], np.concatenate(places))

    def may_match(
        self, sizes: Numbers, places: Numbers, others: Numbers, other_places: Numbers
    ) -> npt.NDArray[np.bool_]:
        """Which pairs may be close that share a key: sizes of two sets, and its places there. True
        for the first key that two close sets share."""
        part = self._similarity / (1 + self._similarity)
        needed = np.ceil(part * (sizes + others) - 1e-9)
        return np.asarray(np.minimum(sizes - places, others - other_places) >= needed)


def members_of(sets: pa.Array) -> tuple[Numbers, Numbers]:
    """The distinct members of sets as numbers, and beside each its set, which ascend. Two members
    may have one number."""
    lengths = np.asarray(sets.value_lengths().to_numpy(zero_copy_only=False), np.int64)
    owners = np.repeat(np.arange(len(sets)), lengths)
    encoded = sets.flatten().dictionary_encode()
    numbers = _numbers(encoded.dictionary)
    places = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = distinct(owners * (len(numbers) + 1) + places)
    owners, places = np.divmod(pairs, len(numbers) + 1)
    return owners, numbers[places]


def _numbers(members: pa.Array) -> Numbers:
    """A number for each member: its hash as a key. Whole numbers of all types are alike."""
    kind = pa.int64() if pa.types.is_integer(members.type) else pa.string()
    schema = pa.schema([("member", kind)])
    batch = pa.RecordBatch.from_arrays([members.cast(kind, safe=False)], schema=schema)
    return np.asarray(KeyCodec(schema).encode(batch).hashes).view(np.int64)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= _SIGN else number
