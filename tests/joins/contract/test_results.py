"""Results that are filtered and counted before rows are made of them, against their rows."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, Results, State
from lsmstate.joins.local.parts.row_picks import Picked

A = pa.schema([("k", pa.int64()), ("x", pa.int64()), ("name", pa.string())])
B = pa.schema([("k", pa.int64()), ("y", pa.int64())])
ROWS_A = [{"k": n % 5, "x": n, "name": f"n{n % 3}" if n % 4 else None} for n in range(60)]
ROWS_B = [{"k": n % 6, "y": 2 * n} for n in range(40)]

JOINS: dict[str, dict[str, Any]] = {
    "one key": {"on": "a.k = b.k"},
    "filtered": {"on": "a.k = b.k AND a.x < b.y"},
    "computed": {"on": "a.k = b.k AND a.name = b.y"},
    "several keys": {"on": "a.k = b.k AND a.x = b.y"},
    "any condition": {"on": "a.x < b.y AND a.k <> b.k"},
    "left": {"on": "a.k = b.k", "how": "left", "emit": "changes"},
}


def asked(options: dict[str, Any]) -> tuple[MultiwayJoin, Results]:
    rows = [{**row, "name": "4" if row["x"] < 9 else row["name"]} for row in ROWS_A]
    if "a.name = b.y" in options["on"]:
        rows = [{**row, "name": str(row["x"])} for row in ROWS_A]
    join = MultiwayJoin({"a": A, "b": B}, piece_bytes=500, state=State(memory="8m"), **options)
    join.process("a", rows).close()
    return join, join.process("b", ROWS_B)


@pytest.mark.parametrize("kind", JOINS)
def test_filtered_and_counted_results_are_those_of_their_rows(kind: str) -> None:
    options = JOINS[kind]

    def rows() -> list[dict[str, Any]]:
        join, results = asked(options)
        with join:
            return results.to_table().to_pylist()

    every = rows()
    wanted = [row for row in every if row["x"] % 2 == 0 and row["name"] is not None]
    condition = "x % 2 = 0 AND name IS NOT NULL"
    join, results = asked(options)
    with join:
        assert results.where(condition).to_table().to_pylist() == wanted
    join, results = asked(options)
    with join:
        assert results.where("x % 2 = 0").where("name IS NOT NULL").count() == len(wanted)
    join, results = asked(options)
    with join:
        counted = results.where(condition).counts(by=["name", "a_k"])
        assert counted.schema.names == ["name", "a_k", "count"]
        found = {(row["name"], row["a_k"]): row["count"] for row in counted.to_pylist()}
        assert found == Counter((row["name"], row["a_k"]) for row in wanted)
    join, results = asked(options)
    with join:
        by_name = {r["name"]: r["count"] for r in results.counts(by="name").to_pylist()}
        assert by_name == Counter(row["name"] for row in every)
        assert sum(by_name.values()) == len(every) > 3


@pytest.mark.parametrize("kind", ["one key", "filtered", "several keys", "any condition"])
def test_no_row_is_made_to_judge_and_count(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    join, results = asked(JOINS[kind])
    monkeypatch.delattr(Picked, "made")
    with join:
        assert results.where("x > 3").counts(by="x").num_rows > 3


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda r: r.where("x >"), "syntax error at '>'"),
        (lambda r: r.where("z = 1"), "no column 'z'.* Known: a_k, x, name, b_k, y"),
        (lambda r: r.where("x + 1"), "is int64, and no condition"),
        (lambda r: r.where("upper(name) = 'A'"), "the function upper is not known here"),
        (lambda r: r.counts(by="nme"), "did you mean 'name'"),
        (lambda r: r.where(5), "the condition is a int; give SQL as text"),
        (lambda r: r.counts(by=[]), "name at least one column"),
        (lambda r: r.counts(by=5), r"counts\(by=5\): name at least one column"),
    ],
)
def test_what_does_not_fit_is_refused(ask: Any, words: str) -> None:
    join, results = asked(JOINS["one key"])
    with join, pytest.raises(InvalidArgumentError, match=words):
        ask(results)


def test_a_failing_condition_fails_the_results() -> None:
    join, results = asked(JOINS["one key"])
    with join, pytest.raises(InvalidArgumentError, match="division by zero"):
        results.where("1 / (x - 7) > 0").count()
