"""The HTTP interface of the page: what it shows, and whom it refuses."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lsmstate import StreamSchema, open_store
from lsmstate.spark_integration.metrics.history import MetricsHistory, read_history, read_sizes
from lsmstate.ui.app import ui_app
from lsmstate.ui.views import Views
from support.asgi_client import ask
from support.cli_cases import run
from support.page_states import EXPLANATION, ROWS, make_query, make_store


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("states")
    make_query(found / "queries" / "first")
    make_store(found / "store")
    make_store(found / "damaged", is_damaged=True)
    return found


@pytest.fixture(scope="module")
def app(home: Path) -> Any:
    return ui_app(Views(str(home)))


def test_all_states_below_the_directory_are_listed(app: Any, home: Path) -> None:
    found = ask(app, "/api/places").json()
    assert found["directory"] == str(home)
    listed = [(each["at"], each["kind"]) for each in found["places"]]
    assert listed == [("damaged", "store"), ("queries/first", "query"), ("store", "store")]


def test_a_query_is_shown_as_the_command_line_shows_it(app: Any, home: Path) -> None:
    found = ask(app, "/api/query", {"at": "queries/first"}).json()
    told = json.loads(run("state", home / "queries" / "first", "--json").stdout)
    assert {name: found[name] for name in told} == told
    assert sum(each["rows"] for each in found["buckets"]) == ROWS.num_rows
    assert [each["batch_id"] for each in found["history"]["batches"]] == list(range(12))
    assert found["history"]["start"]["explanation"] == EXPLANATION
    assert found["plan"].startswith("<svg ")
    assert found["damaged"] == []
    assert found["problem"] is None


def test_a_query_without_a_committed_batch_says_so(tmp_path: Path) -> None:
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    MetricsHistory(str(tmp_path / "lsmstate")).started(operator="multiway_join")
    app = ui_app(Views(str(tmp_path)))
    found = ask(app, "/api/query").json()
    assert "no batch of the query" in found["problem"]
    assert found["history"]["start"]["operator"] == "multiway_join"


def test_a_damaged_bucket_hides_no_other(tmp_path: Path) -> None:
    pointers = make_query(tmp_path)
    first, second = sorted(pointers)
    (commit,) = (tmp_path / "lsmstate" / f"bucket-{first:06d}").glob("commit-*.sst")
    commit.write_bytes(commit.read_bytes()[:-90])
    found = ask(ui_app(Views(str(tmp_path))), "/api/query").json()
    assert [each["bucket"] for each in found["damaged"]] == [first]
    assert [("rows" in each) for each in found["buckets"]] == [False, True]
    rows = ask(ui_app(Views(str(tmp_path))), "/api/rows", {"stream": "o", "bucket": second})
    assert rows.json()["rows"]


def test_levels_and_runs_of_a_bucket(app: Any) -> None:
    bucket = ask(app, "/api/query", {"at": "queries/first"}).json()["buckets"][0]
    found = ask(app, "/api/bucket", {"at": "queries/first", "bucket": bucket["bucket"]}).json()
    (state,) = found["states"]
    assert sum(level["rows"] for level in state["levels"]) == bucket["rows"]
    assert sum(run["rows"] for run in state["runs"]) == bucket["rows"]
    refused = ask(app, "/api/bucket", {"at": "queries/first", "bucket": 999})
    assert (refused.status, "no bucket 999" in refused.json()["error"]) == (400, True)


@pytest.mark.parametrize("at", ["queries/first", "store"])
def test_rows_by_key(app: Any, at: str) -> None:
    found = ask(app, "/api/rows", {"at": at, "stream": "o", "key": ["7"], "limit": 200}).json()
    wanted = [row for row in ROWS.to_pylist() if row["id"] == 7]
    assert [{"id": row["id"], "what": row["what"]} for row in found["rows"]] == wanted
    assert {row["key id"] for row in found["rows"]} == {7}
    assert found["is_more"] is False
    few = ask(app, "/api/rows", {"at": at, "limit": 3}).json()
    assert (len(few["rows"]), few["is_more"]) == (3, True)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"at": "store", "stream": "x"}, "has no stream 'x'"),
        ({"at": "store", "stream": "o", "key": "seven"}, "'seven' is no such value"),
        ({"at": "store", "stream": "o", "key": ["7", "8"]}, "2 values for the key columns id"),
        ({"at": "store", "stream": "o", "key": ["", "8"]}, "2 values for the key columns id"),
        ({"at": "store", "limit": "many"}, "limit='many': give a whole number"),
        ({"at": "store", "limit": "9" * 5000}, "give a whole number"),
        ({"at": "../store"}, "there is no state at '../store'"),
        ({"at": "/etc"}, "there is no state at '/etc'"),
    ],
)
def test_what_cannot_be_shown_is_said(app: Any, parameters: Any, said: str) -> None:
    answer = ask(app, "/api/rows", parameters)
    assert answer.status == 400
    assert said in answer.json()["error"]


def test_names_that_are_no_utf8_and_numbers_that_are_no_doubles(tmp_path: Path) -> None:
    home = os.fsdecode(os.fsencode(tmp_path) + b"/\xff store")
    large = {"id": (1 << 53) + 1, "of": [-(1 << 60), 5], "what": "é"}
    rows = pa.RecordBatch.from_pylist([large])
    stream = StreamSchema("o", pa.schema([("id", pa.int64())]), rows.schema)
    with open_store(home, [stream]) as store:
        store.append("o", rows, rows.select(["id"]))
        store.commit()
    app = ui_app(Views(str(tmp_path)))
    (place,) = ask(app, "/api/places").json()["places"]
    assert place["at"] == "\\xff store"
    found = ask(app, "/api/rows", {"at": place["at"], "key": str(large["id"])}).json()
    assert found["rows"] == [
        {"key id": str(large["id"]), "id": str(large["id"]), "of": [str(-(1 << 60)), 5]}
        | {"what": "é"}
    ]
    (state,) = ask(app, "/api/store", {"at": place["at"]}).json()["states"]
    assert state["rows"] == 1


def test_an_empty_text_is_a_value_of_a_key(tmp_path: Path) -> None:
    rows = pa.record_batch({"a": ["", "x"], "b": ["x", ""]})
    with open_store(str(tmp_path), [StreamSchema("o", rows.schema, rows.schema)]) as store:
        store.append("o", rows, rows)
        store.commit()
    app = ui_app(Views(str(tmp_path)))
    for key, b in ((["", "x"], "x"), (["x"], ""), ([""], "x")):
        assert [row["b"] for row in ask(app, "/api/rows", {"key": key}).json()["rows"]] == [b]


def test_a_store_and_a_damaged_one(app: Any) -> None:
    (state,) = ask(app, "/api/store", {"at": "store"}).json()["states"]
    assert (state["rows"], state["damaged"]) == (ROWS.num_rows, [])
    (damaged,) = ask(app, "/api/store", {"at": "damaged"}).json()["states"]
    # A row's block is read, and found damaged, when its rows are.
    assert damaged["levels"] or damaged["damaged"]
    answer = ask(app, "/api/rows", {"at": "damaged", "stream": "o", "limit": 200})
    assert answer.status == 500
    assert "the row block is damaged" in answer.json()["error"]


@pytest.mark.parametrize(
    ("headers", "is_taken"),
    [
        ({}, True),
        ({"host": "localhost:8642"}, True),
        ({"host": "[::1]:8642"}, True),
        ({"origin": "http://127.0.0.1:8642"}, True),
        ({"host": "rebound.example:8642"}, False),
        ({"host": "127.0.0.1.example"}, False),
        ({"host": ""}, False),
        ({"host": "[::1"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://127.0.0.1:9999"}, False),
        ({"origin": "null"}, False),
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/places", "/static/app.js", "/nothing"])
def test_other_hosts_and_origins_are_refused(
    app: Any, headers: dict[str, str], is_taken: bool, path: str
) -> None:
    answer = ask(app, path, headers=headers)
    assert answer.status == ((404 if path == "/nothing" else 200) if is_taken else 403)
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(app: Any, method: str) -> None:
    assert ask(app, "/api/places", method=method).status == 405


def test_the_page_uses_nothing_from_elsewhere(app: Any) -> None:
    for name in ("index.html", "app.js", "style.css"):
        text = ask(app, "/" if name == "index.html" else f"/static/{name}").body.decode()
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text, "values of rows must not become markup"


def test_metrics_are_kept_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmstate.spark_integration.metrics.history._MOST_BYTES", 4000)
    kept = MetricsHistory(str(tmp_path))
    kept.started(operator="multiway_join")
    for number in [*range(100), 90]:
        kept._append({"batch": {"batch_id": number, "rows_in": number}})
    found = read_history(str(tmp_path))
    assert found["start"]["operator"] == "multiway_join"
    assert found["end"] is None
    numbers = [each["batch_id"] for each in found["batches"]]
    assert numbers == list(range(numbers[0], 91)), "what came after was set back"
    assert len(numbers) > 20
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10_000
    kept.ended("it failed")
    assert read_history(str(tmp_path))["end"]["exception"] == "it failed"


def test_sizes_of_buckets_go_on_until_a_rescale(tmp_path: Path) -> None:
    kept = MetricsHistory(str(tmp_path))
    assert read_sizes(str(tmp_path), "1") == {}
    kept.started(version="1")
    kept._append({"batch": {"batch_id": 0}, "sizes": {3: (5, 70), 4: (1, 20)}})
    kept.started(version="1")
    assert read_sizes(str(tmp_path), "1") == {3: (5, 70), 4: (1, 20)}
    assert read_sizes(str(tmp_path), "2") == {}
    kept.started(version="2")
    kept._append({"batch": {"batch_id": 1}, "sizes": {9: (6, 90)}})
    assert read_sizes(str(tmp_path), "2") == {9: (6, 90)}


def test_metrics_that_cannot_be_kept_do_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = MetricsHistory(str(tmp_path / "file"))
    kept.started()
    kept.started()
    assert caplog.text.count("metrics are not kept") == 1
