"""Another number of buckets between two runs of a query: nothing lost, doubled or out of order."""

import itertools
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from lsmstate.cli.main import app
from lsmstate.cython_ext.base.file import set_fault_hook
from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.lsm.recovery import read_commit
from lsmstate.lsm.table_cache import table_cache
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.spark import drop_original, multiway_join, rescale, undo_rescale
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned, newest_settings
from lsmstate.spark_integration.rescale.fill import fill
from lsmstate.spark_integration.state_reader.query_state import QueryState
from lsmstate.state_location import bucket_directory_name
from support.grouped import grouped
from support.sampling import some_or_every
from support.spark_streams import (
    BACKEND,
    FileStream,
    assert_same_rows,
    committed,
    pieces,
    run_to_end,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(BACKEND != "lsm", reason="rescale is for the backend lsm"),
]

NAMES = ("a", "b", "c")
FILES = 6
ROWS = 120
KEYS = 24


class Query:
    """A join whose files arrive as the test lets them."""

    def __init__(self, spark: Any, home: Path) -> None:
        self.checkpoint, self.out = home / "checkpoint", home / "out"
        self._spark = spark
        self._streams, self._files = {}, {}
        for seed, name in enumerate(NAMES):
            keys = [(i * 13 + seed) % KEYS for i in range(ROWS)]
            table = pa.table({f"{name}_k": pa.array(keys, pa.int64()), f"{name}_at": range(ROWS)})
            self._streams[name] = FileStream(home / name, f"{name}_k BIGINT, {name}_at BIGINT")
            self._files[name] = pieces(table, FILES)

    def arrive(self, count: int) -> None:
        """So many files more of each stream."""
        for name, stream in self._streams.items():
            stream.add(*self._files[name][stream.files : stream.files + count])

    def joined(self, **options: Any) -> Any:
        frames = {name: stream.read(self._spark) for name, stream in self._streams.items()}
        condition = "a.a_k = b.b_k AND a.a_k = c.c_k"
        return multiway_join(frames, on=condition, **grouped(memory="16m", **options))

    def run(self, count: int, **options: Any) -> None:
        self.arrive(count)
        run_to_end(self.joined(**options), self.checkpoint, self.out)

    @property
    def root(self) -> str:
        return str(self.checkpoint / "lsmstate")

    def check(self) -> None:
        """All results so far are DuckDB's."""
        a, b, c = (stream.sql for stream in self._streams.values())
        expected = f"SELECT * FROM {a} JOIN {b} ON a_k = b_k JOIN {c} ON a_k = c_k"
        assert_same_rows(expected, committed(self.out), at_least=50)


@pytest.fixture
def query(spark: Any, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def stored(root: str, pointers: Mapping[int, str]) -> dict[tuple[str, int], list[int]]:
    """The rows of each stream and key, in their order, over all buckets."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for bucket, pointer in pointers.items():
        directory = os.path.join(root, bucket_directory_name(bucket))
        streams = read_commit(table_cache(process_memory()), directory, pointer).streams
        store = open_attempt(
            directory,
            list(streams.values()),
            pointer=pointer,
            batch_id=0,
            attempt_id="test",
            options=Options(),
        )
        with closing(store):
            for name in streams:
                for entries in store.iterate(name):
                    for row in entries.rows.to_pylist():
                        key = (name, row[f"{name}_k"])
                        assert found.get(key) is None or found[key][-1] < row[f"{name}_at"]
                        found[key].append(row[f"{name}_at"])
    return found


def new_pointers(root: str) -> Mapping[int, str]:
    version, settings = newest_settings(root)
    assert settings is not None
    return Pinned.of(settings, version).pointers


@pytest.mark.stress
def test_between_micro_batches_to_3_to_2_to_5_buckets(query: Query) -> None:
    query.run(1, buckets=2)
    for buckets in (3, 2, 5):
        rescale(str(query.checkpoint), 7)  # and on at once, without a micro-batch between
        done = rescale(str(query.checkpoint), buckets)
        assert (done.buckets, done.rows) == (buckets, rows_arrived(query))
        query.run(1)
    query.check()
    ids = [set(json.loads(p.read_text())["settings"]["bucket_ids"]) for p in settings_of(query)]
    assert [len(each) for each in ids] == [2, 7, 3, 7, 2, 7, 5]
    assert len(set.union(*ids)) == 33, "an id was used twice"
    assert drop_original(str(query.checkpoint)) > 0
    query.run(1)
    query.check()
    left = [name for name in os.listdir(query.root) if name.startswith("bucket-")]
    assert len(left) == 5


def rows_arrived(query: Query) -> int:
    return sum(ROWS // FILES * stream.files for stream in query._streams.values())


def settings_of(query: Query) -> list[Path]:
    return [Path(query.root) / "query.json", *sorted(Path(query.root).glob("query-*.json"))]


def in_child(work: Callable[[], Any]) -> int:
    """The exit status of a forked process that does the work."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


#: In `make test` a rescale is killed at every so-manyth of its file operations.
SAMPLE = 9


def killed_at(number: int) -> Callable[[str, str, int, int], int | None]:
    seen = iter(range(1 << 30))

    def hook(operation: str, path: str, offset: int, size: int) -> int | None:
        if next(seen) == number:
            os._exit(9)
        return None

    return hook


@some_or_every
def test_killed_at_any_file_operation_it_goes_on(
    query: Query, memory_path: Path, every: bool
) -> None:
    query.run(1, buckets=2)
    pointers = QueryState.open(str(query.checkpoint)).pointers
    expected = stored(query.root, pointers)
    assert sum(map(len, expected.values())) == rows_arrived(query)
    number, kills, went_on, refused = 0, 0, 0, 0
    while True:
        copy = memory_path / f"copy-{number}"
        shutil.copytree(query.checkpoint, copy)
        set_fault_hook(killed_at(number))
        try:
            status = in_child(lambda copy=copy: rescale(str(copy), 3))
        finally:
            set_fault_hook(None)
        assert status in (0, 9)
        root = str(copy / "lsmstate")
        refused += starts_with(root) is None
        assert stored(root, pointers) == expected, "the original was touched"
        done = rescale(str(copy), 3)
        went_on += done.rows < rows_arrived(query)
        assert stored(root, new_pointers(root)) == expected
        assert not list(Path(root).glob("rescale-*"))
        shutil.rmtree(copy)
        if status == 0:
            break
        number += 1 if every else SAMPLE
        kills += 1
    print(f"killed at {kills} of {number} file operations")
    assert number > 20, f"only {number} operations were seen"
    assert went_on > kills / 5, "no run went on where it was killed"
    assert refused or not every, "none was killed over its switch"


def starts_with(root: str) -> int | None:
    """With how many buckets the query starts now; None if it refuses, naming the remedy."""
    try:
        version, settings = newest_settings(root)
    except InvalidArgumentError as error:
        refusal = str(error)
    else:
        assert settings is not None
        assert settings["buckets"] == (2 if version == 1 else 3)
        return int(settings["buckets"])
    assert "--buckets N again, or lsmstate rescale CHECKPOINT --undo" in refusal
    return None


@pytest.mark.stress
def test_taken_back_and_killed_at_any_file_operation_it_goes_on(
    query: Query, memory_path: Path
) -> None:
    query.run(1, buckets=2)
    before = sorted(os.listdir(query.root))
    rescale(str(query.checkpoint), 3)
    seen = []
    for number in itertools.count():
        copy = memory_path / f"copy-{number}"
        shutil.copytree(query.checkpoint, copy)
        set_fault_hook(killed_at(number))
        try:
            status = in_child(lambda copy=copy: undo_rescale(str(copy)))
        finally:
            set_fault_hook(None)
        seen.append(starts_with(str(copy / "lsmstate")))
        if status == 9:
            assert undo_rescale(str(copy)) == 2
        assert sorted(os.listdir(copy / "lsmstate")) == before
        shutil.rmtree(copy)
        if status != 9:
            break
    assert status == 0
    assert seen == sorted(seen, key=[3, None, 2].index)
    assert set(seen) == {3, None, 2}


@pytest.mark.stress
def test_settings_that_are_damaged_later_are_taken_back(query: Query) -> None:
    query.run(1, buckets=2)
    rescale(str(query.checkpoint), 3)
    newest = Path(query.root) / "query-0002.json"
    newest.write_text(newest.read_text()[:-40])
    with pytest.raises(CorruptionError, match=r"json: the settings .* undo the rescale by"):
        starts_with(query.root)
    assert undo_rescale(str(query.checkpoint)) == 2
    rescale(str(query.checkpoint), 3)
    query.run(1)
    query.check()
    newest.write_text("")
    with pytest.raises(CorruptionError, match="micro-batches were committed since"):
        undo_rescale(str(query.checkpoint))
    assert newest.exists()


@pytest.mark.stress
def test_undone_before_the_next_micro_batch_it_never_was(query: Query) -> None:
    query.run(1, buckets=2)
    before = sorted(os.listdir(query.root))
    rescale(str(query.checkpoint), 3)
    assert undo_rescale(str(query.checkpoint)) == 2
    assert sorted(os.listdir(query.root)) == before
    with pytest.raises(InvalidArgumentError, match="nothing to undo"):
        undo_rescale(str(query.checkpoint))
    query.run(1)
    rescale(str(query.checkpoint), 3)
    query.run(1)
    with pytest.raises(InvalidArgumentError, match="was committed with 3 buckets"):
        undo_rescale(str(query.checkpoint))
    query.check()
    # Spark would start again at an older micro-batch, whose buckets these are not.
    for log in ("offsets", "commits"):
        for batch in ("1", "2"):
            (query.checkpoint / log / batch).unlink()
            (query.checkpoint / log / f".{batch}.crc").unlink()
    shutil.rmtree(query.out)  # its log would say that these micro-batches are done
    with pytest.raises(StreamingQueryException, match="before the rescale to 3"):
        query.run(0)
    assert undo_rescale(str(query.checkpoint)) == 2


@pytest.mark.stress
def test_a_query_that_runs_notices(query: Query) -> None:
    query.run(1, buckets=2)
    running = (
        query.joined()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(query.checkpoint))
        .start(str(query.out))
    )
    try:
        rescale(str(query.checkpoint), 3)
        query.arrive(1)
        with pytest.raises(StreamingQueryException, match="rescaled to 3 buckets while"):
            running.awaitTermination(60)
    finally:
        running.stop()
    with pytest.raises(InvalidArgumentError, match="micro-batch 1 of"):
        rescale(str(query.checkpoint), 4)
    query.run(1)
    query.check()


def fill_one_bucket_only(
    state: Any, plan: Any, contents: Any, number: int, *others: Any
) -> dict[str, Any]:
    if number == 0:
        return fill(state, plan, contents, number, *others)
    raise InvalidArgumentError("keys of its own")


@pytest.fixture
def one_batch(query: Query) -> Query:
    query.run(1, buckets=2)
    return query


@pytest.mark.stress
def test_what_cannot_be_rescaled_is_refused(
    one_batch: Query, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = str(one_batch.checkpoint)
    before = sorted(os.listdir(one_batch.root))
    other = Query(spark, tmp_path / "other")
    other.run(1, backend="memory")

    def refused(words: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=words):
            rescale(*arguments, **options)

    refused("buckets=0: must be from 1 to 4096", checkpoint, 0)
    refused("not a checkpoint location of a query", str(tmp_path), 3)
    refused("nowhere://x cannot be used", "nowhere://x/y", 3)
    refused("does not hold the state of a query", checkpoint, 3, state_dir=str(tmp_path))
    refused("backend 'memory'; only that of 'lsm'", str(other.checkpoint), 3)
    refused("belongs to query", checkpoint, 3, state_dir=other.root)
    refused("'much' is not a size", checkpoint, 3, memory="much")
    with monkeypatch.context() as patched:  # refused in the midst of it, nothing is left
        patched.setattr("lsmstate.spark_integration.rescale.rescale.fill", fill_one_bucket_only)
        refused("keys of its own", checkpoint, 3)
    (one_batch.checkpoint / "commits" / "0").rename(tmp_path / "commit")
    refused("micro-batch 0 of .* is running or was interrupted", checkpoint, 3)
    assert sorted(os.listdir(one_batch.root)) == before


def test_on_the_command_line(one_batch: Query) -> None:
    def refused(arguments: list[str], words: str) -> None:
        done = CliRunner().invoke(app, ["rescale", str(one_batch.checkpoint), *arguments])
        assert isinstance(done.exception, InvalidArgumentError)
        assert re.search(words, str(done.exception))

    def said(*arguments: str) -> Any:
        done = CliRunner().invoke(app, ["rescale", str(one_batch.checkpoint), *arguments, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1])

    assert said("--buckets", "3") == {"before": 2, "buckets": 3, "rows": 60}
    assert said("--buckets", "3") == {"before": 3, "buckets": 3, "rows": 0}
    assert said("--undo") == {"buckets": 2}
    said("--buckets", "3")
    assert said("--drop-original")["freed_bytes"] > 0
    one_batch.run(1)
    one_batch.check()
    for wrong in ([], ["--undo", "--drop-original"], ["--undo", "--memory", "64m"]):
        refused(
            wrong, "exactly one of|--memory works with --buckets N only; leave it out with --undo"
        )
    for option in ("--shares=a.x=2", "--cache=10g", "--cache-dir=here"):
        refused(["--drop-original", option], "leave it out with --drop-original")
