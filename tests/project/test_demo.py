"""The main job as its user starts it, and its parts that need no Spark."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

import lsmstate.spark
from lsmstate.cli.main import app, main
from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.demo.check import compare
from lsmstate.spark_integration.demo.query import batch_sql
from lsmstate.spark_integration.demo.report import Summary
from lsmstate.spark_integration.demo.run import cause_of
from lsmstate.spark_integration.demo.tpcds import (
    MARKER,
    TABLES,
    DemoDataError,
    is_complete,
    make_directory,
    stream_files,
)
from lsmstate.spark_integration.demo.workdir import fresh_directory
from support.paths import ROOT

KEYS = {
    "input_rows",
    "output_rows",
    "expected_rows",
    "equal",
    "seconds",
    "batches",
    "cap_bytes",
    "peak_state_bytes",
    "worker_peak_rss_bytes",
    "worker_idle_rss_bytes",
    "spilled_bytes",
    "state_disk_bytes",
}


@pytest.mark.spark
def test_demo_ends_with_one_json_object(tmp_path: Path) -> None:
    arguments = ["--scale", "0.01", "--batches", "3", "--memory", "6m", "--json"]
    directories = ["--data", str(ROOT / ".data"), "--run", str(tmp_path / "run")]
    # Workers import the package from this tree even where it is not installed.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "lsmstate", "demo", *arguments, *directories],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= KEYS
    assert result["equal"] is True
    assert result["output_rows"] == result["expected_rows"] > 10_000
    assert result["input_rows"] == 5_847
    assert result["batches"] == 3
    assert result["cap_bytes"] == 6 << 20
    assert 0 < result["peak_state_bytes"] <= result["cap_bytes"]
    assert result["worker_peak_rss_bytes"] >= result["worker_idle_rss_bytes"] > 0
    assert result["state_disk_bytes"] > 0
    assert (tmp_path / "run" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == result
    assert "micro-batch 2" in done.stderr
    for word in ("Exception", "Traceback", "ERROR", "\tat "):
        assert word not in done.stderr


def summary(*, equal: bool) -> Summary:
    return Summary(
        scale=1.0,
        backend="lsm",
        cap_bytes=1,
        batches=1,
        seconds=1.0,
        input_rows=1,
        output_rows=1,
        expected_rows=1,
        equal=equal,
        difference="" if equal else "1 row is missing",
        peak_state_bytes=1,
        worker_peak_rss_bytes=1,
        worker_idle_rss_bytes=1,
        worker_growth_bytes=0,
        spilled_bytes=0,
        state_disk_bytes=0,
        plot="",
        output="",
    )


@pytest.mark.parametrize(("equal", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_tells_whether_the_check_was_equal(
    equal: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lsmstate.spark, "run_demo", lambda *_: summary(equal=equal), raising=False)
    done = CliRunner().invoke(app, ["demo", "--json"])
    assert done.exit_code == status
    assert json.loads(done.stdout.splitlines()[-1])["equal"] is equal


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "1m"], "the memory cap is too small"),
        (["--memory", "much"], "'much' is not a size"),
        (["--backend", "rocks"], "'rocks' is unknown"),
        (["--scale", "-1"], "scale=-1"),
        (["--batches", "0"], "batches=0"),
    ],
)
def test_bad_arguments_are_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    run = ["lsmstate", "demo", "--run", str(tmp_path / "run"), *arguments]
    monkeypatch.setattr(sys, "argv", run)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


class TestData:
    MODULE = "lsmstate.spark_integration.demo.tpcds"

    def test_the_cut_files_hold_every_row_once(self, tmp_path: Path) -> None:
        options = [str(tmp_path), "--scale", "0.01", "--batches", "4"]
        subprocess.run([sys.executable, "-m", self.MODULE, *options], check=True, cwd=ROOT)
        made = sorted(path.name for path in tmp_path.iterdir())
        assert made == ["stream-0.01-4-v1", "tables-0.01-v1"]
        parts = sorted(path.name for path in (tmp_path / made[1]).iterdir())
        assert parts == sorted([MARKER, *(f"{table}.parquet" for table in TABLES)])
        files = stream_files(tmp_path, 0.01, 4)
        assert sorted(path.name for path in tmp_path.iterdir()) == made
        for table in TABLES:
            assert len(list(files.table(table).iterdir())) == 4
            whole = f"SELECT * FROM '{tmp_path}/tables-0.01-v1/{table}.parquet'"
            parts = [str(path) for path in files.table(table).iterdir()]
            assert compare(whole, parts, exact=True).difference == ""
        cached = stream_files(tmp_path, 0.01, 4)
        assert cached == files

    def test_it_is_made_while_the_extensions_are_compiled(self) -> None:
        code = f"import sys, {self.MODULE}; print(*sys.modules)"
        found = subprocess.run(
            [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
        )
        ours = {name for name in found.stdout.split() if name.startswith("lsmstate.cython_ext")}
        assert ours == {"lsmstate.cython_ext", "lsmstate.cython_ext.errors"}

    def test_a_broken_off_generation_is_not_a_cache(self, tmp_path: Path) -> None:
        def broken(target: Path) -> None:
            (target / "rows").write_text("half")
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            make_directory(tmp_path / "data", broken)
        assert list(tmp_path.iterdir()) == []

    def test_a_damaged_cache_is_made_again(self, tmp_path: Path) -> None:
        directory = tmp_path / "data"
        make_directory(directory, lambda target: (target / "rows").write_text("all") and None)
        assert is_complete(directory)
        (directory / "rows").write_text("al")
        assert not is_complete(directory)
        make_directory(directory, lambda target: (target / "rows").write_text("all") and None)
        assert is_complete(directory)
        (directory / MARKER).write_text("{}")
        assert not is_complete(directory)

    def test_a_scale_without_meaning_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DemoDataError, match="scale=0"):
            stream_files(tmp_path, 0, 4)
        ended = subprocess.run(
            [sys.executable, "-m", self.MODULE, str(tmp_path), "--scale", "0"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 1
        assert ended.stderr.startswith("lsmstate: scale=0.0: choose a scale factor")


class TestCheck:
    SQL = "SELECT i AS a, i % 3 AS b, i::DECIMAL(7, 2) AS c FROM range(100) t(i)"

    def written(self, directory: Path, sql: str) -> list[str]:
        file = str(directory / "rows.parquet")
        duckdb.execute(f"COPY ({sql}) TO '{file}'")
        return [file]

    @pytest.mark.parametrize("exact", [False, True])
    def test_equal_in_any_order(self, tmp_path: Path, exact: bool) -> None:
        files = self.written(tmp_path, f"{self.SQL} ORDER BY hash(i)")
        found = compare(self.SQL, files, exact=exact)
        assert (found.equal, found.expected_rows, found.output_rows) == (True, 100, 100)

    @pytest.mark.parametrize("exact", [False, True])
    @pytest.mark.parametrize(
        "wrong",
        [
            "SELECT * FROM ({}) WHERE a <> 7",
            "SELECT * FROM ({}) UNION ALL SELECT * FROM ({}) WHERE a = 7",
            "SELECT * FROM ({}) WHERE a <> 7 UNION ALL SELECT * FROM ({}) WHERE a = 8",
            "SELECT nullif(a, 7) AS a, b, c FROM ({})",
            "SELECT CASE a WHEN 0 THEN 1 WHEN 1 THEN 0 ELSE a END AS a, b, c FROM ({})",
            "SELECT a, b, c::DECIMAL(8, 2) AS c FROM ({})",
            "SELECT a::INTEGER AS a, b, c FROM ({})",
            "SELECT b, a, c FROM ({})",
        ],
    )
    def test_a_difference_is_noticed(self, tmp_path: Path, wrong: str, exact: bool) -> None:
        files = self.written(tmp_path, wrong.replace("{}", self.SQL))
        found = compare(self.SQL, files, exact=exact)
        assert not found.equal
        assert found.difference

    def test_no_file_is_no_row(self) -> None:
        assert not compare(self.SQL, []).equal
        assert compare(f"{self.SQL} WHERE i < 0", []).equal

    def test_columns_that_change_places_are_noticed(self, tmp_path: Path) -> None:
        files = self.written(tmp_path, "SELECT 2 AS a, 1 AS b")
        assert not compare("SELECT 1 AS a, 2 AS b", files).equal


class TestRunDirectory:
    def test_a_foreign_directory_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("data")
        with pytest.raises(InvalidArgumentError, match="not empty"), fresh_directory(tmp_path):
            pass
        assert (tmp_path / "precious").read_text() == "data"

    def test_the_last_run_is_removed_and_this_one_stays(self, tmp_path: Path) -> None:
        for number in range(2):
            with fresh_directory(tmp_path / "run") as directory:
                assert not (directory / "output").exists()
                (directory / "output").mkdir()
                (directory / "output" / "rows").write_text(str(number))
        assert (tmp_path / "run" / "output" / "rows").read_text() == "1"

    def test_two_runs_do_not_share_it(self, tmp_path: Path) -> None:
        code = (
            "import sys\nfrom pathlib import Path\n"
            "from lsmstate.spark_integration.demo.workdir import fresh_directory\n"
            "with fresh_directory(Path(sys.argv[1])):\n    pass\n"
        )
        with fresh_directory(tmp_path / "run") as directory:
            (directory / "output").write_text("rows")
            second = subprocess.run(
                [sys.executable, "-c", code, str(directory)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert "another run works in" in second.stderr
            assert (directory / "output").read_text() == "rows"


def test_the_cause_of_a_failure_is_the_last_error_of_lsmstate() -> None:
    text = """[STREAM_FAILED] Query failed: lsmstate.MemoryLimitError somewhere SQLSTATE: XXKST
    org.apache.spark.api.python.PythonException: Traceback (most recent call last):
      File "/site-packages/lsmstate/store_base/checks.py", line 20, in check
    lsmstate.MemoryLimitError: a row of 9 bytes is too large: raise memory_bytes

    During handling of the above exception, another exception occurred:

      File "/site-packages/lsmstate/lsm/store.py", line 20, in commit
    lsmstate.StoreClosedError: the store is closed; open it again
    \tat org.apache.spark.scheduler.Task.run(Task.scala:147)"""
    assert cause_of(text) == "lsmstate.StoreClosedError: the store is closed; open it again"
    assert cause_of("no column x\nat Task.run") == "no column x"


def test_the_query_is_the_paper_s(tmp_path: Path) -> None:
    files = stream_files(ROOT / ".data", 0.01, 3)
    found = duckdb.execute(f"SELECT count(*) FROM ({batch_sql(files)})").fetchone()
    assert found is not None
    assert found[0] > 0
