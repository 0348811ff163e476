"""The paper's query on Apache Flink, one binary join after another or as one MultiJoin.

    python -m venv .run/flink && .run/flink/bin/pip install apache-flink==2.3.0
    python -m bench.spark.flink_join --flink .run/flink/bin/python --scale 1 --managed 64m,256m

Four streams of CSV files (PyFlink comes without Parquet), RocksDB state, two slots in one JVM,
results into Flink's ``blackhole``. CPU seconds are those of the JVM, start-up and reading CSV
included; the side ``read`` only reads, so that both can be taken off. The number of results is
checked once, with ``--count``. Flink reads all files in one go: there are no micro-batches. A run
that takes longer than ``--most`` seconds is stopped, and the table says so.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Flink's order of joins is that of the text: the tree with the fewest intermediate rows.
ORDER = ("cu", "wr", "cr", "sr")
KEYS = {
    "sr": "sr_addr_sk",
    "cu": "c_current_addr_sk",
    "wr": "wr_refunded_addr_sk",
    "cr": "cr_refunded_addr_sk",
}
SIDES = ("read", "tree", "multijoin")


def make_csv(scale: float, home: Path) -> dict[str, list[tuple[str, str]]]:
    """The streams as CSV files below ``home``; per stream its columns and their SQL types."""
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    from lsmstate.spark_integration.demo.query import ALIASES
    from lsmstate.spark_integration.demo.tpcds import stream_files

    names = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.string(): "STRING"}
    files = stream_files(ROOT / ".data", scale, 10)
    columns: dict[str, list[tuple[str, str]]] = {}
    for alias, table in ALIASES.items():
        (home / alias).mkdir()
        for path in sorted(files.table(table).iterdir()):
            rows = pq.read_table(path)
            pc.write_csv(
                rows, home / alias / f"{path.stem}.csv", pc.WriteOptions(include_header=False)
            )
        columns[alias] = [
            (field.name, names.get(field.type) or f"DECIMAL({field.type.precision}, 2)")
            for field in rows.schema
        ]
    return columns


def run_side(side: str, managed: str, home: Path, count: bool) -> None:
    """One job in this process, which is one of PyFlink's environment."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    settings = {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.memory.managed.size": managed,
        "state.backend.type": "rocksdb",
        "execution.checkpointing.dir": (home / "checkpoints").as_uri(),
        "table.optimizer.multi-join.enabled": str(side == "multijoin").lower(),
    }
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    environment = TableEnvironment.create(
        EnvironmentSettings.new_instance()
        .in_streaming_mode()
        .with_configuration(configuration)
        .build()
    )
    columns = json.loads((home / "columns.json").read_text())
    for alias, found in columns.items():
        declared = ", ".join(f"{name} {kind}" for name, kind in found)
        environment.execute_sql(
            f"CREATE TABLE {alias} ({declared}) WITH ('connector' = 'filesystem', 'path' = "
            f"'{home / alias}', 'format' = 'csv', 'csv.null-literal' = '')"
        )
    statements = environment.create_statement_set()
    if side == "read":
        for alias, found in columns.items():
            _sink(environment, f"{alias}_out", found)
            statements.add_insert_sql(f"INSERT INTO {alias}_out SELECT * FROM {alias}")
    else:
        first, *rest = ORDER
        joins = "".join(f" JOIN {n} ON {first}.{KEYS[first]} = {n}.{KEYS[n]}" for n in rest)
        query = f"FROM {first}{joins}"
        if count:
            for row in environment.execute_sql(f"SELECT COUNT(*) {query}").collect():
                last = row
            print(json.dumps({"rows_out": last[0]}))
            return
        _sink(environment, "joined", [column for name in ORDER for column in columns[name]])
        statements.add_insert_sql(f"INSERT INTO joined SELECT * {query}")
    print(statements.explain().split("== Optimized Physical Plan ==")[-1], file=sys.stderr)
    started = time.perf_counter()
    statements.execute().wait()
    print(json.dumps({"wall_seconds": time.perf_counter() - started, **_jvm()}))


def _jvm() -> dict[str, float]:
    """What the JVM, the only child of this process, has taken."""
    children = [
        pid
        for file in Path("/proc/self/task").glob("*/children")
        for pid in file.read_text().split()
    ]
    (jvm,) = (Path("/proc") / pid for pid in children)
    fields = (jvm / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    peak = next(x for x in (jvm / "status").read_text().splitlines() if x.startswith("VmHWM"))
    return {
        "cpu_seconds": ticks / os.sysconf("SC_CLK_TCK"),
        "jvm_peak_mb": int(peak.split()[1]) * 1024 / 1e6,
    }


def _sink(environment: Any, name: str, columns: list[tuple[str, str]]) -> None:
    declared = ", ".join(f"{column} {kind}" for column, kind in columns)
    environment.execute_sql(f"CREATE TABLE {name} ({declared}) WITH ('connector' = 'blackhole')")


def run_apart(
    python: str, side: str, managed: str, home: Path, count: bool, most: float
) -> dict[str, Any] | None:
    """The same in a process of the other environment; None where it has not ended in time."""
    from bench.common.child_process import ended_in_time  # needs what Flink's environment has not

    command = [python, __file__, "--side", side, "--managed", managed, "--home", str(home)]
    ended = ended_in_time([*command, *(["--count"] if count else [])], most)
    if ended is None:
        return None
    said, errors = ended
    if side == "multijoin" and not count and "MultiJoin" not in errors:
        raise RuntimeError(f"Flink planned no MultiJoin: {errors[-3000:]}")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flink", help="the Python of an environment with apache-flink")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--managed", default="64m,128m,256m", help="Flink's managed memory")
    parser.add_argument("--most", type=float, default=300, help="seconds that a run may take")
    parser.add_argument("--count", action="store_true", help="count the results instead")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        run_side(asked.side, asked.managed, asked.home, asked.count)
        return
    if asked.flink is None:
        parser.error("--flink: name the Python of an environment with apache-flink")
    with tempfile.TemporaryDirectory(prefix="flink-join-") as directory:
        home = Path(directory)
        (home / "columns.json").write_text(json.dumps(make_csv(asked.scale, home)))
        if not asked.count:
            print("| side | managed memory | CPU s | wall s | JVM MB |\n|---|---|---|---|---|")
        for side in asked.sides.split(","):
            for managed in asked.managed.split(",")[: 1 if side == "read" else None]:
                run = run_apart(asked.flink, side, managed, home, asked.count, asked.most)
                if run is None:
                    print(f"| {side} | {managed} | not ended in {asked.most:g} s | | |", flush=True)
                    continue
                if asked.count:
                    print(f"{side}, {managed}: {run['rows_out']:,} rows", flush=True)
                    continue
                figures = f"{run['cpu_seconds']:.1f} | {run['wall_seconds']:.1f}"
                print(f"| {side} | {managed} | {figures} | {run['jvm_peak_mb']:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
