"""Joins that forget: against DuckDB where nothing is late, against a model where rows are."""

import itertools
import random
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from lsmstate.errors import InvalidArgumentError, MemoryLimitError
from lsmstate.expiry.store import ExpiringStore
from lsmstate.join import MultiwayJoin, State, Time
from support.examples import examples
from support.grouped import grouped
from support.timed_cases import (
    EPOCH,
    SCHEMA,
    arrivals,
    batch_of,
    make_tables,
    numbers_of,
    schema_of,
    watermark_before,
)

HOUR = timedelta(hours=1)


@st.composite
def timed_joins(draw):
    """(schemas, condition, rows as (stream, row) in the order they arrive, batch ends, restarts);
    times are minutes."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    names = [f"s{i}" for i in range(rng.choice([2, 2, 3, 4]))]
    zone = rng.choice([None, "UTC", "Europe/Berlin"])
    kinds = {n: pa.timestamp(rng.choice(["us", "us", "s", "ms", "ns"]), zone) for n in names}
    schemas = {name: schema_of(kinds[name], name) for name in names}
    key = rng.choice(["kk", "kj"])  # one common key, or a chain of two
    clauses = [
        f"{a}.k = {b}.{key[i % 2] if len(names) > 2 else 'k'}"
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    for a, b in itertools.combinations(names, 2):
        if rng.random() < 0.3 and (a, b) != (names[0], names[1]):
            continue
        low, high = rng.randint(-10, 30), rng.randint(0, 40)
        clauses.append(
            rng.choice(
                [
                    f"{a}.at BETWEEN {b}.at - INTERVAL {high} MINUTES AND {b}.at "
                    f"+ INTERVAL '{abs(low)} minutes'",
                    f"{a}.at >= {b}.at - INTERVAL {high} MINUTES",
                    f"{a}.at < {b}.at + INTERVAL {high} MINUTES",
                ]
            )
        )
    rng.shuffle(clauses)
    rows = []
    for name in names:
        for number in range(rng.randint(1, 14)):
            row = (rng.choice([1, 1, 2, None]), rng.choice([1, 2]), rng.randint(0, 90), number)
            rows.append((name, row if rng.random() > 0.05 else (*row[:2], None, number)))
    # In the order of time, more or less.
    disorder = rng.choice([0, 10, 90])
    rows.sort(key=lambda found: (found[1][2] or 0) + rng.uniform(0, disorder))
    restarts = {rng.randrange(len(rows)) for _ in range(rng.randint(0, 2))}
    return schemas, " AND ".join(clauses), rows, rng, restarts


def by_duckdb(schemas, on, rows):
    """The numbers of the rows of each combination."""
    with duckdb.connect() as db:
        make_tables(db, schemas, rows)
        numbers = ", ".join(f"n_{name}" for name in schemas)
        return Counter(
            db.execute(f"SELECT {numbers} FROM {', '.join(schemas)} WHERE {on}").fetchall()
        )


def check_like_duckdb(case, backend):
    schemas, on, rows, rng, restarts = case
    names = list(schemas)
    found = Counter()
    event_time = dict.fromkeys(names, "at")
    with tempfile.TemporaryDirectory() as home:

        def opened():
            return MultiwayJoin(
                schemas,
                on,
                time=Time(event_time=event_time),
                state=State(state_dir=home, backend=backend, memory="8m"),
            )

        join = opened()
        for name, mine, at in arrivals(rows, rng):
            found += numbers_of(join.process(name, batch_of(schemas[name], mine)), names)
            watermark = watermark_before(rows[at:], names, rng)
            if watermark is not None:
                join.advance(watermark)
            if any(at - len(mine) < restart <= at for restart in restarts):
                join.commit()
                join.close()
                join = opened()
        assert join.late_count == 0
        join.advance(datetime(2027, 1, 1, tzinfo=UTC))
        left = {n: sum(p.num_rows for p in join._store.scan(n)) for n in join._store.streams}
        kept = join.event_time.kept_us
        join.close()
    assert found == by_duckdb(schemas, on, rows)
    for name in names:
        if kept[name] is not None:
            # What has no time is never stored by streams of an interval; all else is due.
            assert sum(n for s, n in left.items() if s.split("(")[0] == name) == 0


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(timed_joins())
def test_like_duckdb(case):
    check_like_duckdb(case, "memory")


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(timed_joins())
def test_like_duckdb_on_disk(case):
    check_like_duckdb(case, "lsm")


@pytest.mark.stress
@pytest.mark.parametrize("backend", ["lsm", "memory", "rocksdb"])
def test_like_duckdb_for_long(backend):
    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(timed_joins())
    def run(case):
        check_like_duckdb(case, backend)

    run()


class Model:
    """Two streams of one key and time: every row that is there, and what becomes of late ones."""

    def __init__(self, kept, low, high, late):
        self.kept, self.low, self.high, self.late = kept, low, high, late
        self.rows = {"a": [], "b": []}
        self.watermark = None
        self.late_rows = []

    def process(self, name, rows):
        w = self.watermark
        late = [row for row in rows if w is not None and row[1] <= w]
        self.late_rows = [row[2] for row in late]
        mine = rows if self.late == "join" else [row for row in rows if row not in late]
        other = "b" if name == "a" else "a"
        found = Counter()
        for k, at, n in mine:
            for k2, at2, n2 in self.rows[other]:
                a, b = (at, at2) if name == "a" else (at2, at)
                if k == k2 and -self.low <= a - b <= self.high:
                    found[(n, n2) if name == "a" else (n2, n)] += 1
        self.rows[name] += mine
        self.forget()
        return found

    def advance(self, watermark):
        self.watermark = max(watermark, watermark if self.watermark is None else self.watermark)
        self.forget()

    def forget(self):
        if self.watermark is not None:
            for name, kept in self.kept.items():
                if kept is not None:
                    self.rows[name] = [r for r in self.rows[name] if r[1] + kept > self.watermark]


@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.sampled_from(["drop", "join", "side"]))
def test_late_rows_like_the_model(seed, late):
    rng = random.Random(seed)
    low, high = rng.randint(0, 20), rng.randint(0, 20)
    retention = {n: rng.randint(0, 30) for n in "ab" if rng.random() < 0.5}
    kept = {"a": min(low, retention.get("a", 99)), "b": min(high, retention.get("b", 99))}
    schemas = dict.fromkeys("ab", SCHEMA)
    on = (
        f"a.k = b.k AND a.at >= b.at - INTERVAL {low} MINUTES "
        f"AND a.at <= b.at + INTERVAL {high} MINUTES"
    )
    model = Model(kept, low, high, late)
    with MultiwayJoin(
        schemas,
        on,
        time=Time(
            event_time={"a": "at", "b": "at"},
            retention={name: timedelta(minutes=m) for name, m in retention.items()},
            late=late,
        ),
        state=State(backend="memory"),
    ) as join:
        late_count = number = 0
        for step in range(rng.randint(2, 12)):
            name = rng.choice("ab")
            rows = []
            for _ in range(rng.randint(0, 5)):
                number += 1
                rows.append((rng.choice([1, 2]), step * 8 + rng.randint(-30, 10), number))
            batch = pa.RecordBatch.from_pylist(
                [{"k": k, "at": EPOCH + timedelta(minutes=at), "n": n} for k, at, n in rows],
                schema=SCHEMA,
            )
            got = Counter(
                (row["a_n"], row["b_n"])
                for piece in join.process(name, batch)
                for row in piece.to_pylist()
            )
            assert got == model.process(name, rows)
            late_count += len(model.late_rows)
            assert join.late_count == late_count
            if late == "side":
                assert join.late_rows["n"].to_pylist() == model.late_rows
            else:
                assert join.late_rows is None
            if rng.random() < 0.6:
                watermark = step * 8 - rng.randint(0, 20)
                model.advance(watermark)
                join.advance(EPOCH + timedelta(minutes=watermark))


def row(k, hours, n=0):
    return {"k": k, "at": EPOCH + timedelta(hours=hours), "n": n}


def feed(join, name, *rows):
    batch = pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
    return [(r["a_n"], r["b_n"]) for p in join.process(name, batch) for r in p.to_pylist()]


def test_rows_past_their_retention_match_no_more():
    with MultiwayJoin(
        {"a": SCHEMA, "b": SCHEMA},
        "a.k = b.k",
        time=Time(event_time={"a": "at", "b": "at"}, retention={"a": "2 hours"}),
    ) as join:
        assert join.event_time.kept_us == {"a": 7_200_000_000, "b": None}
        feed(join, "a", row(1, 0, 1), row(1, 1, 2))
        feed(join, "b", row(2, 0, 9))
        join.advance(EPOCH + 2 * HOUR - timedelta(microseconds=1))
        assert feed(join, "b", row(1, 3, 1)) == [(1, 1), (2, 1)]
        join.advance(EPOCH + 2 * HOUR)
        assert feed(join, "b", row(1, 3, 2)) == [(2, 2)]
        # b has no retention: what an a that comes late in the day matches is all there.
        assert feed(join, "a", row(2, 9, 3)) == [(3, 9)]


@pytest.mark.parametrize("condition", ["a.k = b.k", "a.k = b.k AND a.at <= b.at + INTERVAL 1 HOUR"])
def test_results_that_are_given_up_or_asked_for_late(condition):
    times = {"event_time": {"a": "at", "b": "at"}, "retention": {"a": "2 hours"}}
    with MultiwayJoin({"a": SCHEMA, "b": SCHEMA}, condition, **grouped(**times)) as join:
        batch = pa.RecordBatch.from_pylist([row(1, 0, 1)], schema=SCHEMA)
        join.process("a", batch).close()  # nothing of it was asked for
        results = join.process("b", batch)
        with pytest.raises(InvalidArgumentError, match=r"advance.*not consumed"):
            join.advance(EPOCH + 9 * HOUR)  # would forget what they are made of
        assert sum(piece.num_rows for piece in results) == 1
        join.advance(EPOCH + 9 * HOUR)
        assert feed(join, "b", row(1, 9, 2)) == []


def test_watermark_and_lateness_outlive_a_restart(tmp_path):
    def opened(**changes):
        options = {"retention": {"a": "2 hours"}, "event_time": {"a": "at", "b": "at"}, **changes}
        return MultiwayJoin(
            {"a": SCHEMA, "b": SCHEMA},
            "a.k = b.k",
            **grouped(state_dir=str(tmp_path / "join"), **options),
        )

    with opened() as join:
        feed(join, "a", row(1, 0, 1), row(1, 5, 2))
        join.advance(EPOCH + 4 * HOUR)
        join.commit()
    with opened(late="side") as join:  # what becomes of late rows may change
        assert feed(join, "b", row(1, 4, 1), row(1, 5, 2)) == [(2, 2)]
        assert join.late_count == 1
        assert join.late_rows["n"].to_pylist() == [1]
        join.advance(EPOCH)  # it never goes back
        assert feed(join, "b", row(1, 3, 3)) == []
    with pytest.raises(
        InvalidArgumentError, match=r"7200000000.*asked for.*'at' after 10800000000"
    ):
        opened(retention={"a": "3 hours"})


def test_a_watermark_that_was_broken_off_half_way_forgets_nothing_in_silence(tmp_path, monkeypatch):
    def opened():
        return MultiwayJoin(
            {"a": SCHEMA, "b": SCHEMA},
            "a.k = b.k",
            time=Time(
                event_time={"a": "at", "b": "at"}, retention={"a": "0 hours", "b": "2 hours"}
            ),
            state=State(state_dir=str(tmp_path / "join")),
        )

    def fails_for_b(store, stream, watermark):
        if stream == "b":
            raise OSError("injected")
        advance(store, stream, watermark)

    advance = ExpiringStore.advance
    with opened() as join:
        feed(join, "a", row(1, 1, 1))
        feed(join, "b", row(1, 0, 1))
        with monkeypatch.context() as patch:
            patch.setattr(ExpiringStore, "advance", fails_for_b)
            with pytest.raises(OSError, match="injected"):
                join.advance(EPOCH + 2 * HOUR)
    with opened() as join:
        assert feed(join, "b", row(1, 1, 2)) == []
        assert join.late_count == 1
        assert feed(join, "a", row(1, 3, 2)) == [], "b was not forgotten"


@pytest.mark.parametrize("is_repeated", [False, True])
def test_what_a_refused_watermark_left_is_forgotten_by_the_next_call(monkeypatch, is_repeated):
    refused = []

    def refuses_once(store, stream, watermark):
        if not refused:
            refused.append(stream)
            raise MemoryLimitError("injected")
        advance(store, stream, watermark)

    advance = ExpiringStore.advance
    times = {"event_time": {"a": "at", "b": "at"}, "retention": dict.fromkeys("ab", "2 hours")}
    with MultiwayJoin({"a": SCHEMA, "b": SCHEMA}, "a.k = b.k", **grouped(**times)) as join:
        assert feed(join, "a", row(1, 0, 1)) == []
        monkeypatch.setattr(ExpiringStore, "advance", refuses_once)
        with pytest.raises(MemoryLimitError):
            join.advance(EPOCH + 9 * HOUR)
        if is_repeated:
            join.advance(EPOCH + 9 * HOUR)
        assert feed(join, "b", row(1, 10, 2)) == [], "the row of a was not forgotten"


def test_state_stays_bounded_over_a_long_stream():
    """100 batches of 300 rows a stream, a quarter of an hour each; half an hour is needed."""
    rng = random.Random(5)
    on = "a.k = b.k AND a.at BETWEEN b.at - INTERVAL 30 MINUTES AND b.at + INTERVAL 30 MINUTES"
    sizes, held = [], []
    with MultiwayJoin(
        {"a": SCHEMA, "b": SCHEMA},
        on,
        time=Time(event_time={"a": "at", "b": "at"}),
        state=State(memory="8m"),
    ) as join:
        for step in range(100):
            for name in "ab":
                rows = [
                    row(rng.randrange(10_000), step / 4 + rng.random() / 4, n) for n in range(300)
                ]
                feed(join, name, *rows)
            join.advance(EPOCH + timedelta(hours=step / 4))
            join.commit()
            sizes.append(join.stats().disk_bytes)
            held.append(sum(piece.num_rows for piece in join._store.scan("a")))
    assert max(held) <= 4 * 300
    # Without expiry the second half would add as much as the first.
    assert max(sizes[50:]) <= 1.5 * max(sizes[:50])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retention": {"x": "1 day"}}, "no stream 'x'"),
        ({"retention": {"a": "1 day"}, "event_time": {}}, "stream 'a' has no event time"),
        ({"retention": {"a": "soon"}}, "'soon' is not a duration"),
        ({"retention": {"a": timedelta(-1)}}, "must not be negative"),
        ({"retention": {"a": 7}}, "or a timedelta"),
        ({"event_time": {"a": "k"}}, "is int64; name a column of time stamps"),
        ({"event_time": {"a": "att"}}, "did you mean 'at'"),
        ({"late": "keep"}, "late='keep' is unknown; did you mean 'side'"),
        ({"on": "a.k = b.k AND upper(a.n) < b.n"}, "the function upper is not known here"),
        ({"algorithm": "tree"}, "algorithm='tree' joins over the full history"),
        ({"on": "a.k = b.k AND a.at < b.at AND a.at > b.at + INTERVAL 1 HOUR"}, "no row can"),
        (
            {"event_time": None, "late": "side", "emit": "changes"},
            "late='side' applies to append-only inner",
        ),
    ],
)
def test_refusals(options, words):
    given_options = {"on": "a.k = b.k", "event_time": {"a": "at", "b": "at"}, **options}
    with pytest.raises(InvalidArgumentError, match=words):
        MultiwayJoin({"a": SCHEMA, "b": SCHEMA}, **grouped(**given_options))


def test_advance_needs_an_event_time_and_a_fitting_watermark():
    zoned = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    with (
        MultiwayJoin({"a": SCHEMA, "b": SCHEMA}, "a.k = b.k AND a.at < b.at") as join,
        pytest.raises(InvalidArgumentError, match="no stream has an event time"),
    ):
        join.advance(EPOCH)
    times = {"a": "at", "b": "at"}
    with MultiwayJoin({"a": zoned, "b": SCHEMA}, "a.k = b.k", time=Time(event_time=times)) as join:
        with pytest.raises(InvalidArgumentError, match="with a time zone if"):
            join.advance(EPOCH)
        join.advance(EPOCH.replace(tzinfo=UTC))
