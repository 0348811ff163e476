"""The pages in docs/reference say what the code says: options, defaults, commands, metrics, errors.

A new or renamed option, or another default, fails here until its page has it.
"""

import ast
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

import lsmstate
from lsmstate import Expiry, InvalidArgumentError, Options, StreamSchema, open_store
from lsmstate.cli.main import app
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.join import (
    MultiwayJoin,
    NaturalJoin,
    State,
    Time,
    asof_join,
    similarity_join,
)
from lsmstate.joins.options import Skew
from lsmstate.stats import CacheStats, FilterStats, PauseStats, ProbeStats, StoreStats, WriteStats
from support.grouped import grouped
from support.paths import ROOT, SUPPORT, TESTS

PAGES = ROOT / "docs" / "reference"
RE_SECTION = re.MULTILINE | re.DOTALL
LAYERS = [ROOT / layer for layer in ("lsmstate", "joins", "spark_integration")]
#: Settings of the session that the demo makes for itself.
NOT_OF_QUERIES = ROOT / "spark_integration" / "session" / "local_session.py"

Row = dict[str, str]


def tables(page: str) -> dict[str, list[Row]]:
    """By heading, the rows of the tables below it, each by the names of its columns."""
    found: dict[str, list[Row]] = {}
    heading, columns = "", None
    for line in (PAGES / f"{page}.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").replace("`", "")
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if columns is None:
            columns = cells
        elif not set(line) <= set("|- "):
            assert len(cells) == len(columns), line
            found.setdefault(heading, []).append(dict(zip(columns, cells, strict=True)))
    return found


OPTIONS = tables("options")


def code(cell: str) -> str:
    """The code that a cell begins with."""
    (found,) = re.findall(r"^`([^`]+)`", cell)
    return str(found)


_VALUES = {"Options": Options, "Skew": Skew, "State": State, "Time": Time}


def default(cell: str) -> object:
    """What a column of defaults says; ``inspect.Parameter.empty`` for what has none."""
    if cell == "required":
        return inspect.Parameter.empty
    return eval(code(cell), {"__builtins__": {}, **_VALUES})


def shown(*parts: Sequence[Row]) -> dict[str, object]:
    """Options and their defaults, as tables have them."""
    return {code(row["option"]): default(row["default"]) for part in parts for row in part}


def taken(*functions: Callable[..., object]) -> dict[str, object]:
    """Parameters of functions and their defaults, but for a rest of any names."""
    return {
        name: parameter.default
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name != "self"
    }


def from_option(heading: str, first: str, last: str) -> list[Row]:
    """The rows from one option to another one, of the tables under a heading."""
    rows = [row for row in OPTIONS[heading] if "option" in row]
    names = [code(row["option"]) for row in rows]
    return rows[names.index(first) : names.index(last) + 1]


def fixed(heading: str, option: str) -> str:
    """``yes``, ``no`` or ``first choice``; of an option that stands in a group, what its group
    says."""
    for group in (Time, State, Skew):
        heading = group.__name__ if option in taken(group) else heading
    (row,) = [row for row in OPTIONS[heading] if code(row["option"]) == option]
    (found,) = re.findall("^(yes|no|first choice)", row["fixed by the first start"])
    return str(found)


def test_options_without_spark() -> None:
    assert shown(OPTIONS["MultiwayJoin"]) == taken(MultiwayJoin)
    assert shown([r for r in OPTIONS["similarity_join"] if "option" in r]) == taken(similarity_join)
    assert shown([r for r in OPTIONS["asof_join"] if "option" in r]) == taken(asof_join)
    assert shown(OPTIONS["NaturalJoin"]) == taken(NaturalJoin)
    assert shown(OPTIONS["Time"]) == taken(Time)
    assert shown(OPTIONS["State"]) == taken(State)
    assert shown(OPTIONS["Skew"]) == taken(Skew)
    of_store = from_option("lsmstate.Options", "memory_bytes", "background")
    assert shown(of_store) == taken(Options)
    assert {row["fixed by the first start"] for row in of_store} == {"no"}
    stores = "open_store and StreamSchema"
    assert shown(from_option(stores, "directory", "options")) == taken(open_store)
    assert shown(from_option(stores, "name", "zones")) == taken(StreamSchema)
    assert shown(from_option(stores, "column", "after")) == taken(Expiry)


def test_options_on_spark() -> None:
    pytest.importorskip("pyspark")
    from lsmstate.spark import (
        deduplicate,
        multiway_join,
        natural_join,
        stateful_batches,
        streaming_sql,
        to_multiway,
    )
    from lsmstate.spark_integration.sql.staged import StagedQuery
    from lsmstate.spark_integration.state_reader import data_source

    assert shown(OPTIONS["multiway_join"]) == taken(multiway_join)
    assert shown(OPTIONS["natural_join"]) == taken(natural_join)
    assert shown(OPTIONS["stateful_batches"]) == taken(stateful_batches)
    assert shown(OPTIONS["deduplicate"]) == taken(deduplicate, lsmstate.join.deduplicate)
    sql = "streaming_sql and to_multiway"
    assert shown(from_option(sql, "spark", "state")) == taken(streaming_sql, to_multiway)
    assert shown(from_option(sql, "answer", "trigger")) == taken(StagedQuery.start)
    assert set(shown(OPTIONS["Reading a query's state"])) == set(data_source._OPTIONS)


def test_options_that_a_query_says_itself() -> None:
    pytest.importorskip("pyspark")
    module = importlib.import_module("lsmstate.spark_integration.streaming_sql")
    text = (PAGES / "options.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^- (.*) raise an error: the query says", text, re.MULTILINE)
    assert set(re.findall("`(.*?)`", line)) == set(module._SAID_BY_THE_QUERY)


# What the first start fixes: two starts that differ in one option. ------------------------------

ROWS = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("x", pa.int64())])
CHANGES = ROWS.append(pa.field("what", pa.string()))
TIMES = {"a": "t", "b": "t"}
INTERVAL = "a.k = b.k AND b.t BETWEEN a.t AND a.t + INTERVAL 1 HOUR"
OUTER = f"a LEFT JOIN b ON {INTERVAL}"
PLAIN: dict[str, Any] = {"streams": {"a": ROWS, "b": ROWS}, "on": "a.k = b.k"}
LOGS: dict[str, Any] = {**PLAIN, "streams": {"a": CHANGES, "b": CHANGES}, "emit": "changes"}
TIMED: dict[str, Any] = {**PLAIN, "event_time": TIMES, "retention": {"a": "1 hour"}}
TREE: dict[str, Any] = {
    "streams": {"a": ROWS, "b": ROWS, "c": ROWS},
    "on": ["k"],
    "algorithm": "tree",
}


@pytest.mark.parametrize(
    ("option", "first", "later"),
    [
        ("streams", PLAIN, {"streams": {"b": ROWS, "a": ROWS}}),
        ("streams", PLAIN, {"streams": {"a": ROWS, "b": CHANGES}}),
        ("on", PLAIN, {"on": "a.k = b.x"}),
        ("on", {**PLAIN, "on": INTERVAL, "event_time": TIMES}, {"on": INTERVAL.replace("1", "2")}),
        ("how", {**PLAIN, "how": "left", "emit": "changes"}, {"how": "full"}),
        ("emit", PLAIN, {"emit": "changes"}),
        ("emit", {**PLAIN, "on": OUTER, "event_time": TIMES, "emit": "changes"}, {"emit": "final"}),
        ("changes", LOGS, {"changes": {"a": "what"}}),
        ("unmatched", {**LOGS, "changes": {"a": "what"}}, {"unmatched": "error"}),
        ("memory", PLAIN, {"memory": "8m"}),
        ("backend", PLAIN, {"backend": "memory"}),
        ("piece_bytes", PLAIN, {"piece_bytes": 1000}),
        ("algorithm", PLAIN, {"algorithm": "tree"}),
        ("order", TREE, {"order": ["c", "b", "a"]}),
        ("event_time", PLAIN, {"event_time": TIMES}),
        ("retention", TIMED, {"retention": {"a": "2 hours"}}),
        ("retention", TIMED, {"retention": None}),
        ("late", TIMED, {"late": "join"}),
        ("late", TIMED, {"late": "side"}),
    ],
)
def test_what_the_first_start_fixes(
    option: str, first: dict[str, Any], later: dict[str, Any], tmp_path: Path
) -> None:
    path = str(tmp_path / "state")
    row = {"k": 1, "t": datetime(2026, 1, 1), "x": 1, "what": "+I"}
    with MultiwayJoin(**grouped(**first, state_dir=path)) as join:
        for stream, schema in first["streams"].items():
            for _ in join.process(stream, pa.RecordBatch.from_pylist([row], schema=schema)):
                pass
        join.commit()
    try:
        MultiwayJoin(**grouped(**{**first, **later}, state_dir=path)).close()
        found = "no"
    except InvalidArgumentError:
        found = "yes"
    # Late rows that are kept aside are part of the state on Spark only.
    assert found == ("no" if option == "late" else fixed("MultiwayJoin", option))


@pytest.mark.spark
@pytest.mark.stress
def test_what_the_first_start_of_a_query_fixes(spark: Any, tmp_path: Path) -> None:
    """By the settings that its checkpoint compares; options that are free are changed at once."""
    from lsmstate.spark import multiway_join, stateful_batches
    from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan
    from lsmstate.spark_integration.plan.stateful_plan import Wanted
    from lsmstate.spark_integration.stateful_operator.query_start import operators_in

    (tmp_path / "rows").mkdir()
    schema = "k LONG, m LONG, t TIMESTAMP, x LONG, what STRING"
    rows = spark.readStream.schema(schema).parquet(str(tmp_path / "rows"))
    timed = rows.withWatermark("t", "1 minute")

    built: dict[str, Wanted] = {}

    def wanted(operator: Callable[..., Any], options: Mapping[str, Any]) -> Wanted:
        if (options_text := repr((operator, options))) not in built:
            (built[options_text],) = operators_in(analyzed_plan(operator(**grouped(**options))))
        return built[options_text]

    def check(operator: Callable[..., Any], option: str, first: dict[str, Any], new: Any) -> None:
        was, now = wanted(operator, first), wanted(operator, {**first, option: new})
        found = "no" if was.settings == now.settings else "yes"
        assert fixed(operator.__name__, option) == found, option

    free = {"memory": "8m", "options": {"compression": "zstd"}, "cache": "1g"}
    free |= {"storage_options": {"region": "x"}, "cache_dir": str(tmp_path)}
    assert {fixed("State", option) for option in free} == {"no"}
    plain = {"streams": {"a": timed, "b": timed}, "on": "a.k = b.k"}
    changed = wanted(multiway_join, {**plain, **free, "buckets": 3})
    assert changed.settings == wanted(multiway_join, plain).settings
    assert changed.buckets == 3
    changes = {**plain, "emit": "changes"}
    kept = {**plain, "retention": {"a": "1 hour"}}
    graph = {"streams": {"a": timed, "b": timed, "c": timed}, "on": "a.k = b.k AND b.m = c.m"}
    check(multiway_join, "streams", plain, {"a": timed, "b": timed.drop("x")})
    check(multiway_join, "on", plain, "a.k = b.k AND a.x < b.x")
    check(multiway_join, "how", changes, "left")
    check(multiway_join, "emit", plain, "changes")
    check(multiway_join, "changes", changes, {"a": "what"})
    check(multiway_join, "unmatched", changes, "error")
    check(multiway_join, "shares", {**graph, "buckets": 4}, {"a.k": 2, "b.m": 2})
    check(multiway_join, "skew", plain, "observe")
    check(multiway_join, "pins", plain, {"rates": "2026"})
    check(multiway_join, "retention", kept, {"a": "2 hours"})
    check(multiway_join, "late", kept, "side")
    check(multiway_join, "late_batches", {**kept, "late": "side"}, 3)
    check(multiway_join, "result_time", plain, "at")
    joined = wanted(multiway_join, {**kept, "late": "join"})
    assert joined.settings == wanted(multiway_join, kept).settings
    first, later = (
        wanted(multiway_join, {**graph, "buckets": 4, "rows": rows})
        for rows in (None, {"a": 1, "b": 9, "c": 99})
    )
    assert first.settings == later.settings
    assert first.adopted != later.adopted
    assert fixed("multiway_join", "rows") == "first choice"
    seen = {"df": rows, "key": "k", "function": list, "streams": {"s": "x LONG"}, "schema": "k INT"}
    check(stateful_batches, "df", seen, {"other": rows})
    check(stateful_batches, "key", seen, "m")
    check(stateful_batches, "function", seen, sorted)
    check(stateful_batches, "streams", seen, {"s": "y LONG"})
    check(stateful_batches, "schema", seen, "z INT")
    check(stateful_batches, "null_keys", seen, "drop")
    check(stateful_batches, "output_mode", seen, "update")
    assert fixed("State", "backend") == "yes"
    other = wanted(stateful_batches, {**seen, "backend": "memory"})
    assert other.settings != wanted(stateful_batches, seen).settings


# Settings and variables. ------------------------------------------------------------------------


def sources(*places: Path) -> Iterator[Path]:
    for place in places:
        yield from [place] if place.is_file() else sorted(place.rglob("*.py"))


@cache
def nodes(path: Path) -> Sequence[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def constants(path: Path) -> Iterator[str]:
    """All text in a file but its docstrings; of formatted text, the parts between."""
    documents = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    for node in nodes(path):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documents
        ):
            yield node.value


def test_settings_of_spark() -> None:
    named = re.compile(r"(?<![\w.])spark\.(?:sql|python|local|hadoop|driver|executor)\.[\w.]*\w")
    page = (PAGES / "options.md").read_text(encoding="utf-8")
    listed = {code(row["setting"]) for row in OPTIONS["Settings of Spark"]}
    for path in sources(*LAYERS):
        if path != NOT_OF_QUERIES:
            for setting in (name for text in constants(path) for name in named.findall(text)):
                assert setting in listed, f"{path} names {setting}"
    assert "lsmstate.spark_integration.daemon" in page
    assert importlib.util.find_spec("lsmstate.spark_integration.daemon") is not None


def variables(path: Path) -> Iterator[str]:
    """Environment variables that a file reads or sets by name."""
    for node in nodes(path) if "environ" in path.read_text(encoding="utf-8") else ():
        match node:
            case ast.Subscript(
                value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(n))
            ):
                yield n
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="environ")),
                args=[ast.Constant(value=str(n)), *_],
            ):
                yield n


def test_environment_variables() -> None:
    from lsmstate.spark_integration.metrics.worker_memory import ENVIRONMENT

    rows = OPTIONS["Environment variables"]
    listed = {code(row["variable"]) for row in rows if "who reads it" in row}
    places = (*LAYERS, ROOT / "setup.py")
    found = {name for path in sources(*places) for name in variables(path)}
    assert found | set(ENVIRONMENT) == listed
    of_tests = {code(row["variable"]) for row in rows if "default" in row}
    found = {name for path in sources(TESTS) for name in variables(path)}
    assert of_tests <= found
    by_hand = [path for path in sources(TESTS) if path.parent != SUPPORT]
    found = {name for path in by_hand for name in variables(path)}
    assert {name for name in found if name.startswith("LSMSTATE_")} <= of_tests | listed


# Commands, metrics, errors. ---------------------------------------------------------------------


def test_commands() -> None:
    pages = tables("cli")
    group = typer.main.get_command(app)
    commands: Mapping[str, Any] = group.commands  # type: ignore[attr-defined]
    assert [code_of_link(row["command"]) for row in pages["Command line"]] == list(commands)
    for name, command in commands.items():
        wanted = {
            "/".join([*parameter.opts, *parameter.secondary_opts]): inspect.Parameter.empty
            if parameter.required
            else parameter.default
            for parameter in command.params
        }
        rows = pages[f"lsmstate {name}"]
        found = {code(row["argument or option"]): default(row["default"]) for row in rows}
        assert found == wanted, name


def test_json_of_commands(tmp_path: Path) -> None:
    """Each object that a command prints has the fields that the page lists, those of fields in
    brackets, and no others."""
    stream = StreamSchema("s", pa.schema([("k", pa.int64())]), pa.schema([("x", pa.int64())]))
    store = str(tmp_path / "store")
    with open_store(store, [stream]) as opened:
        rows = pa.RecordBatch.from_pydict({"x": [1, 2]})
        opened.append("s", rows, rows.rename_columns(["k"]))
        opened.commit()
    place, text = str(tmp_path / "place"), (PAGES / "cli.md").read_text(encoding="utf-8")
    for command in (
        ["inspect", store],
        ["verify", store],
        ["stats", store],
        ["compact", store],
        ["checkpoints", store, "--create", "monday"],
        ["export", store, place],
        ["exports", place],
        ["restore", place, str(tmp_path / "restored")],
        ["repair", store, str(tmp_path / "repaired")],
    ):
        done = CliRunner().invoke(app, [*command, "--json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout.splitlines()[0])
        (section,) = re.findall(rf"^## `lsmstate {command[0]}`\n(.*?)(?:^## |\Z)", text, RE_SECTION)
        (line,) = re.findall(r"^- JSON: (.*)$", section, re.MULTILINE)
        listed = set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", line)))
        top = set(found[0] if isinstance(found, list) else found)
        assert top == listed, command[0]


def code_of_link(cell: str) -> str:
    return code(cell.strip("["))


def members(kind: type) -> set[str]:
    """Fields and properties of a dataclass."""
    properties = {n for n, v in vars(kind).items() if isinstance(v, property)}
    return {field.name for field in fields(kind)} | properties


def test_metrics() -> None:
    pytest.importorskip("pyspark")
    from lsmstate.spark import QueryMetrics
    from lsmstate.spark_integration.metrics.hottest_keys import HotKey

    pages = tables("metrics")
    kinds = (CacheStats, FilterStats, ProbeStats, WriteStats, PauseStats, HotKey)
    for kind in (QueryMetrics, StoreStats, *kinds):
        listed = [code(row["field"]) for row in pages[kind.__name__]]
        assert len(listed) == len(set(listed))
        assert set(listed) == members(kind), kind
    components = {code(row["component"]) for row in pages["Memory components"]}
    assert components == set(Budget(1 << 20).usage())


def test_metrics_of_prometheus() -> None:
    client = pytest.importorskip("prometheus_client")
    pytest.importorskip("pyspark")
    from lsmstate.spark import PrometheusListener

    listener = PrometheusListener(client.CollectorRegistry())
    suffix = {"counter": "_total"}
    found = {f.name + suffix.get(f.type, ""): f.type for f in listener.collect()}
    rows = tables("metrics")["Prometheus"]
    assert {code(row["metric"]): row["type"] for row in rows} == found


def test_dashboard_of_grafana() -> None:
    """Each panel asks for metrics that are exported, and each of those is on some panel."""
    text = (PAGES / "grafana-dashboard.json").read_text(encoding="utf-8")
    panels = json.loads(text)["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    names = {n for expression in asked for n in re.findall(r"\blsmstate_\w+", expression)}
    rows = tables("metrics")["Prometheus"]
    suffix = {"histogram": "_bucket"}
    assert names == {code(row["metric"]) + suffix.get(row["type"], "") for row in rows}
    labels = {n for expression in asked for n in re.findall(r"(\w+)=~?\"", expression)}
    assert labels == {"query"}
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_errors() -> None:
    rows = tables("errors")["Classes"]
    assert {code(row["class"]) for row in rows} == set(lsmstate.errors.__all__)


def messages(path: Path) -> Iterator[str]:
    """All text in a file, formatted text with ``…`` where a value stands."""
    for node in nodes(path):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages() -> None:
    """Each that the page names is raised somewhere in these words."""
    said = [text for path in sources(*LAYERS) for text in messages(path)]
    said += [path.read_text(encoding="utf-8") for path in (ROOT / "cython_ext").rglob("*.pyx")]
    rows = [row for part in tables("errors").values() for row in part if "message" in row]
    assert len(rows) > 20
    named = [code(row["message"]) for row in rows]
    assert [words for words in named if not any(words in text for text in said)] == []
