"""Similarity and document joins whose writes fail: a batch is stored whole or not at all, whatever
the index had learned from it, and the join goes on."""

import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError, MemoryLimitError, StoreClosedError
from lsmstate.join import NaturalJoin, State, Time, similarity_join
from lsmstate.joins.local.documents import natural_join
from lsmstate.joins.local.similarity import coded, keyed, pivots
from support.faults import Faults, faults

START = datetime(2024, 1, 1, tzinfo=UTC)
CAP = "8m"
#: Larger than a row may be under this cap.
HUGE = "x" * 3_000_000
ROWS = 30
BATCHES = 4

Pairs = Counter[tuple[int, int]]


@dataclass(frozen=True)
class FailingCase:
    """A join, and what its rows hold."""

    kind: pa.DataType
    value: Callable[[random.Random], Any]
    asked: Mapping[str, Any] = field(default_factory=dict)
    streams: str = "ab"
    is_timed: bool = False
    forgets: int = 0
    """So many batches are forgotten when the next one comes."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of each stream."""
        return pa.schema(
            [
                ("id", pa.int64()),
                ("v", self.kind),
                ("note", pa.string()),
                ("at", pa.timestamp("us", "UTC")),
            ]
        )

    @contextmanager
    def opened(self, path: Path | None = None) -> Iterator[Any]:
        """The join."""
        schemas = dict.fromkeys(self.streams, self.schema)
        times = dict.fromkeys(self.streams, "at") if self.is_timed else None
        asked = {
            "state": State(memory=CAP, state_dir=None if path is None else str(path)),
            **({"time": Time(event_time=times, window="30 minutes")} if self.is_timed else {}),
            **self.asked,
        }
        if "metric" in asked:
            made: Any = similarity_join(schemas, "a.v ~ b.v", **asked)
        else:
            made = NaturalJoin(schemas, "v", id="id", output="ids", **asked)
        with made as join:
            yield join

    def batch(self, number: int) -> tuple[str, pa.RecordBatch]:
        """The stream and the rows of a batch."""
        rng = random.Random(number)
        rows = [
            {
                "id": number * ROWS + at,
                "v": self.value(rng),
                "note": "",
                "at": START + timedelta(minutes=rng.randrange(50)),
            }
            for at in range(ROWS)
        ]
        stream = self.streams[number % len(self.streams)]
        return stream, pa.RecordBatch.from_pylist(rows, schema=self.schema)

    def too_large(self, number: int) -> tuple[str, pa.RecordBatch]:
        """A batch that is refused for its last row."""
        stream, rows = self.batch(number)
        notes = pa.array([""] * (ROWS - 1) + [HUGE])
        return stream, rows.set_column(2, "note", notes)

    def results(self, join: Any, number: int) -> Pairs:
        """What a batch finds."""
        return self.found(join.process(*self.batch(number)))

    def found(self, results: Any) -> Pairs:
        """Results as pairs of ids."""
        return Counter(tuple(sorted(_ids(row))) for row in results.rows())

    def stored(self, join: Any, done: int) -> int:
        """How many batches the store has had, of which ``done`` were read; fails where it has some
        of the rows of one."""
        store = join._join.store if isinstance(join, NaturalJoin) else join.store
        pieces = (piece for name in self.streams for piece in store.scan(name))
        ids = {at for piece in pieces for at in piece.column("id").to_pylist()}
        held = [sum(at // ROWS == number for at in ids) for number in range(BATCHES)]
        assert set(held) <= {0, ROWS}, held
        if self.forgets and done == self.forgets and not any(held):
            return done
        last = max((number + 1 for number, count in enumerate(held) if count), default=0)
        assert all(held[self.forgets if last > self.forgets else 0 : last]), held
        return last


def counted(join: Any) -> dict[str, int]:
    """The counters, without those of what was done on the way."""
    on_the_way = ("pivot_distances", "index_drops")
    return {name: count for name, count in join.counts.items() if name not in on_the_way}


def _ids(row: Mapping[str, Any]) -> list[int]:
    return [value for name, value in row.items() if name.endswith("_id")]


def _vector(width: int, most: int) -> Callable[[random.Random], list[float]]:
    return lambda rng: [float(rng.randrange(most)) for _ in range(width)]


def _text(rng: random.Random) -> str:
    return "".join(rng.choice("ab") for _ in range(rng.randrange(3, 9)))


def _words(rng: random.Random) -> list[str]:
    return rng.sample("abcdefghij", rng.randrange(2, 6))


def _document(rng: random.Random) -> str:
    return json.dumps({name: rng.randrange(3) for name in "uvw" if rng.random() < 0.7} | {"x": 1})


DOUBLES = pa.list_(pa.float64())
NEAR = {"metric": "l2", "threshold": 2}
CASES = {
    "tiles": FailingCase(DOUBLES, _vector(6, 4), {**NEAR, "algorithm": "tiles"}),
    "codes": FailingCase(
        DOUBLES, _vector(17, 4), {"metric": "l2", "threshold": 5, "algorithm": "tiles"}
    ),
    "codes in windows": FailingCase(
        DOUBLES, _vector(17, 4), {"metric": "l2", "threshold": 5}, "a", is_timed=True
    ),
    "grid": FailingCase(DOUBLES, _vector(2, 12), NEAR),
    "pivots": FailingCase(DOUBLES, _vector(6, 4), {**NEAR, "algorithm": "pivots"}, "a"),
    "s3j": FailingCase(DOUBLES, _vector(6, 4), {**NEAR, "algorithm": "s3j"}),
    "edits": FailingCase(pa.string(), _text, {"metric": "levenshtein", "threshold": 1}),
    "sets": FailingCase(
        pa.list_(pa.string()), _words, {"metric": "jaccard", "threshold": 0.5}, "a"
    ),
    "near in time": FailingCase(DOUBLES, _vector(2, 12), NEAR, is_timed=True),
    "documents": FailingCase(pa.string(), _document, streams="a"),
    "documents in windows": FailingCase(pa.string(), _document, is_timed=True),
    "counted documents": FailingCase(
        pa.string(), _document, {"time": Time(window=3 * ROWS)}, "a", forgets=3
    ),
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows make pivots, a second ranking, and posting lists."""
    monkeypatch.setattr(pivots, "_FIRST_ROWS", 20)
    monkeypatch.setattr(coded, "_FIRST_ROWS", 20)
    monkeypatch.setattr(keyed, "_RANKED_ROWS", (0, 2 * ROWS, 3 * ROWS))
    monkeypatch.setattr(natural_join, "TAIL", 10)
    monkeypatch.setattr(natural_join, "LEAST_BYTES", 0)
    monkeypatch.setattr(natural_join, "PART", 1 << 60)


@pytest.fixture(scope="module")
def expected() -> Callable[[str], list[Pairs]]:
    """By case, what each batch finds where nothing fails."""
    known: dict[str, list[Pairs]] = {}

    def of(name: str) -> list[Pairs]:
        if name not in known:
            with CASES[name].opened() as join:
                known[name] = [CASES[name].results(join, n) for n in range(BATCHES)]
            assert all(known[name][1:])
        return known[name]

    return of


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("tear", "step"),
    [
        pytest.param(None, 19, id="some"),
        pytest.param(None, 1, id="every", marks=pytest.mark.stress),
        pytest.param(0.5, 1, id="every torn", marks=pytest.mark.stress),
    ],
)
def test_a_disk_that_is_full_loses_nothing_and_keeps_no_part_of_a_batch(
    name: str,
    tear: float | None,
    step: int,
    memory_path: Path,
    expected: Callable[[str], list[Pairs]],
) -> None:
    case, wanted = CASES[name], expected(name)
    for failing in itertools.count(0, step):
        path = memory_path / str(failing)
        hook = Faults(failing, tear=tear, more=10_000)
        done = 0
        with faults(hook), suppress(OSError), case.opened(path) as join:
            try:
                for number in range(BATCHES):
                    assert case.results(join, number) == wanted[number]
                    done += 1
                    if number % 2 == 0:
                        join.commit()
            except OSError:
                with pytest.raises(StoreClosedError, match="again"):
                    join.process(*case.batch(BATCHES - 1))
                raise
        with case.opened(path) as join:
            held = case.stored(join, done)
            assert held in (done, done + 1), (failing, done, held)
            for number in range(held, BATCHES):
                assert case.results(join, number) == wanted[number], (failing, number)
            join.commit()
        shutil.rmtree(path)
        if not hook.failed:
            assert done == BATCHES
            assert failing > 8
            return


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("refused", [0, 2])
def test_a_batch_that_memory_refuses_leaves_nothing(
    name: str,
    refused: int,
    memory_path: Path,
    expected: Callable[[str], list[Pairs]],
) -> None:
    case, wanted = CASES[name], expected(name)
    with case.opened(memory_path) as join:
        for number in range(BATCHES - 1):
            if number == refused:
                before = counted(join)
                # Its other rows teach the index what the store never gets.
                with pytest.raises(MemoryLimitError, match="a row of 3000"):
                    join.process(*case.too_large(number + BATCHES))
                assert counted(join) == before
            assert case.results(join, number) == wanted[number]
        join.commit()
    with case.opened(memory_path) as join:
        assert case.stored(join, BATCHES - 1) == BATCHES - 1
        assert case.results(join, BATCHES - 1) == wanted[BATCHES - 1]


def test_a_batch_that_is_refused_does_not_say_which_dimension_vectors_have() -> None:
    case = CASES["tiles"]
    stream, rows = case.too_large(0)
    with case.opened() as join:
        with pytest.raises(MemoryLimitError):
            join.process(stream, rows)
        short = [{"id": at, "v": [float(at)], "note": "", "at": START} for at in range(3)]
        assert not case.found(join.process("a", short))
        assert case.found(join.process("b", short)).total() == 9
        with pytest.raises(InvalidArgumentError, match="has 6 components"):
            join.process(*case.batch(1))
