"""Objects that show themselves, in notebooks and by rich in terminals."""

import io
from dataclasses import fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from rich.console import Console

from lsmstate import StreamSchema, open_store
from lsmstate.join import (
    MultiwayJoin,
    NaturalJoin,
    asof_join,
    deduplicate,
    similarity_join,
)
from lsmstate.joins.picture import Explanation, picture_of
from lsmstate.spark_integration.metrics.query import QueryMetrics

KEY = pa.schema([("id", pa.int64())])
#: A name that is markup in both places, if nobody minds.
ROWS = pa.schema([("id", pa.int64()), ("what [bold]<b>", pa.string())])
TIMED = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
VECTORS = pa.schema([("v", pa.list_(pa.float32(), 2))])
DOCUMENTS = pa.schema([("doc", pa.string())])


def store(home: Path) -> Any:
    found = open_store(str(home / "store"), [StreamSchema("visits", KEY, ROWS)])
    found.append("visits", [{"id": 1, "what [bold]<b>": "x"}], [{"id": 1}])
    return found


#: What shows itself, and what it shows.
MADE = {
    "store": (store, ["visits", "what [bold]<b>: string", "memory_limit_bytes"]),
    "snapshot": (lambda home: store(home).snapshot(), ["visits", "disk_bytes"]),
    "join": (
        lambda _: MultiwayJoin({"a": ROWS, "b": KEY}, on="a.id = b.id"),
        ["inner by one key", "what [bold]<b>: string", "memory_bytes"],
    ),
    "join by a range": (
        lambda _: MultiwayJoin({"a": ROWS, "b": KEY}, on="a.id < b.id"),
        ["condition a.id < b.id: range in", "a row of a looks into b", "memory_bytes"],
    ),
    "left join by a range": (
        lambda _: MultiwayJoin(
            {"a": ROWS, "b": KEY}, on="a LEFT JOIN b ON a.id < b.id", emit="changes"
        ),
        ["join: a LEFT JOIN b", "condition a.id < b.id: range in"],
    ),
    "product": (
        lambda _: MultiwayJoin({"a": ROWS, "b": KEY}, on="TRUE"),
        ["warning: no condition connects b to a"],
    ),
    "deduplicate": (lambda _: deduplicate(ROWS, ["id"]), ["Deduplication", "['id']"]),
    "documents": (lambda _: NaturalJoin(DOCUMENTS, "doc"), ["doc: string", "memory_bytes"]),
    "similarity": (
        lambda _: similarity_join({"a": VECTORS}, "a.v ~ b.v", metric="l2", threshold=0.5),
        ["v: fixed_size_list", "0.5"],
    ),
    "as of": (
        lambda _: asof_join({"a": TIMED, "b": TIMED}, "a.at >= b.at", by="id"),
        ["at: timestamp[us]", "memory_bytes"],
    ),
}


def in_terminal(value: object) -> str:
    written = io.StringIO()
    Console(file=written, width=300).print(value)
    return written.getvalue()


def in_notebook(value: Any) -> str:
    """The text of its markup, which is well-formed."""
    shown = value._repr_html_()
    return "\n".join(ElementTree.fromstring(f"<div>{shown}</div>").itertext())


@pytest.mark.parametrize("name", MADE)
def test_what_is_shown(name: str, tmp_path: Path) -> None:
    make, wanted = MADE[name]
    with make(tmp_path) as made:
        for shown in (in_notebook(made), in_terminal(made)):
            assert [word for word in wanted if word not in shown] == []
    for shown in (in_notebook(made), in_terminal(made)):
        assert "closed" in shown


def test_counters(tmp_path: Path) -> None:
    with store(tmp_path) as made:
        stats = made.stats()
    for shown in (in_notebook(stats), in_terminal(stats)):
        assert "writes.appended_rows" in shown
        assert f"{stats.memory_limit_bytes:,}" in shown


def test_metrics_of_a_query() -> None:
    numbers = {each.name: 0 for each in fields(QueryMetrics)}
    others = {"query_id": "q", "query_name": "[red]orders", "bucket_rows_in": (), "fan_out": (1, 2)}
    metrics = QueryMetrics(
        **{**numbers, **others, "hottest_keys": (), "counts": {}, "memory_bytes": {"cache": 1234}}
    )
    for shown in (in_notebook(metrics), in_terminal(metrics)):
        assert "[red]orders" in shown
        assert "memory_bytes.cache" in shown
        assert "1,234" in shown


def test_a_plan() -> None:
    text = "join: a.id = b.id\nindexes: a(id), b(id)\nfilter: a.id < 5 [red]"
    plan = Explanation.of(text, picture_of("multiway_join", ["a", "b"], text, 4))
    for shown in (in_notebook(plan), in_terminal(plan)):
        assert "a.id < 5 [red]" in shown
        assert "multiway_join" in shown
    ElementTree.fromstring(plan.svg)
    assert "a(id)" in plan.svg
    assert plan.mermaid.startswith("flowchart LR\n")
