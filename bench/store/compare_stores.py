"""Our store beside rocksdict and LevelDB used as well as they can be: A B A B, medians, ratios.

    python -m bench.store.compare_stores --rows 1000000 --rounds 5
    python -m bench.store.compare_stores --workloads int-uniform,string-zipf   # two tables
    python -m bench.store.compare_stores --sides ours,rocksdict,leveldb        # LevelDB as well
    python -m bench.store.compare_stores \\
        --sides ours,rocksdict,rocksdict:block_kib=16+write_buffer_mib=24
    python -m bench.store.compare_stores --sizes 250000,1000000,4000000 --measures commits

Every run is a fresh process on an empty directory; rounds alternate between the sides, after one
of each that is not counted. What was found is hashed and must agree on all sides. The page cache
is warm: the files were just written. What a run pays for merging moves with where its last merge
falls: the mean over several sizes (``--sizes``) does not, and shows what grows with the state.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from bench.common.measures import CHECKED, Figures, disk_bytes
from bench.common.one_run import add_workload

#: Measure -> (title of each figure, figure). Ratios are the peer's figure over ours.
TABLE = {
    "store": {
        "append_us": "append incl. flush and merging, us a row",
        "append_raw_us": "- from and to bytes",
        "longest_append_ms": "longest append of 10,000 rows, ms of wall time",
        "hit_us": "probe that hits, us a key",
        "hit_raw_us": "- from and to bytes",
        "miss_us": "probe that misses, us a key",
        "miss_raw_us": "- from and to bytes",
        "disk_merged_mb": "disk after all merging, MB",
        "disk_peak_mb": "highest disk while appending, MB",
        "growth_mb": "growth of resident memory, MB",
    },
    "unlogged": {"append_us": "append without a log, us a row"},
    "join": {
        "join_us": "join loop of three streams, us a row",
        "join_raw_us": "- from and to bytes",
    },
    "commits": {
        "commit_cpu_ms": "commit of 10,000 rows with its share of merging, ms of CPU",
        "commit_ms": "commit, median ms of wall time",
        "longest_commit_ms": "longest commit, ms of wall time",
        "commit_merged_x": "written by merges for each byte of commits",
        "commit_alone_ms": "commit that merges nothing, median ms of CPU",
    },
    "handover": {
        "open_cpu_ms": "hand-over: open, ms of CPU",
        "open_ms": "- wall time",
        "answer_1k_cpu_ms": "hand-over: then the first 1,000 keys, all rows, ms of CPU",
        "answer_1k_ms": "- wall time",
        "answer_10k_cpu_ms": "hand-over: then 10,000 keys, all rows, ms of CPU",
        "answer_10k_ms": "- wall time",
    },
}

#: What a side cannot do.
LACKING = {"leveldb": {"unlogged", "commits", "handover"}}

#: (measure, side) -> the figures of its runs.
Runs = dict[tuple[str, str], list[Figures]]


class Runner:
    """Runs single measures in fresh processes; a side is ``name`` or ``name:setup``."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments

    def run(self, measure: str, side: str) -> dict[str, Figures]:
        """The figures by measure: a commits run is followed by a hand-over."""
        with tempfile.TemporaryDirectory(prefix="lsmstate-bench-", dir=self._arguments.on) as home:
            directory = os.path.join(home, "data")
            os.makedirs(directory)
            with _watched_disk(directory) as samples:
                figures = self._child(measure, side, directory)
            if measure != "commits":
                settled = figures.pop("settled_at", time.time())
                figures["disk_peak_mb"] = max(
                    (size / 1e6 for at, size in samples if at <= settled), default=0.0
                )
                return {measure: figures}
            copied = os.path.join(home, "copied")
            shutil.copytree(directory, copied, ignore=shutil.ignore_patterns("live*", "handed*"))
            shutil.rmtree(directory)
            return {"commits": figures, "handover": self._child("handover", side, copied)}

    def _child(self, measure: str, side: str, directory: str) -> Figures:
        name, _, setup = side.partition(":")
        given = self._arguments
        command = [
            sys.executable,
            "-m",
            "bench.common.one_run",
            measure,
            name,
            "--directory",
            directory,
        ]
        command += ["--rows", str(given.rows), "--key", given.key, "--skew", given.skew]
        command += ["--memory", given.memory, f"--setup={setup}"]
        if measure == "unlogged":
            command[3] = "store"
            command.append("--no-log")
        done = subprocess.run(command, capture_output=True, text=True, timeout=given.timeout)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        return dict(json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def _watched_disk(directory: str) -> Iterator[list[tuple[float, int]]]:
    """(time, bytes) of the directory every 50 ms, from this process: it costs the runs nothing."""
    samples: list[tuple[float, int]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            samples.append((time.time(), disk_bytes(directory)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_workload(parser)
    add_running(parser)
    parser.add_argument("--sides", default="ours,rocksdict")
    parser.add_argument("--measures", default="store,unlogged,join,commits")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that are not counted")
    parser.add_argument(
        "--workloads", help="a table for each of these, key-skew: int-uniform,string-zipf"
    )
    parser.add_argument("--sizes", help="instead of --rows: a table for each, and one of all")
    arguments = parser.parse_args()
    sizes = [int(size) for size in (arguments.sizes or str(arguments.rows)).split(",")]
    for key, skew in workloads(parser, arguments):
        found = {}
        for rows in sizes:
            given = {**vars(arguments), "key": key, "skew": skew, "rows": rows}
            found[rows] = compare(argparse.Namespace(**given))
        if len(found) > 1:
            print("\n".join(by_size(found, arguments.sides.split(","))), end="\n\n", flush=True)


def workloads(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> list[tuple[str, str]]:
    """(key, skew) of each table."""
    if arguments.workloads is None:
        return [(arguments.key, arguments.skew)]
    known = [(key, skew) for key in ("int", "string") for skew in ("uniform", "zipf")]
    wanted = [tuple(name.split("-")) for name in arguments.workloads.split(",")]
    for unknown in set(wanted).difference(known):
        there = ", ".join("-".join(pair) for pair in known)
        parser.error(f"no workload {'-'.join(unknown)!r}; there are {there}")
    return [pair for name in wanted for pair in known if pair == name]


def compare(arguments: argparse.Namespace) -> Runs:
    """Run all sides on one workload and print their table; what was measured."""
    sides = arguments.sides.split(",")
    runs: Runs = defaultdict(list)
    runner = Runner(arguments)
    load = os.getloadavg()[0]
    for measure in arguments.measures.split(","):
        for number in range(-arguments.warm_up, arguments.rounds):
            for side in sides:
                if measure in LACKING.get(side.partition(":")[0], ()):
                    continue
                for made, figures in runner.run(measure, side).items():
                    if number >= 0:
                        runs[made, side].append(figures)
                        print(json.dumps([made, side, figures]), file=sys.stderr, flush=True)
    check_agreement(runs)
    print(
        f"{arguments.rows:,} rows, {arguments.key} keys, {arguments.skew}, cap {arguments.memory}; "
        f"median (least-most) of {arguments.rounds}; {platform.machine()}, {os.cpu_count()} "
        f"cores, load {load:.1f} before and {os.getloadavg()[0]:.1f} after; page cache warm\n"
    )
    print("\n".join(markdown(runs, sides)), end="\n\n", flush=True)
    return runs


def add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", help="directory on the disk to use; default: that of TMPDIR")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one run")


def check_agreement(runs: Runs) -> None:
    for measure in {measure for measure, _ in runs}:
        found = {
            tuple(figures.get(name) for name in CHECKED)
            for (made, _), all_figures in runs.items()
            if made == measure
            for figures in all_figures
        }
        if len(found) != 1:
            sys.exit(f"{measure}: the sides found different rows: {found}")


def markdown(runs: Runs, sides: list[str]) -> Iterator[str]:
    ours = sides[0]
    ratios = [f"{side} / {ours}" for side in sides[1:]]
    yield "| | " + " | ".join([*sides, *ratios]) + " |"
    yield "|---" * (len(sides) + len(ratios) + 1) + "|"
    for measure, titles in TABLE.items():
        for figure, title in titles.items():
            values = {
                side: [figures[figure] for figures in runs[measure, side]]
                for side in sides
                if has_figure(runs, measure, side, figure)
            }
            if ours not in values:
                continue
            base = statistics.median(values[ours])
            cells = [_spread(values.get(side)) for side in sides]
            cells += [
                f"{statistics.median(values[side]) / base:.2g}" if side in values and base else ""
                for side in sides[1:]
            ]
            yield "| " + " | ".join([title, *cells]) + " |"


def has_figure(runs: Runs, measure: str, side: str, figure: str) -> bool:
    return (measure, side) in runs and all(figure in found for found in runs[measure, side])


def by_size(found: dict[int, Runs], sides: list[str]) -> Iterator[str]:
    """Medians of each side at each size, and their mean: a line a side, and one of the ratios."""
    yield "| | | " + " | ".join(f"{rows:,}" for rows in found) + " | mean |"
    yield "|---" * (len(found) + 3) + "|"
    for measure, titles in TABLE.items():
        for figure, title in titles.items():
            base: list[float] = []
            for side in sides:
                if not all(has_figure(runs, measure, side, figure) for runs in found.values()):
                    continue
                medians = [
                    statistics.median(figures[figure] for figures in runs[measure, side])
                    for runs in found.values()
                ]
                medians.append(statistics.mean(medians))
                yield _line(title, side, values=medians)
                if base:
                    ratios = [theirs / ours for theirs, ours in zip(medians, base, strict=True)]
                    yield _line("", f"{side.partition(':')[0]} / {sides[0]}", values=ratios)
                base = base or medians


def _line(*cells: str, values: list[float]) -> str:
    return "| " + " | ".join([*cells, *(f"{value:.3g}" for value in values)]) + " |"


def _spread(values: list[float] | None) -> str:
    if values is None:
        return ""
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


if __name__ == "__main__":
    main()
