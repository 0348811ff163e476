"""The order-consistent protocol of BiStream, and a simulation that shows what it is for.

    python -m bench.joins.ordered_protocol [--rows 1000] [--dispatchers 3] [--units 4] [--rounds 20]

Several dispatchers send each row to the unit that stores it and to all units of the other side.
Messages are delayed at random. A pair is *lost* if both rows look for each other too early, and
*doubled* if both find each other. It is neither where all units see rows in one global order.

- A dispatcher gives each row a stamp: a number of its hybrid clock, and its own number.
- Every few milliseconds it sends a *punctuation*: no later row of it has a stamp that low.
- A unit keeps rows back until all dispatchers have passed their stamps, and handles them in order.

On Spark a micro-batch is the punctuation, so ``multiway_join`` needs none of this. It is for who
feeds plain-Python joins from several consumers.

Source: Lin et al., *Scalable distributed stream join processing* (SIGMOD 2015), section 3.2. The
paper leaves out what an idle dispatcher says (here: the time), ties, and one stamp for both copies.
"""

import argparse
import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NamedTuple

Protocol = Literal["none", "hybrid clock", "own counter"]
PROTOCOLS: tuple[Protocol, ...] = ("none", "own counter", "hybrid clock")


class Stamp(NamedTuple):
    """The place of a row in the global order."""

    time: int
    dispatcher: int


class HybridClock:
    """The clock of one dispatcher: the time, or one more than the last stamp if that is later."""

    def __init__(self, dispatcher: int, *, knows_time: bool = True) -> None:
        """``knows_time``: whether it is one at all, or a counter of rows."""
        self._dispatcher = dispatcher
        self._knows_time = knows_time
        self._last = 0

    def stamp(self, now: int) -> Stamp:
        """The stamp of a row, greater than all that this clock has said."""
        self._last = max(self._last + 1, now if self._knows_time else 0)
        return Stamp(self._last, self._dispatcher)

    def punctuation(self, now: int) -> int:
        """What all later stamps are greater than. It grows while no row comes."""
        self._last = max(self._last, now if self._knows_time else 0)
        return self._last


class InOrder:
    """What one unit has not handled yet."""

    def __init__(self, dispatchers: int) -> None:
        self._passed = [0] * dispatchers
        self._waiting: list[tuple[Stamp, int, Any]] = []
        self._count = 0
        self.most_waiting = 0

    def add(self, stamp: Stamp, item: Any) -> None:
        """Keep a row back."""
        heapq.heappush(self._waiting, (stamp, self._count, item))
        self._count += 1
        self.most_waiting = max(self.most_waiting, len(self._waiting))

    def passed(self, dispatcher: int, punctuation: int) -> Iterator[Any]:
        """The rows that may be handled now that a dispatcher has come so far, in global order."""
        self._passed[dispatcher] = max(self._passed[dispatcher], punctuation)
        horizon = min(self._passed)
        while self._waiting and self._waiting[0][0].time <= horizon:
            yield heapq.heappop(self._waiting)[2]

    @property
    def waiting(self) -> int:
        """How many rows are kept back."""
        return len(self._waiting)


class Row(NamedTuple):
    """A row of one of the two sides."""

    side: int
    number: int
    key: int


@dataclass
class Unit:
    """Stores rows of its own side, and looks rows of the other side up."""

    side: int
    order: InOrder
    stored: dict[int, list[int]] = field(default_factory=dict)
    met: Counter[tuple[int, int]] = field(default_factory=Counter)

    def handle(self, row: Row) -> None:
        """Store the row, or find its partners."""
        if row.side == self.side:
            self.stored.setdefault(row.key, []).append(row.number)
            return
        for other in self.stored.get(row.key, ()):
            pair = (row.number, other) if row.side == 0 else (other, row.number)
            self.met[pair] += 1


@dataclass(frozen=True)
class Found:
    """What became of the pairs."""

    pairs: int
    lost: int
    doubled: int
    most_waiting: int
    """Rows that one unit kept back at a time."""
    left: int
    """Rows that were still kept back when nothing more came. Then the end lets them go."""


@dataclass(frozen=True)
class Network:
    """Dispatchers and units, and how long messages take."""

    dispatchers: int = 3
    units: int = 4
    """Half of them for each side."""
    delay_ms: tuple[int, int] = (0, 12)
    """Between these at random, for each message; messages on one way do not overtake."""
    punctuation_ms: int = 10
    is_idle: bool = False
    """Whether the last dispatcher gets no row."""


def simulate(protocol: Protocol, rows: int, seed: int, network: Network | None = None) -> Found:
    """Send rows of two sides, one a millisecond, and count the pairs of equal keys."""
    network = network or Network()
    rng = random.Random(seed)
    sent = [
        Row(rng.randrange(2), number, rng.randrange(max(1, rows // 4))) for number in range(rows)
    ]
    half = network.units // 2
    units = [Unit(at // half, InOrder(network.dispatchers)) for at in range(2 * half)]
    knows_time = protocol == "hybrid clock"
    clocks = [HybridClock(d, knows_time=knows_time) for d in range(network.dispatchers)]
    ways: dict[tuple[int, int], int] = {}
    messages: list[tuple[int, int, int, int, Stamp | None, Row | int]] = []
    numbers = count()

    def send(now: int, dispatcher: int, unit: int, stamp: Stamp | None, what: Row | int) -> None:
        arrives = max(now + rng.randint(*network.delay_ms), ways.get((dispatcher, unit), 0))
        ways[dispatcher, unit] = arrives
        heapq.heappush(messages, (arrives, next(numbers), dispatcher, unit, stamp, what))

    busy = network.dispatchers - 1 if network.is_idle else network.dispatchers
    end = rows + 10 * network.punctuation_ms
    for now in range(end):
        if now < rows:
            row = sent[now]
            dispatcher = rng.randrange(busy)
            stamp = clocks[dispatcher].stamp(now)
            own = rng.choice([at for at in range(len(units)) if units[at].side == row.side])
            others = [at for at in range(len(units)) if units[at].side != row.side]
            for unit in (own, *others):
                send(now, dispatcher, unit, stamp, row)
        if protocol != "none" and now % network.punctuation_ms == 0:
            for dispatcher, clock in enumerate(clocks):
                told = clock.punctuation(now)
                for unit in range(len(units)):
                    send(now, dispatcher, unit, None, told)
        _deliver(messages, now, units, protocol)
    _deliver(messages, end + network.delay_ms[1], units, protocol)
    left = sum(unit.order.waiting for unit in units)
    for unit in units:
        for dispatcher in range(network.dispatchers):
            for row in unit.order.passed(dispatcher, end + rows):
                unit.handle(row)
    met = sum((unit.met for unit in units), Counter())
    expected = {
        (one.number, other.number)
        for one in sent
        for other in sent
        if one.side == 0 and other.side == 1 and one.key == other.key
    }
    return Found(
        len(expected),
        sum(pair not in met for pair in expected),
        sum(times > 1 for times in met.values()),
        max(unit.order.most_waiting for unit in units),
        left,
    )


def _deliver(messages: list[Any], now: int, units: list[Unit], protocol: Protocol) -> None:
    while messages and messages[0][0] <= now:
        _, _, dispatcher, at, stamp, what = heapq.heappop(messages)
        unit = units[at]
        if not isinstance(what, Row):
            for row in unit.order.passed(dispatcher, what):
                unit.handle(row)
        elif protocol == "none":
            unit.handle(what)
        else:
            unit.order.add(stamp, what)


def main() -> None:
    """Print a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--dispatchers", type=int, default=3)
    parser.add_argument("--units", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    network = Network(asked.dispatchers, asked.units)
    print(
        "| protocol | pairs | lost | doubled | most rows kept back in a unit |\n"
        "|---|---|---|---|---|"
    )
    for protocol in PROTOCOLS:
        found = [simulate(protocol, asked.rows, seed, network) for seed in range(asked.rounds)]
        lost, doubled = ([getattr(each, name) for each in found] for name in ("lost", "doubled"))
        print(
            f"| {protocol} | {sum(each.pairs for each in found):,} "
            f"| {sum(lost)} ({min(lost)} to {max(lost)} a round) "
            f"| {sum(doubled)} ({min(doubled)} to {max(doubled)} a round) "
            f"| {max(each.most_waiting for each in found)} |"
        )


if __name__ == "__main__":
    main()
