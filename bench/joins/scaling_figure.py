"""Figure 12 of BiStream: units of a join-biclique follow the load, which is simulated.

    python -m bench.joins.scaling_figure [--out bench/joins/figures]

A window of 5 minutes, 8 units at first (4 for each stream), of 1.5 GB each; every minute one
decision for each stream. Rows of a minute are dealt to the active units. Nothing moves: units that
are given up keep their rows until these expire.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsmstate.joins.routing.scaling.two_phase import Group, TwoPhaseScaling

WINDOW = 5
#: MB a minute of both streams, from a minute on.
RATES: Sequence[tuple[int, float]] = ((0, 1300), (12, 2050), (30, 760))
MINUTES = 50


@dataclass(frozen=True)
class Minute:
    """What there is at the end of a minute."""

    number: int
    rate_mb: float
    load: float
    """Of the active units: the part of their memory that is in use."""
    fullest: float
    """Bytes in the fullest unit."""
    units: int
    """Active ones of both sides."""
    probed: int
    """Those that may hold rows."""


def rate_of(minute: int) -> float:
    """MB that arrive in a minute."""
    return [rate for first, rate in RATES if first <= minute][-1]


def simulated(rule: TwoPhaseScaling | None = None, most_units: int = 20) -> list[Minute]:
    """The minutes of the experiment; both streams have the same load."""
    rule = rule or TwoPhaseScaling(capacity_bytes=1.5e9)
    group, found = Group(4), []
    #: By minute, what each unit of a side was given.
    given: list[list[float]] = []
    for number in range(MINUTES):
        each = rate_of(number) * 1e6 / 2 / group.units
        given.append([each] * group.units)
        kept = given[-WINDOW:]
        stored = [
            sum(minute[unit] for minute in kept if unit < len(minute))
            for unit in range(max(map(len, kept)))
        ]
        load = rule.load(group.units, stored)
        probed = max(len(stored), group.units)
        found.append(
            Minute(number, rate_of(number), load, max(stored), 2 * group.units, 2 * probed)
        )
        group = rule.next(group, stored, most_units)
    return found


def drawn(minutes: Sequence[Minute], out: Path) -> None:
    """Save the figure."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 1, figsize=(6, 6), sharex=True)
    x = [minute.number for minute in minutes]
    panels: list[tuple[str, list[tuple[list[float], str]]]] = [
        ("MB a minute", [([minute.rate_mb for minute in minutes], "both streams")]),
        ("fullest unit, GB", [([minute.fullest / 1e9 for minute in minutes], "memory in use")]),
        (
            "units",
            [
                ([float(minute.units) for minute in minutes], "store rows"),
                ([float(minute.probed) for minute in minutes], "are probed"),
            ],
        ),
    ]
    axis: Any
    for axis, (label, lines) in zip(axes, panels, strict=True):
        for values, name in lines:
            axis.step(x, values, where="post", label=name)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend(loc="lower left")
    axes[1].axhline(1.2, linestyle=":", color="grey")
    axes[1].axhline(0.45, linestyle=":", color="grey")
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(out / "bistream-12.png", dpi=110)
    plt.close(figure)


def printed(minutes: Sequence[Minute]) -> None:
    """Print a line for each change, as Markdown."""
    print("| minute | MB a minute | load | fullest unit, GB | units that store | probed |")
    print("|---|---|---|---|---|---|")
    last: tuple[int, int] | None = None
    for minute in minutes:
        if (minute.units, minute.probed) != last:
            print(
                f"| {minute.number} | {minute.rate_mb:,.0f} | {minute.load:.2f} "
                f"| {minute.fullest / 1e9:.2f} | {minute.units} | {minute.probed} |"
            )
        last = (minute.units, minute.probed)


def main() -> None:
    """Print the changes and save the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    asked = parser.parse_args()
    minutes = simulated()
    printed(minutes)
    drawn(minutes, asked.out)


if __name__ == "__main__":
    main()
