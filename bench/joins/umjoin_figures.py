"""The UMJoin paper's figures 5 to 7 on this machine: UMJoin, MultiStream, and the best join tree.

    make figures                                                # all, at scale 1
    python -m bench.joins.umjoin_figures --scale 0.1 --only 6 --rounds 1     # one figure, quickly

Every point is the median of several runs of ``operator_run.py``, each in a fresh process; what is
compared takes turns. CPU seconds of all its threads are drawn, since they suffer less than wall
time from what else the machine does; wall time stands in the tables, which are printed as Markdown.
A run that is on file (``runs.jsonl`` beside the images) is not made again; delete the file to
measure anew.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import pyarrow as pa

from bench.joins.operator_run import ALLOWANCE_BYTES, CONDITION, arrivals, schemas
from lsmstate.joins.local.inner.binary_tree_order import try_orders
from lsmstate.joins.specs.one_key import JoinSpec

HERE = Path(__file__).parent
MIB = 1 << 20
#: Figure 5, as in the paper: what the process may take, as a share of what MultiStream needs.
SHARES = (0.62, 0.95, 1.3)
#: Figure 6, MB; the state of UMJoin is 43 MB on disk at scale 1, that of a tree 110 and more.
CAPS = (8, 16, 32, 64, 128)
#: Figure 5d.
TREE_CAP = 16
#: Figure 7, MB: one of the two varies, the other stays.
CACHES = (2, 4, 8, 16, 32)
MEMTABLES = (1, 2, 4, 8, 16)
#: All orders are tried on the data of this scale, the first few at the scale that is asked for.
SAMPLE_SCALE = 0.1
FINALISTS = 3

Run = dict[str, Any]
Arguments = Sequence[str]


class Runs:
    """The runs on file, and those that are still to be made."""

    def __init__(self, file: Path, scale: float, rounds: int) -> None:
        self._file = file
        self.scale, self.rounds = scale, rounds
        lines = file.read_text().splitlines() if file.exists() else []
        runs = [json.loads(line) for line in lines]
        self._known: dict[tuple[str, int], Run] = {
            (r["command"], r.get("round", 0)): r for r in runs
        }

    def get(self, *arguments: str) -> Run:
        """The median run of one command."""
        return self.compared([arguments])[0]

    def compared(self, commands: Sequence[Arguments]) -> list[Run]:
        """Of each command the run with the median of CPU seconds: its last line, with what it
        said on the way under ``progress``. The commands take turns."""
        at = ["--scale", f"{self.scale:g}"]
        made = [
            [self._run([*arguments, *at], number) for arguments in commands]
            for number in range(self.rounds)
        ]
        each = (sorted(runs, key=_cpu_seconds) for runs in zip(*made, strict=True))
        return [runs[(len(runs) - 1) // 2] for runs in each]

    def _run(self, arguments: Arguments, number: int) -> Run:
        command = " ".join(arguments)
        if (command, number) not in self._known:
            print(command, file=sys.stderr, flush=True)
            run = {**self._made(command, arguments), "round": number}
            with self._file.open("a") as file:
                file.write(json.dumps(run) + "\n")
            self._known[command, number] = run
        return self._known[command, number]

    @staticmethod
    def _made(command: str, arguments: Arguments) -> Run:
        done = subprocess.run(
            [sys.executable, "-m", "bench.joins.operator_run", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        steps = [line for line in lines if "rows_in" in line]
        if not steps or ("finished" not in lines[-1] and "--limit" not in arguments):
            raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
        ended = lines[-1] if "finished" in lines[-1] else {**steps[-1], "finished": False}
        how = lines[-1].get("died") or (f"exit status {done.returncode}: {done.stderr[-200:]}")
        if not ended["finished"]:
            ended["died"] = how
        every = max(1, len(steps) // 60)
        return {"command": command, **ended, "progress": steps[::every] + steps[-1:]}


def _cpu_seconds(run: Run) -> float:
    return float(run["cpu_seconds"])


def best_tree(runs: Runs) -> str:
    """Of the orders that ``order="best"`` finds cheapest, the one whose run takes the least CPU."""
    small = min(SAMPLE_SCALE, runs.scale)
    parts: dict[str, list[pa.RecordBatch]] = {}
    for stream, batch in arrivals(small):
        parts.setdefault(stream, []).append(batch)
    spec = JoinSpec.create(schemas(small), CONDITION)
    tried = try_orders(spec, {name: pa.concat_batches(rows) for name, rows in parts.items()})
    print(f"\n### All {len(tried.costs)} trees at scale {small:g}\n\n```\n{tried}\n```")
    finalists = [json.dumps(cost.order) for cost in tried.costs[:FINALISTS]]
    commands = [("tree", "--order", order, "--cap", f"{TREE_CAP}m") for order in finalists]
    finals = dict(zip(finalists, runs.compared(commands), strict=True))
    print("\n| order | CPU s |\n|---|---|")
    for order, run in finals.items():
        print(f"| `{order}` | {_cpu_seconds(run):.1f} |")
    return min(finalists, key=lambda order: _cpu_seconds(finals[order]))


def figure_5(runs: Runs, out: Path) -> None:
    """a-c: results over time of UMJoin and MultiStream under three limits."""
    need = runs.get("multistream")["data_bytes"]
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), sharey=True)
    print(f"\n### Figure 5a-c: MultiStream needs {need / 1e6:.0f} MB of data memory\n")
    print("| the process may grow by, MB | operator | ended | rows in | results | CPU s | wall s |")
    print("|---|---|---|---|---|---|---|")
    for axis, share in zip(axes, SHARES, strict=True):
        cap = int(share * need) - ALLOWANCE_BYTES
        if cap < 6 * MIB:
            raise SystemExit(
                f"figure 5 needs a larger scale: {share} of {need} bytes is too little"
            )
        operators = {"umjoin": "UMJoin", "multistream": "MultiStream"}
        commands = [(algorithm, "--cap", str(cap), "--limit") for algorithm in operators]
        for label, run in zip(operators.values(), runs.compared(commands), strict=True):
            steps = run["progress"]
            x = [step["cpu_seconds"] for step in steps]
            (line,) = axis.plot(x, [step["rows_out"] / 1e6 for step in steps], label=label)
            if not run["finished"]:
                axis.plot(x[-1], steps[-1]["rows_out"] / 1e6, "X", color=line.get_color(), ms=10)
            print(
                f"| {share * need / 1e6:.0f} | {label} | "
                f"{'complete' if run['finished'] else 'died: ' + run['died'][:60]} | "
                f"{run['rows_in']:,} | {run['rows_out']:,} | {run['cpu_seconds']:.1f} | "
                f"{run['seconds']:.1f} |"
            )
        axis.set_title(f"process limit {share * need / 1e6:.0f} MB")
        axis.set_xlabel("CPU seconds")
    axes[0].set_ylabel("results, millions")
    axes[0].legend()
    _save(figure, out / "figure-5abc.png")


def figure_5d(runs: Runs, out: Path, tree: str) -> None:
    """Results over time of UMJoin and the best tree under one cap."""
    figure, axis = plt.subplots(figsize=(5.5, 4))
    cap = f"{TREE_CAP}m"
    for label, arguments in (("UMJoin", ["umjoin"]), ("best tree", ["tree", "--order", tree])):
        steps = runs.get(*arguments, "--cap", cap)["progress"]
        x = [step["cpu_seconds"] for step in steps]
        axis.plot(x, [step["rows_out"] / 1e6 for step in steps], label=label)
    axis.set_xlabel("CPU seconds")
    axis.set_ylabel("results, millions")
    axis.set_title(f"cap {TREE_CAP} MB")
    axis.legend()
    _save(figure, out / "figure-5d.png")


def figure_6(runs: Runs, out: Path, tree: str) -> None:
    """Run time against the cap, UMJoin and the best tree."""
    operators = (("umjoin",), ("tree", "--order", tree))
    commands = [(*operator, "--cap", f"{cap}m") for cap in CAPS for operator in operators]
    found = runs.compared(commands)
    ours, trees = found[::2], found[1::2]
    figure, axis = plt.subplots(figsize=(5.5, 4))
    axis.plot(CAPS, [run["cpu_seconds"] for run in ours], "o-", label="UMJoin")
    axis.plot(CAPS, [run["cpu_seconds"] for run in trees], "s-", label="best tree")
    axis.set_xscale("log", base=2)
    axis.set_xticks(CAPS, [str(cap) for cap in CAPS])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("cap of the state, MB")
    axis.set_ylabel("CPU seconds")
    axis.legend()
    _save(figure, out / "figure-6.png")
    print(f"\n### Figure 6: best tree `{tree}`\n")
    print("| cap, MB | UMJoin CPU s (wall) | best tree CPU s (wall) | ratio of CPU | of wall |")
    print("|---|---|---|---|---|")
    for cap, a, b in zip(CAPS, ours, trees, strict=True):
        ratios = [b[name] / a[name] for name in ("cpu_seconds", "seconds")]
        print(
            f"| {cap} | {a['cpu_seconds']:.1f} ({a['seconds']:.1f}) | "
            f"{b['cpu_seconds']:.1f} ({b['seconds']:.1f}) | **{ratios[0]:.2f}** | {ratios[1]:.2f} |"
        )
    a, b = ours[1], trees[1]
    extra = b["intermediate_bytes"] / 1e6
    print(
        f"\nThe inputs are {a['state_bytes'] / 1e6:.0f} MB as Arrow data; the tree stores "
        f"{b['intermediate_rows']:,} intermediate rows, {extra:.0f} MB, beside them, UMJoin none. "
        f"On disk at the end under {CAPS[1]} MB: {a['disk_bytes'] / 1e6:.0f} MB and "
        f"{b['disk_bytes'] / 1e6:.0f} MB."
    )


def figure_7(runs: Runs, out: Path) -> None:
    """Run time of UMJoin against the room of the block cache, and of the memtable."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    print(
        "\n### Figure 7\n\n| block cache, MB | memtable, MB | CPU s | wall s |\n|---|---|---|---|"
    )
    sweeps = {
        "block cache, MB (memtable 2 MB)": [(cache, 2) for cache in CACHES],
        "memtable, MB (block cache 16 MB)": [(16, memtable) for memtable in MEMTABLES],
    }
    for axis, (label, pairs) in zip(axes, sweeps.items(), strict=True):
        found = runs.compared([_with_cache(*pair) for pair in pairs])
        varied = CACHES if "(memtable" in label else MEMTABLES
        axis.plot(varied, [run["cpu_seconds"] for run in found], "o-")
        axis.set_xscale("log", base=2)
        axis.set_xticks(varied, [str(value) for value in varied])
        axis.set_xlabel(label)
        for (cache, memtable), run in zip(pairs, found, strict=True):
            print(f"| {cache} | {memtable} | {run['cpu_seconds']:.1f} | {run['seconds']:.1f} |")
    axes[0].set_ylim(bottom=0)  # of both: only now are all points drawn
    axes[0].set_ylabel("CPU seconds")
    _save(figure, out / "figure-7.png")


def _with_cache(cache: int, memtable: int) -> Arguments:
    """A run under the cap that leaves so much room for blocks: memtables take half as much again
    while one is flushed, and 4 MB go to what every store holds."""
    cap = cache + memtable + memtable // 2 + 4
    return ("umjoin", "--cap", f"{cap}m", "--memtable", f"{memtable}m")


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=HERE / "figures")
    parser.add_argument("--only", choices=("5", "6", "7"))
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs for a point, of which the median"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(exist_ok=True)
    runs = Runs(arguments.out / "runs.jsonl", arguments.scale, arguments.rounds)
    if arguments.only in (None, "6"):
        tree = best_tree(runs)
        figure_6(runs, arguments.out, tree)
        figure_5d(runs, arguments.out, tree)
    if arguments.only in (None, "5"):
        figure_5(runs, arguments.out)
    if arguments.only in (None, "7"):
        figure_7(runs, arguments.out)


if __name__ == "__main__":
    main()
