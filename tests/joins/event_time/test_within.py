"""``Time(within=...)``: a distance in time for all pairs of streams."""

import random
from datetime import datetime, timedelta
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate import InvalidArgumentError
from lsmstate.join import MultiwayJoin, Time
from support.examples import examples

START = datetime(2026, 1, 1)
ROWS = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("id", pa.int64())])
TIMES = {"a": "at", "b": "at", "c": "at"}


def joined(streams, on, within, **options):
    """Names of the matching rows of each stream, in one order."""
    names = list(streams)
    time = Time(event_time=dict.fromkeys(names, "at"), within=within)
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


def expected(streams, within):
    return sorted(
        tuple(streams[name].index(row) for name, row in zip(streams, rows, strict=True))
        for rows in product(*streams.values())
        if len({k for k, _ in rows}) == 1
        and max(t for _, t in rows) - min(t for _, t in rows) <= within
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
        ("a JOIN b ON a.k = b.k", Time(event_time=TIMES, within="1 day"), ["FROM clause", "ON"]),
        ({"a": ["k"], "b": []}, Time(event_time=TIMES, within="1 day"), ["same number"]),
    ],
)
def test_what_does_not_fit_is_refused(on, time, words):
    if time.event_time == TIMES:
        time = Time(event_time={"a": "at", "b": "at"}, within=time.within)
    with pytest.raises(InvalidArgumentError) as caught:
        MultiwayJoin({"a": ROWS, "b": ROWS}, on, time=time)
    for word in words:
        assert word in str(caught.value)
