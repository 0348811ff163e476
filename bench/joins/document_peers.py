"""Natural joins of documents beside what else there is, one command.

    python -m bench.joins.document_peers [--documents 10000] [--rounds 5] [--program DIRECTORY]

- ``ours``: ``NaturalJoin``, JSON text in batches of 1,000, state in our store, 64 MB.
- ``DuckDB``: a self-join of attribute-value pairs, one statement over all documents, one thread;
  the pairs are in a table before.
- ``Java``: the FP-tree of the authors' released program, all documents at once, which are objects
  before. DIRECTORY is a copy of its repository, DamjanGjurovski/
  Scaling-out-Schema-Free-Stream-Joins on GitHub; without it the side is left out. It needs a JDK.

Times are CPU seconds of the process, medians with the least and the most. Sides take turns. Each
pair of documents counts once; the authors' program finds it twice, and its count is halved.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.common.child_process import ended_in_time
from bench.joins.document_data import DATA
from bench.joins.documents import batches, run
from lsmstate.joins.document_reading import READING

#: CPU seconds and pairs.
Measured = tuple[float, int]
DRIVER = Path(__file__).with_name("DocumentsDriver.java")
PACKAGES = (
    "ssfsj/fpTree/*.java",
    "ssfsj/utils/PostingList.java",
    "ssfsj/utils/KeyValuePair.java",
    "ssfsj/utils/sorting/*.java",
)

SELF_JOIN = """
SELECT count(*) FROM (
    SELECT l.d AS a, r.d AS b, count(*) AS equal
    FROM pairs l JOIN pairs r ON l.path = r.path AND l.value = r.value AND l.d < r.d GROUP BY 1, 2
) found
JOIN paths x ON x.d = found.a JOIN paths y ON y.d = found.b
WHERE len(list_intersect(x.all_of, y.all_of)) = equal
"""


def ours(data: str, count: int) -> Measured:
    """Our join."""
    seconds, pairs, _ = run(batches(data, count), "auto", "lsm", False)
    return seconds, pairs


def duckdb(data: str, count: int) -> Measured:
    """DuckDB."""
    import duckdb

    texts = [json.dumps(each) for each in DATA[data](count)]
    places, numbers, hashes = READING.read(pa.array(texts)).columns()
    pairs = pa.table({"d": places.astype(np.int32), "path": numbers, "value": hashes})
    with duckdb.connect(config={"threads": 1, "memory_limit": "6GB"}) as db:
        db.register("arrow_pairs", pairs)
        db.execute("CREATE TABLE pairs AS SELECT * FROM arrow_pairs")
        db.execute("CREATE TABLE paths AS SELECT d, list(path) AS all_of FROM pairs GROUP BY d")
        begun = time.process_time()
        row = db.execute(SELF_JOIN).fetchone()
        assert row is not None
        return time.process_time() - begun, row[0]


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values."""
    for name, value in document.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield path + name, value


def compiled(repository: Path, classes: Path) -> None:
    """Compile the authors' program and the driver."""
    source = repository / "src" / "main" / "java"
    if not (source / "ssfsj").is_dir():
        sys.exit(f"{repository} is no copy of the authors' repository; clone it there")
    if shutil.which("javac") is None:
        sys.exit("there is no javac; install a JDK, or leave --program out")
    files = [str(file) for each in PACKAGES for file in source.glob(each)]
    subprocess.run(["javac", "-nowarn", "-d", str(classes), *files, str(DRIVER)], check=True)


def java(data: str, count: int, classes: Path) -> Measured:
    """The authors' program, twice in one process: the second run is of compiled code."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for each in DATA[data](count):
            print("\t".join(f"{path}={value}" for path, value in leaves(each)), file=file)
        file.flush()
        command = ["java", "-Xmx4g", "-Xss512m", "-cp", str(classes), "DocumentsDriver"]
        done = subprocess.run(
            [*command, file.name, "2"], check=True, capture_output=True, text=True
        )
    seconds, found = done.stdout.splitlines()[-1].split()
    return float(seconds), int(found) // 2


def limited(side: str, data: str, count: int, classes: Path, limit: float) -> Measured | None:
    """Run a side in a process of its own; None if it does not end in time."""
    command = [sys.executable, "-m", "bench.joins.document_peers", "--one", side]
    command += ["--data", data, "--documents", str(count), "--classes", str(classes)]
    found = ended_in_time(command, limit)
    if found is None:
        return None
    seconds, pairs = found[0].splitlines()[-1].split()
    return float(seconds), int(pairs)


def main() -> None:
    """Print a line for each data set and side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", type=Path, help="copy of the authors' repository")
    parser.add_argument("--limit", type=float, default=200, help="seconds after which a side ends")
    parser.add_argument("--one", choices=["ours", "DuckDB", "Java"], help=argparse.SUPPRESS)
    parser.add_argument("--classes", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        measured = {"ours": ours, "DuckDB": duckdb, "Java": partial(java, classes=asked.classes)}
        print(*measured[asked.one](asked.data[0], asked.documents))
        return
    sides = ["ours", "DuckDB"]
    with tempfile.TemporaryDirectory() as home:
        classes = Path(home)
        if asked.program is not None:
            compiled(asked.program, classes)
            sides.append("Java")
        for data in asked.data:
            found: dict[str, list[Measured | None]] = {name: [] for name in sides}
            for _ in range(asked.rounds):
                for side in sides:
                    if None not in found[side]:
                        found[side].append(
                            limited(side, data, asked.documents, classes, asked.limit)
                        )
            for name, runs in found.items():
                ended = [each for each in runs if each is not None]
                if len(ended) < len(runs):
                    print(f"{data:8} {name:7} not ended in {asked.limit:g} s", flush=True)
                    continue
                seconds = sorted(each[0] for each in ended)
                median = statistics.median(seconds)
                print(
                    f"{data:8} {name:7} {median:8.3f} s ({seconds[0]:.3f} to {seconds[-1]:.3f}), "
                    f"{asked.documents / median:9,.0f} documents/s, {ended[0][1]:,} pairs",
                    flush=True,
                )


if __name__ == "__main__":
    main()
