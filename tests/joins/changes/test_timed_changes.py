"""emit="changes" with time intervals against DuckDB: what stands is the join of what is there."""

import random
import tempfile
from collections import Counter
from datetime import timedelta

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State, Time
from lsmstate.joins.local.parts.changelog import OPERATIONS
from support.final_cases import LAST, by_duckdb, random_join
from support.grouped import grouped
from support.join_cases import UNSEEN, on_all_stores
from support.timed_cases import EPOCH, SCHEMA, arrivals, numbers_of, schema_of, watermark_before
from support.timed_cases import batch_of as rows_of

#: What no join of ours is, or none whose results are taken back.
REFUSED = (
    "equates several columns",
    "no row can match",
    "write time intervals into the condition",
    "equalities of keys and time intervals",
    "supported are equalities",
    *UNSEEN,
)
OP = pa.field("op", pa.string())


def batch_of(schema, rows):
    """Rows (k, j, at, n, due, operation), with their operation if the schema has it."""
    plain = pa.schema([field for field in schema if field.name != "op"])
    batch = rows_of(plain, [row[:-1] for row in rows])
    if "op" not in schema.names:
        return batch
    operations = pa.array([row[-1] for row in rows], pa.string())
    return pa.RecordBatch.from_arrays([operations, *batch.columns], schema=schema)


def random_schemas(rng, names):
    zone = rng.choice([None, "UTC", "Europe/Berlin"])
    schemas = {}
    for name in names:
        kind = pa.timestamp(rng.choice(["us", "us", "s", "ms", "ns"]), zone)
        schemas[name] = schema_of(kind, name).append(pa.field("due", kind))
        if rng.random() < 0.6:
            schemas[name] = schemas[name].insert(0, OP)
    return schemas


def random_rows(rng, schemas):
    """(stream, row) in the order they arrive; of changelogs some are taken back later on."""
    rows = []
    for name in schemas:
        for number in range(rng.randint(1, 9 if len(schemas) < 5 else 4)):
            key, other = rng.choice([1, 1, 2, None]), rng.choice([1, 1, 2, None])
            time, due = (None if rng.random() < 0.1 else rng.randint(0, 90) for _ in range(2))
            rows.append((name, (key, other, time, number, due, "+I")))
    disorder = rng.choice([0, 10, 90])
    rows.sort(key=lambda found: (found[1][2] or 0) + rng.uniform(0, disorder))
    for name, row in list(rows):
        if "op" in schemas[name].names and rng.random() < 0.4:
            later = rows.index((name, row)) + rng.randint(1, 12)
            rows.insert(later, (name, (*row[:-1], "-D")))
    return rows


@st.composite
def timed_changes(draw):
    """(schemas, joins, streams shown, rows in the order they arrive, random)."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    while True:
        names = [f"s{number}" for number in range(rng.choice([2, 2, 3, 3, 4, 5, 6]))]
        schemas = random_schemas(rng, names)
        text, shown = random_join(rng, rng.sample(names, len(names)), ("at", "due"), untimed=0.3)
        try:
            opened(schemas, text, None, "memory", 1 << 20).close()
        except InvalidArgumentError as refusal:
            if not any(words in str(refusal) for words in REFUSED):
                raise
        else:
            rows = random_rows(rng, schemas)
            return schemas, text, [name for name in names if name in shown], rows, rng


def opened(schemas, on, home, backend, piece_bytes):
    return MultiwayJoin(
        schemas,
        on,
        emit="changes",
        changes={name: "op" for name, schema in schemas.items() if "op" in schema.names},
        unmatched="error",
        piece_bytes=piece_bytes,
        time=Time(event_time=dict.fromkeys(schemas, "at")),
        state=State(state_dir=home, backend=backend, memory="8m"),
    )


def live(rows):
    """What the changes come to."""
    found = Counter()
    for name, row in rows:
        found[name, row[:-1]] += 1 if OPERATIONS[row[-1]] else -1
    return list(found.elements())


def follow(standing, results, shown):
    for piece in results:
        (operation,) = set(piece.column("op").to_pylist())
        rows = numbers_of([piece], shown)
        if OPERATIONS[operation]:
            standing.update(rows)
        else:
            assert rows <= standing, "a result is taken back that does not stand"
            standing.subtract(rows)


def check(case, backend, piece_bytes):
    schemas, text, shown, rows, rng = case
    plain = {n: pa.schema([f for f in s if f.name != "op"]) for n, s in schemas.items()}
    standing = Counter()
    restarts = rng.choice([0, 0.5, 1])
    with tempfile.TemporaryDirectory() as home, duckdb.connect(config={"threads": 1}) as db:
        join = opened(schemas, text, home, backend, piece_bytes)
        for name, mine, at in arrivals(rows, rng):
            follow(standing, join.process(name, batch_of(schemas[name], mine)), shown)
            if at == len(rows) or rng.random() < 0.3:
                assert +standing == by_duckdb(db, plain, text, shown, live(rows[:at])), text
            watermark = watermark_before(rows[at:], schemas, rng)
            if watermark is not None:
                assert list(join.advance(watermark)) == []
            if rng.random() < restarts:
                join.commit()
                join.close()
                join = opened(schemas, text, home, backend, piece_bytes)
        assert join.late_count == 0
        join.advance(LAST)
        for stream, schema in join._store.streams.items():
            if schema.expiry is not None:
                pieces = join._store.scan(stream)
                left = {time for rows in pieces for time in rows.column("at").to_pylist()}
                assert left <= {None}, "rows are kept that nothing changes any more"
        join.close()


test_on_memory, test_on_lsm, test_many_on_every_store = on_all_stores(
    check, timed_changes(), memory=5, lsm=3, many=500
)


CHANGELOG = SCHEMA.insert(0, OP)
ON = "a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL 30 MINUTES"


def joined(on=f"a FULL JOIN b ON {ON}", **options):
    streams = {"a": CHANGELOG, "b": CHANGELOG}
    both = {"changes": {"a": "op", "b": "op"}, "event_time": {"a": "at", "b": "at"}}
    return MultiwayJoin(streams, on, **grouped(**{"emit": "changes", **both, **options}))


def changed(join, name, *rows):
    """Rows are (operation, key, minutes, number)."""
    values = [(op, k, None if at is None else minutes(at), n) for op, k, at, n in rows]
    batch = [dict(zip(CHANGELOG.names, row, strict=True)) for row in values]
    found = join.process(name, pa.RecordBatch.from_pylist(batch, schema=CHANGELOG))
    return [(r["op"], r["a_n"], r["b_n"]) for piece in found for r in piece.to_pylist()]


def minutes(count):
    return EPOCH + timedelta(minutes=count)


def test_results_are_taken_back_by_partners_in_time_and_by_no_watermark():
    with joined() as join:
        assert changed(join, "a", ("+I", 1, 0, 1), ("+I", 1, 20, 2), ("+I", 1, None, 3)) == [
            ("+I", 1, None), ("+I", 2, None), ("+I", 3, None),
        ]  # fmt: skip
        assert changed(join, "b", ("+I", 1, 25, 10), ("+I", 1, 40, 11)) == [
            ("-D", 1, None), ("-D", 2, None), ("+I", 1, 10), ("+I", 2, 10), ("+I", 2, 11),
        ]  # fmt: skip
        assert list(join.advance(minutes(24))) == []
        assert changed(join, "b", ("-D", 1, 25, 10)) == [
            ("-D", 1, 10), ("-D", 2, 10), ("+I", 1, None),
        ]  # fmt: skip
        assert list(join.advance(minutes(30))) == []  # the first row of a is forgotten, and stands
        assert changed(join, "b", ("+I", 1, 31, 12)) == [("+I", 2, 12)]


def test_a_late_change_is_left_out_and_what_it_would_take_back_stands():
    with joined(late="side") as join:
        changed(join, "a", ("+I", 1, 10, 1), ("+I", 1, 20, 2))
        join.advance(minutes(15))
        assert changed(join, "a", ("-D", 1, 10, 1), ("-D", 1, 20, 2), ("+I", 1, 20, 4)) == [
            ("-D", 2, None), ("+I", 4, None),
        ]  # fmt: skip
        assert (join.late_count, join.unmatched_retractions) == (1, 0)
        assert join.late_rows["n"].to_pylist() == [1]
        assert changed(join, "b", ("+I", 1, 16, 10)) == [("-D", 1, None), ("+I", 1, 10)]


ON_B = "b.k = c.k AND c.at BETWEEN b.at AND b.at + INTERVAL 30 MINUTES"


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (f"a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON {ON_B}", (1, 10, None)),
        (f"a JOIN b ON a.k = b.k LEFT JOIN c ON {ON_B}", (1, 10, None)),
        (f"a JOIN b ON a.k = b.k LEFT JOIN c ON {ON_B.replace('b.at', 'b.due')}", (1, 10, None)),
        (f"a LEFT JOIN b ON {ON} LEFT JOIN c ON a.k = c.k", (1, None, None)),
    ],
)
def test_a_row_needs_the_times_of_its_own_join_alone(on, expected):
    both = CHANGELOG.append(pa.field("due", pa.timestamp("us")))
    streams = dict.fromkeys("abc", both)
    options = {"changes": dict.fromkeys("abc", "op"), "event_time": dict.fromkeys("abc", "at")}
    with MultiwayJoin(streams, on, **grouped(emit="changes", **options)) as join:

        def change(name, operation, number, at):
            row = {"op": operation, "k": 1, "at": at, "n": number}
            for piece in join.process(name, pa.RecordBatch.from_pylist([row], both)):
                for r in piece.to_pylist():
                    sign = 1 if OPERATIONS[r["op"]] else -1
                    standing[r["a_n"], r["b_n"], r["c_n"]] += sign

        standing = Counter()
        change("a", "+I", 1, minutes(0))
        change("b", "+I", 10, None)
        assert +standing == Counter([expected])
        change("b", "-D", 10, None)
        change("a", "-D", 1, minutes(0))
        assert not +standing
        assert join.unmatched_retractions == 0


def test_inner_joins_of_changelogs_keep_rows_as_long_as_their_results_may_go():
    with joined(ON) as join:
        assert changed(join, "a", ("+I", 1, 0, 1)) == []
        assert changed(join, "b", ("+I", 1, 30, 10), ("+I", 1, 31, 11)) == [("+I", 1, 10)]
        join.advance(minutes(29))
        assert changed(join, "b", ("-D", 1, 30, 10), ("-D", 1, 31, 12)) == [("-D", 1, 10)]
        assert join.unmatched_retractions == 1
        kept = {name: us // 60_000_000 for name, us in join.event_time.kept_us.items()}
        assert kept == {"a": 30, "b": 0}


@pytest.mark.parametrize(
    ("on", "options", "words"),
    [
        (f"a LEFT JOIN b ON {ON}", {"retention": {"a": "1 day"}}, "write it there"),
        (ON, {"retention": {"a": "1 day"}}, "write it there"),
        (f"a LEFT JOIN b ON {ON}", {"late": "join"}, "rows that come late cannot be joined"),
        (f"a LEFT JOIN b ON {ON} AND b.n < a.at", {}, "are not compared here"),
        (f"a LEFT JOIN b ON {ON} AND b.op = '+I'", {}, r"b.op is an operation column"),
        (f"a LEFT JOIN b ON {ON} AND b.op < a.n", {}, r"b.op is an operation column"),
        (f"{ON} AND sqrt(b.n) < a.n", {}, "the function sqrt is not known here"),
        ("a LEFT JOIN b ON a.k = b.k", {}, "or write time intervals into the condition"),
    ],
)
def test_refusals(on, options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        joined(on, **options)
