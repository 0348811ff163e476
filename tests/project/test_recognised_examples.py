"""The examples of the guide: what they print, and their results beside DuckDB or brute force."""

import contextlib
import importlib.util
import io
import json
import random
import re
from collections import Counter
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from support.document_cases import leaves, pairs_of
from support.paths import ROOT

GUIDE = ROOT / "docs" / "guide"
NOON = datetime(2026, 1, 1, 12)
PRINTED = dict(
    re.findall(
        r"^`python examples/(\w+)\.py` prints:\n\n```text\n(.*?)```$",
        (GUIDE / "examples.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / f"examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(sql: str, **tables: pa.Table) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as db:
        for name, table in tables.items():
            db.register(name, table)
        return Counter(db.execute(sql).fetchall())


def rows_of(table: pa.Table, *columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[c] for c in columns) for row in table.to_pylist())


def at(rng: random.Random, minutes: int) -> datetime:
    return NOON + timedelta(seconds=rng.randrange(60 * minutes), microseconds=rng.randrange(9))


@pytest.mark.parametrize("name", PRINTED)
def test_what_an_example_prints(name: str) -> None:
    module, printed = example(name), io.StringIO()
    with contextlib.redirect_stdout(printed):
        if hasattr(module, "main"):
            module.main()
        else:
            print(*module.first_of_each(module.SOME), sep="\n")
    assert printed.getvalue() == PRINTED[name]


def test_all_examples_are_on_the_page() -> None:
    text = (GUIDE / "examples.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`examples/(\w+)\.py`", text)) == set(PRINTED)
    assert len(PRINTED) == 6


def test_enriched_clicks() -> None:
    module, rng = example("enrich_clicks"), random.Random(1)
    clicks = [{"user": rng.randrange(9), "at": at(rng, 60), "page": f"/{n}"} for n in range(80)]
    users = [{"user": rng.randrange(8), "at": at(rng, 60), "plan": f"p{n}"} for n in range(60)]
    found = Counter(
        tuple(row.values()) for row in module.enriched(clicks, users, NOON + timedelta(hours=2))
    )
    tables = {
        "c": pa.Table.from_pylist(clicks, module.CLICKS),
        "u": pa.Table.from_pylist(users, module.USERS),
    }
    sql = "SELECT c.user, page, plan FROM c ASOF LEFT JOIN u ON c.user = u.user AND c.at >= u.at"
    assert found == answer(sql, **tables)


def test_orders_with_payments_and_shipments() -> None:
    module, rng = example("orders_payments_shipments"), random.Random(2)
    days = 14 * 24 * 60
    rows = {
        "o": [{"id": n, "ordered": at(rng, days)} for n in range(60)],
        "p": [
            {"paid_order": rng.randrange(70), "paid": at(rng, days), "euros": n} for n in range(90)
        ],
        "s": [{"sent_order": rng.randrange(70), "sent": at(rng, days)} for n in range(90)],
    }
    tables = {name: pa.Table.from_pylist(some, module.STREAMS[name]) for name, some in rows.items()}
    found = module.joined(rows, NOON + timedelta(days=40))
    columns = ("id", "paid", "euros", "sent")
    assert rows_of(found, *columns) == answer(
        f"SELECT {', '.join(columns)} FROM {module.JOINS}", **tables
    )
    assert found.num_rows > 60


def test_ad_impressions() -> None:
    module, rng = example("ad_impressions"), random.Random(3)
    seen = sorted(
        ({"ad": rng.randrange(6), "seen": at(rng, 600), "site": "s"} for _ in range(90)),
        key=lambda r: r["seen"],
    )
    clicks = sorted(
        ({"clicked_ad": rng.randrange(6), "clicked": at(rng, 600)} for _ in range(90)),
        key=lambda r: r["clicked"],
    )
    batches = []
    for first in range(0, 90, 10):
        batches += [("i", seen[first : first + 10]), ("c", clicks[first : first + 10])]
    found, late, _ = module.matched(batches)
    tables = {
        "i": pa.Table.from_pylist(seen, module.STREAMS["i"]),
        "c": pa.Table.from_pylist(clicks, module.STREAMS["c"]),
    }
    assert late == 0
    columns = ("ad", "seen", "clicked")
    assert rows_of(found, *columns) == answer(
        f"SELECT ad, seen, clicked FROM i JOIN c ON {module.ON}", **tables
    )


def test_trades_and_quotes() -> None:
    module, rng = example("trades_quotes"), random.Random(4)
    trades = [{"symbol": rng.choice("AB"), "at": at(rng, 5), "price": float(n)} for n in range(80)]
    quotes = [
        {"symbol": rng.choice("AB"), "at": at(rng, 5), "bid": float(n), "ask": n + 0.5}
        for n in range(60)
    ]
    found = module.priced(trades, quotes, NOON + timedelta(hours=1))
    tables = {
        "t": pa.Table.from_pylist(trades, module.TRADES),
        "q": pa.Table.from_pylist(quotes, module.QUOTES),
    }
    near = "q.at >= t.at - INTERVAL 5 SECONDS"
    sql = (
        f"SELECT price, CASE WHEN {near} THEN bid END, CASE WHEN {near} THEN ask END "
        "FROM t ASOF LEFT JOIN q ON t.symbol = q.symbol AND t.at >= q.at"
    )
    assert rows_of(found, "price", "bid", "ask") == answer(sql, **tables)


def test_log_records() -> None:
    module, rng = example("log_records"), random.Random(5)
    records = [
        {
            name: rng.randrange(4)
            for name in ("user", "session", "host", "kind")
            if rng.random() < 0.7
        }
        for _ in range(80)
    ]

    def belong(one: dict[str, int], other: dict[str, int]) -> bool:
        shared = (set(one) & set(other)) - {"kind"}
        return len(shared) >= 2 and all(one[name] == other[name] for name in shared)

    wanted = {(a, b) for a, b in combinations(range(80), 2) if belong(records[a], records[b])}
    found = list(module.related(records))
    assert {tuple(sorted(pair)) for pair in found} == wanted
    assert len(found) == len(wanted) > 10


def test_api_calls() -> None:
    """Real requests, of three services that have many."""
    pytest.importorskip("botocore")
    module = example("api_calls")
    calls = list(module.documented(["autoscaling", "kms", "s3"]))
    assert len({tuple(sorted(request)) for _, request in calls}) > 50
    left_out = set(module.LEFT_OUT)
    requests = [
        {at: value for at, value in leaves(request).items() if at.split(".")[0] not in left_out}
        for _, request in calls
    ]
    wanted = {(calls[a][0], calls[b][0]) for a, b in pairs_of(requests)}
    found = rows_of(module.related(calls), "first_call", "second_call")
    assert set(found) == wanted
    assert found.total() == len(wanted) > 500


def test_the_notebook_prints_what_it_shows() -> None:
    cells = json.loads((GUIDE / "enrich_clicks.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec("".join(cell["source"]), names)
            shown = "".join(text for each in cell["outputs"] for text in each["text"])
            assert printed.getvalue() == shown
    assert len(cells) > 8


def test_the_notebook_is_the_example() -> None:
    text = Path(GUIDE / "enrich_clicks.ipynb").read_text(encoding="utf-8")
    assert PRINTED["enrich_clicks"].splitlines()[0] in text
