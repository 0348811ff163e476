"""One checkout's store beside another's: the same step on both by turns, medians and ratios.

    python -m bench.store.compare_checkouts ../before . --rows 1000000 --rounds 90

A process of each checkout stays open, with the same state. Both take one short step after the
other, and who comes first changes with every round. So a machine that is fast for one minute and
slow for the next is so for both; whole runs by turns (compare_stores.py) differ by a third there.
Each checkout needs its extensions compiled; ``--python`` names another interpreter for the first.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial

#: Measure -> its title. Milliseconds of CPU of all threads of the process.
TITLES = {
    "append": "append of 10,000 rows, logged",
    "hit": "probe of 10,000 keys that hits",
    "miss": "probe of 10,000 keys that misses",
    "join": "join loop of three streams, 10,000 rows",
    "commit": "commit of 10,000 rows, merges nothing",
    "commit_all": "commit of 10,000 rows, mean with its share of merging",
    "open": "open at a commit",
    "answer_1k": "first answer after it, 1,000 keys",
    "answer_10k": "second answer after it, 10,000 keys",
}
#: Merging falls on few of the steps, so their mean tells more than their median.
MEANS = ("commit_all",)

#: Rows of a step, as in the titles.
BATCH = 10_000

Figures = dict[str, float]


class Checkout:
    """A process that takes steps with the code of one checkout."""

    def __init__(self, path: str, python: str, rows: int, directory: str) -> None:
        command = [python, "-m", "bench.store.steps", str(rows), directory]
        self._process = subprocess.Popen(
            command, cwd=path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._receive()

    def step(self, name: str) -> Figures:
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return self._receive()

    def close(self) -> None:
        self._process.communicate()

    def _receive(self) -> Figures:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self._process.args))} ended: see its error")
        figures: Figures = json.loads(line)
        return figures


def compare(checkouts: list[Checkout], rounds: int, report: Callable[[str], None]) -> None:
    seen: list[dict[str, list[float]]] = [defaultdict(list) for _ in checkouts]
    for number in range(rounds):
        for step in ("append", "probe", "join", "commit", "open"):
            order = list(zip(checkouts, seen, strict=True))
            for checkout, figures in order if number % 2 else reversed(order):
                for measure, value in checkout.step(step).items():
                    figures[measure].append(value)
    report(f"{'ms of CPU':58}{'before':>9}{'after':>9}{'ratio':>8}")
    for measure, title in TITLES.items():
        middle = statistics.fmean if measure in MEANS else statistics.median
        before, after = (middle(figures[measure]) for figures in seen)
        report(f"{title:58}{before:9.3f}{after:9.3f}{after / before:8.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="a checkout")
    parser.add_argument("after", help="another one")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=90)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the first one")
    given = parser.parse_args()
    most = 3 * math.ceil(given.rows // 3 / BATCH)
    if given.rounds > most:
        parser.error(f"--rows {given.rows} has batches for {most} rounds, not for {given.rounds}")
    with tempfile.TemporaryDirectory(prefix="compare-") as directory:
        checkouts = [
            Checkout(path, python, given.rows, os.path.join(directory, name))
            for path, python, name in (
                (given.before, given.python, "before"),
                (given.after, sys.executable, "after"),
            )
        ]
        compare(checkouts, given.rounds, partial(print, flush=True))
        for checkout in checkouts:
            checkout.close()


if __name__ == "__main__":
    main()
