"""A stopped query whose state is on another file system, to be rescaled."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from lsmstate import state_location
from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.hash import bucket_of
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.remote import retries
from lsmstate.spark import rescale, undo_rescale
from lsmstate.spark_integration.checkpoint import location as checkpoint
from lsmstate.spark_integration.checkpoint.json_records import create_record_in, read_record_in
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    Pinned,
    adopt_or_pin,
    file_name,
    newest_settings,
)
from lsmstate.spark_integration.plan.bucket_ids import bucket_ids
from lsmstate.spark_integration.plan.stateful_plan import Wanted
from lsmstate.spark_integration.rescale import switch as rescale_switch
from lsmstate.state_location import StatePlace, open_bucket
from lsmstate.store import StreamSchema
from support.flaky_filesystem import FlakyHandler, flaky
from support.spark_pointers import commit_with

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
        self.whole = self.files("")

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
        assert "run the same lsmstate rescale CHECKPOINT --buckets N again" in refusal
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


@contextmanager
def queries(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Elsewhere]]:
    """Makes one after another, of which only the last is kept."""
    monkeypatch.setattr(retries, "PAUSES", ())
    home = memory_path / "home"

    def made() -> Elsewhere:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        filesystem, handler = flaky(home / "far")
        for module in (state_location, checkpoint):
            monkeypatch.setattr(
                module, "resolve", lambda url, _: (filesystem, url.partition("://")[2])
            )
        return Elsewhere(home, handler)

    yield made
    shutil.rmtree(home, ignore_errors=True)


def broken_off(
    made: Callable[[], Elsewhere],
    work: Callable[[Elsewhere], object],
    *,
    step: int,
    first: int = 0,
    how: str = "dead_from",
    before: Callable[[Elsewhere], object] = lambda _: None,
) -> Iterator[Elsewhere]:
    """Queries, each with ``before`` done and ``work`` broken off at one of its requests: at
    ``first``, and every ``step`` requests later, until there are no more. ``how``: that request and
    all later ones fail (``dead_from``), or it alone (``fail_at``)."""
    for number in itertools.count(first, step):
        query = made()
        before(query)
        query.handler.calls.clear()
        setattr(query.handler, how, number)
        with suppress(OSError):
            work(query)
        requests = len(query.handler.calls)
        query.handler.fail_at, query.handler.dead_from = -1, None
        yield query
        if requests <= number:
            return


def undo(query: Elsewhere) -> int:
    return undo_rescale(query.checkpoint, state_dir=URL)


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
