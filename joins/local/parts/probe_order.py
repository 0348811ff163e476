"""Which stream to look into first: learned from what looking cost and how much it let through.

Looking into a stream is a filter: it costs something a key, and lets a share of the keys through.
Filters in a row cost least, all together, when those with the least *cost / (1 - share)* come
first. (Babu et al., *Adaptive ordering of pipelined stream filters*, SIGMOD 2004; here without
their matrix of correlations.) Both are measured while the join runs, and old measurements fade, so
that the order follows the data.

A cost is measured where a stream is looked into first, for all keys of a slice: a few keys that
others left over cost more each. It is the least of late, because a machine that does other things
makes single ones large. So that no stream is judged by what was long ago, or never, each comes
first now and then. The order never changes a result: a key passes all filters or it does not.
"""

import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

#: Measurements fade to a half as so many keys arrive.
FADING_KEYS = 50_000
#: Of so many slices each stream comes first in one at least.
RECHECKED_SLICES = 64
#: In so many of the first slices; the first one's blocks come from the disk.
_FIRST_CHECKS = 2
#: So much of an old measurement stays, whatever came since.
_LEAST_LEFT = 1e-9
#: What lets everything through is looked into last, however cheap.
_LEAST_REFUSED = 1e-3


@dataclass(slots=True)
class _Measured:
    """Sums over look-ups of one stream by another, faded."""

    asked: float = 0.0
    matched: float = 0.0
    cost: float | None = None
    """Seconds a key, where it came first; grows as it fades."""
    firsts: int = 0
    last_first: int = 0
    """In how many slices it came first, and the last of them."""
    arrived: int = 0
    """Keys that had arrived when it was measured last."""


@dataclass(slots=True)
class _Arrivals:
    slices: int = 0
    keys: int = 0


class ProbeOrder:
    """What one operator has learned; may go on to the next one of the same join.

    ``asking`` and ``other`` name the two sides of a look-up, whatever they are.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """``clock``: seconds. Waiting for a disk is a cost too, hence not CPU time."""
        self._clock = clock
        self._measured: dict[tuple[str, str], _Measured] = {}
        self._arrivals: dict[str, _Arrivals] = {}
        self._start = 0.0

    def order(
        self, asking: str, others: Iterable[str], filters: Container[str] | None = None
    ) -> list[str]:
        """The streams to look a slice's keys up in, one after the other: those that refuse keys,
        ``filters`` (default: all), before the rest. To be called once a slice, ``record`` after
        each look-up."""
        arrivals = self._arrivals.setdefault(asking, _Arrivals())
        arrivals.slices += 1
        known = {name: self._of(asking, name) for name in others}
        costs = [m.cost for m in known.values() if m.cost is not None]
        mean = sum(costs) / len(costs) if costs else 1.0
        names = sorted(known, key=lambda name: _rank(known[name], mean))
        if filters is not None:
            names.sort(key=lambda name: name not in filters)
        # One that refuses nothing comes first only where nothing else is asked.
        may_lead = [name for name in names if filters is None or name in filters] or names
        due = next((name for name in may_lead if _is_due(known[name], arrivals.slices)), None)
        if due is not None:
            names.remove(due)
            names.insert(0, due)
        if names:
            known[names[0]].firsts += 1
            known[names[0]].last_first = arrivals.slices
        self._start = self._clock()
        return names

    def record(self, asking: str, other: str, asked: int, matched: int) -> None:
        """``asked`` keys of one stream were just looked up in another, and ``matched`` found."""
        now = self._clock()
        arrivals, measured = self._arrivals[asking], self._of(asking, other)
        is_first = measured.last_first == arrivals.slices
        if is_first:
            arrivals.keys += asked
        faded = max(_LEAST_LEFT, 0.5 ** ((arrivals.keys - measured.arrived) / FADING_KEYS))
        measured.arrived = arrivals.keys
        measured.asked = measured.asked * faded + asked
        measured.matched = measured.matched * faded + matched
        if is_first and asked:
            cost = (now - self._start) / asked
            measured.cost = cost if measured.cost is None else min(cost, measured.cost / faded)
        self._start = now

    def _of(self, asking: str, other: str) -> _Measured:
        return self._measured.setdefault((asking, other), _Measured())


def _is_due(measured: _Measured, slices: int) -> bool:
    """Whether it has to come first, to be measured."""
    if measured.firsts < _FIRST_CHECKS:
        return True
    return slices - measured.last_first > RECHECKED_SLICES


def _rank(measured: _Measured, mean_cost: float) -> float:
    """Seconds for each key that is refused; a cost that is not known is taken for average."""
    cost = mean_cost if measured.cost is None else measured.cost
    matched = (measured.matched + 1) / (measured.asked + 2)
    return cost / max(1.0 - matched, _LEAST_REFUSED)
