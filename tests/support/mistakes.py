"""Mistakes that people make, and what is said about each: a table that a test runs, and of which a
part of docs/reference/errors.md is made.

    PYTHONPATH=.:tests python -m support.mistakes     writes that part anew
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "errors.md"
HEADING = "## Mistakes and what is said"
_INTRODUCTION = """
Each line was tried: the code on the left raises an error, or warns, with the words on the right.
A test runs the table. `o` and `p` are orders and payments, `d` documents, `v` vectors.
"""


@dataclass(frozen=True)
class Mistake:
    """One mistake."""

    code: str
    """An expression over the names of ``plain_names`` or ``spark_names``."""
    said: str
    """A part of the message."""
    warns: bool = False
    """Whether it is a warning, and the call works."""


J = 'MultiwayJoin(op, "o.id = p.order_id", '
S = 'similarity_join({"a": v}, "a.v ~ b.v", '
L = 'similarity_join({"a": v}, "a.v ~ b.v", metric="l2", threshold=1, '
N = 'NaturalJoin(d, "doc", '
KINDS_OF_BATCH = "give a pyarrow, polars or pandas table, a DuckDB relation"

JOINS = (
    Mistake('MultiwayJoin({"o": o}, "o.id = p.order_id")', "a join needs at least two streams"),
    Mistake(
        "MultiwayJoin([o, p], 'o.id = p.order_id')", "give the schema of each stream by its name"
    ),
    Mistake(
        'MultiwayJoin({"o": o, "p": "x"}, "o.id = p.order_id")',
        "streams['p'] is a str; give a pyarrow.Schema",
    ),
    Mistake(
        'MultiwayJoin(op, "o.id = p.order")',
        "there is no column 'order' in stream 'p'; did you mean 'order_id'?",
    ),
    Mistake(
        'MultiwayJoin(op, "o.id = p.order_id AND datediff(DAY, o.at, p.at) > 0")',
        "the function datediff with a unit is not known here",
    ),
    Mistake('MultiwayJoin(op, "o.id = q.order_id")', "there is no stream 'q'; did you mean 'p'?"),
    Mistake(
        'MultiwayJoin(op, "id = order_id")', "a column needs its stream's name in front, as in o.id"
    ),
    Mistake(
        'MultiwayJoin(op, "o.id = p.order_id AND")', "syntax error at 'AND', line 1, column 19"
    ),
    Mistake(
        'MultiwayJoin(op, "o.my id = p.order_id")',
        "is an AND missing, or are backquotes around a name with a space?",
    ),
    Mistake("MultiwayJoin(op, None)", "on=None: give a condition in SQL"),
    Mistake(
        'MultiwayJoin(op, {"o": "id", "p": "order_id"})', "write a list of columns, as in ['id']"
    ),
    Mistake(
        'MultiwayJoin(op, {"o": ["id"]})',
        "stream 'p' has no key columns; list them for every stream",
    ),
    Mistake("MultiwayJoin(op, [5])", "5 is a int; give the name of a column as text"),
    Mistake("MultiwayJoin(op, '1 = 2')", "is never true, so there is no result; leave it out"),
    Mistake(
        'MultiwayJoin(op, "SELECT * FROM o JOIN p ON o.id = p.order_id")',
        "name a stream, without another name for it",
    ),
    Mistake(
        "MultiwayJoin(op, \"o.id = p.order_id AND soundex(o.what) = 'x'\")",
        "the function soundex is not known here",
    ),
    Mistake(
        J + 'how="left")', "use emit='changes', which adds a column 'op' for that, or emit='final'"
    ),
    Mistake(
        J + 'how="left", emit="final")', "'o' has no event time; name its column of time stamps"
    ),
    Mistake(J + 'how={"q": "left"})', "there is no stream 'q'; did you mean 'p'?"),
    Mistake(J + 'emit="change")', "emit='change' is unknown; did you mean 'changes'"),
    Mistake(J + 'changes="kind")', 'give it by stream, as in {"a": "op"}'),
    Mistake(J + 'unmatched="drop")', "unmatched='drop' is unknown; did you mean 'error'"),
    Mistake(J + 'memory="64m")', "did you mean 'state=State(memory=...)'?"),
    Mistake(J + 'state={"memory": "64m"})', "is dict; give State(memory=...)"),
    Mistake(
        J + 'state=State(memory="1m"))',
        "memory=1048576: the memory cap is too small; give at least 5242880 bytes ('5m')",
    ),
    Mistake(J + 'state=State(memory="lots"))', "memory='lots' is not a size"),
    Mistake(J + "state=State(buckets=4))", "buckets=4 is an option on Spark only; leave it out"),
    Mistake(J + 'state=State(options={"memory_bytes": 5}))', "give memory=... instead"),
    Mistake(J + 'state=State(options={"compresion": "zstd"}))', "did you mean 'compression'?"),
    Mistake(J + "state=State(state_dir=5))", "state_dir=5 is a int; give a path"),
    Mistake('State(backend="rocks")', "backend='rocks' is unknown; did you mean 'rocksdb'?"),
    Mistake("State(buckets=0)", "must be a whole number from 1 to 4096, or None"),
    Mistake('Time(retension={"o": "1 day"})', "did you mean 'retention'?"),
    Mistake(
        J + "most_results=5)", "applies to joins whose streams are not all connected by equalities"
    ),
    Mistake(J + 'piece_bytes="1m")', "piece_bytes='1m': give a number of bytes"),
    Mistake(J + 'algorithm="hash")', "algorithm='hash' is unknown; did you mean 'umjoin'?"),
    Mistake(J + 'order=["o", "p"])', "applies to algorithm='tree'; leave order out"),
)

TIMES = (
    Mistake(J + 'time="1 day")', "time='1 day' is str; give Time(event_time=...)"),
    Mistake(J + 'time=Time(retention="1 day"))', 'give it by stream, as in {"a": "7 days"}'),
    Mistake(
        J + 'time=Time(retention={"o": "1 day"}))',
        "stream 'o' has no event time; name its column of time stamps",
    ),
    Mistake(J + 'time=Time(event_time="at"))', 'give it by stream, as in {"a": "at"}'),
    Mistake(
        J + 'time=Time(event_time={"o": "what"}))',
        "is string; name a column of time stamps, or cast it to one",
    ),
    Mistake(
        J + 'time=Time(within="1 month", event_time={"o": "at", "p": "at"}))',
        "write weeks, days, hours, minutes or seconds",
    ),
    Mistake(
        'MultiwayJoin(op, "o.id = p.order_id AND p.at < o.at + INTERVAL 1 MONTH")',
        "an interval of months or years, which has no fixed length",
    ),
    Mistake(
        'MultiwayJoin(op, "o.id = p.order_id AND p.at < o.at + INTERVAL 1 HOUR")',
        "p and o have no event time; name the column",
        warns=True,
    ),
    Mistake(
        'MultiwayJoin(op, "o.id = p.order_id AND p.zoned < o.at + INTERVAL 1 HOUR")',
        "p.zoned has a time zone, and o.at has none; cast them to one type",
        warns=True,
    ),
    Mistake(
        'MultiwayJoin(op, "o.id = p.order_id AND p.at < o.day + INTERVAL 1 HOUR")',
        "o.day is a date; cast to time stamps before the join",
        warns=True,
    ),
    Mistake("join.advance(noon)", "no stream has an event time; name their columns of time stamps"),
    Mistake("near.advance(noon)", "no stream has an event time; name their columns of time stamps"),
    Mistake("join.advance(5)", "advance(5): no stream has an event time; name their columns"),
    Mistake("near.advance(-1)", "advance(-1): no stream has an event time; name their columns"),
    Mistake("join.advance(1 << 64)", "give microseconds since 1970, or a datetime"),
    Mistake('asof.advance("2026-01-01")', "the times are time stamps; give a datetime"),
)

BATCHES = (
    Mistake('join.process("q", [])', "there is no stream 'q'; did you mean 'p'?"),
    Mistake("join.process(5, [])", "the stream is a int; give its name"),
    Mistake('join.process("o", None)', "given a NoneType; " + KINDS_OF_BATCH),
    Mistake('join.process("o", "id")', "given a str; " + KINDS_OF_BATCH),
    Mistake('join.process("o", [1, 2])', "row 0 is 1, a int; " + KINDS_OF_BATCH),
    Mistake(
        'join.process("o", [{"nr": 7}])', "columns missing 'id', 'what', 'at', 'day'; unknown 'nr'"
    ),
    Mistake(
        'join.process("p", {"order_id": [1, 2], "at": [None], "zoned": [None]})',
        "columns of different lengths",
    ),
    Mistake(
        'join.process("p", {"order_id": [1.5], "at": [None], "zoned": [None]})',
        "1.5 would become 1 as int64",
    ),
    Mistake('join.process("o", {7: [1]})', "the column name 7 is a int; give a text"),
    Mistake(
        'docs.process("documents", [{"id": 1, "doc": "{"}])',
        "is not JSON: '{'; correct it, or leave such documents out",
    ),
    Mistake('docs.process("documents", [{"id": 1, "doc": "[1]"}])', "is no JSON object"),
    Mistake(
        'docs.process("documents", [{"id": 1, "doc": {"a": {1, 2}}}])',
        "a document cannot be written as JSON",
    ),
    Mistake('near.process("a", 5)', "given a int; " + KINDS_OF_BATCH),
    Mistake(
        'near.process("a", [{"id": 1, "v": "x"}])', "column 'v', row 0: 'x' is not of the type"
    ),
    Mistake('asof.process("o", [5])', "row 0 is 5, a int; " + KINDS_OF_BATCH),
    Mistake("first.process({'id'})", "given a set; " + KINDS_OF_BATCH),
)

OTHER_JOINS = (
    Mistake(
        'NaturalJoin(d, "docs")',
        "there is no column 'docs' in stream 'documents'; did you mean 'doc'?",
    ),
    Mistake("NaturalJoin(d, None)", "give the name of a column, or one for each stream"),
    Mistake('NaturalJoin(d, "id")', "is int64; give JSON text"),
    Mistake(N + 'output="ids")', 'name their column, as in id="id"'),
    Mistake(N + 'window="10 minutes")', "did you mean 'time=Time(window=...)'?"),
    Mistake(N + 'include="user")', "give a list of attributes"),
    Mistake(N + "include=5)", "give a list of attributes"),
    Mistake(N + "at_least=0)", "give how many shared attributes must agree, 1 or more"),
    Mistake(
        N + 'state=State(memory="5m"))',
        "has an index beside its store, and needs 6291456 bytes ('6m')",
    ),
    Mistake(
        'similarity_join({"a": v}, "a.v = b.v", metric="l2", threshold=1)', 'such as "a.v ~ b.v"'
    ),
    Mistake(
        'similarity_join({"a": v}, "a.id ~ b.id", metric="l2", threshold=1)',
        "a.id is int64, and l2 compares vectors",
    ),
    Mistake(S + 'metric="l3", threshold=1)', "metric='l3' is unknown; did you mean 'l2'?"),
    Mistake(
        S + 'metric="l2", threshold="1")', "threshold='1': give the largest distance, a number"
    ),
    Mistake(S + 'metric="l2", threshold=-1)', "give a finite number that is not negative"),
    Mistake(L + "by=5)", "by=5: give the name of a column, or a list of names"),
    Mistake(L + "distance=5)", "distance=5: give the name of a column to add, or None"),
    Mistake(L + 'how="left")', "how='left' is unknown; did you mean 'anti'?"),
    Mistake(
        'asof_join(op, "o.at = p.at")', "write one comparison of their times by >=, >, <=, < or ~"
    ),
    Mistake(
        'asof_join(op, "o.at >= p.zoned")',
        "give two time stamps, both with a time zone or both without",
    ),
    Mistake('asof_join(op, "o.at ~ p.at")', 'bound the wait, as in tolerance="5 minutes"'),
    Mistake(
        'asof_join(op, "o.at >= p.at", by=5)', "by=5: give the name of a column, or a list of names"
    ),
    Mistake(
        'asof_join(op, "o.at >= p.at", by={"o": "id"})',
        "needs the same number of columns that are equal",
    ),
    Mistake(
        'asof_join(op, "o.at >= p.at", tolerance=5)',
        'tolerance=5: give text such as "7 days", or a timedelta',
    ),
    Mistake('deduplicate(o, "nr")', "there is no column 'nr'"),
    Mistake("deduplicate(o, 5)", 'keys=5: give a column, such as "id", or a list of columns'),
    Mistake(
        'deduplicate(o, "id", time=Time(within="1 day"))', "go together: the column of event times"
    ),
    Mistake(
        'deduplicate(o, "id", time=Time(window="1 day"))',
        "rows of one window are duplicates by its start",
    ),
    Mistake(
        'NaturalJoin(d, "doc", time=Time(within="1 day"))',
        "documents are stored and forgotten by windows",
    ),
    Mistake(
        'asof_join(op, "o.at >= p.at", tolerance="1 day", time=Time(within="1 day"))',
        "say both how far the times may be apart",
    ),
)

STORES = (
    Mistake("open_store(home, [])", "a store needs at least one stream"),
    Mistake('open_store(home, ["clicks"])', "stream 'clicks' is a str; give a StreamSchema"),
    Mistake('open_store(home, [clicks], backend="sqlite")', "backend='sqlite' is unknown"),
    Mistake(
        'open_store(home, [clicks], options={"memory_bytes": 5})',
        "is dict; give Options(memory_bytes=...)",
    ),
    Mistake(
        'open_store(home, [clicks], memory="16m")',
        "there is no option 'memory'; did you mean 'options=Options(memory_bytes=...)'?",
    ),
    Mistake("Options(fan_out=4)", "there is no option 'fan_out'; did you mean 'fanout'?"),
    Mistake("Options(memory_bytes=1)", "memory_bytes=1: the memory cap is too small"),
    Mistake('Options(compression="gzip")', "choose 'lz4', 'zstd' or 'none'"),
    Mistake('StreamSchema("a", key, {"page": "string"})', "is a dict; give a pyarrow.Schema"),
    Mistake(
        'StreamSchema("a", key, rows, expiry="1 day")',
        'give an Expiry, as in Expiry("at", timedelta(days=1))',
    ),
    Mistake(
        'store.append("click", [{"page": "/"}], key="user")',
        "the store has no stream 'click'; did you mean 'clicks'?",
    ),
    Mistake('store.append("clicks", [{"page": "/"}])', "have no keys; give keys="),
    Mistake(
        'store.append("clicks", [{"page": "/"}], [{"user": "one"}])',
        "'one' is not of the type int64",
    ),
    Mistake(
        'store.append("clicks", [{"page": "/"}], [{"user": 1}, {"user": 2}])',
        "1 rows but 2 keys; give one key per row",
    ),
    Mistake('store.get_many("clicks", [1, 2])', "row 0 is 1, a int; " + KINDS_OF_BATCH),
    Mistake('store.get("clicks", "one")', "'one' is not of the type int64 of column 'user'"),
    Mistake(
        'store.probe("clicks", [{"user": 1}]).fetch(5, 100)',
        "positions=5: give whole numbers, ascending",
    ),
    Mistake(
        'store.iterate("clicks", low=1, prefix=2)', "prefix=2 cannot be combined with low or high"
    ),
    Mistake('store.count_ranges("clicks", RangeBounds())', "have neither equal nor low nor high"),
    Mistake(
        'store.write([Mutation("insert", "clicks", [{"user": 1}])])',
        "give append, put, delete, retract, delete_range",
    ),
    Mistake('store.advance("clicks", noon)', "stream 'clicks' has no expiry"),
    Mistake('store.checkpoint("a/b")', "use 1 to 128 letters, digits and the characters _ . -"),
    Mistake(
        'StoreMapping(store, "clicks").__setitem__(1, 5)',
        "give a list of dicts, or make the mapping with unique=True",
    ),
    Mistake("encode_documents(5)", "is a int; give a list of dicts"),
    Mistake(
        'encode_documents([{"when": noon}])',
        "its values may be None, booleans, integers of 64 bits",
    ),
    Mistake(
        'export(home + "/nothing", home + "/copy")',
        "is not there; name the directory of a standalone store",
    ),
    Mistake('open_checkpoint(home + "/store", "monday")', "has no checkpoint 'monday'"),
)

SPARK = (
    Mistake(
        'multiway_join({"o": o}, "o.id = p.order_id")',
        "streams must map names to at least two streaming DataFrames",
    ),
    Mistake('multiway_join({"o": o, "p": spark.range(5)}, "o.id = p.id")', "is a static DataFrame"),
    Mistake(
        'multiway_join(op, "o.id = p.order")',
        "there is no column 'order' in stream 'p'; did you mean 'order_id'?",
    ),
    Mistake("multiway_join(op, 5)", "on=5: give a condition in SQL"),
    Mistake('multiway_join(op, ON, memory="64m")', "did you mean 'state=State(memory=...)'?"),
    Mistake(
        'multiway_join(op, ON, state=State(memory="1m"))',
        "memory=1048576: the memory cap is too small",
    ),
    Mistake(
        'multiway_join(op, ON, time=Time(event_time={"o": "at"}))',
        "on Spark the event time of a stream is the column of its watermark",
    ),
    Mistake(
        'multiway_join(op, ON, time=Time(retention={"o": "1 day"}))', "stream 'o' has no watermark"
    ),
    Mistake(
        'multiway_join(op, ON, time=Time(late="join"))',
        "this join keeps every row for ever, so no row is late",
    ),
    Mistake('multiway_join(op, ON, skew="spread")', "give Skew(hot_keys=...)"),
    Mistake(
        'multiway_join(op, ON + " AND p.at < o.at + INTERVAL 1 HOUR")',
        'add p.withWatermark("at", "10 minutes") and o.withWatermark',
        warns=True,
    ),
    Mistake(
        'multiway_join(op, ON).writeStream.format("console").outputMode("update").start()',
        'in "append" mode the result has the same rows',
    ),
    Mistake(
        'multiway_join(op, ON).writeStream.format("console").outputMode("complete").start()',
        "leave outputMode out, or aggregate the result",
    ),
    Mistake('asof_join(op, "o.at >= p.at", by=[])', "name at least one column"),
    Mistake(
        'asof_join(op, "o.at >= p.at", by={"o": "id", "p": "order_id"})',
        "has no watermark, which says when a result is final",
    ),
    Mistake('natural_join(o, "document")', "stream 'documents' has no such column"),
    Mistake('deduplicate(o, "nr")', "there is no column 'nr'"),
    Mistake(
        'deduplicate(o, "id", time=Time(within="1 day"))',
        "the stream has no watermark, so its rows have no event time",
    ),
    Mistake('deduplicate(spark.range(5), "id")', "use its own dropDuplicates"),
    Mistake("explain_join(o)", "the DataFrame contains no multiway_join"),
    Mistake("explain_join(op)", "explain_join describes a DataFrame, and this is a dict"),
    Mistake("configure(spark)", "give SparkSession.builder"),
)

TABLES = {
    "Joins in plain Python": JOINS,
    "Event time": TIMES,
    "Batches": BATCHES,
    "Documents, similarity, as-of joins, deduplication": OTHER_JOINS,
    "Stores": STORES,
    "On Spark": SPARK,
}


def plain_names(home: str) -> dict[str, Any]:
    """What the code of plain Python is tried with. ``close`` ends it."""
    from datetime import datetime

    import pyarrow as pa

    import lsmstate
    from lsmstate import join

    stamp = pa.timestamp("us")
    o = pa.schema([("id", pa.int64()), ("what", pa.string()), ("at", stamp), ("day", pa.date32())])
    p = pa.schema([("order_id", pa.int64()), ("at", stamp), ("zoned", pa.timestamp("us", "UTC"))])
    d = pa.schema([("id", pa.int64()), ("doc", pa.string())])
    v = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32()))])
    key, rows = pa.schema([("user", pa.int64())]), pa.schema([("page", pa.string())])
    clicks = lsmstate.StreamSchema("clicks", key, rows)
    names: dict[str, Any] = {name: getattr(lsmstate, name) for name in lsmstate.__all__}
    names |= {name: getattr(join, name) for name in join.__all__}
    op = {"o": o, "p": p}
    names |= {"o": o, "p": p, "d": d, "v": v, "op": op, "key": key, "rows": rows, "home": home}
    return names | {
        "clicks": clicks,
        "noon": datetime(2026, 1, 1, 12),
        "store": lsmstate.open_store(home + "/store", [clicks]),
        "join": join.MultiwayJoin(op, "o.id = p.order_id"),
        "docs": join.NaturalJoin(d, "doc"),
        "near": join.similarity_join({"a": v}, "a.v ~ b.v", metric="l2", threshold=1),
        "asof": join.asof_join(op, "o.at >= p.at"),
        "first": join.deduplicate(o, "id"),
    }


def spark_names(spark: Any, home: str) -> dict[str, Any]:
    """What the code on Spark is tried with: two streams of directories that stay empty."""
    from lsmstate import spark as face

    for name in ("o", "p"):
        Path(home, name).mkdir()
    o = spark.readStream.schema("id BIGINT, what STRING, at TIMESTAMP").parquet(home + "/o")
    p = spark.readStream.schema("order_id BIGINT, at TIMESTAMP").parquet(home + "/p")
    names = {name: getattr(face, name) for name in face.__all__ if name != "PrometheusListener"}
    on = "o.id = p.order_id"
    return names | {"spark": spark, "o": o, "p": p, "op": {"o": o, "p": p}, "ON": on}


def part() -> str:
    """The part of the page that the tables make."""
    lines = [HEADING, *_INTRODUCTION.splitlines()]
    for title, mistakes in TABLES.items():
        lines += ["", f"### {title}", "", "| code | what is said |", "|---|---|"]
        lines += [f"| {_code(each.code)} | {_code(each.said)} |" for each in mistakes]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    assert "`" not in text
    return f"`{text}`".replace("|", "\\|")


def written() -> str:
    """That part as the page has it."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^{HEADING}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    old = written()
    PAGE.write_text(page.replace(old, part()) if old else f"{page.rstrip()}\n\n{part()}")
