"""Where the CPU time of our store goes: a profile of each workload, by perf (Debian: linux-perf).

    python -m bench.store.cpu_profile --rows 1000000
    python -m bench.store.cpu_profile --rows 5000000 --measures store

A sample counts where the benchmark's clock was on: in its own thread while the clock ran, in
others (the worker that flushes and merges) from its start to its end. Cython makes a library of
each module, so a sample in a library of ours is told by the module; kernel time by the call.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from bench.common.child_process import ended_in_time
from bench.common.one_run import add_workload
from bench.store.compare_stores import add_running

#: Samples a second of CPU time.
FREQUENCY = 9999

#: Part -> pattern of "library symbol" (of the kernel: of all its frames, innermost first). The
#: first that is found counts.
PARTS = {
    "kernel: reading files": r"^kernel.* (ksys_p?read|do_preadv|vfs_read|filemap_read)",
    "kernel: writing files": r"^kernel.* (ksys_p?write|do_writev|do_pwritev|vfs_write)",
    "kernel: forcing to the disk": r"^kernel.* (do_fsync|vfs_fsync_range|\w*sync_file_range)",
    "kernel: giving and taking memory": r"^kernel.* \w*(exc_page_fault|madvise|munmap|mmap)",
    "kernel: other": r"^kernel",
    "LZ4": r"^compression LZ4",
    "shuffling bytes": r"^compression \w*shuffle",
    "packing rows by their bits": r"^bit_planes",
    "checksums (XXH3)": r"XXH",
    "encoding keys and rows": r"^(compression|(key|row)_(encode|codec)|arrow_read|nested) ",
    "sorting a batch": r"^key_sort",
    "memtable": r"^(btree|memtable|memtable_ranges|arena) ",
    "write-ahead log": r"^wal_record",
    "merging: order of keys": r"^(merging_iter|retraction_merge|retraction_counts"
    r"|key_ranges|entry_source) ",
    "merging: reading runs": r"^sst_source",
    "writing runs": r"^(sst_writer|block_output|zone_columns) |^bloom .*build",
    "looking keys up": r"^(row_fetch|sst_probe|sst_walker|key_lookup|bloom) ",
    "looking ranges up": r"^(encoded_ranges|(range|end)_walk|sst_(ranges|ends)|zone_pruning) ",
    "key blocks and cache": r"^(\w*block|block_cache|sst_reader|file|budget|read_budget) ",
    "rows and keys to Arrow": r"^(row_(decode|builder|planes)|key_decode|buffer_pool|gather"
    r"|restore) ",
    "kernels of joins": r"^((byte_|code_|pair_)?tiles|exact|near_points|edit_keys"
    r"|attribute_values|document_index|posting_lists|fp_tree|shape_index|json_reader"
    r"|slab_pairs|key_places) ",
    "copying and comparing (libc)": r"^libc.* \w*(mem(cpy|move|set|cmp)|strncmp)",
    "allocating (libc)": r"^libc.* \w*(alloc|free|consolidate|unlink_chunk|trim)",
    "Arrow": r"^(libarrow|lib )",
    "Python": r"^libpython|^python|^(locks|reservations|directory_claim) ",
}
OTHER = "other"
_COMPILED = {part: re.compile(pattern) for part, pattern in PARTS.items()}

#: Clocks that are no workload of the table.
LEFT_OUT = ("warm-up", "merged_")


class Sample(NamedTuple):
    """``at``: seconds of the monotonic clock. ``place``: what ``PARTS`` are told by."""

    thread: int
    at: float
    place: str


class Clock:
    """When one measure's clock was on."""

    def __init__(self, name: str, spans: list[tuple[float, float]]) -> None:
        self.name = name
        self.seconds = sum(end - start for start, end in spans)
        self._edges = list(chain.from_iterable(spans))

    def counts(self, sample: Sample, thread: int) -> bool:
        before = bisect(self._edges, sample.at)
        if sample.thread != thread:
            return 0 < before < len(self._edges)
        return before % 2 == 1


def profiled(command: list[str], home: Path, seconds: float) -> Iterator[tuple[str, Sample]]:
    """Run a measure under perf: its samples, with the name of the clock that was on."""
    data, spans = home / "perf.data", home / "spans"
    record = ["perf", "record", "--quiet", "--clockid", "CLOCK_MONOTONIC", "-F", str(FREQUENCY)]
    record += ["-e", "cpu-clock", "-g", "-o", str(data), "--", *command, "--spans", str(spans)]
    if ended_in_time(record, seconds) is None:
        sys.exit(f"{' '.join(command)} had not ended after {seconds} s (--timeout)")
    clocks = [Clock(name, ons) for name, ons in json.loads(spans.read_text())]
    script = ["perf", "script", "-i", str(data), "-F", "pid,tid,time,ip,sym,dso"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, errors="replace") as shown:
        assert shown.stdout is not None
        for process, sample in samples_of(iter(shown.stdout)):
            for clock in clocks:
                if clock.counts(sample, process):
                    yield clock.name, sample
    if shown.returncode:
        sys.exit(f"{' '.join(script)} failed")


def samples_of(lines: Iterator[str]) -> Iterator[tuple[int, Sample]]:
    """With the process, whose number is its first thread's. A sample is a line that names it, its
    frames, innermost first, and an empty line."""
    for line in lines:
        if not line.strip():
            continue
        ids, at = line.split()[:2]
        process, thread = ids.split("/")
        frames = [_frame(frame) for frame in iter(lambda: next(lines, "").strip(), "")]
        place = frames[0] if frames else ""
        if place.startswith("kernel "):
            place = "kernel " + " ".join(name for place, name in map(str.split, frames))
        yield int(process), Sample(int(thread), float(at.rstrip(":")), place)


def _frame(line: str) -> str:
    """``library symbol`` of perf's ``address symbol (library)``."""
    _, symbol, library = re.fullmatch(r"(\S+) (.*) \((.*?)\)", line).groups()
    name = "kernel" if "kernel" in library else Path(library).name.partition(".")[0]
    return f"{name} {symbol.split('(')[0].replace(' ', '_')}"


def part_of(place: str) -> str:
    return next((part for part, found in _COMPILED.items() if found.search(place)), OTHER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_workload(parser)
    add_running(parser)
    parser.add_argument("--measures", default="store,join,commits,handover")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--symbols", type=int, default=0, help="also so many symbols of each")
    given = parser.parse_args()
    if shutil.which("perf") is None:
        sys.exit("perf was not found; install it, e.g. apt-get install linux-perf")
    parts: dict[str, Counter[str]] = defaultdict(Counter)
    symbols: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory(prefix="lsmstate-bench-", dir=given.on) as home:
            for measure in given.measures.split(","):
                for name, sample in profiled(command(given, measure, home), Path(home), 600):
                    part = part_of(sample.place)
                    parts[name][part] += 1
                    symbols[name][part, " ".join(sample.place.split()[:2])] += 1
    names = [name for name in parts if not name.startswith(LEFT_OUT)]
    print(f"{given.rows:,} rows, {given.key} keys, {given.skew}; percent of CPU time\n")
    print("\n".join(markdown({name: parts[name] for name in names})))
    for name in names if given.symbols else ():
        total = symbols[name].total()
        print(f"\n{name}, {total} samples")
        for (part, symbol), count in symbols[name].most_common(given.symbols):
            print(f"{100 * count / total:5.1f} {part:32} {symbol}")


def command(given: argparse.Namespace, measure: str, home: str) -> list[str]:
    """A hand-over opens what the commits of the same round left."""
    directory = os.path.join(home, "commits" if measure == "handover" else measure)
    os.makedirs(directory, exist_ok=True)
    found = [
        sys.executable,
        "-m",
        "bench.common.one_run",
        measure,
        "ours",
        "--directory",
        directory,
    ]
    found += ["--rows", str(given.rows), "--key", given.key, "--skew", given.skew]
    return [*found, "--memory", given.memory]


def markdown(parts: dict[str, Counter[str]]) -> Iterator[str]:
    yield "| | " + " | ".join(parts) + " |"
    yield "|---" * (len(parts) + 1) + "|"
    for part in [*PARTS, OTHER]:
        shares = [100 * found[part] / found.total() for found in parts.values()]
        yield f"| {part} | " + " | ".join(f"{share:.1f}" for share in shares) + " |"
    yield "| samples | " + " | ".join(f"{found.total():,}" for found in parts.values()) + " |"


if __name__ == "__main__":
    main()
