"""Tables of routes on disk: one for each micro-batch, whoever asks for it and whenever."""

import threading
from pathlib import Path

import numpy as np
import pytest

from lsmstate.errors import CorruptionError
from lsmstate.joins.protocols import Table
from lsmstate.joins.routing.hash import bucket_of_hashes
from lsmstate.joins.routing.skew import respread, spread_router
from lsmstate.joins.routing.skew.heavy_hitters import HeavyHitters
from lsmstate.joins.routing.skew.respread import Seen
from lsmstate.joins.routing.skew.spread import RouteTable
from lsmstate.joins.routing.skew.spread_router import SpreadRouting
from lsmstate.spark_integration.checkpoint.starts import UNTOLD, Starts
from lsmstate.spark_integration.metrics.hottest_keys import HotKey, hottest_keys, packed
from lsmstate.spark_integration.tables.versioned_tables import (
    PERIOD,
    VersionedTables,
    begin,
    newest_table,
)
from lsmstate.state_location import StatePlace

BUCKETS = 4


def seen(key: int) -> Seen:
    """A bucket that has had little but one key."""
    sketch = HeavyHitters()
    sketch.add(np.full(2000, key, np.uint64), lambda _: f"key {key}")
    bucket = bucket_of_hashes(np.array([key], np.uint64), np.array([True]), BUCKETS)
    return Seen(int(bucket[0]), {"a": sketch, "b": sketch})


def routes(home: Path, retained: int = 100, starts: Starts = UNTOLD) -> VersionedTables:
    routing = SpreadRouting(("a", "b"), BUCKETS)
    return VersionedTables(at(home), routing, BUCKETS, retained, starts=starts)


def at(home: Path) -> StatePlace:
    return StatePlace(str(home))


def spread(table: Table) -> dict[str, tuple[int, ...]]:
    assert isinstance(table, RouteTable)
    return {key.key: key.buckets for key in table.keys}


def test_what_was_seen_in_a_period_routes_the_next_one(tmp_path: Path) -> None:
    mine = routes(tmp_path)
    assert newest_table(at(tmp_path), SpreadRouting()) == RouteTable()
    for batch in range(PERIOD):
        assert mine.table(batch) == RouteTable()
        mine.publish(seen(1), batch, "attempt")
    table = mine.table(PERIOD)
    assert spread(table).keys() == {"key 1"}
    assert sorted(spread(table)["key 1"]) == [0, 1, 2, 3]
    assert newest_table(at(tmp_path), SpreadRouting()) == table
    assert mine.table(PERIOD - 1) == RouteTable()


def test_a_table_is_made_once_whatever_is_seen_later(tmp_path: Path) -> None:
    first = routes(tmp_path).table(PERIOD)
    assert first == RouteTable()
    # An attempt of the micro-batch before that was slow.
    routes(tmp_path).publish(seen(1), PERIOD - 1, "zombie")
    for batch in range(PERIOD, 2 * PERIOD):
        assert routes(tmp_path).table(batch) == first
    routes(tmp_path).publish(seen(2), 2 * PERIOD - 1, "attempt")
    assert spread(routes(tmp_path).table(2 * PERIOD)).keys() == {"key 2"}
    assert routes(tmp_path).table(PERIOD) == first


def race(home: Path, first: int) -> list[Table]:
    """The tables that six tasks find at the same time, while some buckets are still told of."""
    start = threading.Barrier(6)
    found: list[Table] = []

    def task(number: int) -> None:
        mine = routes(home)
        start.wait()
        if number % 2:
            mine.publish(seen(10 * first + number), first - 1, f"b{number}")
        found.append(mine.table(first))

    threads = [threading.Thread(target=task, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_tasks_that_race_read_one_table(tmp_path: Path) -> None:
    for first in range(PERIOD, 6 * PERIOD, PERIOD):
        found = race(tmp_path, first)
        assert found == [routes(tmp_path).table(first)] * 6


def test_keys_stay_spread_and_old_tables_go(tmp_path: Path) -> None:
    mine = routes(tmp_path, retained=3)
    mine.publish(seen(1), PERIOD - 1, "attempt")
    for number in range(1, 10):
        assert spread(mine.table(number * PERIOD)).keys() == {"key 1"}
    tables = sorted(path.name for path in (tmp_path / "routes").iterdir())
    assert tables == [f"table-{number * PERIOD:010d}.json" for number in range(6, 10)]


def test_a_table_goes_on_from_the_last_one_where_micro_batches_had_no_task(tmp_path: Path) -> None:
    mine = routes(tmp_path, retained=3)
    mine.publish(seen(1), PERIOD - 1, "attempt")
    first = mine.table(PERIOD)
    for number in (3, 4, 900, 901):
        assert mine.table(number * PERIOD) == first
    mine.check_is_known(PERIOD, 3 * PERIOD)
    # One that Spark goes back to, of those that had no task.
    assert mine.table(899 * PERIOD) == first


def test_a_table_that_is_gone_is_an_error(tmp_path: Path) -> None:
    mine = routes(tmp_path)
    mine.publish(seen(1), PERIOD - 1, "attempt")
    mine.table(PERIOD)
    next((tmp_path / "routes").glob("table-*")).unlink()
    for number in (2, 3):
        mine.table(number * PERIOD)
        # A bucket that was called in micro-batch 5 knows that there was one.
        with pytest.raises(CorruptionError, match=f"table-{PERIOD:010d}.json"):
            mine.check_is_known(PERIOD + 1, number * PERIOD + 1)


@pytest.mark.parametrize("content", [b"", b'{"format_version": 1, "sha', bytes(300)])
def test_what_a_bucket_saw_is_left_out_where_its_file_is_torn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    mine = routes(tmp_path)
    mine.publish(seen(1), PERIOD - 1, "a")
    mine.publish(seen(2), PERIOD - 1, "a")
    torn = next((tmp_path / "routes").glob(f"seen-*-{seen(2).bucket:06d}-*-a.json"))
    torn.write_bytes(content)
    assert spread(mine.table(PERIOD)).keys() == {"key 1"}
    assert "1 of 2 files are damaged" in caplog.text
    assert torn.name in caplog.text


def test_tables_of_a_future_that_was_given_up_are_removed(tmp_path: Path) -> None:
    mine = routes(tmp_path)
    mine.publish(seen(1), PERIOD - 1, "a")
    kept = mine.table(PERIOD)
    mine.publish(seen(2), 2 * PERIOD - 1, "a")
    assert mine.table(2 * PERIOD) != kept
    mine.publish(seen(2), 3 * PERIOD - 1, "a")
    # The query was set back to micro-batch 2 * PERIOD - 2, and has other rows from there on.
    starts = begin(at(tmp_path), 2 * PERIOD - 2)
    names = {path.name for path in (tmp_path / "routes").iterdir()}
    assert names == {f"table-{PERIOD:010d}.json", "start-0000000001.json"}
    mine.table(3 * PERIOD)  # by a task of before
    later = routes(tmp_path, starts=starts)
    assert later.table(2 * PERIOD) == kept
    assert later.table(3 * PERIOD) == kept
    assert newest_table(at(tmp_path), SpreadRouting()) == kept


def test_a_start_goes_on_with_the_tables_of_those_before(tmp_path: Path) -> None:
    first = routes(tmp_path, starts=begin(at(tmp_path), 0))
    first.publish(seen(1), PERIOD - 1, "a")
    # It may repeat what the first one did by this table, which nobody had asked for yet.
    second = routes(tmp_path, starts=begin(at(tmp_path), PERIOD))
    table = second.table(PERIOD)
    assert spread(table).keys() == {"key 1"}
    assert first.table(PERIOD) == table
    second.publish(seen(2), 2 * PERIOD - 1, "a")
    # Other rows come in the last micro-batch before the next table.
    third = routes(tmp_path, starts=begin(at(tmp_path), 2 * PERIOD - 1))
    second.publish(seen(3), 2 * PERIOD - 1, "zombie")
    third.publish(seen(4), 2 * PERIOD - 1, "b")
    assert spread(second.table(2 * PERIOD)).keys() == {"key 1", "key 3"}
    assert spread(third.table(2 * PERIOD)).keys() == {"key 1", "key 4"}
    assert spread(newest_table(at(tmp_path), SpreadRouting())).keys() == {
        "key 1",
        "key 4",
    }


def test_starts_that_ran_nothing_that_is_needed_are_left_out() -> None:
    starts = UNTOLD
    for number, first in enumerate((0, 5, 9, 30, 20, 40), 1):
        starts = starts.and_then(number, first, oldest=8)
    assert starts == Starts(((2, 5), (3, 9), (5, 20), (6, 40)))
    assert Starts.from_text(starts.to_text()) == starts
    assert [starts.that_ran(batch) for batch in (8, 9, 19, 20, 39, 40)] == [2, 3, 3, 5, 5, 6]
    assert [starts.before(batch) for batch in (8, 9, 20, 40, 41)] == [2, 2, 3, 5, 6]


def test_the_last_key_that_is_spread_is_said_to_be_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (respread, spread_router):
        monkeypatch.setattr(module, "MOST_KEYS", 2)
    mine = routes(tmp_path)
    said = []
    for number, key in enumerate((1, 2, 3), 1):
        mine.publish(seen(key), number * PERIOD - 1, "a")
        table = mine.table(number * PERIOD)
        said.append("which is the maximum" in caplog.text)
        caplog.clear()
    assert spread(table).keys() == {"key 1", "key 2"}
    assert said == [False, True, False]


def test_the_hottest_keys_of_buckets_become_those_of_the_query() -> None:
    texts = [packed("x|y", 30.9, "s"), packed("z", 4), packed("x|y", 9)]
    assert sorted(texts, reverse=True) == [texts[0], texts[2], texts[1]]
    assert hottest_keys(texts, 100) == (HotKey("x|y", 39, 0.39, "s"), HotKey("z", 4, 0.04))
    assert hottest_keys([], 0) == ()
