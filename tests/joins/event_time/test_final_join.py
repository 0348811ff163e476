"""emit="final" against DuckDB: outer, semi and anti joins whose results come once, for good."""

import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State, Time
from lsmstate.joins import kinds
from lsmstate.joins.kinds import Kind
from lsmstate.joins.local.parts.write_parts import WriteParts, no_more
from lsmstate.joins.local.timed.final_join import FinalJoin
from lsmstate.joins.protocols import Batch, LocalJoin, Role
from lsmstate.joins.spec_join import SpecJoin
from lsmstate.joins.specs.event_time import EventTime
from lsmstate.joins.specs.final import TICKS, waiting_stream
from lsmstate.store import StreamSchema
from support.cross_join.local_join import CrossJoin
from support.cross_join.spec import CrossSpec
from support.final_cases import LAST, by_duckdb, final_joins, opened
from support.grouped import grouped
from support.join_cases import on_all_stores
from support.timed_cases import EPOCH, SCHEMA, arrivals, batch_of, numbers_of, watermark_before


def check(case, backend, piece_bytes):
    schemas, text, shown, rows, rng = case
    names = list(schemas)
    found = Counter()
    restarts = rng.choice([0, 0.5, 1])
    with tempfile.TemporaryDirectory() as home:
        join = opened(schemas, text, home, backend, piece_bytes)
        for name, mine, at in arrivals(rows, rng):
            found += numbers_of(join.process(name, batch_of(schemas[name], mine)), shown)
            watermark = watermark_before(rows[at:], names, rng)
            if watermark is not None:
                found += numbers_of(join.advance(watermark), shown)
            if rng.random() < restarts:
                join.commit()
                join.close()
                join = opened(schemas, text, home, backend, piece_bytes)
        found += numbers_of(join.advance(LAST), shown)
        assert join.late_count == 0
        with duckdb.connect(config={"threads": 1}) as db:
            assert found == by_duckdb(db, schemas, text, shown, rows), text
        join.commit()
        left = Counter()
        for stream, schema in join._store.streams.items():
            if schema.expiry is not None or "waiting" in stream:
                left[stream] = sum(piece.num_rows for piece in join._store.scan(stream))
        join.close()
    assert not +left


test_on_memory, test_on_lsm, test_many_on_every_store = on_all_stores(
    check, final_joins(), memory=6, lsm=3, many=1000
)


ON = "a LEFT JOIN b ON a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL 30 MINUTES"


def rows(*found):
    """(key, minutes, number) of each row."""
    with_j = SCHEMA.insert(1, pa.field("j", pa.int64()))
    values = [(k, None, minutes, number) for k, minutes, number in found]
    return batch_of(with_j, values).select(SCHEMA.names)


def joined(on=ON, **options):
    schemas = {name: SCHEMA for name in "abc" if f" {name} " in f" {on.replace('.', ' ')} "}
    times = dict.fromkeys(schemas, "at")
    return MultiwayJoin(schemas, on, **grouped(**{"emit": "final", "event_time": times, **options}))


def numbers(results):
    return [(row["a_n"], row["b_n"]) for piece in results for row in piece.to_pylist()]


def minutes(count):
    return EPOCH + timedelta(minutes=count)


@pytest.mark.parametrize("year", [1, 9999])
def test_a_watermark_beyond_what_nanoseconds_reach(year):
    fine = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ns")), ("n", pa.int64())])
    on = "a LEFT JOIN b ON a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR"
    times = {"a": "at", "b": "at"}
    with MultiwayJoin(
        {"a": fine, "b": fine}, on, emit="final", time=Time(event_time=times)
    ) as join:
        row = {"k": 1, "at": datetime(2026, 1, 1), "n": 7}
        assert numbers(join.process("a", pa.RecordBatch.from_pylist([row], schema=fine))) == []
        found = numbers(join.advance(datetime(year, 12, 31)))
        assert found == ([(7, None)] if year == 9999 else [])


def test_matches_come_at_once_and_the_rest_when_no_partner_can_come():
    with joined() as join:
        assert numbers(join.process("a", rows((1, 0, 1), (2, 0, 2), (None, 5, 3)))) == []
        assert numbers(join.process("b", rows((1, 30, 10), (2, 31, 20)))) == [(1, 10)]
        assert numbers(join.advance(minutes(29))) == []
        assert numbers(join.advance(minutes(30))) == [(2, None)]
        assert numbers(join.advance(minutes(30))) == []
        assert numbers(join.process("a", rows((2, 30, 4), (2, 31, 5), (7, None, 6)))) == [
            (6, None),
            (5, 20),
        ]
        assert join.late_count == 1
        assert numbers(join.advance(minutes(90))) == [(3, None)]


def test_results_given_up_unread_are_given_up_and_a_commit_asks_for_them():
    with joined() as join:
        list(join.process("a", rows((1, 0, 1), (1, 40, 2))))
        results = join.advance(minutes(30))
        with pytest.raises(InvalidArgumentError, match="not consumed"):
            join.commit()
        results.close()
        join.commit()
        assert numbers(join.advance(minutes(70))) == [(2, None)]


def test_semi_and_anti_joins_give_all_their_results_in_the_end():
    for kind, expected in (("SEMI", [(1,), (1,)]), ("ANTI", [(2,)])):
        with joined(ON.replace("LEFT", kind)) as join:
            list(join.process("a", rows((1, 0, 1), (1, 0, 1), (2, 0, 2))))
            assert list(join.process("b", rows((1, 1, 10), (1, 2, 11)))) == []
            found = [p.column("n").to_pylist() for p in join.advance(minutes(30))]
            assert [(n,) for piece in found for n in piece] == expected


@pytest.mark.parametrize(
    ("on", "options"),
    [
        (ON, {"emit": "final", "event_time": {"a": "at", "b": "at"}}),
        ("a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.n = c.n", {"emit": "changes"}),
    ],
)
def test_a_column_of_numbers_in_a_dictionary(on, options):
    """The store gives plain numbers back, which Arrow casts to none."""
    schema = SCHEMA.append(pa.field("d", pa.dictionary(pa.int32(), pa.int64())))
    streams = {name: schema for name in "abc" if f"{name}." in on}
    numbers = pa.array([7, 8, None]).dictionary_encode()
    batch = rows((1, 0, 1), (2, 0, 2), (3, 0, 3)).append_column("d", numbers)
    with MultiwayJoin(streams, on, **grouped(**options)) as join:
        found = [*join.process("b", batch.slice(1)), *join.process("a", batch)]
        if options["emit"] == "final":
            found += join.advance(minutes(90))
        assert {piece.schema for piece in found} == {join.output_schema}
        pairs = [(row["a_d"], row["b_d"]) for piece in found for row in piece.to_pylist()]
    assert sorted(pairs, key=str) == [(7, None), (8, 8), (None, None)]


def test_how_and_text_mean_the_same_and_inner_joins_do_not_wait():
    on = "a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL 30 MINUTES"
    with joined(on, how="left") as join:
        list(join.process("a", rows((1, 0, 1))))
        assert numbers(join.advance(minutes(30))) == [(1, None)]
    for text in (on, ON.replace("LEFT ", "")):
        with joined(text) as join:
            list(join.process("a", rows((1, 0, 1))))
            assert numbers(join.process("b", rows((1, 5, 2)))) == [(1, 2)]
            assert numbers(join.advance(minutes(30))) == []


@pytest.mark.parametrize("same", ["b.at = a.at", "b.at BETWEEN a.at AND a.at"])
@pytest.mark.parametrize("kind", ["LEFT", "FULL"])
def test_equal_event_times_are_an_interval_too(same, kind):
    with joined(f"a {kind} JOIN b ON a.k = b.k AND {same}") as join:
        assert join.event_time.kept_us == {"a": 0, "b": 0}
        list(join.process("a", rows((1, 0, 1), (1, 5, 2))))
        assert numbers(join.process("b", rows((1, 5, 20)))) == [(2, 20)]
        assert numbers(join.advance(minutes(0))) == [(1, None)]
        assert numbers(join.advance(minutes(5))) == []


def test_equal_event_times_reach_through_other_streams():
    on = "a LEFT JOIN b ON a.at = b.at LEFT JOIN c ON c.at = b.at AND c.k = b.k"
    with joined(on) as join:
        assert {name: each.waits_us for name, each in join.spec.waiting.items()} == {"a": 0}
        assert set(join.event_time.kept_us.values()) == {0}


CHAIN = ON + " LEFT JOIN c ON c.n = b.n AND c.at BETWEEN b.at AND b.at + INTERVAL 1 HOUR"


def test_how_long_rows_wait_and_are_needed_follows_through_other_streams():
    with joined(CHAIN) as join:
        waits = {name: each.waits_us // 60_000_000 for name, each in join.spec.waiting.items()}
        kept = {name: us // 60_000_000 for name, us in join.event_time.kept_us.items()}
    assert waits == {"a": 90}
    assert kept == {"a": 90, "b": 90, "c": 90}


def test_rows_right_of_a_cycle_wait_for_combinations():
    """By way of b, which is at most an hour before c, and a half of one before b."""
    closing = CHAIN.replace("LEFT JOIN b", "JOIN b")
    closing = closing.replace("LEFT JOIN c ON", "RIGHT JOIN c ON c.k = a.k AND")
    with joined(closing) as join:
        waits = {name: each.waits_us // 60_000_000 for name, each in join.spec.waiting.items()}
        kept = {name: us // 60_000_000 for name, us in join.event_time.kept_us.items()}
        assert (waits, kept) == ({"c": 0}, {"a": 90, "b": 60, "c": 0})
        list(join.process("a", rows((1, 0, 1), (2, 0, 2))))
        list(join.process("b", rows((1, 20, 7), (2, 20, 8))))
        found = list(join.process("c", rows((1, 30, 7), (1, 40, 8), (2, 81, 8))))
        assert [row["c_at"].minute for p in found for row in p.to_pylist()] == [30]
        found = [row for p in join.advance(minutes(81)) for row in p.to_pylist()]
        assert [(row["a_n"], row["b_n"], row["c_k"]) for row in found] == [
            (None, None, 1),
            (None, None, 2),
        ]


@pytest.mark.parametrize(
    ("on", "options", "words"),
    [
        (ON, {"retention": {"a": "1 day"}}, "write it there"),
        (ON, {"late": "join"}, "rows that come late cannot be joined"),
        (ON, {"event_time": {"a": "at"}}, "'b' has no event time; name its column"),
        (ON, {"algorithm": "tree"}, "append-only inner joins"),
        (ON.replace("LEFT", "SEMI"), {"emit": "append", "event_time": {}}, "need emit='changes'"),
        (
            "a LEFT JOIN b ON a.k = b.k",
            {"emit": "changes"},
            "inner joins.*or write time",
        ),
        ("a LEFT JOIN b ON a.k = b.k AND b.at > a.at", {}, "wait for ever for 'b'; bound its time"),
        ("a LEFT JOIN b ON a.k = b.k AND b.n < a.n", {}, "wait for ever for 'b'; bound its time"),
        (ON + " AND b.n < a.n + INTERVAL 1 HOUR", {}, "not an interval between two time stamps"),
        (
            ON + " AND b.n < a.at",
            {},
            r"b.n < a.at: values of int64 and timestamp\[us\] are not compared here",
        ),
        (ON + " AND sqrt(a.n) > b.n", {}, "the function sqrt is not known here"),
        (
            ON.replace("LEFT", "ANTI")
            + " FULL JOIN c ON c.k = a.k AND c.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR",
            {},
            "'c' has no partner depends on which rows .* leaves out; put anti joins after",
        ),
        (
            CHAIN.replace("c.n = b.n", "c.n = b.n AND b.at < a.at + INTERVAL 1 HOUR"),
            {},
            "not between the joined streams a LEFT JOIN b .* and c",
        ),
        (
            "a LEFT JOIN (b JOIN c ON b.k = c.k) ON a.k = b.k",
            {},
            "streams are joined one after the other",
        ),
    ],
)
def test_refusals(on, options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        joined(on, **options)


def test_what_is_final_is_not_taken_back():
    streams = {"a": SCHEMA.append(pa.field("op", pa.string())), "b": SCHEMA}
    with pytest.raises(InvalidArgumentError, match="a final result cannot be retracted"):
        MultiwayJoin(streams, "a LEFT JOIN b ON a.k = b.k", emit="final", changes={"a": "op"})


@dataclass(frozen=True)
class LeftCrossSpec(CrossSpec):
    """Each row of the first stream with each of the second, or with nulls if there is none."""

    event_time: EventTime
    waits_us: dict | None = None

    @property
    def owners(self):
        return {name: name for name in self.streams}

    @property
    def stream_schemas(self):
        (left,) = self.waits_us
        waiting = StreamSchema(waiting_stream(left), TICKS, self.streams[left])
        return (*self.event_time.expiring(super().stream_schemas, self.owners), waiting)


class LeftMatches:
    """Any local join of two streams by its protocol alone; the first one is preserved."""

    def __init__(self, joined, spec, store):
        assert isinstance(joined, LocalJoin)
        self._joined, self._schema, self._store = joined, spec.output_schema, store
        self.counts = joined.counts

    def process(self, batch, beside=no_more):
        self._store.write_all(WriteParts(beside))
        return self._joined.process(batch)

    def can_match(self, _stream, rows):
        return np.ones(rows.num_rows, np.bool_)

    def decided(self, stream, rows, *, can_match):
        for place in range(rows.num_rows):
            one = rows.slice(place, 1)
            probe = Batch(stream, one, role=Role.PROBE)
            if not can_match or not self._joined.process(probe).count():
                nulls = [pa.nulls(1, field.type) for field in self._schema][one.num_columns :]
                yield pa.RecordBatch.from_arrays([*one.columns, *nulls], schema=self._schema)

    def close(self):
        self._joined.close()


def test_final_results_of_any_local_join(tmp_path, monkeypatch):
    """A kind of its own has them by a few lines, and through a restart."""

    def made(spec, store, context):
        matches = LeftMatches(CrossJoin(spec, store, context), spec, store)
        return FinalJoin(matches, spec, store, context.piece_bytes)

    kind = Kind("left cross join", LeftCrossSpec, made, judges_time=True)
    monkeypatch.setitem(kinds._KINDS, LeftCrossSpec, kind)
    rows = pa.schema([("at", pa.timestamp("us")), ("n", pa.int64())])
    timing = EventTime({"a": "at", "b": "at"}, (), {"a": 10, "b": 10}, "drop")
    spec = LeftCrossSpec({"a": rows, "b": rows}, timing, {"a": 10})

    def row(us):
        return [{"at": None if us is None else EPOCH + timedelta(microseconds=us), "n": us}]

    def opened():
        return SpecJoin(spec, state=State(state_dir=str(tmp_path)))

    def pairs(results):
        return [(each["a_n"], each["b_n"]) for each in results.rows()]

    with opened() as join:
        assert pairs(join.process("a", row(5))) == []
        assert pairs(join.process("a", row(None))) == [(None, None)]
        assert pairs(join.advance(EPOCH + timedelta(microseconds=14))) == []
        join.commit()
    with opened() as join:
        assert pairs(join.advance(EPOCH + timedelta(microseconds=15))) == [(5, None)]
        join.process("a", row(20)).close()
        assert pairs(join.process("b", row(25))) == [(20, 25)]
        assert pairs(join.advance(EPOCH + timedelta(microseconds=36))) == []
        assert pairs(join.process("a", row(50))) == []
        assert pairs(join.advance(EPOCH + timedelta(microseconds=90))) == [(50, None)]
