"""Find the best set-up of rocksdict: from a base, vary one thing at a time.

    python -m bench.store.sweep_rocksdict --rows 1000000 --rounds 2

Rounds go over all set-ups in turn; least CPU time of the rounds is shown, microseconds a row or
key. *all* is the geometric mean of the four: the set-up of the comparison is the one where it is
least; the table also shows what the best for each single column would be.
"""

import argparse
import math
import sys
from collections import defaultdict

from bench.common.measures import Figures
from bench.common.one_run import add_workload
from bench.store.compare_stores import Runner, add_running

COLUMNS = {"store": ("append_us", "hit_us", "miss_us"), "join": ("join_us",)}

LAYOUTS = tuple(
    f"layout={layout},compaction={compaction}"
    for layout in ("rows", "chunks", "heads")
    for compaction in ("level", "universal")
)

VARIATIONS = (
    "block_kib=8",
    "block_kib=16",
    "write_buffer_mib=8",
    "write_buffer_mib=12,write_buffers=3",
    "write_buffer_mib=24",
    "level0_files=2",
    "level0_files=8",
    "index=two_level",
    "index=two_level,file_mib=64",
    "file_mib=64",
    "index=hash",
    "clock_cache=True",
    "memtable_filter=0.0",
    "filter_bits=14",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_workload(parser)
    add_running(parser)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--base", default="", help="what the variations are added to")
    parser.add_argument("--only", choices=("layouts", "variations"))
    parser.add_argument("--setups", help="these instead, separated by semicolons")
    arguments = parser.parse_args()
    setups: list[str] = []
    if arguments.only != "variations":
        setups += LAYOUTS
    if arguments.only != "layouts":
        setups += [f"{arguments.base},{change}".strip(",") for change in ("", *VARIATIONS)]
    if arguments.setups is not None:
        setups = arguments.setups.split(";")
    runner = Runner(arguments)
    best: dict[str, Figures] = defaultdict(dict)
    for _ in range(arguments.rounds):
        for setup in setups:
            for measure, columns in COLUMNS.items():
                figures = runner.run(measure, f"rocksdict:{setup}")[measure]
                print(setup, figures, file=sys.stderr, flush=True)
                for column in columns:
                    seen = best[setup].get(column, math.inf)
                    best[setup][column] = min(seen, figures[column])
    names = [column for columns in COLUMNS.values() for column in columns]
    print("| set-up | " + " | ".join(name.removesuffix("_us") for name in names) + " | all |")
    print("|---" * (len(names) + 2) + "|")
    for setup in setups:
        values = [best[setup][name] for name in names]
        mean = math.prod(values) ** (1 / len(values))
        cells = " | ".join(f"{value:.2f}" for value in [*values, mean])
        print(f"| {setup or 'the defaults'} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
