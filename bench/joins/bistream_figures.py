"""BiStream's tables and figures: messages, stored rows and capacity are counted, throughput timed.

    python -m bench.joins.bistream_figures [--rows 200000] [--only messages capacity throughput 12]

- Messages, stored rows and loads of the join-biclique (JB, with CR subgroups) and the join-matrix
  (JM), beside equations 1, 2, 5 and 6. They hold for distinct rows: equal ones share a unit.
- Messages a row of a band join to 16 units, with our ranges.
- Figures 10 and 15 to 17, and table 4: what fits into units of a capacity.
- Figure 8: throughput of routing and joining, all units on one core.
- Figure 12: ``scaling_figure``.

Deviations from the paper: units are stores in one process, so latency (figure 9) is not measured,
and CPU time stands for time. Rows are made, not TPC-H's, of which only the keys matter here. The
unit of a row follows from its content, so that a replay routes alike; the paper's is random.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.baselines.join_matrix import MatrixRouting
from bench.joins import scaling_figure
from bench.joins.any_condition import intervals, points
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.key_parts import KeyPart
from lsmstate.joins.local.theta.range_routing import ThetaRanges
from lsmstate.joins.local.theta.theta_join import ThetaJoin
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.routing.biclique import BicliqueRouting
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.opening import open_store
from lsmstate.options import Options

#: Workload A1: keys up to a billion, 1,000 apart at most.
BAND: Final = "b.k BETWEEN a.k - 500 AND a.k + 500"
INTERVALS: Final = "a.k BETWEEN b.low AND b.high"
EQUAL: Final = "a.k = b.k"
UNITS: Final = (4, 16, 36, 64)

Rows = Mapping[str, pa.RecordBatch]


@dataclass
class Counted:
    """What a routing did with some rows."""

    rows: int = 0
    messages: int = 0
    stored: Counter[int] = field(default_factory=Counter)

    def add(self, routed: Any, rows: int) -> None:
        """Count the rows of one batch."""
        self.rows += rows
        self.messages += len(routed.positions)
        self.stored.update(routed.buckets[routed.roles != Role.PROBE].tolist())


class Routed:
    """A routing, with the tables that it makes of what its buckets see, as often as on Spark."""

    def __init__(self, routing: Any, units: int, period: int = 4) -> None:
        self.routing = routing
        self.period = period
        self.units = units
        self.table: Any = None
        self.number = 0
        self._kept: dict[int, Any] = {}

    def route(self, arriving: Rows) -> Iterator[tuple[str, pa.RecordBatch, Any]]:
        """Route a micro-batch. The next one has the table that follows."""
        is_observed = isinstance(self.routing, ThetaRanges)
        if is_observed and self.table is None:
            name, rows = next(iter(arriving.items()))
            self.table = self.routing.sampled_table(name, rows, rows, 0)
        is_last = (self.number + 1) % self.period == 0
        observers = {
            unit: self.routing.observer(
                unit, self.table, self._kept.get(unit), is_last=is_last, watermark_us=None
            )
            for unit in (range(self.units) if is_observed else ())
        }
        for name, rows in arriving.items():
            routed = self.routing.router(name, rows.schema, rows.schema, self.table).route(
                rows, rows
            )
            for unit, observer in observers.items():
                own = (routed.buckets == unit) & (routed.roles == Role.STORE)
                mine = rows.take(pa.array(routed.positions[own]))
                observer.add(name, mine, mine, Role.STORE)
            yield name, rows, routed
        self.number += 1
        if is_observed:
            self._kept = {unit: observer.kept() for unit, observer in observers.items()}
        if is_observed and is_last:
            seen = [observer.observed() for observer in observers.values()]
            self.table = self.routing.next_table(self.table, seen, self.number)


def spec_of(on: str, arriving: Rows) -> ThetaSpec:
    """The join of two streams."""
    return ThetaSpec.create({name: rows.schema for name, rows in arriving.items()}, on)


def ranges(on: str, arriving: Rows, units: int, period: int = 4) -> Routed:
    """Our routing by ranges."""
    return Routed(ThetaRanges.for_spec(spec_of(on, arriving)).settled(units, {}), units, period)


def biclique(arriving: Rows, units: int, groups: int | None = None) -> Routed:
    """Half of the units for each stream; ``groups``: subgroups of each half by the key."""
    halves = dict.fromkeys(arriving, 1)
    if groups is None:
        return Routed(BicliqueRouting.of(halves, units), units)
    parts = {name: KeyPart(Column(name, "k"), pa.int64()) for name in arriving}
    of = BicliqueRouting.of(halves, units, parts, dict.fromkeys(arriving, groups))
    return Routed(of, units)


def matrix(arriving: Rows, units: int) -> Routed:
    """A square of units."""
    return Routed(MatrixRouting.square(list(arriving), units), units)


def counted(routed: Routed, batches: list[Rows]) -> list[Counted]:
    """What became of each micro-batch."""
    found = []
    for arriving in batches:
        counts = Counted()
        for _, rows, sent in routed.route(arriving):
            counts.add(sent, rows.num_rows)
        found.append(counts)
    return found


def bands(count: int, rows: int, *, rising: bool = False) -> list[Rows]:
    """Micro-batches of two streams; with rising keys each lies above most of the last one."""
    found = []
    for number in range(count):
        made = {name: points(rows, 2 * number + at) for at, name in enumerate("ab")}
        if rising:
            made = {
                name: batch.set_column(
                    1, "k", pa.array(batch.column("k").to_numpy() // 40 + number * 20_000_000)
                )
                for name, batch in made.items()
            }
        found.append(made)
    return found


def points_in_intervals(count: int, rows: int) -> list[Rows]:
    """One interval in 1,000 is 1,000 times longer."""
    return [{"b": intervals(rows, n), "a": points(rows, 500 + n)} for n in range(count)]


def print_messages() -> None:
    """Counting beside the equations, and messages a row of a band join."""
    rows = {name: points(8000, seed) for seed, name in enumerate("ab")}
    print("\n### Messages and stored rows of 8,000 + 8,000 distinct rows\n")
    print("| setting | messages | equations 5, 6 | stored | equations 1, 2 | fullest unit |")
    print("|---|---|---|---|---|---|")
    settings: dict[str, tuple[Routed, float, float]] = {}
    for units in (8, 16):
        half = units // 2
        for groups in (None, *(g for g in (2, 4, 8) if g <= half)):
            name = f"JB{units}" + (f"-CR{groups}" if groups else "")
            equation = 16_000 * (half / (groups or 1) + 1)
            settings[name] = (biclique(rows, units, groups), equation, 16_000)
    settings["JM16"] = (matrix(rows, 16), 16_000 * 4, 16_000 * 4)
    for name, (routed, messages, stored) in settings.items():
        (found,) = counted(routed, [rows])
        total = found.stored.total()
        assert (found.messages, total) == (messages, stored), name
        print(
            f"| {name} | {found.messages:,} | {messages:,.0f} | {total:,} | {stored:,.0f} "
            f"| {max(found.stored.values()):,} of {total / routed.units:,.0f} on average |"
        )
    print("\n### Messages a row of a band join to 16 units\n")
    print("| join | biclique at random | matrix | ranges | fullest unit / average |")
    print("|---|---|---|---|---|")
    cases = {
        "A1: band of 1,000 among a billion, one table": (BAND, bands(1, 20_000)),
        "the same with rising keys, after 20 tables": (BAND, bands(21, 4000, rising=True)),
        "points in intervals, 1 in 1,000 long": (INTERVALS, points_in_intervals(4, 8000)),
    }
    for name, (on, batches) in cases.items():
        last = batches[-1:]
        shown = [
            found.messages / found.rows
            for routed in (biclique(last[0], 16), matrix(last[0], 16))
            for found in counted(routed, last)
        ]
        ours = counted(ranges(on, batches[0], 16, period=1), batches)[-1]
        average = ours.stored.total() / 16
        print(
            f"| {name} | {shown[0]:.2f} | {shown[1]:.2f} | {ours.messages / ours.rows:.2f} "
            f"| {max(ours.stored.values()) / average:.2f} |"
        )


def volume_of(routed: Routed, capacity: int) -> int:
    """Rows of both streams that fit until the first unit is full."""
    stored, number, volume = Counter[int](), 0, 0
    while max(stored.values(), default=0) < capacity:
        arriving = {name: points(capacity // 2, 7 * number + at) for at, name in enumerate("ab")}
        arriving = {
            name: batch.set_column(
                0, "id", pa.array(batch.column("id").to_numpy() + number * 10**9)
            )
            for name, batch in arriving.items()
        }
        for found in counted(routed, [arriving]):
            stored += found.stored
            volume += found.rows
        number += 1
    return volume


def units_for(volume: int, capacity: int) -> int:
    """How many units a square matrix needs for so many rows; units may be 10 % over the
    average."""
    rows = {name: points(volume // 2, seed) for seed, name in enumerate("ab")}
    side = 1
    while True:
        (found,) = counted(matrix(rows, side * side), [rows])
        if max(found.stored.values()) <= 1.1 * capacity:
            return side * side
        side += 1


def print_capacity(out: Path) -> None:
    """Table 4, and figures 10 and 15 to 17."""
    capacity = 4000
    rows = {name: points(10, seed) for seed, name in enumerate("ab")}
    print(f"\n### Rows that fit into units of {capacity:,} rows (table 4, figures 10, 15 to 17)\n")
    print("| units | JB | JM | ratio | square root of the units | JM units for JB's rows |")
    print("|---|---|---|---|---|---|")
    found: dict[str, list[int]] = {"JB": [], "JM": []}
    for units in UNITS:
        jb = volume_of(biclique(rows, units), capacity)
        jm = volume_of(matrix(rows, units), capacity)
        found["JB"].append(jb)
        found["JM"].append(jm)
        needed = f"{units_for(jb, capacity):,}" if units <= 16 else ""
        print(f"| {units} | {jb:,} | {jm:,} | {jb / jm:.1f} | {units**0.5:g} | {needed} |")
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.5, 4))
    for (label, volumes), marker in zip(found.items(), "os", strict=True):
        axis.plot(UNITS, np.array(volumes) / 1000, marker + "-", label=label)
    axis.set_xlabel("units")
    axis.set_xticks(UNITS)
    axis.set_ylabel("rows that fit, thousands")
    axis.set_ylim(bottom=0)
    axis.legend()
    figure.tight_layout()
    figure.savefig(out / "bistream-10.png", dpi=110)
    plt.close(figure)


def timed(on: str, routed: Routed, batches: list[Rows]) -> tuple[float, int]:
    """CPU seconds of routing and joining in all units, and the number of results."""
    spec = spec_of(on, batches[0])
    with ExitStack() as opened:
        home = opened.enter_context(tempfile.TemporaryDirectory())
        options = Options(memory_bytes=256 << 20, sync="never")
        stores = [
            opened.enter_context(
                open_store(f"{home}/{unit}", spec.stream_schemas, backend="lsm", options=options)
            )
            for unit in range(routed.units)
        ]
        joins = [ThetaJoin(spec, store, Context()) for store in stores]
        results, start = 0, time.process_time()
        for arriving in batches:
            for name, rows, sent in routed.route(arriving):
                order = np.argsort(sent.buckets, kind="stable")
                cuts = np.searchsorted(sent.buckets[order], np.arange(routed.units + 1))
                for unit, join in enumerate(joins):
                    places = order[cuts[unit] : cuts[unit + 1]]
                    for role in (Role.STORE, Role.COPY, Role.PROBE):
                        mine = sent.positions[places[sent.roles[places] == role]]
                        if len(mine):
                            part = rows.take(pa.array(mine))
                            results += join.process(Batch(name, part, role=role)).count()
        return time.process_time() - start, results


def print_throughput(rows: int, rounds: int) -> None:
    """Figure 8 at 4 and 16 units: a band join, and a join by a key."""
    batches = bands(10, rows // 10)
    few = [
        {
            name: batch.set_column(1, "k", pa.array(batch.column("k").to_numpy() % (rows // 2)))
            for name, batch in arriving.items()
        }
        for arriving in batches
    ]
    print(f"\n### Throughput of {rows:,} + {rows:,} rows (figure 8), all units on one core\n")
    print("| join | units | setting | rows a CPU second | beside JM | results |")
    print("|---|---|---|---|---|---|")
    for name, on, made in (("band", BAND, batches), ("by a key", EQUAL, few)):
        for units in (4, 16):
            settings = {"JM": matrix, "JB": biclique}
            sides: dict[str, list[float]] = {}
            results: dict[str, int] = {}
            for _ in range(rounds):  # what is compared takes turns
                runs = {label: make(made[0], units) for label, make in settings.items()}
                if on == BAND:
                    runs["ours: ranges"] = ranges(on, made[0], units)
                else:
                    runs[f"JB-CR{units // 4}"] = biclique(made[0], units, units // 4)
                    runs[f"ours: JB-CR{units // 2}"] = biclique(made[0], units, units // 2)
                for label, routed in runs.items():
                    seconds, results[label] = timed(on, routed, made)
                    sides.setdefault(label, []).append(seconds)
            assert len(set(results.values())) == 1, results
            medians = {label: sorted(of)[len(of) // 2] for label, of in sides.items()}
            for label, seconds in medians.items():
                print(
                    f"| {name} | {units} | {label} | {2 * rows / seconds:,.0f} "
                    f"| {medians['JM'] / seconds:.1f} | {results[label]:,} |"
                )


def main() -> None:
    """Print tables of Markdown, and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ("messages", "capacity", "throughput", "12")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    asked = parser.parse_args()
    if "messages" in asked.only:
        print_messages()
    if "capacity" in asked.only:
        print_capacity(asked.out)
    if "throughput" in asked.only:
        print_throughput(asked.rows, asked.rounds)
    if "12" in asked.only:
        print("\n### Figure 12: units follow the load\n")
        minutes = scaling_figure.simulated()
        scaling_figure.printed(minutes)
        scaling_figure.drawn(minutes, asked.out)


if __name__ == "__main__":
    main()
