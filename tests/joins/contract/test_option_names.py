"""Options have one shape on every face, and a misspelt one is answered with the right word."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lsmstate import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State, Time
from lsmstate.joins.options import Skew
from support.paths import ROOT

ROWS = pa.schema([("k", pa.int64())])


def join(**options: Any) -> MultiwayJoin:
    return MultiwayJoin({"a": ROWS, "b": ROWS}, ["k"], **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: join(memroy="8m"),
            r"no option 'memroy'; did you mean 'state=State\(memory=...\)'",
        ),
        (
            lambda: join(memory="8m"),
            r"no option 'memory'; did you mean 'state=State\(memory=...\)'",
        ),
        (
            lambda: join(retain={}),
            r"did you mean 'time=Time\(retention=...\)'\? Options: streams, on",
        ),
        (lambda: join(hwo="left"), "no option 'hwo'; did you mean 'how'"),
        (
            lambda: State(memroy="8m"),
            "no option 'memroy'; did you mean 'memory'? Options: memory, b",
        ),  # type: ignore[call-arg]
        (lambda: Time(lat="drop"), "no option 'lat'; did you mean 'late'"),  # type: ignore[call-arg]
        (lambda: join(state={"memory": "8m"}), r"is dict; give State\(memory=...\)"),
        (lambda: join(time=None), r"time=None is NoneType; give Time\(event_time=...\)"),
        (lambda: State(backend="rocks"), "backend='rocks' is unknown; did you mean 'rocksdb'"),  # type: ignore[arg-type]
        (lambda: State(buckets=0), "buckets=0: must be a whole number from 1 to 4096"),
        (lambda: join(state=State(options=["zstd"])), r"options=\['zstd'\] is list; give a dict"),  # type: ignore[arg-type]
        (lambda: Skew(hot_keys="spraed"), "hot_keys='spraed' is unknown; did you mean 'spread'"),  # type: ignore[arg-type]
        (lambda: Skew(routing="range"), "routing='range' is unknown; did you mean 'ranges'"),  # type: ignore[arg-type]
        (lambda: Skew(sahres={}), "no option 'sahres'; did you mean 'shares'"),  # type: ignore[call-arg]
        (lambda: Skew(rows=[1]), r"rows=\[1\] is a list; give a dictionary"),  # type: ignore[arg-type]
        (lambda: join(shares={"a": 2}), "shares={'a': 2}: in plain Python all rows lie in one"),
        (lambda: join(skew=Skew()), "in plain Python all rows lie in one place"),
        (lambda: join(state=State(buckets=2)), "buckets=2 is an option on Spark only"),
        (lambda: join(time=Time(result_time="at")), "result_time='at' is an option on Spark only"),
    ],
)
def test_the_right_word_is_named(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words.replace("'? O", r"'\? O")):
        call()


def test_the_store_takes_its_settings_in_plain_python() -> None:
    with join(state=State(memory="8m", options={"compression": "zstd"})) as opened:
        assert opened._join is not None
    with pytest.raises(InvalidArgumentError, match="did you mean 'compression'"):
        join(state=State(options={"compresion": "zstd"}))


def test_faces_have_the_same_groups() -> None:
    pytest.importorskip("pyspark")
    import lsmstate.spark as faces

    assert set(faces.__all__) <= set(dir(faces))
    shared = {
        MultiwayJoin: {"time", "state"},
        faces.multiway_join: {"time", "state", "skew"},
        faces.streaming_sql: {"time", "state", "skew"},
        faces.to_multiway: {"time", "state", "skew"},
        faces.stateful_batches: {"state"},
    }
    for face, names in shared.items():
        parameters = inspect.signature(face).parameters
        assert names <= set(parameters)
        assert len(parameters) <= 13
        assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@pytest.mark.stress
def test_a_type_checker_finds_a_misspelt_option(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    wrong = [
        'multiway_join({}, "", memroy="8m")',
        'multiway_join({}, "", emit="change")',
        'multiway_join({}, "", how="outer join")',
        'multiway_join({}, "", skew=Skew(hot_keys="spraed"))',
        'State(memroy="8m")',
        'State(backend="rocks")',
        'Time(late="side ")',
        'Skew(routing="range")',
        'MultiwayJoin({}, "", memroy="8m")',
    ]
    lines = ["from lsmstate.join import MultiwayJoin", "from lsmstate.spark import *", *wrong]
    program.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if "program.py:" in line}
    assert found == set(range(3, len(lines) + 1)), done.stdout
