"""``Time(within=..., window=...)``: a distance in time, and windows, for all pairs of streams."""

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate import InvalidArgumentError
from lsmstate.join import MultiwayJoin, Time
from lsmstate.joins.conditions.from_clause import with_conditions
from support.examples import examples
from support.sampling import each_value

START = datetime(2026, 1, 1)
EPOCH = datetime(1970, 1, 1)
BEFORE = datetime(1960, 5, 1, 0, 1) - START
ROWS = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("id", pa.int64())])
TIMES = {"a": "at", "b": "at", "c": "at"}


def joined(streams, on, within, window=None, **options):
    """Names of the matching rows of each stream, in one order."""
    names = list(streams)
    time = Time(event_time=dict.fromkeys(names, "at"), within=within, window=window)
    found = []
    with MultiwayJoin(dict.fromkeys(names, ROWS), on, time=time, **options) as join:
        for name, batch in arriving(streams):
            for row in join.process(name, batch).to_table().to_pylist():
                found.append(tuple(row[f"{each}_id"] for each in names))
    return sorted(found)


def arriving(streams):
    """The rows of all streams in batches of at most three, by turns."""
    batches = []
    for name, rows in streams.items():
        for first in range(0, len(rows), 3):
            batches.append((name, rows[first : first + 3]))
    random.Random(5).shuffle(batches)
    for name, rows in batches:
        columns = {"k": [k for k, _ in rows], "at": [START + t for _, t in rows]}
        yield name, pa.table({**columns, "id": [streams[name].index(r) for r in rows]}).cast(ROWS)


def expected(streams, within=timedelta.max, window=None):
    def meet(rows):
        stamps = [t for _, t in rows]
        if window is None:
            return max(stamps) - min(stamps) <= within
        size, slide = window
        first = min(stamps) // slide * slide
        starts = [first - n * slide for n in range(size // slide + 1)]
        return any(start <= min(stamps) and max(stamps) < start + size for start in starts)

    return sorted(
        tuple(streams[name].index(row) for name, row in zip(streams, rows, strict=True))
        for rows in product(*streams.values())
        if len({k for k, _ in rows}) == 1 and meet(rows)
    )


times = st.integers(0, 40).map(lambda n: timedelta(seconds=30 * n))


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), times), max_size=8, unique=True),
        min_size=2,
        max_size=3,
    ),
    st.integers(0, 10).map(lambda n: timedelta(minutes=n)),
    st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_joined_within_the_distance(rows, within, is_text):
    streams = dict(zip("abc", rows, strict=False))
    on = " AND ".join(f"a.k = {name}.k" for name in list(streams)[1:]) if is_text else ["k"]
    assert joined(streams, on, within) == expected(streams, within)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), times), max_size=8, unique=True),
        min_size=2,
        max_size=3,
    ),
    st.sampled_from([(10, 10), (7, 7), (10, 3), (12, 4)]),
    st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_joined_in_a_window(rows, window, is_before_1970):
    streams = dict(zip("abc", rows, strict=False))
    if is_before_1970:
        streams = {n: [(k, BEFORE + t) for k, t in own] for n, own in streams.items()}
    size, slide = (timedelta(minutes=n) for n in window)
    asked = size if size == slide else (size, f"{window[1]} minutes")
    on = " AND ".join(f"a.k = {name}.k" for name in list(streams)[1:])
    # START is a multiple of none of the slides but 10 and 4, counted from 1970.
    since = {n: [(k, START - EPOCH + t) for k, t in own] for n, own in streams.items()}
    assert joined(streams, on, None, asked) == expected(since, window=(size, slide))


@pytest.mark.parametrize(
    ("size", "slide"), [(10, 3), pytest.param(10, 10, marks=pytest.mark.stress)]
)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_windows_of_joins_by_any_condition(how, size, slide):
    """Found by a range of the event times, and forgotten with their windows."""
    rng = random.Random(size * slide)
    rows = {
        name: sorted((rng.randrange(9), timedelta(seconds=rng.randrange(7200))) for _ in range(120))
        for name in "ab"
    }
    window = (timedelta(minutes=size), timedelta(minutes=slide))
    time = Time(event_time={"a": "at", "b": "at"}, window=window)
    emit = "append" if how == "inner" else "final"
    found, most = Counter(), 0
    with MultiwayJoin({"a": ROWS, "b": ROWS}, "a.k < b.k", how=how, emit=emit, time=time) as join:
        for minute in range(0, 124, 4):
            for name, own in rows.items():
                now = [
                    {"k": k, "at": START + t, "id": at}
                    for at, (k, t) in enumerate(own)
                    if minute <= t // timedelta(minutes=1) < minute + 4
                ]
                shown = join.process(name, now).to_table().to_pylist()
                found.update((row["a_id"], row["b_id"]) for row in shown)
            due = join.advance(START + timedelta(minutes=minute + 4, microseconds=-1))
            found.update((row["a_id"], row["b_id"]) for row in due.to_table().to_pylist())
            held = [n for n in join.store.streams if n.startswith("a by")]
            most = max(most, *(sum(p.num_rows for p in join.store.scan(n)) for n in held))
        due = join.advance(START + timedelta(days=1)).to_table().to_pylist()
        found.update((row["a_id"], row["b_id"]) for row in due)
        assert join.counts["candidates"] < 120 * 120 / 3
    assert most < 60

    def meet(one, other):
        low, high = sorted((START - EPOCH + one, START - EPOCH + other))
        return high < low // window[1] * window[1] + window[0]

    pairs = [
        (i, j)
        for i, (k, t) in enumerate(rows["a"])
        for j, (m, u) in enumerate(rows["b"])
        if k < m and meet(t, u)
    ]
    alone = {i for i, _ in enumerate(rows["a"])} - {i for i, _ in pairs}
    pairs += [(i, None) for i in alone] if how == "left" else []
    assert found == Counter(pairs)
    assert len(pairs) > 100


def test_rows_of_a_window_are_forgotten_with_it():
    """By whole sub-stores: nothing is left of windows that have ended."""
    time = Time(event_time={"a": "at", "b": "at"}, window="10 minutes")
    with MultiwayJoin({"a": ROWS, "b": ROWS}, "a.k = b.k", time=time) as join:
        assert join.event_time.kept_us == {"a": 600_000_000, "b": 600_000_000}
        for minute in range(0, 300, 5):
            at = START + timedelta(minutes=minute)
            rows = [{"k": k, "at": at, "id": k} for k in range(50)]
            join.process("a", rows).close()
            assert join.process("b", rows).count() == (50 if minute % 10 == 0 else 100)
            join.advance(at - timedelta(minutes=1)).close()
        assert join._store.probe("a", pa.record_batch({"k": pa.array(range(50))})).counts.max() <= 4


#: FROM clauses, and what DuckDB is asked; ``{ab}`` says that rows of a and b are near.
CLAUSES = {
    "a JOIN b ON a.k = b.k": "a JOIN b ON a.k = b.k AND {ab}",
    "a CROSS JOIN b": "a JOIN b ON {ab}",
    "a LEFT JOIN b ON a.k < b.k": "a LEFT JOIN b ON a.k < b.k AND {ab}",
    "a FULL JOIN b USING (k)": "a FULL JOIN b ON a.k = b.k AND {ab}",
    "a LEFT ANTI JOIN b ON a.k = b.k OR a.k = b.k + 1": (
        "a ANTI JOIN b ON (a.k = b.k OR a.k = b.k + 1) AND {ab}"
    ),
    "a JOIN b USING (k) JOIN c USING (k)": (
        "a JOIN b ON a.k = b.k AND {ab} JOIN c ON c.k = a.k AND {ac} AND {bc}"
    ),
    "a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON a.k = c.k": (
        "a LEFT JOIN b ON a.k = b.k AND {ab} LEFT JOIN c ON a.k = c.k AND {ac} "
        "AND (b.at IS NULL OR {bc})"
    ),
    "(a JOIN b ON a.k = b.k) LEFT JOIN c ON a.k = c.k": (
        "(a JOIN b ON a.k = b.k AND {ab}) LEFT JOIN c ON a.k = c.k AND {ac} AND {bc}"
    ),
    "a LEFT SEMI JOIN b ON a.k = b.k JOIN c ON a.k = c.k": (
        "a SEMI JOIN b ON a.k = b.k AND {ab} JOIN c ON a.k = c.k AND {ac}"
    ),
}
#: By Time's fields, what DuckDB is asked of two times.
NEAR = {
    "within": ("2 minutes", "abs(epoch({x}.at) - epoch({y}.at)) <= 120"),
    "window": (
        ("3 minutes", "1 minute"),
        "greatest(epoch({x}.at), epoch({y}.at)) "
        "< floor(least(epoch({x}.at), epoch({y}.at)) / 60) * 60 + 180",
    ),
}


@each_value(clause=CLAUSES, option=NEAR)
def test_from_clauses_keep_it_at_each_join(clause, option):
    rng, (asked, near) = random.Random(clause), NEAR[option]
    names = [name for name in "abc" if f" {name} " in f" {clause} ".replace("(", "( ")]
    every = [(k, timedelta(seconds=30 * n)) for k in range(3) for n in range(30)]
    rows = {name: rng.sample(every, 14) for name in names}
    shown = [name for name in names if f"SEMI JOIN {name}" not in clause and "ANTI" not in clause]
    shown = shown or ["a"]
    time = Time(event_time=dict.fromkeys(names, "at"), **{option: asked})
    found = Counter()
    with MultiwayJoin(dict.fromkeys(names, ROWS), clause, emit="changes", time=time) as join:
        called = [name for name in join.output_schema.names if name.endswith("id")]
        for name, batch in arriving(rows):
            for row in join.process(name, batch).rows():
                found[tuple(row[each] for each in called)] += 1 if row["op"] == "+I" else -1
    between = {x + y: near.format(x=x, y=y) for x, y in product("abc", repeat=2)}
    sql = f"SELECT {', '.join(f'{n}.id' for n in shown)} FROM {CLAUSES[clause].format(**between)}"
    with duckdb.connect() as db:
        for name, own in rows.items():
            columns = {"k": [k for k, _ in own], "at": [START + t for _, t in own]}
            db.register(name, pa.table({**columns, "id": range(len(own))}).cast(ROWS))
        wanted = Counter(db.execute(sql).fetchall())
    assert {row: n for row, n in found.items() if n} == wanted
    assert wanted


def test_conditions_are_written_at_each_join():
    """Also into parentheses, and beside USING of streams that may have no row."""
    columns = {name: ["k", "at"] for name in ("a", "b", "the c")}

    def between(left, right):
        parts = left.shown, right.shown, sorted(left.nullable)
        yield f"near({';'.join(map(','.join, parts))})"

    assert with_conditions(
        "a FULL JOIN (b JOIN `the c` USING (k)) USING (k)", columns, between
    ) == (
        "a FULL JOIN (b JOIN `the c` ON b.k = `the c`.k AND near(b;the c;)) "
        "ON a.k = b.k AND a.k = `the c`.k AND near(a;b,the c;)"
    )
    assert with_conditions("a LEFT JOIN b USING (k) JOIN `the c` USING (k)", columns, between) == (
        "a LEFT JOIN b ON a.k = b.k AND near(a;b;) "
        "JOIN `the c` ON COALESCE(a.k, b.k) = `the c`.k AND near(a,b;the c;b)"
    )


def test_lists_of_keys_compare_with_whichever_stream_has_a_row():
    streams = dict.fromkeys("abc", ROWS)
    time = Time(event_time=TIMES, within="1 hour")
    kinds = {"b": "full", "c": "left"}
    with MultiwayJoin(streams, ["k"], how=kinds, emit="changes", time=time) as join:
        join.process("b", [{"k": 1, "at": START, "id": 1}]).close()
        rows = join.process("c", [{"k": 1, "at": START, "id": 2}]).to_table().to_pylist()
    assert [(row["op"], row["b_id"], row["c_id"]) for row in rows] == [
        ("-D", 1, None),
        ("+I", 1, 2),
    ]


def test_a_semi_join_hides_its_stream_from_later_ones():
    streams, time = dict.fromkeys("abc", ROWS), Time(event_time=TIMES, window="1 hour")
    options = {"how": {"b": "semi"}, "emit": "changes", "time": time}
    with MultiwayJoin(streams, "a.k = b.k AND a.k = c.k", **options) as join:
        for name in "abc":
            rows = join.process(name, [{"k": 1, "at": START, "id": 1}]).to_table()
    assert rows.num_rows == 1


def test_windows_of_joins_of_other_types():
    time = Time(event_time={"a": "at", "b": "at"}, window="10 minutes")
    streams = {"a": ROWS, "b": ROWS}
    near, far = START + timedelta(minutes=9), START + timedelta(minutes=10)
    for how, emit in (("left", "final"), ("left", "changes"), ("full", "final"), ("anti", "final")):
        with MultiwayJoin(streams, "a.k = b.k", how=how, emit=emit, time=time) as join:
            found = list(join.process("a", [{"k": k, "at": near, "id": k} for k in (1, 2)]))
            rows = [{"k": 1, "at": START, "id": 7}, {"k": 2, "at": far, "id": 8}]
            found += list(join.process("b", rows))
            found += list(join.advance(START + timedelta(days=1)))
            rows = [tuple(row.values()) for piece in found for row in piece.to_pylist()]
        ids = Counter()
        for row in rows:
            sign = -1 if row[0] == "-D" else 1
            shown = row[1:] if emit == "changes" else row
            ids[(shown[2], shown[5] if len(shown) > 3 else None)] += sign
        kept = [pair for pair, count in ids.items() for _ in range(count)]
        both = {"anti": [(2, None)], "left": [(1, 7), (2, None)]}
        wanted = both.get(how, [(1, 7), (2, None), (None, 8)])
        assert sorted(kept, key=str) == sorted(wanted, key=str), (how, emit)


def test_a_window_is_a_part_of_the_condition(tmp_path):
    from lsmstate.join import State

    def opened(window):
        time = Time(event_time={"a": "at", "b": "at"}, window=window)
        state = State(state_dir=str(tmp_path / "state"))
        return MultiwayJoin({"a": ROWS, "b": ROWS}, "a.k = b.k", time=time, state=state)

    opened("10 minutes").close()
    with pytest.raises(InvalidArgumentError, match="date_bin"):
        opened(("10 minutes", "5 minutes"))
    opened(timedelta(minutes=10)).close()


def test_the_distance_is_a_part_of_the_condition(tmp_path):
    """So rows are forgotten by it, and a kept state refuses another one."""
    from lsmstate.join import State

    def opened(within):
        time = Time(event_time={"a": "at", "b": "at"}, within=within)
        state = State(state_dir=str(tmp_path / "state"))
        return MultiwayJoin({"a": ROWS, "b": ROWS}, "a.k = b.k", time=time, state=state)

    with opened("10 minutes") as join:
        assert join.event_time.kept_us == {"a": 600_000_000, "b": 600_000_000}
    with pytest.raises(InvalidArgumentError, match="10"):
        opened("11 minutes")
    opened(timedelta(minutes=10)).close()


def test_a_preserved_side_within_a_distance():
    time = Time(event_time={"a": "at", "b": "at"}, within="1 minute")
    with MultiwayJoin(
        {"a": ROWS, "b": ROWS}, "a.k = b.k", how="left", emit="final", time=time
    ) as join:
        join.process("a", [{"k": 1, "at": START, "id": 0}]).close()
        far = [{"k": 1, "at": START + timedelta(minutes=2), "id": 1}]
        assert join.process("b", far).to_table().num_rows == 0
        final = join.advance(START + timedelta(minutes=2)).to_table().to_pylist()
    assert [(row["a_id"], row["b_id"]) for row in final] == [(0, None)]


@pytest.mark.parametrize(
    ("on", "time", "words"),
    [
        ("a.k = b.k", Time(within="10 minutes"), ["stream 'a' has no event time", "event_time="]),
        ("a.k = b.k", Time(event_time={"a": "at"}, within="1 day"), ["stream 'b'", "event_time="]),
        ("a.k = b.k", Time(event_time=TIMES, within="ten"), ["within='ten'", "7 days"]),
        ("a.k = b.k", Time(event_time=TIMES, within=5), ["within=5", "timedelta"]),
        ("a.k = b.k", Time(event_time=TIMES, within=timedelta(-1)), ["within=", "negative"]),
        ("a JOIN b ON a.k =", Time(event_time=TIMES, window="1 day"), ["syntax error"]),
        ("a NATURAL JOIN b", Time(event_time=TIMES, within="1 day"), ["no NATURAL JOIN"]),
        ("a JOIN b ON a.k = b.k", Time(window="1 day"), ["stream 'a' has no event time"]),
        ("a.k = b.k", Time(window="1 hour"), ["window='1 hour': stream 'a' has no event time"]),
        ("a.k = b.k", Time(event_time=TIMES, window=5), ["window=5", "length and their slide"]),
        ("a.k = b.k", Time(event_time=TIMES, window=("1 hour", "2 hours")), ["slide", "at most"]),
        ({"a": ["k"], "b": []}, Time(event_time=TIMES, within="1 day"), ["same number"]),
    ],
)
def test_what_does_not_fit_is_refused(on, time, words):
    if time.event_time == TIMES:
        time = replace(time, event_time={"a": "at", "b": "at"})
    with pytest.raises(InvalidArgumentError) as caught:
        MultiwayJoin({"a": ROWS, "b": ROWS}, on, time=time)
    for word in words:
        assert word in str(caught.value)
