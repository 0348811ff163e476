"""NaturalJoin: its pairs are those of brute force, however batches are cut and wherever documents
lie."""

import gzip
import importlib.util
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lsmstate.cython_ext.documents.attribute_values import AttributeValues
from lsmstate.cython_ext.documents.json_reader import JsonReader
from lsmstate.errors import InvalidArgumentError, MemoryLimitError
from lsmstate.join import NaturalJoin, State, Time
from lsmstate.joins.local.documents import index_memory, natural_join
from lsmstate.joins.local.documents.merged import united
from lsmstate.joins.local.documents.stored_window import StoredWindow
from support.child_process import in_child
from support.document_cases import (
    SCHEMA,
    batches,
    found_pairs,
    is_match,
    leaves,
    pairs_of,
    random_documents,
)
from support.examples import examples
from support.paths import ROOT
from support.sampling import each_value

BACKENDS = ("lsm", "rocksdb", "memory")
LOCAL = ("auto", "bitmaps", "by_shape", "fp_tree", "hash")
START = datetime(2024, 1, 1, tzinfo=UTC)
TIMED = pa.schema([*SCHEMA, ("at", pa.timestamp("us", "UTC"))])


@pytest.fixture(params=["warm", "cold"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``cold``: documents of earlier batches are only found by the store's posting lists."""
    if request.param == "cold":
        monkeypatch.setattr(natural_join, "LEAST_BYTES", 0)
        monkeypatch.setattr(natural_join, "PART", 1 << 60)
    return str(request.param)


@pytest.mark.parametrize(
    ("backend", "local"),
    [
        *(("lsm", local) for local in LOCAL),
        pytest.param("rocksdb", "auto", marks=pytest.mark.stress),
        ("memory", "auto"),
    ],
)
def test_pairs_are_those_of_brute_force(
    backend: str, local: Any, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(natural_join, "TAIL", 50)
    documents = random_documents(500, len(backend))
    expected = pairs_of([leaves(each) for each in documents])
    rng = random.Random(local)
    path = None if backend == "memory" else str(tmp_path)

    def opened() -> NaturalJoin:
        state = State(backend=backend, state_dir=path)
        return NaturalJoin(SCHEMA, "doc", id="id", output="ids", local=local, state=state)

    join = opened()
    found = []
    for rows in batches(documents, rng):
        if path is not None and rng.random() < 0.3:
            join.commit()
            join.close()
            join = opened()
        found += found_pairs(join.process("documents", rows))
    join.close()
    assert len(found) == len(set(found))
    assert set(found) == expected


@each_value(local=LOCAL, at_least=[2, 3])
def test_at_least_so_many_shared_attributes(local: Any, at_least: int, memory: str) -> None:
    documents = random_documents(400, 3)
    kept = [leaves({n: v for n, v in each.items() if n != "level"}) for each in documents]
    with NaturalJoin(
        SCHEMA, "doc", id="id", output="ids", local=local, at_least=at_least, exclude=["level"]
    ) as join:
        rows = batches(documents, random.Random(1))
        found = [pair for some in rows for pair in found_pairs(join.process("documents", some))]
    assert sorted(found) == sorted(pairs_of(kept, at_least))


def test_values_of_one_hash_are_told_apart(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        index_memory, "AttributeValues", lambda *args: AttributeValues(*args, hash_bits=2)
    )
    documents = random_documents(300, 8)
    with NaturalJoin(SCHEMA, "doc", id="id", output="ids") as join:
        rows = batches(documents, random.Random(2))
        found = [pair for some in rows for pair in found_pairs(join.process("documents", some))]
    assert sorted(found) == sorted(pairs_of([leaves(each) for each in documents]))


def test_two_streams_in_any_order(memory: str, tmp_path: Path) -> None:
    sides = {name: random_documents(200, seed) for seed, name in enumerate("ab")}
    schemas = {name: pa.schema([(f"{name}_id", pa.int64()), ("doc", pa.string())]) for name in "ab"}
    ids = {name: f"{name}_id" for name in "ab"}
    rng = random.Random(4)
    waiting = {name: batches(documents, rng) for name, documents in sides.items()}
    found = []
    with NaturalJoin(schemas, "doc", id=ids, output="ids") as join:
        while any(waiting.values()):
            name = rng.choice([n for n, left in waiting.items() if left])
            rows = [{f"{name}_id": r["id"], "doc": r["doc"]} for r in waiting[name].pop(0)]
            found += found_pairs(join.process(name, rows))
    a, b = ([leaves(each) for each in sides[name]] for name in "ab")
    expected = [
        (i, j) for i, one in enumerate(a) for j, other in enumerate(b) if is_match(one, other)
    ]
    assert sorted(found) == expected


@each_value(
    backend=BACKENDS, length=[("10 minutes", 10, 10), (("30 minutes", "10 minutes"), 30, 10)]
)
def test_windows_of_time(
    backend: str, length: tuple[Any, int, int], memory: str, tmp_path: Path
) -> None:
    """Documents come out of order, windows end inside batches, and old ones are forgotten."""
    window, size, slide = length
    rng = random.Random(size)
    documents = random_documents(400, 5)
    minutes = [at // 4 + rng.randrange(-8, 8) for at in range(len(documents))]
    rows = [
        {"id": at, "doc": json.dumps(each), "at": START + timedelta(minutes=minutes[at])}
        for at, each in enumerate(documents)
    ]

    def opened() -> NaturalJoin:
        return NaturalJoin(
            TIMED, "doc", id="id", output="ids",
            time=Time(event_time={"documents": "at"}, window=window),
            state=State(backend=backend, state_dir=None if backend == "memory" else str(tmp_path)),
        )  # fmt: skip

    join, found = opened(), []
    for first in range(0, len(rows), 37):
        if backend != "memory" and rng.random() < 0.4:
            join.commit()
            join.close()
            join = opened()
        found += found_pairs(join.process("documents", rows[first : first + 37]))
        join.advance(START + timedelta(minutes=(first + 37) // 4 - 9))
    late = join.late_count
    stored = sum(piece.num_rows for piece in join._join.store.scan("documents"))
    join.close()
    assert late == 0
    assert 0 < stored < len(rows) / 2
    flat = [leaves(each) for each in documents]
    expected = [
        (i, j)
        for j in range(len(rows))
        for i in range(j)
        if abs(minutes[i] // slide - minutes[j] // slide) < size // slide
        and is_match(flat[i], flat[j])
    ]
    assert sorted(tuple(sorted(pair)) for pair in found) == sorted(expected)


@each_value(unit=["s", "ms", "us", "ns"], length=[("500 milliseconds", 0.5), ("2 seconds", 2)])
def test_time_stamps_of_every_unit(unit: str, length: tuple[str, float]) -> None:
    window, seconds = length
    schema = pa.schema([*SCHEMA, ("at", pa.timestamp(unit))])
    times = [0, 1, 1, 2, 3, 4, -1]
    rows = [
        {"id": at, "doc": '{"a": 1}', "at": datetime(1970, 1, 1) + timedelta(seconds=time)}
        for at, time in enumerate(times)
    ]
    with NaturalJoin(
        schema, "doc", id="id", output="ids",
        time=Time(event_time={"documents": "at"}, window=window),
    ) as join:  # fmt: skip
        found = found_pairs(join.process("documents", rows))
    assert sorted(found) == [
        (i, j)
        for i in range(len(times))
        for j in range(i + 1, len(times))
        if times[i] // seconds == times[j] // seconds
    ]


def test_late_documents_and_forgotten_windows() -> None:
    with NaturalJoin(
        TIMED, "doc", time=Time(event_time={"documents": "at"}, window="10 minutes", late="side")
    ) as join:

        def fed(minute: float | None) -> int:
            at = None if minute is None else START + timedelta(minutes=minute)
            return join.process("documents", [{"id": 1, "doc": '{"a": 1}', "at": at}]).count()

        assert [fed(1), fed(9.9), fed(10), fed(11)] == [0, 1, 0, 1]
        join.advance(START + timedelta(minutes=5))
        assert [fed(5), fed(5.1), fed(None)] == [0, 2, 0]
        assert join.late_count == 2
        assert join.late_rows is not None
        assert join.late_rows.num_rows == 1
        join.advance(START + timedelta(minutes=10))
        assert sum(piece.num_rows for piece in join._join.store.scan("documents")) == 2
        assert fed(10.5) == 2


def test_windows_of_a_number_of_documents(memory: str, tmp_path: Path) -> None:
    documents = random_documents(300, 6)
    rng = random.Random(3)
    found = []
    for rows in batches(documents, rng):
        with NaturalJoin(
            SCHEMA,
            "doc",
            id="id",
            output="ids",
            time=Time(window=70),
            state=State(state_dir=str(tmp_path)),
        ) as join:
            found += found_pairs(join.process("documents", rows))
            join.commit()
    expected = pairs_of([leaves(each) for each in documents])
    assert sorted(found) == sorted(pair for pair in expected if pair[0] // 70 == pair[1] // 70)


def test_a_refused_batch_fills_no_window_of_a_number_of_documents() -> None:
    with NaturalJoin(SCHEMA, "doc", id="id", output="ids", time=Time(window=3)) as join:

        def fed(*ids: int) -> list[tuple[int, int]]:
            rows = [{"id": each, "doc": '{"a": 1}'} for each in ids]
            return found_pairs(join.process("documents", rows))

        def refuse(*_: Any) -> int:
            raise MemoryLimitError("the test wants it so")

        assert fed(1, 2) == [(1, 2)]
        store: Any = join._join.store
        store.append = refuse
        with pytest.raises(MemoryLimitError):
            fed(3, 4)
        del store.append
        assert fed(3, 4) == [(1, 3), (2, 3)]
        assert fed(5, 6) == [(4, 5), (4, 6), (5, 6)]


def test_results_that_are_given_up_change_nothing_later(memory: str) -> None:
    documents = random_documents(300, 7)
    rows = [{"id": at, "doc": json.dumps(each)} for at, each in enumerate(documents)]
    with NaturalJoin(SCHEMA, "doc", id="id", output="ids") as join:
        join.process("documents", rows[:100]).close()
        results = join.process("documents", rows[100:200])
        next(results)
        results.close()
        found = found_pairs(join.process("documents", rows[200:]))
    expected = pairs_of([leaves(each) for each in documents])
    assert sorted(found) == sorted(pair for pair in expected if pair[1] >= 200)


def test_both_documents_and_merged_ones() -> None:
    rows = [
        {"id": 1, "doc": '{"user": 7, "at": {"host": "x"}}'},
        {"id": 2, "doc": '{"user": 7.0, "at": {"port": 80}, "é": null}'},
    ]
    with NaturalJoin(SCHEMA, "doc") as join:
        assert join.process("documents", rows).to_table().to_pylist() == [
            {
                "first_id": 1, "first_doc": rows[0]["doc"],
                "second_id": 2, "second_doc": rows[1]["doc"],
            }
        ]  # fmt: skip
    with NaturalJoin(SCHEMA, "doc", id="id", output="merged") as join:
        (found,) = join.process("documents", rows).to_table().to_pylist()
    assert json.loads(found["document"]) == {
        "user": 7, "at": {"host": "x", "port": 80}, "é": None,
    }  # fmt: skip
    assert (found["first_id"], found["second_id"]) == (1, 2)


NAMES = st.sampled_from(["a", "b", "a.b", "c"])
NESTED = st.dictionaries(
    NAMES, st.recursive(st.integers(0, 2), lambda x: st.dictionaries(NAMES, x, max_size=2)),
    max_size=3,
)  # fmt: skip


@given(NESTED, NESTED)
@settings(max_examples=examples(300), deadline=None)
def test_merged_documents_have_the_attributes_of_both(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    reader = JsonReader(AttributeValues())
    texts = [json.dumps(each) for each in (first, second)]
    assume(not reader.read(pa.array(texts)).faults_found().any())
    found = united(first, second)
    assert leaves(found) == {**leaves(second), **leaves(first)}
    assert not reader.read(pa.array([json.dumps(found)])).faults_found().any()
    assert texts == [json.dumps(each) for each in (first, second)]


def test_dictionaries_structs_and_maps_become_text() -> None:
    given = [{"id": 1, "doc": {"a": 1, "b": {"c": [1, 2]}}}, {"id": 2, "doc": {"a": 1}}]
    struct = pa.table({"id": [3], "doc": [{"a": 1, "z": None}]})
    map_type = pa.map_(pa.string(), pa.int64())
    maps = pa.table({"id": [4], "doc": pa.array([[("a", 1), ("y", 2)]], map_type)})
    with NaturalJoin(SCHEMA, "doc", id="id", output="ids") as join:
        assert found_pairs(join.process("documents", given)) == [(1, 2)]
        assert sorted(found_pairs(join.process("documents", struct))) == [(1, 3), (2, 3)]
        assert sorted(found_pairs(join.process("documents", maps))) == [(1, 4), (2, 4), (3, 4)]
        twice = pa.table({"id": [5], "doc": pa.array([[("a", 1), ("a", 2)]], map_type)})
        with pytest.raises(InvalidArgumentError, match="a map in column 'doc' has a key twice"):
            join.process("documents", twice)


def test_malformed_documents() -> None:
    rows = [
        {"id": 1, "doc": '{"a": 1}'},
        {"id": 2, "doc": '{"a": 1, "a": 2}'},
        {"id": 3, "doc": "{"},
    ]
    last = [{"id": 4, "doc": '{"a": 1}'}]
    with NaturalJoin(SCHEMA, "doc", id="id", output="ids") as join:
        with pytest.raises(InvalidArgumentError, match=r"row 1 has a name or a path twice.*skip"):
            join.process("documents", rows)
        assert found_pairs(join.process("documents", last)) == []
    for malformed in ("skip", "side"):
        with NaturalJoin(SCHEMA, "doc", id="id", output="ids", malformed=malformed) as join:
            assert found_pairs(join.process("documents", rows)) == []
            assert found_pairs(join.process("documents", last)) == [(1, 4)]
            assert join.malformed_count == 2
            kept = join.process("documents", rows)
            kept.close()
            aside = join.malformed_rows
            assert (None if aside is None else aside["id"].to_pylist()) == (
                [2, 3] if malformed == "side" else None
            )


def test_memory_stays_bounded_where_all_documents_share_one_value() -> None:
    cap = 8 << 20
    with NaturalJoin(SCHEMA, "doc", id="id", output="ids", state=State(memory=cap)) as join:
        for first in range(0, 60_000, 4000):
            rows = [
                {"id": at, "doc": json.dumps({"all": "the same", "n": {"a": at}})}
                for at in range(first, first + 4000)
            ]
            join.process("documents", rows).close()
        local = join._join.local_join
        assert isinstance(local, natural_join.NaturalLocalJoin)
        memory = local._memory
        used = memory.values.nbytes + sum(each.index.nbytes for each in local._windows.values())
        assert memory.dropped > 0
        assert used <= cap // 5 + (2 << 20)  # and a batch
        assert join.stats().peak_memory_bytes <= cap
        # All differ in "n.a", so none match.
        assert join.process("documents", [{"id": -1, "doc": '{"n": {"a": 9}}'}]).count() == 1


def test_candidates_and_what_was_not_listed_are_read_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One document has every stored one as a candidate, and all values of those differ."""
    known: list[AttributeValues] = []

    def new_values(*args: Any) -> AttributeValues:
        known.append(AttributeValues(*args))
        return known[-1]

    monkeypatch.setattr(index_memory, "AttributeValues", new_values)
    count, cap = 8000, 6 << 20
    rows = [
        {"id": at, "doc": json.dumps({"all": "x", **{f"n{each}": f"{at}" for each in range(20)}})}
        for at in range(count)
    ]

    def opened(memory: int) -> NaturalJoin:
        state = State(memory=memory, state_dir=str(tmp_path))
        return NaturalJoin(SCHEMA, "doc", id="id", output="ids", state=state)

    # Nothing is listed: the next process reads all of it again.
    monkeypatch.setattr(natural_join, "TAIL", count + 1)
    with opened(256 << 20) as join:
        join.process("documents", rows).close()
        join.commit()
    known.clear()
    with opened(cap) as join:
        assert join.process("documents", [{"id": count, "doc": '{"all": "x"}'}]).count() == count
        found = found_pairs(join.process("documents", [rows[7] | {"id": -1}]))
    assert sorted(found) == [(7, -1), (count, -1)]
    assert len(known) > 5
    assert max(each.nbytes for each in known) <= 5 << 20, "one piece of candidates, and its bound"


def test_pairs_without_a_unit_in_common_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents that share rare attributes only, with lists of more than a piece."""
    monkeypatch.setattr(natural_join, "LEAST_BYTES", 0)
    monkeypatch.setattr(natural_join, "PART", 1 << 60)
    stored = [{"key": at, "a": at % 2, "b": at % 3} for at in range(300)]
    asking = [{"a": 0, "b": 0}, {"a": 1}, {"b": 2}, {"b": 5}]
    rows = [{"id": at, "doc": json.dumps(each)} for at, each in enumerate([*stored, *asking])]
    pieces = []
    few = StoredWindow._few_pairs

    def noted(*args: Any) -> Any:
        pieces.append(few(*args))
        return pieces[-1]

    monkeypatch.setattr(StoredWindow, "_few_pairs", noted)
    with NaturalJoin(SCHEMA, "doc", id="id", output="ids", piece_bytes=1024) as join:
        found_pairs(join.process("documents", rows[: len(stored)]))
        found = found_pairs(join.process("documents", rows[len(stored) :]))
    expected = pairs_of([leaves(each) for each in [*stored, *asking]])
    assert sorted(found) == sorted(pair for pair in expected if pair[1] >= len(stored))
    assert any(piece is None for piece in pieces)
    assert any(piece is not None and len(piece) for piece in pieces)


@pytest.mark.stress
@pytest.mark.parametrize(
    ("count", "differ"), [(60_000, True), (3_000, False)], ids=["no pairs", "all pairs"]
)
def test_resident_memory_where_all_documents_share_one_value(count: int, differ: bool) -> None:
    cap = 16 << 20

    def work() -> None:
        peak = 0
        pairs = 0
        with NaturalJoin(SCHEMA, "doc", id="id", output="ids", state=State(memory=cap)) as join:
            for first in range(0, count, 1000):
                rows = [
                    {"id": at, "doc": json.dumps({"all": "x", "n": at if differ else 1})}
                    for at in range(first, first + 1000)
                ]
                pairs += sum(piece.num_rows for piece in join.process("documents", rows))
                if first == 1000:  # code and buffers of pyarrow are there by now
                    before = psutil.Process().memory_info().rss
                peak = max(peak, psutil.Process().memory_info().rss)
            assert join.stats().peak_memory_bytes <= cap
        print(f"{pairs} pairs, {(peak - before) >> 20} MiB more than after 2,000 documents")
        assert pairs == (0 if differ else count * (count - 1) // 2)
        # Beside the cap: one batch as Python has it, a piece of results, and the allocator's rest.
        assert peak - before <= 2 * cap

    in_child(work)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document": "dok"}, "did you mean 'doc'"),
        ({"changes": {"documents": "op"}}, "has no changelogs as inputs"),
        ({"document": "id"}, "is int64; give JSON text"),
        ({"output": "ids"}, "name their column"),
        ({"output": "idz", "id": "id"}, "did you mean 'ids'"),
        ({"at_least": 0}, "1 or more"),
        ({"time": Time(window="soon")}, "is not a duration"),
        ({"time": Time(window=("1 hour", "7 minutes"))}, "multiple of the step"),
        ({"time": Time(window="1 hour")}, "has no event time"),
        ({"time": Time(window=0)}, "1 document or more"),
        ({"include": "a"}, "give a list of attributes"),
        ({"time": Time(event_time={"documents": "id"})}, "says which window"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        NaturalJoin(SCHEMA, **{"document": "doc", **options})


def test_the_example_joins_real_documents() -> None:
    """Of the package moto, which ships descriptions of machines."""
    pytest.importorskip("moto")
    path = ROOT / "examples" / "document_join.py"
    spec = importlib.util.spec_from_file_location("document_join", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with gzip.open(example.packaged(), "rt") as file:
        machines = json.load(file)
    flat = [
        {
            path: value
            for path, value in leaves(each).items()
            if path.split(".")[0] in example.COMPARED
        }
        for each in list(machines.values())[:250]
    ]
    names = list(machines)[:250]
    found = example.main(example.packaged()).to_pylist()
    pairs = [(row["first_name"], row["second_name"]) for row in found]
    assert sorted(pair for pair in pairs if set(pair) <= set(names)) == sorted(
        (names[i], names[j]) for i, j in pairs_of(flat, 5)
    )
    assert len(found) > 100
