"""natural_join on Spark: each pair once through restarts, over the full history and in windows."""

import json
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.documents.association_groups import GROUPS
from lsmstate.spark import QueryState, State, Time, explain_join, metrics_of, natural_join
from support.document_cases import leaves, pairs_of, random_documents
from support.s3_server import s3_server, storage_options
from support.spark_streams import FileStream, collected

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("id", pa.int64()), ("doc", pa.string()), ("at", pa.timestamp("us", "UTC"))])
DDL = "id LONG, doc STRING, at TIMESTAMP"


def table(documents: list[dict[str, Any]], first: int = 0) -> pa.Table:
    """The rows of documents, one a minute."""
    rows = [
        {"id": at, "doc": json.dumps(each), "at": START + timedelta(minutes=at)}
        for at, each in enumerate(documents, first)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def in_order(rows: list[Any]) -> list[tuple[int, int]]:
    return sorted((min(row), max(row)) for row in rows)


@pytest.mark.stress
@pytest.mark.spark
@pytest.mark.parametrize("routing", ["hypercube", "association_groups"])
def test_each_pair_comes_once_through_a_restart(spark: Any, tmp_path: Path, routing: str) -> None:
    documents = random_documents(240, 21)
    sample = random_documents(200, 22)
    stream = FileStream(tmp_path / "in", DDL)
    got: list[Any] = []
    for first in (0, 120):
        for at in (first, first + 60):
            stream.add(table(documents[at : at + 60], at))
        given = stream.read(spark)
        if routing == "hypercube":  # structs and maps become text
            given = given.withColumn("doc", F.parse_json("doc"))
        joined = natural_join(
            given, "doc", id="id", output="ids", routing=routing,
            sample=None if routing == "hypercube" else sample, state=State(buckets=4),
        )  # fmt: skip
        got += collected(joined, tmp_path)
    assert joined.columns == ["first_id", "second_id"]
    expected = pairs_of([leaves(each) for each in documents])
    assert in_order(got) == sorted(expected)


@pytest.mark.stress
@pytest.mark.spark
def test_groups_that_learn_with_their_state_on_s3(spark: Any, tmp_path: Path) -> None:
    """Ten micro-batches and a restart: groups are made after four, and learn values after eight."""
    sizes = [10, 10, 10, 230, 40, 40, 40, 40, 20, 20]
    ends = list(accumulate(sizes, initial=0))
    documents = random_documents(ends[-1], 27)
    for at in range(ends[4], ends[-1]):
        documents[at]["fresh"] = at % 30
    stream = FileStream(tmp_path / "in", DDL)
    got: list[Any] = []
    with s3_server() as server:
        options = storage_options(server)
        files = S3FileSystem(**options, allow_bucket_creation=True)
        files.create_dir("queries")
        for part in (range(6), range(6, 10)):
            for at in part:
                stream.add(table(documents[ends[at] : ends[at + 1]], ends[at]))
            state = State(
                buckets=3,
                state_dir="s3://queries/documents",
                storage_options=options,
                cache_dir=str(tmp_path),
            )
            joined = natural_join(
                stream.read(spark), "doc", id="id", output="ids", routing="association_groups",
                unknown="broadcast", state=state,
            )  # fmt: skip
            got += collected(joined, tmp_path)
        found = files.get_file_info(FileSelector("queries/documents/routes"))
        tables = {}
        for name in (info.path for info in found if "/table-" in info.path):
            with files.open_input_stream(name) as opened:
                tables[name] = json.loads(opened.read())["settings"]
    assert in_order(got) == sorted(pairs_of([leaves(each) for each in documents]))
    groups = [
        len(layout["table"][GROUPS]["values"])
        for _, made in sorted(tables.items())
        for layout in made["layouts"]
    ]
    assert len(groups) == 2
    assert groups[0] < groups[1]


@pytest.mark.spark
def test_windows_forget_and_malformed_documents_are_counted(spark: Any, tmp_path: Path) -> None:
    documents = random_documents(120, 23)
    stream = FileStream(tmp_path / "in", DDL)
    for at in range(0, 120, 30):
        rows = table(documents[at : at + 30], at).to_pylist()
        rows.append({"id": -1, "doc": "{", "at": START + timedelta(minutes=at)})
        stream.add(pa.Table.from_pylist(rows, schema=SCHEMA))
    given = stream.read(spark).withWatermark("at", "10 minutes")
    joined = natural_join(
        given, "doc", id="id", output="merged", malformed="side",
        time=Time(window="20 minutes", late="side"), state=State(buckets=2),
    )  # fmt: skip
    query = (
        joined.writeStream.format("memory")
        .queryName("windows")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told = explain_join(joined, str(tmp_path / "checkpoint"))
    got = spark.sql("SELECT first_id, second_id FROM windows").collect()
    flat = [leaves(each) for each in documents]
    expected = [pair for pair in pairs_of(flat) if pair[0] // 20 == pair[1] // 20]
    assert in_order(got) == sorted(expected)
    counted = [each for p in query.recentProgress if (each := metrics_of(p)) is not None]
    assert sum(each.counts["malformed_documents"] for each in counted) == 4
    # All but the empty ones, once, and their copies.
    own = sum(each.counts["documents"] for each in counted)
    assert own == sum(map(bool, flat))
    copies = sum(each.counts["copies"] for each in counted)
    assert own < copies == sum(sum(each.bucket_rows_in) for each in counted) - 4
    assert all(0 <= each.rows_gini < 1 for each in counted)
    assert "documents are split by" in told
    assert "copies of a document" in told
    # Malformed ones are kept.
    state = QueryState.open(str(tmp_path / "checkpoint"))
    stream = state.stream("documents (malformed)")
    rows = [r for n in state.pointers for p in state.rows(n, stream) for r in p.to_pylist()]
    assert [(row["id"], row["doc"]) for row in rows] == [(-1, "{")] * 4
    assert sorted(row["_batch"] for row in rows) == [0, 1, 2, 3]


@pytest.mark.spark
def test_what_does_not_fit_is_refused(spark: Any, tmp_path: Path) -> None:
    given = FileStream(tmp_path / "in", DDL).add(table([{"a": 1}])).read(spark)
    for options, message in (
        ({"document": "dok"}, "did you mean 'doc'"),
        ({"document": "id"}, "give JSON text, VARIANT"),
        ({"time": Time(window=10)}, "have no number among all"),
        ({"time": Time(window="10 minutes")}, "has no event time"),
        ({"malformed": "sid"}, "did you mean 'side'"),
        ({"malformed": "side", "state": State(backend="memory")}, "choose that backend"),
        ({"routing": "association_groups", "split": {"a": 2}}, "leave one of them out"),
        ({"theta": -1}, "0 or more"),
        ({"unknown": "hsh"}, "did you mean 'hash'"),
        ({"time": Time(late_batches=3)}, "leave late_batches out"),
        ({"split": {"a": 9}, "state": State(buckets=4)}, "needs 9 buckets"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            natural_join(given, **{"document": "doc", **options})
