"""One measure of one side in this process; the figures go to standard output as JSON.

    python -m bench.common.one_run store ours --rows 1000000 --directory new-directory

``compare_stores.py`` and ``sweep_rocksdict.py`` start it anew for every run.
"""

import argparse
import json
from pathlib import Path

from bench.common.measures import CpuClock, Figures, Opener, measure_join, measure_store
from bench.common.workloads import Workload
from bench.store.commits import commit_ours, commit_rocks, hand_over_ours, hand_over_rocks
from bench.store.engines import LevelEngine, RocksEngine, RocksSetup
from bench.store.layouts import LAYOUTS
from bench.store.sides import OurSide, PeerSide, Side
from lsmstate.options import Options, parse_bytes


def opener(arguments: argparse.Namespace, work: Workload) -> Opener:
    memory = parse_bytes(arguments.memory)
    setup = RocksSetup.parse(arguments.setup)

    def open_ours(directory: str, streams: int) -> Side:
        options = Options(memory_bytes=memory, sync="never")
        if arguments.log:
            return OurSide.process(directory, work, streams, options)
        return OurSide.attempt(directory, work, options, None, 0, streams)

    def open_rocks(directory: str, streams: int) -> Side:
        key_bytes = work.key_bytes + (streams > 1)
        engine = RocksEngine(directory, setup, memory, key_bytes, arguments.log)
        return PeerSide(work, streams, engine, LAYOUTS[setup.layout]())

    def open_level(directory: str, streams: int) -> Side:
        return PeerSide(work, streams, LevelEngine(directory, memory), LAYOUTS[setup.layout]())

    return {"ours": open_ours, "rocksdict": open_rocks, "leveldb": open_level}[arguments.side]


def run(arguments: argparse.Namespace) -> Figures:
    work = Workload(arguments.rows, arguments.key, arguments.skew)
    memory, directory = parse_bytes(arguments.memory), arguments.directory
    if arguments.measure in ("store", "join"):
        measure = measure_store if arguments.measure == "store" else measure_join
        return measure(opener(arguments, work), work, directory)
    commits = arguments.measure == "commits"
    if arguments.side == "ours":
        return (commit_ours if commits else hand_over_ours)(work, directory, memory)
    setup = RocksSetup.parse(arguments.setup)
    return (commit_rocks if commits else hand_over_rocks)(work, directory, memory, setup)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("measure", choices=("store", "join", "commits", "handover"))
    found.add_argument("side", choices=("ours", "rocksdict", "leveldb"))
    found.add_argument("--directory", required=True, help="empty or absent; left as it ends up")
    add_workload(found)
    found.add_argument("--setup", default="", help="of rocksdict: fields of engines.RocksSetup")
    found.add_argument("--log", action=argparse.BooleanOptionalAction, default=True)
    found.add_argument("--spans", help="file to write to when what was measured, for a profile")
    return found


def add_workload(found: argparse.ArgumentParser) -> None:
    found.add_argument("--rows", type=int, default=1_000_000)
    found.add_argument("--key", choices=("int", "string"), default="int")
    found.add_argument("--skew", choices=("uniform", "zipf"), default="uniform")
    found.add_argument("--memory", default="64m")


if __name__ == "__main__":
    given = parser().parse_args()
    print(json.dumps(run(given)))
    if given.spans:
        Path(given.spans).write_text(json.dumps([[c.name, c.spans] for c in CpuClock.made]))
