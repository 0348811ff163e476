"""The state of a query read from outside it: as a DataFrame, in Python, on the command line."""

import datetime
import json
import os
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource
from typer.testing import CliRunner

import pyspark_lsmstate
from lsmstate.cli.main import app
from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.spark import QueryState, State, multiway_join, register
from lsmstate.spark_integration.checkpoint.pinned_settings import adopt_or_pin
from lsmstate.spark_integration.plan.stateful_plan import Wanted
from lsmstate.spark_integration.state_reader.data_source import StateDataSource
from lsmstate.store import StreamSchema
from support.paths import ROOT
from support.spark_streams import FileStream, run_to_end

pytestmark = pytest.mark.spark

START = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
LEFT = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(9, 2)),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64()), ("on", pa.date32())])),
    ]
)
LEFT_DDL = (
    "id BIGINT, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(9,2), tags ARRAY<STRING>, "
    "place STRUCT<x: DOUBLE, on: DATE>"
)
RIGHT = pa.schema([("ref", pa.int32()), ("text", pa.string())])
KEY = pa.schema([("k0", pa.int64())])
ROWS = 20
#: Micro-batches before the restart, and after it.
FIRST, LATER = 3, 2
KEPT = 2


def left(batch: int) -> pa.Table:
    rows = [
        {
            "id": batch * 7 + i,
            "at": START + datetime.timedelta(hours=batch, seconds=i),
            "local": START.replace(tzinfo=None) + datetime.timedelta(days=i),
            "price": Decimal(i) / 4,
            "tags": [f"t{j}" for j in range(i % 3)] if i % 5 else None,
            "place": {"x": i / 3, "on": START.date()} if i % 4 else None,
        }
        for i in range(ROWS)
    ]
    return pa.Table.from_pylist(rows, schema=LEFT)


def right(batch: int) -> pa.Table:
    rows = [{"ref": i, "text": f"{batch}-{i}"} for i in range(batch + 1)]
    return pa.Table.from_pylist(rows, schema=RIGHT)


@pytest.fixture(scope="module")
def home(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query of three micro-batches in ``early``; copied, restarted and run on in ``late``."""
    import shutil

    place = tmp_path_factory.mktemp("state")
    streams = {
        "l": FileStream(place / "l", LEFT_DDL).add(*map(left, range(FIRST))),
        "r": FileStream(place / "r", "ref INT, text STRING").add(*map(right, range(FIRST))),
    }
    run(spark, streams, place / "early")
    shutil.copytree(place / "early", place / "late")
    for batch in range(FIRST, FIRST + LATER):
        streams["l"].add(left(batch))
        streams["r"].add(right(batch))
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", KEPT)
    run(spark, streams, place / "late")
    spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    return place


def run(spark: Any, streams: dict[str, FileStream], place: Path) -> None:
    frames = {name: stream.read(spark) for name, stream in streams.items()}
    joined = multiway_join(frames, on="l.id = r.ref", state=State(buckets=3))
    assert run_to_end(joined, place, place.with_name(place.name + "-out")).exception() is None


def frozen(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


def arrived(table: Any, batch: int) -> "Counter[str]":
    """The rows of a stream that had arrived with a micro-batch."""
    return Counter(frozen(row) for n in range(batch + 1) for row in table(n).to_pylist())


def read(spark: Any, checkpoint: Path, **options: object) -> Any:
    return spark.read.format("lsmstate").options(**options).load(str(checkpoint))


@pytest.mark.stress
@pytest.mark.parametrize("batch", range(FIRST))
def test_rows_as_of_each_batch(home: Path, batch: int) -> None:
    state = QueryState.open(str(home / "early"), batch)
    for name, table in (("l", left), ("r", right)):
        stream = state.stream(name)
        pieces = [piece for bucket in state.pointers for piece in state.rows(bucket, stream)]
        found = Counter(frozen(row) for piece in pieces for row in piece.to_pylist())
        assert found == arrived(table, batch)


@pytest.mark.parametrize(
    ("options", "batch"),
    [({"batchId": 1}, 1), pytest.param({}, FIRST - 1, marks=pytest.mark.stress)],
)
def test_a_data_frame_as_of_an_early_batch_and_the_newest(
    spark: Any, home: Path, options: dict[str, int], batch: int
) -> None:
    register(spark)
    register(spark)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    frame = read(spark, home / "early", stream="l", **options)
    assert frame.schema == spark.createDataFrame([], LEFT_DDL).schema
    rows = frame.toArrow().to_pylist()
    assert Counter(map(frozen, rows)) == arrived(left, batch)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    assert frame.rdd.getNumPartitions() == 3


def test_buckets_and_keys(spark: Any, home: Path) -> None:
    register(spark)
    frame = read(spark, home / "early", stream="l", withKeys=True)
    assert frame.columns == ["_bucket", "_key_k0", *LEFT.names]
    rows = frame.select("_bucket", "_key_k0", "id").collect()
    assert all(row["_key_k0"] == row["id"] for row in rows)
    (one, *others) = sorted({row["_bucket"] for row in rows})
    assert others
    only = read(spark, home / "early", stream="l", withKeys=True, bucket=one)
    found = only.select("_bucket", "_key_k0", "id").collect()
    assert sorted(found) == sorted(row for row in rows if row["_bucket"] == one)


def test_after_a_restart(spark: Any, home: Path) -> None:
    register(spark)
    newest = FIRST + LATER - 1
    rows = read(spark, home / "late", stream="r").toArrow().to_pylist()
    assert Counter(map(frozen, rows)) == arrived(right, newest)
    retained = QueryState.open(str(home / "late")).checkpoint.committed()
    assert retained[-1] == newest
    assert 0 not in retained
    words = f"batch 0 is not retained: .* batches {retained[0]} to {newest}"
    with pytest.raises(InvalidArgumentError, match=words):
        QueryState.open(str(home / "late"), 0)
    for batch in retained:
        state = QueryState.open(str(home / "late"), batch)
        pieces = [p for b in state.pointers for p in state.rows(b, state.stream("l"))]
        assert Counter(frozen(row) for p in pieces for row in p.to_pylist()) == arrived(left, batch)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "name one of the streams: l, r"),
        ({"stream": "x"}, "there is no stream 'x'; did you mean"),
        ({"stream": "l", "batchId": "new"}, "batchId='new': must be a whole number"),
        ({"sream": "l"}, "there is no option 'sream'; did you mean 'stream'"),
        ({"stream": "l", "withKeys": "yes"}, "withKeys='yes': must be true or false"),
        ({"stream": "l", "storageOptions": "[]"}, "storageOptions must be a JSON object"),
        ({"stream": "l", "stateDir": "/nowhere"}, "there is no state in /nowhere"),
    ],
)
def test_options_that_are_wrong(home: Path, options: dict[str, str], words: str) -> None:
    """In Spark's Python worker the same, in the test's process."""
    with pytest.raises(InvalidArgumentError, match=words):
        StateDataSource({"path": str(home / "early"), **options}).schema()


@pytest.mark.stress
def test_spark_shows_what_is_wrong(spark: Any, home: Path) -> None:
    register(spark)
    with pytest.raises(AnalysisException, match=r"batch 9 is not retained: .* batches 0 to 2"):
        read(spark, home / "early", stream="l", batchId=9)


def test_the_module_is_named_as_spark_looks_for_it() -> None:
    assert pyspark_lsmstate.__name__.startswith("pyspark_")
    assert issubclass(pyspark_lsmstate.DefaultSource, DataSource)
    assert pyspark_lsmstate.DefaultSource.name() == "lsmstate"


@pytest.mark.stress
def test_spark_finds_the_format_by_itself(home: Path) -> None:
    """In a session that nobody has registered it in, with lsmstate on the path."""
    code = (
        "import sys; from pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "state = builder.getOrCreate().read.format('lsmstate').option('stream', 'r')\n"
        "print(sorted(row.text for row in state.load(sys.argv[1]).collect()))"
    )
    root = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", code, str(home / "early")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root, "PYSPARK_PYTHON": sys.executable},
    )
    texts = [text for batch in range(FIRST) for text in right(batch)["text"].to_pylist()]
    assert done.stdout.splitlines()[-1] == str(sorted(texts))


def test_the_state_of_another_query(home: Path, tmp_path: Path) -> None:
    """One bucket, where the checkpoint has others."""
    wanted = Wanted({"backend": "lsm"}, 1, 1, None)
    adopt_or_pin(str(tmp_path), wanted, 1, "other")
    with pytest.raises(InvalidArgumentError, match=r"has bucket [0-9]+, which .* lacks"):
        QueryState.open(str(home / "early"), state_dir=str(tmp_path))


def test_a_bucket_without_state(home: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="bucket 99 has no state as of batch 2"):
        next(QueryState.open(str(home / "early")).rows(99, StreamSchema("l", KEY, LEFT)))


def test_a_state_on_another_file_system(home: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.put(str(home / "early"), "/state", recursive=True)
    try:
        state = QueryState.open("memory://state", 1)
        pieces = [p for b in state.pointers for p in state.rows(b, state.stream("l"))]
    finally:
        memory.rm("/state", recursive=True)
    assert Counter(frozen(row) for p in pieces for row in p.to_pylist()) == arrived(left, 1)


def test_missing_and_damaged_files(home: Path, tmp_path: Path) -> None:
    import shutil

    place = Path(shutil.copytree(home / "early", tmp_path / "checkpoint"))
    state = QueryState.open(str(place))
    bucket, pointer = next(iter(state.pointers.items()))
    file = next((place / "lsmstate").rglob(pointer.partition(":")[0]))
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(CorruptionError, match=file.name), state.bucket(bucket):
        pass  # opening it is enough
    file.unlink()
    words = f"bucket {bucket} .*{file.name} .* the batches 0 to 2, read a newer one"
    with pytest.raises(InvalidArgumentError, match=words), state.bucket(bucket):
        pass  # opening it is enough


def test_the_command_line(home: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["state", str(home / "early"), "--json"], catch_exceptions=False)
    described = json.loads(shown.stdout)
    assert (described["batch"], described["batches"]) == (2, [0, 1, 2])
    assert [stream["name"] for stream in described["streams"]] == ["l", "r"]
    assert sum(bucket["rows"] for bucket in described["buckets"]) == FIRST * ROWS + 1 + 2 + 3
    command = ["state", str(home / "early"), "--stream", "r", "--batch", "1", "--json"]
    lines = runner.invoke(app, command, catch_exceptions=False).stdout.splitlines()
    assert Counter(frozen(json.loads(line)) for line in lines) == arrived(right, 1)
    limited = runner.invoke(app, [*command, "--limit", "2"], catch_exceptions=False).stdout
    assert limited.splitlines() == lines[:2]
    table = runner.invoke(app, ["state", str(home / "early")], catch_exceptions=False).stdout
    assert "as of batch 2; retained: 0 to 2" in table


def test_the_command_line_needs_no_spark(home: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from lsmstate.cli.main import main; sys.argv[1:] = ['state', sys.argv[1]]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(home / "early")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert "l.id = r.ref" in done.stdout
