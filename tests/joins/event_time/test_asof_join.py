"""As-of joins: DuckDB's rows, and a brute force for ties, late rows, nulls and restarts."""

import math
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate import InvalidArgumentError
from lsmstate.join import State, Time, asof_join
from lsmstate.joins.local.timed import asof_join as asof_local
from support.examples import examples
from support.sampling import each_value

BACKENDS = ("lsm", "rocksdb", "memory")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOW, HIGH = -(1 << 63), (1 << 63) - 1
#: The streams' times in different units.
STAMPS = {
    "q": pa.schema([("k", pa.int32()), ("at", pa.timestamp("ms", "UTC")), ("id", pa.int64())]),
    "p": pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("id", pa.int64())]),
}
NUMBERS = {
    "q": pa.schema([("k", pa.int32()), ("at", pa.int32()), ("id", pa.int64())]),
    "p": pa.schema([("k", pa.int64()), ("at", pa.int64()), ("id", pa.int64())]),
}
SIGNS = {
    ">=": lambda left, right: right <= left,
    ">": lambda left, right: right < left,
    "<=": lambda left, right: right >= left,
    "<": lambda left, right: right > left,
    "~": lambda left, right: True,
}


class Oracle:
    """All pairs of rows, and a list of what waits."""

    def __init__(self, sign, how, tolerance, window=None):
        self.sign, self.how, self.window = sign, how, window
        lengths = [n for n in (tolerance, window and window[0]) if n is not None]
        self.tolerance = min(lengths, default=None)
        self.now = -1
        self.right, self.waiting = [], []
        self.late = 0

    def process(self, stream, rows):
        alone = []
        for row in rows:
            _, at, number = row
            if at is not None and at <= self.now:
                self.late += 1
            elif stream == "p":
                self.right += [row] if at is not None else []
            elif at is not None:
                self.waiting.append(row)
            elif self.how == "left":
                alone.append((number, None))
        return alone

    def advance(self, now):
        self.now = max(self.now, now)
        found, waiting = [], []
        for row in self.waiting:
            partner = self.partner(row)
            if not self.is_final(row, partner):
                waiting.append(row)
            elif partner is not None or self.how == "left":
                found.append((row[2], None if partner is None else partner[2]))
        self.waiting = waiting
        return found

    def partner(self, row):
        key, at, _ = row
        fits = [
            each
            for each in self.right
            if key is not None
            and each[0] == key
            and SIGNS[self.sign](at, each[1])
            and (self.tolerance is None or abs(at - each[1]) <= self.tolerance)
            and (self.window is None or self.share_a_window(at, each[1]))
        ]
        if not fits:
            return None
        best = min((each[1] for each in fits), key=lambda other: (abs(at - other), other))
        return [each for each in fits if each[1] == best][-1]

    def share_a_window(self, one, other):
        size, slide = self.window
        starts = range(-size, 60, 1)
        return any(
            start <= min(one, other) and max(one, other) < start + size
            for start in starts
            if start % slide == 0
        )

    def is_final(self, row, partner):
        if self.sign in (">", ">="):
            return row[1] <= self.now
        if self.tolerance is not None:
            return row[1] + self.tolerance <= self.now
        return partner is not None and partner[1] <= self.now


def batch_of(schema, rows):
    stamps = pa.types.is_timestamp(schema.field("at").type)
    shown = [None if at is None else EPOCH + timedelta(seconds=at) for _, at, _ in rows]
    times = shown if stamps else [at for _, at, _ in rows]
    columns = [[k for k, _, _ in rows], times, [number for *_, number in rows]]
    return pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def asked(window, has_stamps):
    """Windows as a caller gives them."""
    if window is None:
        return None
    lengths = tuple(timedelta(seconds=n) if has_stamps else n for n in window)
    return lengths[0] if window[0] == window[1] else lengths


def pairs(results):
    return [(row["q_id"], row["p_id"]) for row in results.rows()]


row = st.tuples(
    st.one_of(st.integers(0, 2), st.integers(0, 2), st.none()),
    st.one_of(st.integers(0, 20), st.integers(0, 20), st.none()),
)
step = st.one_of(
    st.tuples(st.just("q"), st.lists(row, max_size=5)),
    st.tuples(st.just("p"), st.lists(row, max_size=5)),
    st.tuples(st.just("advance"), st.integers(0, 22)),
    st.tuples(st.just("restart"), st.none()),
)


def keeping(join, is_kept):
    """The join; with ``is_kept`` it keeps rows in memory from the first lookup on."""
    if is_kept:
        join.local_join._kept.kept._lookups = math.inf
    return join


@given(
    st.lists(step, max_size=14),
    st.sampled_from(sorted(SIGNS)),
    st.sampled_from(["inner", "left"]),
    st.one_of(st.none(), st.integers(0, 6)),
    st.sampled_from([None, None, (5, 5), (6, 2), (7, 3)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(BACKENDS),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(200))
def test_any_history_gives_the_rows_of_all_pairs(
    tmp_path_factory, steps, sign, how, tolerance, window, has_stamps, has_keys, backend, is_kept
):
    if sign in ("<", "<=") and tolerance is None and window is None:
        how = "inner"
    if sign == "~" and tolerance is None and window is None:
        tolerance = 3
    streams = STAMPS if has_stamps else NUMBERS
    path = None if backend == "memory" else str(tmp_path_factory.mktemp("asof"))
    oracle, number = Oracle(sign, how, tolerance, window), 0

    def opened():
        most = timedelta(seconds=tolerance or 0) if has_stamps else tolerance
        return asof_join(
            streams,
            f"q.at {sign} p.at",
            by="k" if has_keys else (),
            how=how,
            tolerance=None if tolerance is None else most,
            time=Time(window=asked(window, has_stamps)),
            state=State(backend=backend, state_dir=path),
        )

    def moment(at):
        return EPOCH + timedelta(seconds=at) if has_stamps else at

    join, late = keeping(opened(), is_kept), 0
    for kind, value in [*steps, ("advance", 40)]:
        if kind == "restart":
            if path is not None:
                late += join.counts["late_rows"]
                join.commit()
                join.close()
                join = keeping(opened(), is_kept)
        elif kind == "advance":
            assert sorted(pairs(join.advance(moment(value))), key=str) == sorted(
                oracle.advance(value), key=str
            )
        else:
            rows = [(k if has_keys else 0, at, number + n) for n, (k, at) in enumerate(value)]
            number += len(rows)
            found = pairs(join.process(kind, batch_of(streams[kind], rows)))
            assert found == oracle.process(kind, rows)
    assert late + join.counts["late_rows"] == oracle.late
    join.close()


@given(
    st.lists(step, max_size=14),
    st.sampled_from(sorted(SIGNS)),
    st.sampled_from(["inner", "left"]),
    st.one_of(st.none(), st.integers(0, 6)),
    st.sampled_from([None, None, (5, 5), (6, 2), (7, 3)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(BACKENDS),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(100))
def test_results_that_are_taken_back_come_to_those_of_all_pairs(
    tmp_path_factory, steps, sign, how, tolerance, window, has_stamps, has_keys, backend, is_kept
):
    if sign == "~" and tolerance is None and window is None:
        tolerance = 3
    streams = STAMPS if has_stamps else NUMBERS
    path = None if backend == "memory" else str(tmp_path_factory.mktemp("asof"))
    oracle, number = Oracle(sign, how, tolerance, window), 0

    def opened():
        most = timedelta(seconds=tolerance or 0) if has_stamps else tolerance
        return asof_join(
            streams,
            f"q.at {sign} p.at",
            by="k" if has_keys else (),
            how=how,
            emit="changes",
            tolerance=None if tolerance is None else most,
            time=Time(window=asked(window, has_stamps)),
            piece_bytes=1 if has_keys else 1 << 20,
            state=State(backend=backend, state_dir=path),
        )

    join, late, found, alone = opened(), 0, Counter(), Counter()
    for kind, value in steps:
        if kind == "restart":
            if path is not None:
                late += join.counts["late_rows"]
                join.commit()
                join.close()
                join = keeping(opened(), is_kept)
        elif kind == "advance":
            oracle.now = max(oracle.now, value)
            moment = EPOCH + timedelta(seconds=value) if has_stamps else value
            assert join.advance(moment).count() == 0
        else:
            rows = [(k if has_keys else 0, at, number + n) for n, (k, at) in enumerate(value)]
            number += len(rows)
            signs = []
            for each in join.process(kind, batch_of(streams[kind], rows)).rows():
                signs.append(each["op"])
                found[each["q_id"], each["p_id"]] += 1 if each["op"] == "+I" else -1
            assert signs == sorted(signs, reverse=True)
            alone.update(oracle.process(kind, rows))
            wanted = Counter(alone)
            for each in oracle.waiting:
                partner = oracle.partner(each)
                if partner is not None or how == "left":
                    wanted[each[2], None if partner is None else partner[2]] += 1
            assert {pair: n for pair, n in found.items() if n} == wanted
    assert late + join.counts["late_rows"] == oracle.late
    join.close()


@each_value(
    backend=BACKENDS,
    asked=[("left", ">=", None), ("inner", ">", "90 seconds"), ("left", "<=", "90 seconds")],
)
def test_duckdb_finds_the_same_in_thousands_of_rows(backend, asked, tmp_path):
    how, sign, tolerance = asked
    rng = random.Random(how + sign)
    tables = {}
    for name, schema in STAMPS.items():
        times = rng.sample(range(0, 20_000, 2 if name == "q" else 1), 4000)
        rows = [(rng.randrange(30), at, number) for number, at in enumerate(times)]
        tables[name] = batch_of(schema, sorted(rows, key=lambda r: r[1] + rng.randrange(200)))
    found, done = Counter(), 0
    state = State(backend=backend, memory="8m")
    with asof_join(
        STAMPS, f"q.at {sign} p.at", by=["k"], how=how, tolerance=tolerance, state=state
    ) as join:
        while done < 4000:
            size = rng.randrange(1, 900)
            for name, table in tables.items():
                join.process(name, table.slice(done, size)).close()
            done += size
            ahead = [table["at"].slice(done).cast("int64") for table in tables.values()]
            later = [min(a.to_pylist()) // d for a, d in zip(ahead, (1, 1000), strict=True) if a]
            safe = min(later, default=10**9)
            found.update(pairs(join.advance(EPOCH + timedelta(milliseconds=safe - 1))))
        assert join.counts == {"late_rows": 0}
    most = "" if tolerance is None else "AND abs(epoch(q.at) - epoch(p.at)) <= 90"
    with duckdb.connect() as db:
        for name, table in tables.items():
            db.register(name, pa.table(table))
        rows = db.execute(
            f"SELECT q.id, CASE WHEN p.at IS NOT NULL {most} THEN p.id END AS found "
            f"FROM q ASOF LEFT JOIN p ON q.k = p.k AND q.at {sign} p.at"
        ).fetchall()
    assert found == Counter(r for r in rows if how == "left" or r[1] is not None)
    assert len(found) > 1000


@each_value(backend=BACKENDS, options=[{}, {"tolerance": 30}])
def test_rows_that_no_later_row_needs_are_forgotten(backend, options, monkeypatch):
    monkeypatch.setattr(asof_local, "_FORGOTTEN_ROWS", 7)  # so that many go in several portions
    state = State(backend=backend)
    with asof_join(NUMBERS, "q.at >= p.at", by="k", state=state, **options) as join:
        for now in range(0, 2000, 100):
            rows = [(at * at % 5, at, at) for at in range(now, now + 100)]
            for name in ("p", "q"):
                join.process(name, batch_of(NUMBERS[name], rows)).close()
            assert join.advance(now + 99).count() == 100
        kept = sum(piece.num_rows for piece in join.store.scan("p"))
        assert kept <= (30 if options else 103)
        assert not list(join.store.scan("q (waiting)"))


def test_results_that_are_given_up_are_gone(tmp_path):
    def opened():
        return asof_join(NUMBERS, "q.at >= p.at", state=State(state_dir=str(tmp_path)))

    with opened() as join:
        join.process("p", batch_of(NUMBERS["p"], [(0, 1, 7)])).close()
        join.process("q", batch_of(NUMBERS["q"], [(0, 2, 8)])).close()
        join.commit()
        unread = join.advance(5)
        with pytest.raises(InvalidArgumentError, match="not consumed"):
            join.commit()
        unread.close()
        join.commit()
        assert join.advance(9).count() == 0
        join.commit()
    with opened() as join:
        assert join.local_join.watermark_us == 9
        assert join.advance(20).count() == 0


def test_a_comparison_may_be_written_from_either_side():
    found = []
    for on in ("q.at > p.at", "p.at < q.at"):
        with asof_join(NUMBERS, on) as join:
            join.process("p", batch_of(NUMBERS["p"], [(0, 1, 1), (0, 2, 2), (0, 3, 3)])).close()
            join.process("q", batch_of(NUMBERS["q"], [(0, 2, 4)])).close()
            found.append(pairs(join.advance(3)))
    assert found == [[(4, 1)]] * 2


def test_late_rows_are_handed_out_on_demand():
    with asof_join(NUMBERS, "q.at < p.at", time=Time(late="side")) as join:
        join.advance(10).close()
        join.process("p", batch_of(NUMBERS["p"], [(0, 10, 1), (0, 11, 2), (0, None, 3)])).close()
        assert join.late_rows.column("id").to_pylist() == [1]
        assert join.counts == {"late_rows": 1}


@pytest.mark.parametrize(
    ("on", "options", "words"),
    [
        ("q.at = p.at", {}, "is no comparison of two columns; write one comparison"),
        ("q.at >= p.at AND q.k = p.k", {}, "what is equal stands in by="),
        ("q.at >= q.id", {}, "is no comparison of two columns"),
        (7, {}, "on=7 is a int"),
        ("q.at >= p.when", {}, "when"),
        ("q.at >= p.at", {"how": "full"}, "how='full' is not for as-of joins"),
        ("q.at >= p.at", {"time": Time(late="join")}, "late='join' is not for as-of joins"),
        ("q.at <= p.at", {"how": "left"}, "would wait for ever"),
        ("q.at >= p.at", {"emit": "append"}, "emit='append' is not for as-of joins"),
        ("q.at ~ p.at", {}, "without tolerance=: a row would wait for ever"),
        ("q.at ~ p.at", {"emit": "changes"}, "without tolerance=: a row would wait for ever"),
        ("q.at ~ q.id", {"tolerance": "1 hour"}, "is no comparison of two columns"),
        ("q.at >= p.at", {"tolerance": 5}, "tolerance=5"),
        ("q.at >= p.at", {"tolerance": "5 pears"}, "is not a duration"),
        ("q.at >= p.at", {"by": {"q": "k"}}, "the same number of columns"),
        ("q.at >= p.at", {"by": "kk"}, "there is no column 'kk'"),
        (
            "q.at >= p.at",
            {"time": Time(within="1 hour"), "tolerance": "1 hour"},
            "give one of them",
        ),
        ("q.at >= p.at", {"time": Time(retention={"q": "1 day"})}, "is not an option of asof_join"),
        ("q.at >= p.at", {"time": Time(window=5)}, "window=5: give the length of windows"),
        ("q.at >= p.at", {"time": Time(window=("1 hour", "2 hours"))}, "the slide must be more"),
        ("q.at >= p.at", {"state": State(buckets=3)}, "is an option on Spark only"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(on, options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        asof_join(STAMPS, on, **options)


def test_windows_that_the_times_cannot_tell_are_refused():
    seconds = {name: pa.schema([("at", pa.timestamp("s"))]) for name in "qp"}
    with pytest.raises(InvalidArgumentError, match="the times count in s, and windows begin"):
        asof_join(seconds, "q.at >= p.at", time=Time(window="1500 milliseconds"))
    for window in ("1 hour", (5, 7), (5, 0), True, (9, 6, 3)):
        with pytest.raises(InvalidArgumentError, match="the times are whole numbers; give the len"):
            asof_join(NUMBERS, "q.at >= p.at", time=Time(window=window))


def test_a_window_is_fixed_by_the_first_start(tmp_path):
    def opened(**time):
        state = State(state_dir=str(tmp_path))
        return asof_join(STAMPS, "q.at >= p.at", time=Time(**time), state=state)

    opened(window="1 hour").close()
    with pytest.raises(InvalidArgumentError, match="window"):
        opened(window=("1 hour", "30 minutes"))
    with pytest.raises(InvalidArgumentError, match="window"):
        opened(within="1 hour")
    opened(window="1 hour").close()


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([("q", 5, 1), ("p", 2, 2), ("p", 8, 3)], [(1, None), (1, 2)]),  # as near: the earlier
        ([("q", 5, 1), ("p", 8, 2), ("p", 2, 3)], [(1, None), (1, 2), (1, 3)]),
        ([("q", 5, 1), ("p", 8, 2), ("p", 6, 3), ("p", 8, 4)], [(1, None), (1, 2), (1, 3)]),
        ([("q", 5, 1), ("p", 7, 2), ("p", 7, 3)], [(1, None), (1, 2), (1, 3)]),  # the last arrived
        ([("p", 7, 1), ("p", 7, 2), ("q", 6, 3), ("p", 5, 4)], [(3, 2), (3, 4)]),
        ([("q", LOW, 1), ("p", HIGH, 2), ("p", -1, 3)], [(1, None), (1, 3)]),  # too far
        ([("q", 0, 1), ("p", HIGH, 2), ("p", HIGH - 1, 3)], [(1, None), (1, 2), (1, 3)]),
        ([("q", -1, 1), ("p", HIGH - 1, 2), ("p", LOW + 1, 3)], [(1, None), (1, 2), (1, 3)]),
        ([("q", HIGH - 1, 1), ("p", HIGH - 3, 2), ("p", HIGH, 3)], [(1, None), (1, 2), (1, 3)]),
        ([("p", LOW, 1), ("q", LOW, 2), ("p", LOW, 3)], [(2, 1), (2, 3)]),
    ],
)
def test_the_nearest_row_changes(rows, wanted):
    schema = {name: pa.schema([("at", pa.int64()), ("id", pa.int64())]) for name in "qp"}
    shown = []
    with asof_join(schema, "q.at ~ p.at", how="left", emit="changes", tolerance=HIGH) as join:
        for name, at, number in rows:
            for each in join.process(name, [{"at": at, "id": number}]).rows():
                shown.append((each["op"], each["q_id"], each["p_id"]))
    expected = [("+I", *wanted[0])]
    for old, new in pairwise(wanted):
        expected += [("-D", *old), ("+I", *new)]
    assert shown == expected


def test_in_both_directions_rows_stay_while_a_later_one_may_change_their_results():
    with asof_join(NUMBERS, "q.at ~ p.at", how="left", emit="changes", tolerance=5) as join:
        join.process("p", batch_of(NUMBERS["p"], [(0, 2, 1)])).close()
        join.process("q", batch_of(NUMBERS["q"], [(0, 7, 2), (0, 8, 3)])).close()
        join.advance(11).close()
        found = join.process("p", batch_of(NUMBERS["p"], [(0, 12, 4)]))
        # Of row 2 both are as near, so the earlier one stays.
        assert pairs(found) == [(3, None), (3, 4)]
        join.advance(30).close()
        assert not any(list(join.store.scan(name)) for name in "qp")


@pytest.mark.parametrize("sign", [">=", "<=", "~"])
def test_windows_of_times_at_the_ends_of_64_bits(sign):
    schema = {name: pa.schema([("at", pa.int64()), ("id", pa.int64())]) for name in "qp"}
    ends = [-(1 << 63), -(1 << 63) + 3, -1, 0, (1 << 63) - 6]
    ends += [(1 << 63) - 4, (1 << 63) - 2] if sign == ">=" else []  # others would wait for ever
    rows = [{"at": at, "id": at} for at in ends]
    with asof_join(schema, f"q.at {sign} p.at", time=Time(window=4), how="left") as join:
        join.process("p", rows).close()
        join.process("q", rows).close()
        assert sorted(pairs(join.advance((1 << 63) - 1))) == [(at, at) for at in ends]


def test_times_that_do_not_compare_are_refused():
    with pytest.raises(InvalidArgumentError, match="tolerance='1 hour': the times are whole"):
        asof_join(NUMBERS, "q.at >= p.at", tolerance="1 hour")
    mixed = {"q": STAMPS["q"], "p": NUMBERS["p"]}
    with pytest.raises(InvalidArgumentError, match="give two time stamps"):
        asof_join(mixed, "q.at >= p.at")
    with pytest.raises(InvalidArgumentError, match="an as-of join has two"):
        asof_join({**STAMPS, "r": STAMPS["p"]}, "q.at >= p.at")
    own = {"q": STAMPS["q"], "p": pa.schema([("@place", pa.int64())])}
    with pytest.raises(InvalidArgumentError, match="begin with @"):
        asof_join(own, "q.at >= p.at")
    for streams, watermark in ((STAMPS, 5), (NUMBERS, EPOCH)):
        with (
            asof_join(streams, "q.at >= p.at") as join,
            pytest.raises(InvalidArgumentError, match=r"give a (datetime|whole number)"),
        ):
            join.advance(watermark)
