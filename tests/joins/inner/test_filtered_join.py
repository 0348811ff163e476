"""Inner joins in plain Python whose conditions filter results, and keys that are computed."""

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State, Time
from support.grouped import grouped

START = datetime(2026, 1, 1)
ROWS = pa.schema(
    [
        ("n", pa.int64()),
        ("k", pa.int64()),
        ("v", pa.int64()),
        ("at", pa.timestamp("us")),
        ("doc", pa.struct([("id", pa.int64())])),
    ]
)
CHANGED = ROWS.insert(0, pa.field("op", pa.string()))
ON = "a.k = b.k AND a.v + b.v > 3 AND (a.v <> b.v OR a.n % 2 = 0)"


def rows(seed: int) -> list[dict[str, object]]:
    return [
        {
            "n": n,
            "k": n * seed % 5 if n % 7 else None,
            "v": n * (seed + 4) % 4,
            "at": START + timedelta(minutes=n * seed % 60),
            "doc": {"id": n % 4} if n % 6 else None,
        }
        for n in range(40)
    ]


def batches(name: str, size: int = 15) -> list[pa.RecordBatch]:
    listed = rows(1 + 2 * (name == "b"))
    return [
        pa.RecordBatch.from_pylist(listed[at : at + size], ROWS)
        for at in range(0, len(listed), size)
    ]


def expected(on: str) -> Counter[tuple[int, int]]:
    with duckdb.connect(config={"threads": 1}) as db:
        for name in "ab":
            db.register(name, pa.Table.from_batches(batches(name)))
        return Counter(db.execute(f"SELECT a.n, b.n FROM a JOIN b ON {on}").fetchall())


def found(join: MultiwayJoin) -> Counter[tuple[int, int]]:
    pairs: Counter[tuple[int, int]] = Counter()
    for parts in zip(batches("a"), batches("b"), strict=True):
        for name, batch in zip("ab", parts, strict=True):
            for piece in join.process(name, batch):
                assert piece.schema.equals(join.output_schema)
                pairs.update((row["a_n"], row["b_n"]) for row in piece.to_pylist())
    return pairs


@pytest.mark.parametrize("backend", ["lsm", "memory"])
@pytest.mark.parametrize(
    "on",
    [
        ON,
        "a.doc.id = b.doc.id AND abs(a.v - b.v) <= 1",
        "a.k = b.k AND a.v = b.v AND a.k = b.v",
        "a.k = b.k AND a.v = b.v AND a.at <= b.at + INTERVAL 10 MINUTES AND a.n < b.n + a.v",
    ],
)
def test_results_are_those_that_keep_all_conditions(backend: str, on: str) -> None:
    with MultiwayJoin(dict.fromkeys("ab", ROWS), on, state=State(backend=backend)) as join:
        assert found(join) == expected(on)


@pytest.mark.parametrize("options", [{"algorithm": "tree"}, {"piece_bytes": 1}])
def test_by_every_algorithm_and_in_small_pieces(options: dict[str, object]) -> None:
    with MultiwayJoin(
        dict.fromkeys("ab", ROWS), ON, **grouped(backend="memory", **options)
    ) as join:  # type: ignore[arg-type]
        assert found(join) == expected(ON)


def test_results_that_are_retracted_are_filtered_alike() -> None:
    streams = {"a": CHANGED, "b": ROWS}
    changes = {"a": "op"}
    standing: Counter[tuple[int, int]] = Counter()
    with MultiwayJoin(
        streams, ON, emit="changes", changes=changes, state=State(backend="memory")
    ) as join:
        told = [{"op": "+I", **row} for row in rows(1)]
        told += [{"op": "-D", **row} for row in rows(1) if row["n"] in (3, 8, 12, 13)]
        for name, batch in (
            ("a", pa.RecordBatch.from_pylist(told[:30], CHANGED)),
            *(("b", batch) for batch in batches("b")),
            ("a", pa.RecordBatch.from_pylist(told[30:], CHANGED)),
        ):
            for piece in join.process(name, batch):
                for row in piece.to_pylist():
                    standing[row["a_n"], row["b_n"]] += 1 if row["op"] == "+I" else -1
        assert join.unmatched_retractions == 0
    wanted = {pair: n for pair, n in expected(ON).items() if pair[0] not in (3, 8, 12, 13)}
    assert +standing == Counter(wanted)
    assert min(standing.values()) >= 0


def test_a_state_is_of_one_condition(tmp_path: Path) -> None:
    streams = dict.fromkeys("ab", ROWS)
    with MultiwayJoin(streams, ON, state=State(state_dir=str(tmp_path))) as join:
        some = found(join)
        join.commit()
    with pytest.raises(InvalidArgumentError, match=r"conditions: \[.*has conditions: \[\]"):
        MultiwayJoin(streams, "a.k = b.k", state=State(state_dir=str(tmp_path)))
    with MultiwayJoin(
        streams, f"{ON} /* the same */", state=State(state_dir=str(tmp_path))
    ) as join:
        again = found(join)
    assert again == Counter({pair: 3 * count for pair, count in some.items()})


def test_late_rows_are_as_they_came_where_a_key_is_computed() -> None:
    on = "a.doc.id = b.doc.id AND a.at <= b.at + INTERVAL 1 HOUR AND b.at <= a.at + INTERVAL 1 HOUR"
    times = {"a": "at", "b": "at"}
    with MultiwayJoin(
        dict.fromkeys("ab", ROWS), on, time=Time(event_time=times, late="side")
    ) as join:
        list(join.process("a", batches("a")[0]))
        list(join.advance(START + timedelta(minutes=30)))
        batch = batches("b")[0]
        list(join.process("b", batch))
        late = join.late_rows
        assert late is not None
        assert late.schema.equals(ROWS)
        wanted = [r for r in batch.to_pylist() if r["at"] <= START + timedelta(minutes=30)]
        assert late.to_pylist() == wanted


def test_text_that_is_no_number_is_refused_before_it_is_stored() -> None:
    text = pa.schema([("k", pa.string())])
    number = pa.schema([("k", pa.int64())])
    with MultiwayJoin({"a": text, "b": number}, "a.k = b.k", state=State(backend="memory")) as join:
        list(join.process("b", pa.RecordBatch.from_pylist([{"k": 7}], number)))
        with pytest.raises(InvalidArgumentError, match="fails on a row: 'seven' is no int64"):
            join.process("a", pa.RecordBatch.from_pylist([{"k": "7"}, {"k": "seven"}], text))
        (piece,) = join.process("a", pa.RecordBatch.from_pylist([{"k": " 7"}], text))
        assert piece.to_pylist() == [{"a_k": " 7", "b_k": 7}]
