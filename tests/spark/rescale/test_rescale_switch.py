"""The switch of a rescale and the way back: cut anywhere, what counts is whole, or refused."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.spark_integration.rescale.work import RescaleWork
from support.stopped_elsewhere import AFTER, BEFORE, Elsewhere, broken_off, cut_at_its_switch, undo


def test_no_query_runs_on_a_switch_that_was_cut(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = elsewhere()
    settings = query.files("query")
    cut_at_its_switch(monkeypatch, query.rescale)
    assert query.files("query").keys() - settings.keys() == {"query-0003.json"}
    assert query.starts_with() is None
    assert query.rescale() == 0
    assert query.starts_with() == AFTER
    query.check(AFTER)
    undo(query)
    cut_at_its_switch(monkeypatch, query.rescale)
    assert undo(query) == BEFORE == query.starts_with()
    assert query.files("") == settings | query.original


def test_a_switch_that_was_cut_is_none_if_the_query_went_on_without_it(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that had read the old settings may have committed the micro-batch."""
    query = elsewhere()
    cut_at_its_switch(monkeypatch, query.rescale)
    query.begin(1)
    with pytest.raises(InvalidArgumentError, match=r"micro-batch 1 of .* is running"):
        query.rescale()
    assert query.starts_with() == BEFORE
    query.check(BEFORE)


@pytest.mark.parametrize("undoes", [False, True], ids=["rescale", "undo"])
@pytest.mark.parametrize("stands", [True, False], ids=["with it", "without it"])
def test_a_switch_that_was_cut_stands_if_the_query_has_committed_with_it(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch, stands: bool, undoes: bool
) -> None:
    """Earlier releases let the query run on a switch that was cut."""
    query = elsewhere()
    cut_at_its_switch(monkeypatch, query.rescale)
    query.commit(1, version=3 if stands else 2)
    done = query.files("query") | query.files("bucket-")
    if not undoes:
        assert query.rescale() == (0 if stands else 400)
    elif stands:
        with pytest.raises(InvalidArgumentError, match="micro-batch 1 was committed with 3"):
            undo(query)
    else:
        assert undo(query) == BEFORE
    assert query.files("") == done or not stands
    now = BEFORE if undoes and not stands else AFTER
    assert query.starts_with() == now
    query.check(now)
    if not stands and not undoes:
        assert undo(query) == BEFORE == query.starts_with()
        query.check(BEFORE)


def test_settings_are_not_taken_back_to_damaged_ones(
    elsewhere: Callable[[], Elsewhere],
) -> None:
    query = elsewhere()
    query.rescale()
    before = query.root / "query-0002.json"
    whole = before.read_bytes()
    before.write_bytes(whole[:-30])
    files = query.files("")
    with pytest.raises(CorruptionError, match=r"query-0002\.json.*restore the file") as refused:
        query.starts_with()
    assert "--undo" not in str(refused.value), "which takes back another file"
    with pytest.raises(CorruptionError, match=r"query-0002\.json.*restore the file"):
        undo(query)
    assert query.files("") == files
    before.write_bytes(whole)
    assert query.starts_with() == AFTER
    assert undo(query) == BEFORE


def test_a_cut_switch_is_not_taken_back_to_damaged_settings(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = elsewhere()
    cut_at_its_switch(monkeypatch, query.rescale)
    before = query.root / "query-0002.json"
    whole = before.read_bytes()
    before.write_bytes(whole[:-30])
    settings = query.files("query")
    with pytest.raises(CorruptionError, match=r"query-0002\.json"):
        undo(query)
    assert query.files("query") == settings
    before.write_bytes(whole)
    assert query.rescale() == 0
    query.check(AFTER)


@pytest.mark.parametrize("left", [0, 40])
def test_settings_torn_in_the_switch_are_done_again_or_undone(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    query = elsewhere()
    whole = query.files("")
    cut_at_its_switch(monkeypatch, query.rescale)
    torn = query.root / "query-0003.json"
    torn.write_bytes(torn.read_bytes()[:left])
    assert query.starts_with() is None
    assert query.rescale() == 0, "buckets were written again"
    assert query.starts_with() == AFTER
    undo(query)
    cut_at_its_switch(monkeypatch, query.rescale)
    torn.write_bytes(torn.read_bytes()[:left])
    assert undo(query) == BEFORE
    assert query.files("") == whole


def test_a_taking_back_that_is_broken_off_goes_on(elsewhere: Callable[[], Elsewhere]) -> None:
    seen = []
    for query in broken_off(elsewhere, undo, step=3, before=Elsewhere.rescale):
        seen.append(query.starts_with())
        if query.files("") != query.whole:
            assert undo(query) == BEFORE
        assert query.files("") == query.whole
        query.check(BEFORE)
    assert seen == sorted(seen, key=[AFTER, None, BEFORE].index), "it went back and forth"
    assert set(seen) == {AFTER, None, BEFORE}


def test_a_rescale_ends_a_taking_back_that_is_broken_off(
    elsewhere: Callable[[], Elsewhere],
) -> None:
    cut = 0
    for query in broken_off(elsewhere, undo, step=9, before=Elsewhere.rescale):
        cut += bool(query.files("rescale-0003/plan.json"))
        query.rescale()
        assert query.starts_with() == AFTER
        query.check(AFTER)
    assert cut > 0, "no undo was broken off after it was noted"


@pytest.mark.parametrize("when", ["before", "as it looks"])
def test_what_the_query_has_begun_is_not_taken_back(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    query = elsewhere()
    query.rescale()
    done = query.files("")
    begin = RescaleWork.begin

    def meanwhile(work: RescaleWork, plan: dict[str, Any]) -> None:
        query.begin(1)
        begin(work, plan)

    if when == "before":
        query.begin(1)
    monkeypatch.setattr(RescaleWork, "begin", meanwhile)
    with pytest.raises(InvalidArgumentError, match=r"let the query finish it .* rescale to"):
        undo(query)
    assert query.files("") == done
    assert query.starts_with() == AFTER
