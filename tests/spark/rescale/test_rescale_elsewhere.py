"""Rescaled on another file system: nothing is lost, whichever request fails or is the last."""

import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress

import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.remote import retries
from lsmstate.spark import drop_original
from lsmstate.spark_integration.checkpoint import location as checkpoint
from lsmstate.spark_integration.checkpoint.pinned_settings import Pinned, newest_settings
from support.stopped_elsewhere import (
    AFTER,
    BEFORE,
    URL,
    Elsewhere,
    broken_off,
    cut_at_its_switch,
    undo,
)


def dropped(query: Elsewhere) -> int:
    return drop_original(query.checkpoint, state_dir=URL)


def test_each_new_bucket_is_sent_once_and_each_old_file_fetched_once(
    elsewhere: Callable[[], Elsewhere],
) -> None:
    query = elsewhere()
    query.handler.calls.clear()
    assert query.rescale() == 400
    sent = [path for operation, path in query.handler.calls if operation == "close"]
    assert len([path for path in sent if "/bucket-" in path and path.endswith(".sst")]) == AFTER
    fetched = [p for operation, p in query.handler.calls if operation == "read" and "/commit-" in p]
    assert len(fetched) == len(set(fetched)) == BEFORE
    query.check(AFTER)
    assert query.rescale() == 0
    assert not query.files("rescale-")


@pytest.mark.parametrize(
    ("how", "step"),
    [
        pytest.param("fail_at", 7, marks=pytest.mark.stress),
        ("dead_from", 5),
        pytest.param("fail_at", 1, marks=pytest.mark.stress),
        pytest.param("dead_from", 1, marks=pytest.mark.stress),
    ],
)
def test_whichever_request_fails_the_same_call_goes_on(
    elsewhere: Callable[[], Elsewhere], how: str, step: int
) -> None:
    """One request alone, or it and all later ones, as when the machine dies: files stay torn."""
    went_on = runs = 0
    seen: set[int | None] = set()
    for query in broken_off(elsewhere, Elsewhere.rescale, step=step, how=how):
        assert query.original.items() <= query.files("bucket-").items()
        seen.add(query.starts_with())
        went_on += query.rescale() < 400
        query.check(AFTER)
        assert not query.files("rescale-")
        runs += 1
    assert runs > 60 / step, f"only {runs * step} requests were made"
    assert went_on > 20 / step, "no run went on where it was broken off"
    if step == 1:
        assert seen == {BEFORE, AFTER, None}
    else:
        assert {BEFORE, AFTER} <= seen


def test_undone_wherever_it_was_broken_off(elsewhere: Callable[[], Elsewhere]) -> None:
    undone = 0
    for query in broken_off(elsewhere, Elsewhere.rescale, first=1, step=6):
        if query.files("") != query.whole:
            assert undo(query) == BEFORE
            assert query.files("") == query.whole
            undone += 1
        query.check(BEFORE)
        assert query.rescale() == 400
        query.check(AFTER)
    assert undone > 8


def test_the_checkpoint_may_be_elsewhere_too(elsewhere: Callable[[], Elsewhere]) -> None:
    query = elsewhere()
    shutil.move(query.checkpoint, query.root.parents[1] / "checkpoint")
    query.checkpoint = "flaky://checkpoint"
    assert query.rescale() == 400
    query.check(AFTER)
    assert undo(query) == BEFORE
    query.check(BEFORE)


def test_the_original_is_dropped_when_it_is_said(elsewhere: Callable[[], Elsewhere]) -> None:
    query = elsewhere()
    query.rescale()
    freed = dropped(query)
    assert freed == sum(map(len, query.original.values()))
    query.original = {}
    query.check(AFTER)
    with pytest.raises(InvalidArgumentError, match="the original state was deleted"):
        undo(query)


def test_a_drop_that_is_broken_off_goes_on(elsewhere: Callable[[], Elsewhere]) -> None:
    refused = 0
    for query in broken_off(elsewhere, dropped, step=2, before=Elsewhere.rescale):
        assert query.starts_with() == AFTER
        if query.files("drop-"):
            with pytest.raises(InvalidArgumentError, match=r"the original .* is being deleted"):
                undo(query)
            refused += 1
        dropped(query)
        query.original = {}
        query.check(AFTER)
        assert not query.files("drop-")
    assert refused > 2


def test_what_is_deleted_although_the_answer_is_lost_is_no_error(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", (0,))
    query = elsewhere()
    whole = query.files("")
    query.handler.lost = "delete"
    cut_at_its_switch(monkeypatch, query.rescale)
    assert undo(query) == BEFORE
    assert query.files("") == whole
    query.rescale()
    assert undo(query) == BEFORE
    assert query.files("") == whole
    query.handler.lost = "delete_dir"
    query.rescale()
    dropped(query)
    query.original = {}
    query.check(AFTER)


def test_no_request_of_the_checkpoint_is_made_only_once(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = elsewhere()
    query.commit(1, version=2)
    version, settings = newest_settings(query.place())
    assert settings is not None
    pointers = dict(Pinned.of(settings, version).pointers)
    monkeypatch.setattr(retries, "PAUSES", (0,))
    shutil.move(query.checkpoint, query.root.parents[1] / "checkpoint")
    query.checkpoint = "flaky://checkpoint"
    failed = 0
    for number in itertools.count():
        query.handler.calls.clear()
        query.handler.fail_at = number
        found = checkpoint.SparkCheckpoint(query.checkpoint)
        assert (found.query_id(), found.begun(), found.committed()) == ("query", [0, 1], [0, 1])
        assert found.pointers(1) == pointers
        if len(query.handler.calls) <= number:
            break
        failed += 1
    read = {path for operation, path in query.handler.calls if operation == "read"}
    assert {"checkpoint/commits/1", "checkpoint/state/0/_metadata/metadata"} < read
    assert sum(path.endswith(".snapshot") for path in read) == 4, "one a state partition"
    assert failed > len(read)


@pytest.mark.parametrize("name", ["plan.json", "bucket-000004.json", "query-0003.json"])
def test_a_small_file_that_arrives_short_is_an_error(
    elsewhere: Callable[[], Elsewhere], name: str
) -> None:
    """A bucket whose record is lost must not be taken for one without rows."""
    query = elsewhere()
    query.handler.torn, query.handler.torn_name = 5, name
    with pytest.raises(OSError, match="bytes arrived"):
        query.rescale()
    query.handler.torn = 0
    query.rescale()
    query.check(AFTER)
    assert not query.files("rescale-")


def test_a_record_that_is_damaged_later_is_no_empty_bucket(
    elsewhere: Callable[[], Elsewhere],
) -> None:
    query = elsewhere()

    def damage(text: str) -> None:
        if text.startswith("bucket 3 of"):
            (record,) = query.root.glob("rescale-*/bucket-000004.json")
            record.write_bytes(record.read_bytes()[:-5])

    assert query.rescale(damage) == 400
    query.check(AFTER)


def test_records_of_another_plan_are_not_taken_for_this_ones(
    elsewhere: Callable[[], Elsewhere],
) -> None:
    query = elsewhere()
    for step in (40, 60):
        with suppress(OSError):
            query.handler.dead_from = len(query.handler.calls) + step
            query.rescale()
        query.handler.dead_from = None
    assert query.files("rescale-0003/bucket-"), "nothing was recorded"
    (query.root / "rescale-0003" / "plan.json").unlink()
    assert query.rescale() == 400
    query.check(AFTER)


def test_an_original_that_is_dropped_in_part_is_not_gone_back_to(
    elsewhere: Callable[[], Elsewhere],
) -> None:
    query = elsewhere()
    query.rescale()
    path = next(query.root / name for name in query.original)
    path.unlink()
    del query.original[str(path.relative_to(query.root))]
    with pytest.raises(InvalidArgumentError, match="the original state was deleted: bucket"):
        undo(query)
    query.check(AFTER)
    dropped(query)
    query.original = {}
    query.check(AFTER)
