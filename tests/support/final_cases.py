"""Random joins with ``emit="final"``, their rows, and their results by DuckDB."""

import random
from collections import Counter
from datetime import UTC, datetime

import hypothesis.strategies as st
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State, Time
from lsmstate.joins.conditions.join_tree import SQL_NAMES
from support.condition_cases import random_condition
from support.join_cases import UNSEEN
from support.timed_cases import make_tables, schema_of

LAST = datetime(2027, 1, 1, tzinfo=UTC)


def random_join(rng, names, clocks=("at",), untimed=0.0):
    """A FROM clause whose streams are joined one after the other, and the streams it shows.
    ``clocks``: the columns that intervals are between; ``untimed``: how many steps have none."""
    text, shown = names[0], [names[0]]
    for name in names[1:]:
        other, third = rng.choice(shown), rng.choice(shown)
        kind = rng.choice(list(SQL_NAMES))
        conditions = [f"{other}.{rng.choice('kkkj')} = {name}.{rng.choice('kkkj')}"]
        if rng.random() < 0.3:  # with another stream than the first: a cycle
            conditions.append(f"{third}.{rng.choice('kkkj')} = {name}.{rng.choice('kkkj')}")
        low, high = rng.randint(-10, 30), rng.randint(0, 40)
        clock, theirs = rng.choice(clocks), rng.choice(clocks)
        least = f"{name}.{clock} >= {other}.{theirs} - INTERVAL {high} MINUTES"
        most = f"{name}.{clock} <= {other}.{theirs} + INTERVAL '{low} minutes'"
        intervals = rng.choice([[least, most], [least, most], [most]])
        if rng.random() < 0.2:
            between = f"{name}.{clock} BETWEEN {other}.{theirs} AND {other}.{rng.choice(clocks)}"
            intervals = [rng.choice([between, f"{name}.{clock} = {other}.{theirs}"])]
        if rng.random() < 0.2:
            intervals.append(f"{name}.at < {third}.at + INTERVAL 50 MINUTES")
        if kind in ("right", "full"):
            intervals.append(least)  # or rows of the new stream would wait for ever
        if rng.random() < 0.4:
            named = dict.fromkeys((other, rng.choice([other, third]), name))
            numbers = [f"{s}.{column}" for s in named for column in ("k", "j", f"n_{s}")]
            conditions.append(random_condition(rng, numbers))
        if rng.random() >= untimed:
            conditions += intervals
        rng.shuffle(conditions)
        text += f" {SQL_NAMES[kind]} {name} ON {' AND '.join(conditions)}"
        if kind not in ("semi", "anti"):
            shown.append(name)
    return text.replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI"), shown


def is_joinable(schemas, text):
    """Whether it is none of those that no join of ours is: a key with two columns of one stream,
    intervals that no rows of all streams can keep together, or that bound nothing, inner joins with
    other conditions, right joins of what anti joins leave."""
    refusals = ("equates several columns", "no row can match")
    refusals += (
        "filter the results for it",
        "supported are equalities",
        "would wait for ever",
        *UNSEEN,
    )
    try:
        opened(schemas, text, None, "memory", 1 << 20).close()
    except InvalidArgumentError as refusal:
        if not any(words in str(refusal) for words in (*refusals, *UNSEEN)):
            raise
        return False
    return True


def opened(schemas, on, home, backend, piece_bytes):
    return MultiwayJoin(
        schemas,
        on,
        emit="final",
        piece_bytes=piece_bytes,
        time=Time(event_time=dict.fromkeys(schemas, "at")),
        state=State(state_dir=home, backend=backend, memory="8m"),
    )


@st.composite
def final_joins(draw):
    """(schemas, joins, streams shown, rows as (stream, row) in the order they arrive, random)."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    zone = rng.choice([None, "UTC", "Europe/Berlin"])
    while True:
        names = [f"s{number}" for number in range(rng.choice([2, 2, 3, 3, 4, 5, 6]))]
        kinds = {n: pa.timestamp(rng.choice(["us", "us", "s", "ms", "ns"]), zone) for n in names}
        schemas = {name: schema_of(kinds[name], name) for name in names}
        text, shown = random_join(rng, rng.sample(names, len(names)))
        if is_joinable(schemas, text):
            break
    rows = []
    for name in names:
        for number in range(rng.randint(1, 12 if len(names) < 5 else 5)):
            key, other = rng.choice([1, 1, 2, None]), rng.choice([1, 1, 2, None])
            time = None if rng.random() < 0.05 else rng.randint(0, 90)
            rows.append((name, (key, other, time, number)))
    disorder = rng.choice([0, 10, 90])
    rows.sort(key=lambda found: (found[1][2] or 0) + rng.uniform(0, disorder))
    return schemas, text, [name for name in names if name in shown], rows, rng


def by_duckdb(db, schemas, text, shown, rows):
    """The numbers of the rows of each result."""
    make_tables(db, schemas, rows)
    db.execute("PRAGMA disable_optimizer")  # of which 1.5.5 has an internal error over conditions
    numbers = ", ".join(f"n_{name}" for name in shown)
    return Counter(db.execute(f"SELECT {numbers} FROM {text}").fetchall())
