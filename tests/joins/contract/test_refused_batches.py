"""A batch that is refused is not stored in part, by whatever join it is refused; the next is."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lsmstate import InvalidArgumentError, MemoryLimitError, Options, StreamSchema, open_store
from lsmstate.cython_ext.memory.budget import Holding
from lsmstate.join import MultiwayJoin
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import Mutation
from support.grouped import grouped

CAP = "8m"
#: Larger than a row may be under this cap.
HUGE = "x" * 3_000_000
TIME = datetime(2026, 1, 1)

KEYED = pa.schema([("k", pa.int64()), ("v", pa.string())])
TWICE = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("v", pa.string())])
TIMED = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.string())])
CHANGED = pa.schema([("op", pa.string()), *KEYED])

BY_ONE = {"a": KEYED, "b": KEYED}
BY_TWO = {"a": KEYED, "b": TWICE, "c": pa.schema([("j", pa.int64()), ("v", pa.string())])}
IN_TIME = "a.k = b.k AND b.t BETWEEN a.t - INTERVAL 1 HOUR AND a.t + INTERVAL 1 HOUR"
TIMES = {"a": "t", "b": "t"}

#: Kinds of joins, by how they are asked for.
KINDS: dict[str, tuple[Mapping[str, pa.Schema], dict[str, Any]]] = {
    "one key": (BY_ONE, {"on": "a.k = b.k"}),
    "tree": (BY_ONE, {"on": "a.k = b.k", "algorithm": "tree"}),
    "several keys": (BY_TWO, {"on": "a.k = b.k AND b.j = c.j"}),
    "tree of several keys": (BY_TWO, {"on": "a.k = b.k AND b.j = c.j", "algorithm": "tree"}),
    "left": (BY_ONE, {"on": "a LEFT JOIN b ON a.k = b.k", "emit": "changes"}),
    "changelog": (
        {"a": CHANGED, "b": KEYED},
        {"on": "a.k = b.k", "emit": "changes", "changes": {"a": "op"}},
    ),
    "changelog by several keys": (
        {**BY_TWO, "a": CHANGED},
        {"on": "a.k = b.k AND b.j = c.j", "emit": "changes", "changes": {"a": "op"}},
    ),
    "left by several keys": (
        BY_TWO,
        {"on": "a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON c.j = b.j", "emit": "changes"},
    ),
    "in time": ({"a": TIMED, "b": TIMED}, {"on": IN_TIME, "event_time": TIMES}),
    "final": (
        {"a": TIMED, "b": TIMED},
        {"on": f"a LEFT JOIN b ON {IN_TIME}", "emit": "final", "event_time": TIMES},
    ),
}


def batch(schema: pa.Schema, rows: Iterable[tuple[int, str]]) -> pa.RecordBatch:
    """Rows (key, value); other columns are what matches."""
    filled = {"op": "+I", "j": 7, "t": TIME}
    return pa.RecordBatch.from_pylist(
        [{**filled, "k": key, "v": value} for key, value in rows], schema=schema
    )


def made(results: Iterable[pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    """Results as a multiset; of those that come and go in the end what stands."""
    found: Counter[tuple[Any, ...]] = Counter()
    for piece in results:
        for row in piece.to_pylist():
            sign = -1 if row.pop("op", "+I") == "-D" else 1
            found[tuple(row.values())] += sign
    return Counter({row: count for row, count in found.items() if count})


@contextmanager
def opened(kind: str, path: Path | None = None) -> Iterator[MultiwayJoin]:
    streams, asked = KINDS[kind]
    with MultiwayJoin(
        streams, **grouped(memory=CAP, state_dir=None if path is None else str(path), **asked)
    ) as join:
        yield join


def all_results(kind: str, given: Iterable[tuple[str, list[tuple[int, str]]]]) -> Counter[Any]:
    """Of a join that is given these batches, none of which is refused."""
    streams, _ = KINDS[kind]
    found: Counter[Any] = Counter()
    with opened(kind) as join:
        for stream, rows in given:
            found += made(join.process(stream, batch(streams[stream], rows)))
    return found


def others(streams: Mapping[str, pa.Schema]) -> list[tuple[str, list[tuple[int, str]]]]:
    """Partners in every stream but ``a``."""
    return [(name, [(5, f"{name}5"), (6, f"{name}6")]) for name in streams if name != "a"]


REFUSED = [(5, "not stored"), (6, HUGE)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_with_a_row_that_is_too_large_is_not_stored_at_all(kind: str) -> None:
    streams, _ = KINDS[kind]
    right = [(5, "stored"), (6, "stored too")]
    later = [(name, [(5, f"{name} later")]) for name in streams if name != "a"]
    expected = all_results(kind, [*others(streams), ("a", right), *later])
    found: Counter[Any] = Counter()
    with opened(kind) as join:
        for stream, rows in others(streams):
            found += made(join.process(stream, batch(streams[stream], rows)))
        with pytest.raises(MemoryLimitError, match="a row of 30000"):
            list(join.process("a", batch(streams["a"], REFUSED)))
        for stream, rows in (("a", right), *later):
            found += made(join.process(stream, batch(streams[stream], rows)))
    assert +found == +expected
    assert expected


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_it_is_found_after_a_commit_and_a_restart(kind: str, tmp_path: Path) -> None:
    streams, _ = KINDS[kind]
    with opened(kind, tmp_path / "state") as join:
        with pytest.raises(MemoryLimitError):
            list(join.process("a", batch(streams["a"], REFUSED)))
        list(join.process("a", batch(streams["a"], [(1, "alone")])))
        if kind == "final":
            list(join.advance(TIME))
        join.commit()
        join.close()
    with opened(kind, tmp_path / "state") as join:
        found: Counter[Any] = Counter()
        for stream, rows in others(streams):
            found += made(join.process(stream, batch(streams[stream], rows)))
        assert not [row for row in found if "not stored" in row]


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_ends_in_the_middle_takes_all_or_nothing(kind: str) -> None:
    """A batch of several pieces beside somebody who holds nearly all of the memory."""
    streams, _ = KINDS[kind]
    partners = others(streams)
    rows = [(5 + n % 2, f"{n:04} {'y' * 20_000}") for n in range(150)]
    with opened(kind) as join:
        for stream, some in partners:
            list(join.process(stream, batch(streams[stream], some)))
        budget = process_memory().budget
        step = 64 << 10
        held: list[Holding] = []
        while (one := Holding(budget, "frames")).try_grow(step):
            held.append(one)
        refused = 0
        try:
            for give_back in (0, 2, 14):
                for one in [held.pop() for _ in range(min(give_back, len(held)))]:
                    one.release()
                try:
                    results = join.process("a", batch(streams["a"], rows))
                except MemoryLimitError:
                    refused += 1
                    continue
                with results, suppress(MemoryLimitError):  # of what is read for them
                    list(results)
        finally:
            for one in held:
                one.release()
        asks = ("b", [(5, "asks")])
        found = made(join.process("b", batch(streams["b"], asks[1])))
        once = all_results(kind, [*partners, ("a", rows), asks])
        of_one = sum(count for row, count in once.items() if "asks" in row)
        assert of_one >= len(rows) // 2
        assert sum(n for row, n in found.items() if "asks" in row) == (3 - refused) * of_one


def test_a_refused_changelog_batch_changes_no_counter_and_keeps_what_waits() -> None:
    with opened("changelog") as join:
        wrong = [{"op": "-D", "k": 9, "v": "never came"}, {"op": "+I", "k": 6, "v": HUGE}]
        with pytest.raises(MemoryLimitError):
            join.process("a", pa.RecordBatch.from_pylist(wrong, schema=CHANGED))
        assert join.unmatched_retractions == 0
        list(join.process("a", pa.RecordBatch.from_pylist(wrong[:1], schema=CHANGED)))
        assert join.unmatched_retractions == 1


@pytest.mark.parametrize("algorithm", ["umjoin", "tree"])
def test_columns_are_taken_by_name_in_any_order(algorithm: str) -> None:
    prices = pa.schema([("id", pa.int64()), ("price", pa.int64())])
    amounts = pa.schema([("id", pa.int64()), ("qty", pa.int64())])
    with MultiwayJoin({"a": prices, "b": amounts}, "a.id = b.id", algorithm=algorithm) as join:
        turned = pa.RecordBatch.from_pydict(
            {"price": [30], "id": [1]}, schema=prices.remove(0).append(prices.field(0))
        )
        list(join.process("a", turned))
        (found,) = join.process("b", pa.RecordBatch.from_pydict({"qty": [2], "id": [1]}))
        assert found.to_pylist() == [{"a_id": 1, "price": 30, "b_id": 1, "qty": 2}]
        with pytest.raises(InvalidArgumentError, match="columns missing 'id'; unknown 'key'"):
            join.process("a", turned.rename_columns(["price", "key"]))
        with pytest.raises(InvalidArgumentError, match="missing 'price'"):
            join.process("a", turned.select(["id"]))
        with pytest.raises(InvalidArgumentError, match="given twice 'id'"):
            join.process("a", turned.select(["id", "id", "price"]))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "tree" not in kind])
def test_every_kind_takes_columns_by_name(kind: str) -> None:
    streams, _ = KINDS[kind]
    rows = [(5, "turned")]
    expected = all_results(kind, [*others(streams), ("a", rows)])
    found: Counter[Any] = Counter()
    with opened(kind) as join:
        for stream, some in (*others(streams), ("a", rows)):
            given = batch(streams[stream], some)
            turned = given.select(given.schema.names[::-1])
            found += made(join.process(stream, turned))
    assert +found == +expected


@pytest.mark.parametrize("backend", ["lsm", "rocksdb", "memory"])
def test_a_store_takes_columns_by_name(backend: str, tmp_path: Path) -> None:
    key = pa.schema([("k", pa.int64()), ("j", pa.int64())])
    rows = pa.schema([("v", pa.int64()), ("w", pa.int64())])
    keys = pa.RecordBatch.from_pydict({"j": [2], "k": [1]})
    values = pa.RecordBatch.from_pydict({"w": [4], "v": [3]})
    with open_store(str(tmp_path), [StreamSchema("s", key, rows)], backend=backend) as store:
        store.append("s", values, keys)
        store.put("s", values, keys)
        store.write([Mutation("append", "s", keys, values)])
        assert store.get("s", (1, 2)).to_pylist() == [{"v": 3, "w": 4}] * 2
        assert store.probe("s", keys).counts.tolist() == [2]
        store.retract("s", values, keys)
        assert store.probe("s", keys).counts.tolist() == [1]
        store.delete("s", keys)
        assert store.probe("s", keys).counts.tolist() == [0]
        with pytest.raises(InvalidArgumentError, match="missing 'v'; unknown 'x'"):
            store.append("s", values.rename_columns(["w", "x"]), keys)


@pytest.mark.parametrize("backend", ["lsm", "rocksdb", "memory"])
def test_several_writes_are_all_made_or_none(backend: str, tmp_path: Path) -> None:
    key, rows = pa.schema([("k", pa.int64())]), pa.schema([("v", pa.string())])
    streams = [StreamSchema("s", key, rows), StreamSchema("t", key, rows)]
    options = Options(memory_bytes=8 << 20)

    def part(name: str, first: int, size: int) -> list[Mutation]:
        keys = pa.RecordBatch.from_pydict({"k": list(range(first, first + 10))})
        values = pa.RecordBatch.from_pydict({"v": ["z" * size] * 10})
        return [Mutation("append", name, keys, values)]

    with open_store(str(tmp_path), streams, backend=backend, options=options) as store:
        parts = [part("s", 10 * n, 40_000) for n in range(6)]
        with pytest.raises(MemoryLimitError, match="a row of"):
            store.write_all([*parts, part("t", 0, 2_200_000)])
        with pytest.raises(InvalidArgumentError, match="no stream 'u'"):
            store.write_all([*parts, part("u", 0, 1)])
        assert not any(rows.num_rows for name in "st" for rows in store.scan(name))
        assert store.write_all([*parts, part("t", 0, 10)]) == 70
        assert sum(rows.num_rows for name in "st" for rows in store.scan(name)) == 70
        assert store.write_all([]) == 0
