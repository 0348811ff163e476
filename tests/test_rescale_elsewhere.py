"""Rescaled on another file system: nothing is lost, whichever request fails or is the last."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from flaky_filesystem import FlakyHandler, flaky
from spark_pointers import commit_with

pytest.importorskip("pyspark")

from cython_ext.key_codec import KeyCodec
from joins.routing.hash import bucket_of
from lsmstate import retries, state_place
from lsmstate.backends import open_attempt
from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.options import Options
from lsmstate.spark import drop_original, rescale, undo_rescale
from lsmstate.state_place import StatePlace, open_bucket
from lsmstate.store import StreamSchema
from spark_integration import checkpoint, rescale_query, rescale_switch
from spark_integration import pinned as pinned_settings
from spark_integration.buckets import bucket_ids
from spark_integration.pinned import Pinned, adopt_or_pin, file_name, newest_settings
from spark_integration.plan import Wanted
from spark_integration.records import create_record_in, read_record_in
from spark_integration.rescale_work import RescaleWork

KEY = pa.schema([("k", pa.int64())])
STREAM = StreamSchema("a", KEY, pa.schema([("k", pa.int64()), ("n", pa.int64())]))
ROWS = pa.record_batch({"k": [i % 40 for i in range(400)], "n": range(400)})
URL = "flaky://queries/first"
BEFORE, AFTER = 2, 3


class Elsewhere:
    """A stopped query: its checkpoint is local, its state on a flaky file system."""

    def __init__(self, home: Path, handler: FlakyHandler) -> None:
        self.handler = handler
        self.root = home / "far" / "queries" / "first"
        self.checkpoint = str(home / "checkpoint")
        self._caches = (str(home / f"cache-{number}") for number in itertools.count())
        for log in ("offsets", "commits"):
            (home / "checkpoint" / log).mkdir(parents=True)
            (home / "checkpoint" / log / "0").write_text("v1\n{}\n{}")
        (home / "checkpoint" / "metadata").write_text(json.dumps({"id": "query"}))
        self._create()
        self.original = self.files("bucket-")

    def _create(self) -> None:
        place = self.place()
        ids = bucket_ids(BEFORE, 4)
        pointers = {}
        for number, bucket in enumerate(ids):
            mine = bucket_of(KeyCodec(KEY).encode(ROWS.select(["k"])), BEFORE) == number
            rows = ROWS.filter(pa.array(mine))
            with open_attempt(
                place.bucket(bucket),
                [STREAM],
                batch_id=0,
                attempt_id="test",
                options=Options(memory_bytes=8 << 20),
            ) as store:
                store.append("a", rows, rows.select(["k"]))
                pointers[str(bucket)] = store.commit()
        settings = {
            "buckets": BEFORE,
            "partitions": 4,
            "bucket_ids": list(ids),
            "query_id": "query",
            "backend": "lsm",
            "condition": "a.k = b.k",
        }
        create_record_in(place, "query.json", settings | {"bucket_ids": [], "buckets": 1})
        # No micro-batch has been since: what Spark keeps of the buckets does not count yet.
        rescaled = {"first batch": 1, "pointers": pointers, "original": {}}
        create_record_in(place, "query-0002.json", settings | {"rescaled": rescaled})

    def place(self) -> StatePlace:
        """As a machine without copies has it."""
        return StatePlace(URL, cache_dir=next(self._caches))

    def rescale(self, report: Callable[[str], None] = lambda _: None) -> int:
        done = rescale(
            self.checkpoint, AFTER, state_dir=URL, cache_dir=next(self._caches), report=report
        )
        assert done.buckets == AFTER
        return done.rows

    def files(self, prefix: str) -> dict[str, bytes]:
        """All files below the directories, or with the names, that begin with it."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and str(path.relative_to(self.root)).startswith(prefix)
        }

    def begin(self, batch: int) -> None:
        """The query begins a micro-batch."""
        (Path(self.checkpoint) / "offsets" / str(batch)).write_text("v1\n{}\n{}")

    def commit(self, batch: int, version: int) -> None:
        """The query commits a micro-batch with a version of the settings."""
        settings = read_record_in(self.place(), file_name(version))
        assert settings is not None
        commit_with(Path(self.checkpoint), batch, 4, Pinned.of(settings, version).pointers)

    def starts_with(self) -> int | None:
        """With how many buckets the query starts now; None if it refuses, naming the remedy."""
        settings = {"backend": "lsm", "condition": "a.k = b.k"}
        try:
            return adopt_or_pin(self.place(), Wanted(settings, None, 4, None), 4, "query").buckets
        except InvalidArgumentError as error:
            refusal = str(error)
        assert "let the same lsmstate rescale CHECKPOINT --buckets N go on" in refusal
        assert "lsmstate rescale CHECKPOINT --undo" in refusal
        return None

    def check(self, buckets: int) -> None:
        """The state has so many buckets, which hold all rows once, each where it belongs, those of
        a key in order; the original is as it was."""
        place = self.place()
        version, settings = newest_settings(place)
        assert settings is not None
        pinned = Pinned.of(settings, version)
        assert pinned.buckets == buckets
        found = []
        for number, bucket in enumerate(pinned.bucket_ids):
            with open_bucket(place, bucket, pinned.pointers[bucket]) as store:
                rows = pa.Table.from_batches(store.scan("a"), STREAM.rows).combine_chunks()
            keys = rows.select(["k"]).to_batches()[0]
            assert (bucket_of(KeyCodec(KEY).encode(keys), buckets) == number).all()
            by_key = rows.to_pylist()
            for key in set(keys["k"].to_pylist()):
                order = [row["n"] for row in by_key if row["k"] == key]
                assert order == sorted(order)
            found += by_key
        assert sorted(row["n"] for row in found) == list(range(400))
        assert self.original.items() <= self.files("bucket-").items(), "the original was touched"


@pytest.fixture
def elsewhere(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Elsewhere]]:
    """Makes one after another, of which only the last is kept."""
    monkeypatch.setattr(retries, "PAUSES", ())
    home = memory_path / "home"

    def made() -> Elsewhere:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        filesystem, handler = flaky(home / "far")
        for module in (state_place, checkpoint):
            monkeypatch.setattr(
                module, "resolve", lambda url, _: (filesystem, url.partition("://")[2])
            )
        return Elsewhere(home, handler)

    yield made
    shutil.rmtree(home, ignore_errors=True)


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
        ("fail_at", 3),
        ("dead_from", 2),
        pytest.param("fail_at", 1, marks=pytest.mark.stress),
        pytest.param("dead_from", 1, marks=pytest.mark.stress),
    ],
)
def test_whichever_request_fails_the_same_call_goes_on(
    elsewhere: Callable[[], Elsewhere], how: str, step: int
) -> None:
    """One request alone, or it and all later ones, as when the machine dies: files stay torn."""
    went_on = 0
    seen: set[int | None] = set()
    for number in itertools.count(step=step):
        query = elsewhere()
        query.handler.calls.clear()
        setattr(query.handler, how, number)
        with suppress(OSError):
            query.rescale()
        made = len(query.handler.calls)
        query.handler.fail_at, query.handler.dead_from = -1, None
        assert query.original.items() <= query.files("bucket-").items()
        seen.add(query.starts_with())
        went_on += query.rescale() < 400
        query.check(AFTER)
        assert not query.files("rescale-")
        if made <= number:
            break
    assert number > 60, f"only {number} requests were made"
    assert went_on > 20 / step, "no run went on where it was broken off"
    if step == 1:
        assert seen == {BEFORE, AFTER, None}
    else:
        assert {BEFORE, AFTER} <= seen


class Killed(BaseException):
    """Nothing handles it."""


def cut_at_its_switch(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """The new settings are there, whether the query has gone on is not looked up any more."""
    with monkeypatch.context() as patched:
        patched.setattr(rescale_switch, "_check_unmoved", cut_the_second_time())
        with pytest.raises(Killed):
            work()


def cut_the_second_time() -> Callable[..., None]:
    calls = itertools.count(1)

    def check(*_: object) -> None:
        if next(calls) == 2:
            raise Killed

    return check


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
    undo_rescale(query.checkpoint, state_dir=URL)
    cut_at_its_switch(monkeypatch, query.rescale)
    assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE == query.starts_with()
    assert query.files("") == settings | query.original


def test_a_switch_that_was_cut_is_none_if_the_query_went_on_without_it(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that had read the old settings may have committed the micro-batch."""
    query = elsewhere()
    cut_at_its_switch(monkeypatch, query.rescale)
    query.begin(1)
    with pytest.raises(InvalidArgumentError, match=r"micro-batch 1 of .* is under way"):
        query.rescale()
    assert query.starts_with() == BEFORE
    query.check(BEFORE)


@pytest.mark.parametrize("undoes", [False, True], ids=["rescale", "undo"])
def test_a_switch_that_was_cut_stands_if_the_query_has_committed_with_it(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch, undoes: bool
) -> None:
    """Earlier releases let the query run on a switch that was cut."""
    query = elsewhere()
    cut_at_its_switch(monkeypatch, query.rescale)
    query.commit(1, version=3)
    done = query.files("query") | query.files("bucket-")
    if undoes:
        with pytest.raises(InvalidArgumentError, match="micro-batch 1 was committed with 3"):
            undo_rescale(query.checkpoint, state_dir=URL)
    else:
        assert query.rescale() == 0
    assert query.files("") == done
    assert query.starts_with() == AFTER
    query.check(AFTER)


@pytest.mark.parametrize("undoes", [False, True], ids=["rescale", "undo"])
def test_a_switch_that_was_cut_is_none_if_the_query_has_committed_without_it(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch, undoes: bool
) -> None:
    query = elsewhere()
    cut_at_its_switch(monkeypatch, query.rescale)
    query.commit(1, version=2)
    if undoes:
        assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
    else:
        assert query.rescale() == 400
        query.check(AFTER)
        assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
    assert query.starts_with() == BEFORE
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
        undo_rescale(query.checkpoint, state_dir=URL)
    assert query.files("") == files
    before.write_bytes(whole)
    assert query.starts_with() == AFTER
    assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE


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
        undo_rescale(query.checkpoint, state_dir=URL)
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
    undo_rescale(query.checkpoint, state_dir=URL)
    cut_at_its_switch(monkeypatch, query.rescale)
    torn.write_bytes(torn.read_bytes()[:left])
    assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
    assert query.files("") == whole


def test_a_taking_back_that_is_broken_off_goes_on(elsewhere: Callable[[], Elsewhere]) -> None:
    seen = []
    for number in itertools.count(step=3):
        query = elsewhere()
        whole = query.files("")
        query.rescale()
        query.handler.calls.clear()
        query.handler.dead_from = number
        with suppress(OSError):
            undo_rescale(query.checkpoint, state_dir=URL)
        made = len(query.handler.calls)
        query.handler.dead_from = None
        seen.append(query.starts_with())
        if query.files("") != whole:
            assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
        assert query.files("") == whole
        query.check(BEFORE)
        if made <= number:
            break
    assert seen == sorted(seen, key=[AFTER, None, BEFORE].index), "it went back and forth"
    assert set(seen) == {AFTER, None, BEFORE}


def test_a_rescale_ends_a_taking_back_that_is_broken_off(
    elsewhere: Callable[[], Elsewhere],
) -> None:
    cut = 0
    for number in itertools.count(step=9):
        query = elsewhere()
        query.rescale()
        query.handler.calls.clear()
        query.handler.dead_from = number
        with suppress(OSError):
            undo_rescale(query.checkpoint, state_dir=URL)
        made = len(query.handler.calls)
        query.handler.dead_from = None
        cut += bool(query.files("rescale-0003/plan.json"))
        query.rescale()
        assert query.starts_with() == AFTER
        query.check(AFTER)
        if made <= number:
            break
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
        undo_rescale(query.checkpoint, state_dir=URL)
    assert query.files("") == done
    assert query.starts_with() == AFTER


def test_what_is_deleted_although_the_answer_is_lost_is_no_error(
    elsewhere: Callable[[], Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", (0,))
    query = elsewhere()
    whole = query.files("")
    query.handler.lost = "delete"
    cut_at_its_switch(monkeypatch, query.rescale)
    assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
    assert query.files("") == whole
    query.rescale()
    assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
    assert query.files("") == whole
    query.handler.lost = "delete_dir"
    query.rescale()
    drop_original(query.checkpoint, state_dir=URL)
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


def test_an_original_that_is_dropped_in_part_is_not_gone_back_to(
    elsewhere: Callable[[], Elsewhere],
) -> None:
    query = elsewhere()
    query.rescale()
    path = next(query.root / name for name in query.original)
    path.unlink()
    del query.original[str(path.relative_to(query.root))]
    with pytest.raises(InvalidArgumentError, match="the original was dropped: bucket"):
        undo_rescale(query.checkpoint, state_dir=URL)
    query.check(AFTER)
    drop_original(query.checkpoint, state_dir=URL)
    query.original = {}
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


def test_undone_wherever_it_was_broken_off(elsewhere: Callable[[], Elsewhere]) -> None:
    undone = 0
    for number in itertools.count(1, step=6):
        query = elsewhere()
        settings = query.files("query")
        query.handler.calls.clear()
        query.handler.dead_from = number
        with suppress(OSError):
            query.rescale()
        made = len(query.handler.calls)
        query.handler.dead_from = None
        if query.files("") != settings | query.original:
            assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
            assert query.files("") == settings | query.original
            undone += 1
        query.check(BEFORE)
        assert query.rescale() == 400
        query.check(AFTER)
        if made <= number:
            break
    assert undone > 8


def test_the_checkpoint_may_be_elsewhere_too(elsewhere: Callable[[], Elsewhere]) -> None:
    query = elsewhere()
    shutil.move(query.checkpoint, query.root.parents[1] / "checkpoint")
    query.checkpoint = "flaky://checkpoint"
    assert query.rescale() == 400
    query.check(AFTER)
    assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
    query.check(BEFORE)


def test_the_original_is_dropped_when_it_is_said(elsewhere: Callable[[], Elsewhere]) -> None:
    query = elsewhere()
    query.rescale()
    freed = drop_original(query.checkpoint, state_dir=URL)
    assert freed == sum(map(len, query.original.values()))
    query.original = {}
    query.check(AFTER)
    with pytest.raises(InvalidArgumentError, match="the original was dropped"):
        undo_rescale(query.checkpoint, state_dir=URL)


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
    with pytest.raises(InvalidArgumentError, match="was done meanwhile"):
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
        with pytest.raises(InvalidArgumentError, match="the original is being dropped"):
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
    with pytest.raises(InvalidArgumentError, match="was done meanwhile"):
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
        with pytest.raises(InvalidArgumentError, match=r"was broken off while it switched .* or"):
            drop_original(query.checkpoint, state_dir=URL)

    first_runs(monkeypatch, rescale_query.QueryHome, "withdraw", drop)
    assert undo_rescale(query.checkpoint, state_dir=URL) == BEFORE
    assert query.files("") == whole


def test_a_drop_that_is_broken_off_goes_on(elsewhere: Callable[[], Elsewhere]) -> None:
    refused = 0
    for number in itertools.count(step=2):
        query = elsewhere()
        query.rescale()
        query.handler.calls.clear()
        query.handler.dead_from = number
        with suppress(OSError):
            drop_original(query.checkpoint, state_dir=URL)
        made = len(query.handler.calls)
        query.handler.dead_from = None
        assert query.starts_with() == AFTER
        if query.files("drop-"):
            with pytest.raises(InvalidArgumentError, match="the original is being dropped"):
                undo_rescale(query.checkpoint, state_dir=URL)
            refused += 1
        drop_original(query.checkpoint, state_dir=URL)
        query.original = {}
        query.check(AFTER)
        assert not query.files("drop-")
        if made <= number:
            break
    assert refused > 2
