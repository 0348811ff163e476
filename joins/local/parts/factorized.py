"""Results as products: their rows factored out, so that a row stands once in each product.

Results that are not made yet are tuples of places. Those of a join are mostly cross products, laid
out one after the other. A factorized representation (Olteanu and Závodný, "Size Bounds for
Factorised Representations of Query Results", TODS 2015) holds the factors instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lsmstate.joins.local.parts.row_picks import Numbers


@dataclass(frozen=True, slots=True)
class Products:
    """Product ``i`` is every combination of one of the ``places[s]`` from ``starts[s][i]`` to
    ``starts[s][i + 1]``, for each stream s."""

    places: Sequence[Numbers]
    starts: Sequence[Numbers]

    def __len__(self) -> int:
        return len(self.starts[0]) - 1


def factorized(places: Sequence[Numbers], cuts: Numbers) -> Products:
    """The results as products, each in one piece.

    Exact whatever the order of the results. Products are as large as possible where those of a
    product stand together and one stream's places change slowest, another's fastest.

    Args:
        places: Per stream, the place of its row in each result.
        cuts: The first result of each piece, ascending from 0.

    Returns:
        The products. Results come piece by piece, in any order within one.

    Cost:
        A few passes over the places.
    """
    results = len(places[0])
    changes = [each[1:] != each[:-1] for each in places]
    # Outermost the stream whose rows change most seldom.
    order = sorted(range(len(places)), key=lambda stream: int(np.count_nonzero(changes[stream])))
    is_cut = np.zeros(max(0, results - 1), dtype=np.bool_)
    is_cut[cuts[1:] - 1] = True
    # differs[k]: whether results i and i + 1 lie in other pieces or in other rows of one of the
    # first k streams.
    differs = [is_cut]
    for stream in order:
        differs.append(differs[-1] | changes[stream])
    # Items begin as the results, each a product of single places, and grow together from the
    # innermost stream outwards.
    firsts = np.arange(results, dtype=np.int64)
    lists: dict[int, _Lists] = {}
    for depth in range(len(order) - 1, -1, -1):
        stream = order[depth]
        goes_on = ~differs[depth][firsts[1:] - 1] if len(firsts) else np.zeros(0, dtype=np.bool_)
        for inner in lists.values():
            goes_on &= inner.equals_next()
        starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(firsts)), np.bool_), ~goes_on]))
        lists = {inner: each.at(starts) for inner, each in lists.items()}
        lists[stream] = _Lists(places[stream][firsts], starts, np.diff(starts, append=len(firsts)))
        firsts = firsts[starts]
    factors = [lists[stream].compact() for stream in range(len(places))]
    return Products([each.values for each in factors], [each.bounds() for each in factors])


@dataclass(frozen=True, slots=True)
class _Lists:
    """List ``i`` has the ``lengths[i]`` values from ``starts[i]`` on."""

    values: Numbers
    starts: Numbers
    lengths: Numbers

    def at(self, chosen: Numbers) -> "_Lists":
        return _Lists(self.values, self.starts[chosen], self.lengths[chosen])

    def equals_next(self) -> npt.NDArray[np.bool_]:
        """Whether each list but the last equals the one after it."""
        equal: npt.NDArray[np.bool_] = self.lengths[1:] == self.lengths[:-1]
        asked = np.flatnonzero(equal)
        if len(asked):
            lengths = self.lengths[asked]
            here = _spread(self.starts[asked], lengths)
            there = _spread(self.starts[asked + 1], lengths)
            same = self.values[here] == self.values[there]
            ends = np.cumsum(lengths)
            equal[asked] = np.logical_and.reduceat(same, ends - lengths)
        return equal

    def compact(self) -> "_Lists":
        """The same lists, side by side."""
        ends = np.cumsum(self.lengths)
        values = self.values[_spread(self.starts, self.lengths)]
        return _Lists(values, ends - self.lengths, self.lengths)

    def bounds(self) -> Numbers:
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])


def _spread(starts: Numbers, lengths: Numbers) -> Numbers:
    """The numbers from each start on, as many as its length says."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)
