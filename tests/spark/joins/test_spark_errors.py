"""Bad input to multiway_join is answered when the join is built, with what to write instead."""

import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import State, Time, multiway_join
from support.grouped import grouped
from support.spark_streams import BACKEND, FileStream, collected, run_to_end

pytestmark = pytest.mark.spark

SCHEMAS = {
    "cu": "c_addr INT, name STRING, flag BOOLEAN, c_long BIGINT",
    "sr": "sr_addr BIGINT, name STRING, day DATE, tags ARRAY<INT>, lower STRING COLLATE UTF8_LCASE",
    "wr": "wr_addr DOUBLE, item DECIMAL(7,2)",
}


@pytest.fixture(scope="module")
def frames(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("errors")
    found = {}
    for name, schema in SCHEMAS.items():
        (home / name).mkdir()
        found[name] = spark.readStream.schema(schema).parquet(str(home / name))
    return found


def pair(frames: dict[str, Any]) -> dict[str, Any]:
    return {name: frames[name] for name in ("cu", "sr")}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memmory": "64m"}, ["memmory", "did you mean 'state=State(memory=...)'"]),
        ({"statedir": "/x"}, ["statedir", "did you mean 'state=State(state_dir=...)'"]),
        ({"how": "left"}, ["LEFT JOIN", "use emit='changes'"]),
        ({"event_time": "ts"}, ["event_time='ts'", "stream.withWatermark("]),
        ({"late": "keep"}, ["late='keep'", "drop, join, side"]),
        ({"late": "side"}, ["late='side'", "leave late out"]),
        (
            {"late": "side", "backend": "memory"},
            ["'memory'", "state of backend 'lsm'", "late='drop' or"],
        ),
        ({"late_batches": 7}, ["late_batches=7", "late='drop'", "leave late_batches out"]),
        ({"late": "side", "late_batches": 0}, ["late_batches=0", "at least 1"]),
        ({"late": "join"}, ["late='join'", "leave late out"]),
        ({"retention": "1 day"}, ["retention='1 day'", "{'cu': '1 day'}"]),
        ({"retention": {"cu": "1 day"}}, ["no watermark", "cu.withWatermark("]),
        ({"result_time": "at"}, ["result_time='at'", "'cu' has no watermark"]),
        ({"backend": "rocks"}, ["backend='rocks'", "did you mean 'rocksdb'"]),
        ({"buckets": 0}, ["buckets=0", "from 1"]),
        ({"buckets": "4"}, ["buckets='4'", "whole number"]),
        ({"memory": "64 apples"}, ["64 apples", "such as '64m'"]),
        ({"memory": "1m"}, ["memory", "1048576", "too small", "'5m'"]),
        ({"options": {"compresion": "zstd"}}, ["'compresion'", "did you mean 'compression'"]),
        ({"options": {"compression": "zip"}}, ["compression='zip'", "'zstd'"]),
        ({"options": {"fanout": "4"}}, ["fanout='4'", "whole number"]),
        ({"options": {"memory_bytes": 1}}, ["memory_bytes", "give memory="]),
        ({"options": {"retained_batches": 1}}, ["retained_batches", "minBatchesToRetain"]),
        ({"options": {"fanout": 4}, "backend": "memory"}, ["'fanout': 4", "backend='lsm'"]),
        ({"state_dir": "file://host/x"}, ["file://host/x", "name no machine"]),
        ({"state_dir": "dbfs://host/x"}, ["dbfs://host", "cannot be used"]),
        ({"result_time": 3}, ["result_time=3", "name of a column"]),
        ({"changes": ["op"], "emit": "changes"}, ["changes=['op']", "dictionary"]),
        ({"options": ["zstd"]}, ["options=['zstd']", "dictionary"]),
        ({"pins": ["x"]}, ["pins=['x']", "dictionary"]),
    ],
)
def test_options_are_checked(
    frames: dict[str, Any], options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        multiway_join(pair(frames), on="cu.c_addr = sr.sr_addr", **grouped(**options))
    for word in words:
        assert word in str(refusal.value)


def test_reserved_options_take_their_defaults(frames: dict[str, Any]) -> None:
    joined = multiway_join(
        pair(frames),
        on="cu.c_addr = sr.sr_addr",
        how="inner",
        time=Time(event_time=None, late="drop", retention=None),
    )
    assert joined.isStreaming


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("cu.c_adr = sr.sr_addr", ["c_adr", "did you mean 'c_addr'"]),
        ("cv.c_addr = sr.sr_addr", ["cv", "did you mean 'cu'"]),
        ("cu.flag = sr.day", ["cu.flag (boolean)", "sr.day (date)", "cannot be compared"]),
        ("cu.name = sr.tags", ["cu.name (string)", "sr.tags (array<int>)"]),
        ("cu.name = sr.lower", ["sr.lower", "UTF8_LCASE", "collate(column,"]),
        (
            "cu LEFT JOIN sr ON cu.c_addr = sr.sr_addr AND sr.lower = 'x'",
            ["sr.lower", "only Spark"],
        ),
        (
            "cu LEFT JOIN sr ON cu.c_addr = sr.sr_addr AND cu.flag < sr.day",
            ["cu.flag < sr.day", "values of bool and date32[day] are not compared here"],
        ),
        (["name", "no"], ["'no'"]),
        (None, ["on=None", "o.id = p.order_id"]),
        ({"cu": ["c_addr"]}, ["sr"]),
    ],
)
def test_conditions_are_checked(frames: dict[str, Any], on: Any, words: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        multiway_join(pair(frames), on=on)
    for word in words:
        assert word in str(refusal.value)


def test_names_that_differ_in_case_only_are_refused(frames: dict[str, Any]) -> None:
    streams = {"a": frames["cu"], "A": frames["cu"]}
    for on in ("a.c_addr = A.c_addr", ["c_addr"]):
        with pytest.raises(InvalidArgumentError, match="several streams are called 'a'"):
            multiway_join(streams, on=on)


def test_a_common_type_that_merges_values_is_refused(frames: dict[str, Any]) -> None:
    on = "cu.c_long = sr.sr_addr AND sr.sr_addr = wr.wr_addr"
    with pytest.raises(InvalidArgumentError, match=r"cu\.c_long \(bigint\).*as double"):
        multiway_join(frames, on=on)
    narrow = "cu.c_addr = sr.sr_addr AND sr.sr_addr = wr.item"
    assert multiway_join(frames, on=narrow).isStreaming


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (["ARRAY<STRUCT<m: MAP<INT, INT>>>"] * 2, r"map<int,int> cannot be"),
        (["VARIANT"] * 2, "variant cannot be .* anything else to a string"),
        (["STRUCT<a: STRING COLLATE UTF8_LCASE>", "STRUCT<a: STRING>"], "give both one collation"),
        (["ARRAY<BIGINT>", "ARRAY<BIGINT>", "ARRAY<DOUBLE>"], "different values would be equal"),
        (["ARRAY<INT>", "ARRAY<BIGINT>", "ARRAY<SMALLINT>"], None),
        *(
            pytest.param(*each, marks=pytest.mark.stress)
            for each in (
                (["MAP<INT, INT>"] * 2, r"map<int,int> cannot be .* array_sort\(map_entries"),
                (
                    ["ARRAY<STRING COLLATE UTF8_LCASE>", "ARRAY<STRING COLLATE UNICODE>"],
                    "one collation",
                ),
                (["INTERVAL YEAR", "INTERVAL MONTH", "INTERVAL YEAR TO MONTH"], None),
                (["INTERVAL MONTH", "INT"], "cannot be compared; cast one of them"),
                (["VOID", "VOID", "STRING COLLATE UTF8_LCASE"], None),
                (["VOID", "VOID"], None),
                (["STRUCT<a: INT>", "STRUCT<b: BIGINT>"], "cannot be compared"),
            )
        ),
    ],
)
def test_nested_keys_are_checked(spark: Any, kinds: list[str], words: str | None) -> None:
    streams = {
        f"s{i}": spark.readStream.schema(f"k {kind}").parquet(os.curdir)
        for i, kind in enumerate(kinds)
    }
    if words is None:
        assert multiway_join(streams, on=["k"]).isStreaming
        return
    with pytest.raises(InvalidArgumentError, match=words):
        multiway_join(streams, on=["k"])


def test_inputs_are_checked(spark: Any, frames: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'cu' is a static DataFrame; join it after"):
        multiway_join(
            {"cu": spark.range(1).withColumnRenamed("id", "c_addr"), "sr": frames["sr"]},
            on="cu.c_addr = sr.sr_addr",
        )
    with pytest.raises(InvalidArgumentError, match="at least two"):
        multiway_join({"cu": frames["cu"]}, on=["c_addr"])
    with pytest.raises(InvalidArgumentError, match=r"streams\['sr'\] is str"):
        multiway_join({"cu": frames["cu"], "sr": "sr"}, on=["c_addr"])
    for odd, words in (
        ("make_interval(1)", r"odd\.x has type interval, .* cast it to a string"),
        ("array()", r"odd\.x\.element has type void .* cast odd\.x to"),
    ):
        unfit = frames["sr"].withColumn("x", F.expr(odd))
        with pytest.raises(InvalidArgumentError, match=words):
            multiway_join({"cu": frames["cu"], "odd": unfit}, on="cu.c_addr = odd.sr_addr")


def test_char_keys_that_spark_would_pad_in_part_are_refused(frames: dict[str, Any]) -> None:
    def declared(*types: str) -> dict[str, Any]:
        """As a table's columns of these types come: strings whose metadata holds the type."""
        name = "__CHAR_VARCHAR_TYPE_STRING"
        values = {kind: "'x'" if "<" not in kind else "named_struct('c', 'x')" for kind in types}
        return {
            f"s{i}": frames["cu"].select(F.expr(values[kind]).alias("k", metadata={name: kind}))
            for i, kind in enumerate(types)
        }

    for kinds in (
        ("char(2)", "char(3)", "varchar(3)"),
        ("struct<c:char(2)>", "struct<c:char(3)>"),
    ):
        with pytest.raises(InvalidArgumentError, match=r"s1\.k \(.*char\(3\).*rpad\(column, n"):
            multiway_join(declared(*kinds), on=["k"])
    for kinds in (("char(2)", "char(2)", "varchar(3)"), ("char(2)", "char(3)", "char(9)")):
        assert multiway_join(declared(*kinds), on=["k"]).isStreaming
    two = declared("char(2)", "varchar(3)")
    assert multiway_join(two, on="s0.k = s1.k AND s1.k LIKE 'x%'").isStreaming
    with pytest.raises(InvalidArgumentError, match=r"s0\.k <> 'y'.* uses a CHAR column, .*where"):
        multiway_join(two, on="s0.k = s1.k AND s0.k <> 'y'")


def test_columns_are_named_by_the_rule(frames: dict[str, Any]) -> None:
    joined = multiway_join(pair(frames), on="CU.C_ADDR = sr.SR_addr")
    assert joined.columns == [
        "c_addr", "cu_name", "flag", "c_long", "sr_addr", "sr_name", "day", "tags", "lower",
    ]  # fmt: skip
    assert joined.select("cu_name", joined["sr_name"]).columns == ["cu_name", "sr_name"]
    with pytest.raises(AnalysisException, match="name_columns_by_text_as_listed_here") as refusal:
        joined.select(frames["cu"]["flag"]).schema  # noqa: B018
    assert '"flag"' in str(refusal.value)


def _two_streams(home: Path) -> dict[str, FileStream]:
    table = pa.table({"k": pa.array([1, 2], pa.int64())})
    return {name: FileStream(home / name, "k BIGINT").add(table) for name in ("a", "b")}


def test_the_result_used_twice_is_refused_before_it_runs(spark: Any, tmp_path: Path) -> None:
    streams = _two_streams(tmp_path)
    joined = multiway_join({n: s.read(spark) for n, s in streams.items()}, on=["k"])
    twice = joined.union(joined)
    with pytest.raises(AnalysisException, match="Multiple applyInPandasWithState") as refusal:
        run_to_end(twice, tmp_path / "checkpoint", tmp_path / "out")
    remedy = "multiway_join_may_stand_once_in_a_query_use_foreachBatch_to_read_its_result_twice"
    assert remedy in str(refusal.value)


def test_a_clause_named_twice_is_refused_as_the_query_starts(spark: Any, tmp_path: Path) -> None:
    """Spark would run the operator twice, on one state."""
    streams = _two_streams(tmp_path)
    joined = multiway_join({n: s.read(spark) for n, s in streams.items()}, on=["k"])
    joined.createOrReplaceTempView("joined")
    clause = "WITH a AS (SELECT * FROM joined), b AS (SELECT * FROM a)"
    once = spark.sql(f"{clause} SELECT * FROM b WHERE a_k > 1")
    twice = spark.sql(f"{clause} SELECT * FROM a UNION ALL SELECT * FROM b")
    with pytest.raises(StreamingQueryException, match="uses the result of multiway_join 2 times"):
        run_to_end(twice, tmp_path / "checkpoint", tmp_path / "out")
    assert not (tmp_path / "checkpoint" / "lsmstate").exists()
    with pytest.raises(InvalidArgumentError, match="'j' is the result of another multiway_join"):
        multiway_join({"j": once, "b": streams["b"].read(spark)}, on="j.a_k = b.k")
    assert list(map(tuple, collected(once, tmp_path / "once"))) == [(2, 2)]


def test_a_state_directory_that_cannot_be_written_is_said(spark: Any, tmp_path: Path) -> None:
    streams = _two_streams(tmp_path)
    (tmp_path / "file").write_text("in the way")
    state = tmp_path / "file" / "state"
    joined = multiway_join(
        {n: s.read(spark) for n, s in streams.items()},
        on=["k"],
        state=State(backend=BACKEND, state_dir=str(state)),
    )
    with pytest.raises(StreamingQueryException, match=r"state directory .* cannot be written to"):
        run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")


@pytest.mark.stress
def test_a_state_directory_serves_one_query(spark: Any, tmp_path: Path) -> None:
    streams = _two_streams(tmp_path)

    def joined() -> Any:
        return multiway_join(
            {n: s.read(spark) for n, s in streams.items()},
            on=["k"],
            state=State(backend=BACKEND, state_dir=f"file://{tmp_path}/state"),
        )

    run_to_end(joined(), tmp_path / "one", tmp_path / "out1")
    assert (tmp_path / "state" / "query.json").exists()
    with pytest.raises(StreamingQueryException, match="give each query a state_dir of its own"):
        run_to_end(joined(), tmp_path / "two", tmp_path / "out2")
    # Another join is refused as soon as it is built.
    frames = {name: stream.read(spark) for name, stream in reversed(streams.items())}
    with pytest.raises(InvalidArgumentError, match=r"started with streams = \(a, b\)"):
        multiway_join(
            frames, on=["k"], state=State(backend=BACKEND, state_dir=str(tmp_path / "state"))
        )


@pytest.mark.stress
def test_a_checkpoint_without_its_state_is_refused(spark: Any, tmp_path: Path) -> None:
    streams = _two_streams(tmp_path)
    joined = multiway_join({n: s.read(spark) for n, s in streams.items()}, on=["k"])
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    (tmp_path / "checkpoint" / "lsmstate").rename(tmp_path / "elsewhere")
    for stream in streams.values():
        stream.add(pa.table({"k": pa.array([1, 2], pa.int64())}))
    with pytest.raises(StreamingQueryException, match="their state is not in"):
        run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")


class _ConnectFrame:
    """A DataFrame of Spark Connect, as far as the join looks at it: no JVM behind its session."""

    isStreaming = True  # noqa: N815

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.columns = schema.names
        self.sparkSession = object()


def test_spark_connect_needs_a_state_directory(frames: dict[str, Any]) -> None:
    remote: dict[str, Any] = {name: _ConnectFrame(f.schema) for name, f in pair(frames).items()}
    with pytest.raises(InvalidArgumentError, match=r"Spark Connect .*state=State\(state_dir="):
        multiway_join(remote, on=["name"])
    with pytest.raises(InvalidArgumentError, match="under Spark Connect their common type"):
        multiway_join(remote, on="cu.c_addr = sr.sr_addr", state=State(state_dir="/x"))
    alike: dict[str, Any] = dict.fromkeys("lr", remote["sr"])
    with pytest.raises(
        InvalidArgumentError, match=r"l\.lower .* under Spark Connect strings under"
    ):
        multiway_join(alike, on=["lower"], state=State(state_dir="/x"))


def test_an_analysis_error_after_ours_is_still_sparks_own(
    spark: Any, frames: dict[str, Any]
) -> None:
    logging.Logger.manager.loggerDict.pop("SQLQueryContextLogger", None)  # as in a new process
    with pytest.raises(InvalidArgumentError, match="cannot be compared"):
        multiway_join(pair(frames), on="cu.flag = sr.day")
    with pytest.raises(AnalysisException, match="no_such_column"):
        spark.sql("SELECT no_such_column")
