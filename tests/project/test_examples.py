"""The examples people start from: run as they stand, and checked against DuckDB."""

import importlib.util
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")

from lsmstate.options import MIB
from support.paths import ROOT
from support.spark_streams import FileStream, assert_same_rows, committed, metric, pieces

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EXAMPLES = ROOT / "examples"


def example(name: str) -> ModuleType:
    """Loaded as a script is: nobody can import it, so its functions travel by value."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, home: Path, source: FileStream, memory: str) -> Any:
    """The example's ``main``, in the session of the tests."""
    places = (str(source.directory), str(home / "checkpoint"), str(home / "out"))
    return example(name).main(*places, memory)


@pytest.mark.stress
def test_deduplicate(tmp_path: Path) -> None:
    """Keys repeat within a file and over files, over a restart too; the first row of each stays."""
    ids = [None if i % 97 == 0 else f"id{i * i % 1009:06d}" for i in range(4000)]
    table = pa.table({"id": ids, "n": pa.array(range(4000), pa.int64())})
    files = pieces(table, 4)
    events = FileStream(tmp_path / "events", "id STRING, n BIGINT").add(*files[:3])
    run("deduplicate", tmp_path, events, "16m")
    events.add(files[3])
    query = run("deduplicate", tmp_path, events, "64m")
    firsts = f"SELECT id, min(n) AS n FROM {events.sql} GROUP BY id"
    assert assert_same_rows(firsts, committed(tmp_path / "out")) == 506
    assert metric(query, "rows_in") == [1000]


@pytest.mark.stress
@pytest.mark.parametrize(
    ("groups", "workers"),
    [
        pytest.param(170_000, 1, id="more-than-one-cap"),
        pytest.param(300_000, 2, id="more-than-the-caps-of-both"),
    ],
)
def test_aggregate(tmp_path: Path, groups: int, workers: int) -> None:
    """Each micro-batch gives the customers it changes, once, with totals that DuckDB agrees to;
    all of them, compressed as they lie on disk, are more than so many workers may hold."""
    rows = groups + 20_000
    orders = FileStream(tmp_path / "orders", "customer BIGINT, amount DECIMAL(9,2)")
    random = np.random.default_rng(5)
    known = random.integers(0, 1 << 62, groups)
    numbers = pa.array(random.permutation(rows) % groups, mask=np.arange(rows) % 50 == 0)
    customers = pc.take(pa.array(known), numbers)
    cents = pa.array(random.integers(0, 1_000_000_000, rows)).cast(pa.decimal128(19, 0))
    amounts = pc.multiply(cents, pa.scalar(Decimal("0.01"))).cast(pa.decimal128(9, 2))
    orders.add(*pieces(pa.table({"customer": customers, "amount": amounts}), 2))
    query = run("aggregate", tmp_path, orders, "5m")
    out = f"read_parquet('{tmp_path}/out/*/*.parquet', hive_partitioning=true)"
    with duckdb.connect() as db:
        newest = (
            "SELECT customer, max_by((orders, total, least, greatest), batch) "
            f"FROM {out} GROUP BY 1"
        )
        totals = (
            "SELECT customer, (count(*), sum(amount), min(amount), max(amount)) "
            f"FROM {orders.sql} GROUP BY 1"
        )
        for left, right in ((newest, totals), (totals, newest)):
            assert db.execute(f"{left} EXCEPT ALL {right} LIMIT 3").fetchall() == []
        twice = f"SELECT batch, customer FROM {out} GROUP BY ALL HAVING count(*) > 1 LIMIT 3"
        assert db.execute(twice).fetchall() == []
        assert db.execute(f"SELECT count(*) > {groups} * 0.97 FROM ({totals})").fetchall() == [
            (True,)
        ]
    assert max(metric(query, "peak_state_bytes")) <= 5 * MIB
    assert max(metric(query, "state_disk_bytes")) > 5 * MIB * workers


JOINED = """
SELECT c.name, o.day, l.price FROM {customers} c JOIN {orders} o ON o.customer = c.id
JOIN {lines} l ON l.order_id = o.id WHERE l.price > 1"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileStream]:
    home = tmp_path_factory.mktemp("shop")
    names = pa.table({"id": pa.array(range(40)), "name": [f"c{i % 7}" for i in range(40)]})
    orders = pa.table(
        {
            "id": pa.array(range(90)),
            "customer": pa.array([i * 7 % 45 for i in range(90)]),
            "day": pa.array([i % 30 for i in range(90)], pa.date32()),
        }
    )
    lines = pa.table(
        {
            "order_id": pa.array([i * 11 % 100 for i in range(200)]),
            "price": pa.array([i % 5 for i in range(200)], pa.int32()),
        }
    )
    return {
        "customers": FileStream(home / "customers", "").add(*pieces(names, 2)),
        "orders": FileStream(home / "orders", "").add(*pieces(orders, 2)),
        "lines": FileStream(home / "lines", "").add(*pieces(lines, 2)),
    }


@pytest.mark.parametrize(
    "name", ["sql_join", pytest.param("dataframe_join", marks=pytest.mark.stress), "arrow_join"]
)
def test_a_join_in_each_way_of_use(name: str, shop: dict[str, FileStream], tmp_path: Path) -> None:
    home, out = str(shop["lines"].directory.parent), tmp_path / "out"
    if name == "arrow_join":
        example(name).main(home, str(out), "8m")
    else:
        example(name).main(home, str(tmp_path / "checkpoint"), str(out), "8m")
    files = [str(out)] if name == "arrow_join" else committed(out)
    expected = JOINED.format(**{stream: files.sql for stream, files in shop.items()})
    assert_same_rows(expected, files, at_least=80)
