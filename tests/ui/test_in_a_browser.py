"""The page in Chromium beside a query that runs (`make ui-test`), and the guide's pictures."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from support.browser import opened
from support.page_states import make_store
from support.paths import ROOT
from support.spark_streams import FileStream

pytestmark = [pytest.mark.browser, pytest.mark.spark, pytest.mark.timeout(600)]
GUIDE = ROOT / "docs" / "guide"


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The command as a person runs it; the address that it prints."""
    command = [sys.executable, "-m", "lsmstate", "ui", str(directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        found = re.match(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)


def orders(number: int) -> pa.Table:
    rows = range(3000)
    return pa.table(
        {
            "id": pa.array([number * 3000 + i for i in rows], pa.int64()),
            "customer": pa.array([(i * i) % (40 + 30 * number) for i in rows], pa.int64()),
        }
    )


def payments(number: int) -> pa.Table:
    rows = range(2000)
    known = 3000 * (number + 1)  # every second payment is of one order, whose key is hot
    ids = pa.array([7 if i % 2 else (number * 3000 + i) % known for i in rows], pa.int64())
    return pa.table({"order_id": ids, "euros": pa.array(rows, pa.int64())})


def test_a_running_query_a_store_and_a_damaged_one(
    spark: Any, few_partitions: None, tmp_path: Path
) -> None:
    from lsmstate.spark import Skew, State, multiway_join

    states = tmp_path / "states"
    states.mkdir()
    o = FileStream(tmp_path / "o", "id BIGINT, customer BIGINT").add(orders(0))
    p = FileStream(tmp_path / "p", "order_id BIGINT, euros BIGINT").add(payments(0))
    streams = {"o": o.read(spark), "p": p.read(spark)}
    joined = multiway_join(
        streams,
        "o.id = p.order_id",
        skew=Skew(hot_keys="observe"),
        state=State(memory="16m", buckets=4),
    )
    query = (
        joined.writeStream.queryName("orders with payments")
        .format("parquet")
        .option("checkpointLocation", str(states / "orders"))
        .trigger(processingTime="0 seconds")
        .start(str(tmp_path / "out"))
    )
    try:
        query.processAllAvailable()
        make_store(states / "visits")
        make_store(states / "broken", is_damaged=True)
        with served(states) as address, opened(tmp_path / "browser") as page:
            page.look(1280)
            page.open(address)
            page.wait_for("document.querySelectorAll('#places option').length === 3")
            choose(page, "orders")
            page.wait_for("document.querySelector('#buckets tbody tr')")
            before = page.value("document.getElementById('overview').innerText")
            for number in range(1, 8):  # the query goes on, and the page shows it
                o.add(orders(number))
                p.add(payments(number))
                query.processAllAvailable()
            page.wait_for("document.querySelectorAll('.u-over').length === 5")
            page.wait_for("/newest micro-batch/.test(document.body.innerText)")
            page.wait_for(f"document.getElementById('overview').innerText !== {before!r}")
            page.wait_for("document.querySelector('#hot-keys tbody tr')")
            assert "multiway_join" in page.value("document.getElementById('plan').innerText")
            page.value("document.querySelector('#buckets button').click()")
            page.wait_for("/Levels of bucket/.test(document.getElementById('levels').innerText)")
            page.value("document.querySelector('#rows input').value = '7'")
            page.value("document.querySelector('#rows form').requestSubmit()")
            page.wait_for("document.querySelectorAll('#found tbody tr').length >= 1")
            page.wait_for("/7/.test(document.querySelector('#found tbody tr').innerText)")
            picture(page, "web-page-light")
            page.look(1280, is_dark=True)
            page.open(address)
            choose(page, "orders")
            page.wait_for("document.querySelectorAll('.u-over').length === 5")
            picture(page, "web-page-dark")
            page.look(390)
            page.open(address)
            choose(page, "orders")
            page.wait_for("document.querySelectorAll('.u-over').length === 5")
            assert page.value("document.documentElement.scrollWidth") <= 390
            picture(page, "web-page-narrow")
            page.look(1280)
            choose(page, "visits")
            page.wait_for("/write-ahead logs/.test(document.body.innerText)")
            choose(page, "broken")
            page.wait_for("/Levels/.test(document.body.innerText)")
            page.value("document.querySelector('#rows form').requestSubmit()")
            page.wait_for("/is damaged/.test(document.getElementById('found').innerText)")
            query.stop()
            choose(page, "orders")
            page.wait_for("/ended/.test(document.getElementById('overview').innerText)")
            wanted = [each for each in page.errors if "status of 500" not in each]
            assert wanted == [], "the page has errors, or asks elsewhere"
    finally:
        query.stop()


def choose(page: Any, place: str) -> None:
    page.wait_for(
        f"[...document.querySelectorAll('#places option')].some(o => o.value === '{place}')"
    )
    page.value(
        f"(() => {{ const s = document.getElementById('places'); s.value = '{place}'; "
        "s.dispatchEvent(new Event('change')); })()"
    )


def picture(page: Any, name: str) -> None:
    """As it stands after a moment, in the guide."""
    page.wait_for("document.fonts.status === 'loaded'")
    page.picture(GUIDE / f"{name}.png")
