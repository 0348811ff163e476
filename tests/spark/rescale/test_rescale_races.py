"""Rescales, ways back and drops of one query at the same time, as there may be without a lock."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import drop_original, undo_rescale
from lsmstate.spark_integration.checkpoint import pinned_settings
from lsmstate.spark_integration.rescale import stopped_query as rescale_query
from lsmstate.spark_integration.rescale import switch as rescale_switch
from lsmstate.spark_integration.rescale.work import RescaleWork
from lsmstate.state_location import StatePlace
from support.stopped_elsewhere import AFTER, BEFORE, URL, Elsewhere


@pytest.mark.parametrize("undoes", [False, True], ids=["rescale", "undo"])
def test_one_that_ended_in_between_is_noticed(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch, undoes: bool
) -> None:
    """Buckets of a rescale that is done are not taken for those of one that was broken off."""
    query = elsewhere()
    if undoes:
        with suppress(OSError):
            query.handler.dead_from = len(query.handler.calls) + 60
            query.rescale()
        query.handler.dead_from = None
        assert query.files("rescale-")
    owned = RescaleWork.owned

    def after_another(work: RescaleWork) -> object:
        monkeypatch.setattr(RescaleWork, "owned", owned)
        query.rescale()
        return owned(work)

    monkeypatch.setattr(RescaleWork, "owned", after_another)
    late = partial(undo_rescale, query.checkpoint, state_dir=URL) if undoes else query.rescale
    with pytest.raises(InvalidArgumentError, match="ended meanwhile"):
        late()
    query.check(AFTER)


def first_runs(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, meanwhile: Callable[[], object]
) -> None:
    """The next call of that name is preceded by something else."""
    original = getattr(where, name)

    def interrupted(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(where, name, original)
        meanwhile()
        return original(*args, **options)

    monkeypatch.setattr(where, name, interrupted)


def test_a_switch_that_comes_after_its_end_leaves_no_settings(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked whether it is the owner; then it paused over the whole of an undo."""
    query = elsewhere()
    undo = partial(undo_rescale, query.checkpoint, state_dir=URL)
    first_runs(monkeypatch, rescale_switch, "create_record_in", undo)
    with pytest.raises(InvalidArgumentError, match="another rescale of"):
        query.rescale()
    assert query.starts_with() == BEFORE
    query.check(BEFORE)
    assert query.rescale() == 400
    query.check(AFTER)


def test_a_switch_that_another_has_ended_stands(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the settings are there, the next call settles them; the query may have gone on."""
    query = elsewhere()
    create = rescale_switch.create_record_in

    def created(*args: Any, **options: Any) -> bool:
        monkeypatch.setattr(rescale_switch, "create_record_in", create)
        done = create(*args, **options)
        assert query.rescale() == 0
        query.commit(1, version=3)
        return done

    monkeypatch.setattr(rescale_switch, "create_record_in", created)
    with pytest.raises(InvalidArgumentError, match="another rescale of"):
        query.rescale()
    assert query.starts_with() == AFTER
    query.check(AFTER)


def test_a_task_that_paused_over_an_undo_has_the_settings_that_count(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = elsewhere()
    query.rescale()
    undo = partial(undo_rescale, query.checkpoint, state_dir=URL)
    first_runs(monkeypatch, pinned_settings, "is_switching", undo)
    assert query.starts_with() == BEFORE


@pytest.mark.parametrize("at", ["buckets", "remove_bucket"])
def test_a_drop_that_pauses_is_not_overtaken_by_an_undo(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    query = elsewhere()
    query.rescale()

    def undo() -> None:
        with pytest.raises(InvalidArgumentError, match=r"the original .* is being deleted"):
            undo_rescale(query.checkpoint, state_dir=URL)

    first_runs(monkeypatch, StatePlace, at, undo)
    freed = drop_original(query.checkpoint, state_dir=URL)
    assert freed == sum(map(len, query.original.values()))
    query.original = {}
    assert query.starts_with() == AFTER
    query.check(AFTER)
    assert not query.files("drop-")


def test_a_drop_that_pauses_before_it_is_noted_is_overtaken(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = elsewhere()
    whole = query.files("")
    query.rescale()
    undo = partial(undo_rescale, query.checkpoint, state_dir=URL)
    first_runs(monkeypatch, rescale_switch, "create_record_in", undo)
    with pytest.raises(InvalidArgumentError, match="ended meanwhile"):
        drop_original(query.checkpoint, state_dir=URL)
    assert query.files("") == whole


def test_an_undo_that_pauses_is_not_overtaken_by_a_drop(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked whether the original is whole, and is about to go back to it."""
    query = elsewhere()
    whole = query.files("")
    query.rescale()

    def drop() -> None:
        with pytest.raises(InvalidArgumentError, match=r"is not finished: .* or was interrupted"):
            drop_original(query.checkpoint, state_dir=URL)

    first_runs(monkeypatch, rescale_query.QueryHome, "withdraw", drop)
    assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
    assert query.files("") == whole


def test_of_two_at_a_time_the_one_that_came_last_counts(
    elsewhere: Callable[[], Elsewhere],
) -> None:
    query = elsewhere()
    other: list[int] = []

    def meanwhile(text: str) -> None:
        if not other and text.startswith("bucket 1 of"):
            other.append(query.rescale())

    with pytest.raises(InvalidArgumentError, match="another rescale of flaky:queries/first has"):
        query.rescale(meanwhile)
    assert 0 < other[0] < 400, "it did not go on where the first one was"
    query.check(AFTER)
