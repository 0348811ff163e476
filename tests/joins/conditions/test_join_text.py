"""Conditions as people write them, with few parentheses: what joins make of them is what DuckDB
does. Conditions of inner joins beside the keys filter results, which Spark does."""

import random
from collections import Counter

import duckdb
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin, State
from lsmstate.joins.conditions.classify import split_condition

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("n", pa.int64())])
KINDS = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"]
RUNS = [60, pytest.param(1000, marks=pytest.mark.stress)]


def condition(rng, names, depth=2):
    """Text over columns k and v, in which AND, OR, NOT and BETWEEN bind as SQL has it."""
    kind = rng.random() if depth else 0.0
    if kind < 0.35:
        column, other = (f"{rng.choice(names)}.{rng.choice('kv')}" for _ in range(2))
        other, number = rng.choice([other, "1", "-1"]), rng.choice([1, 2, 3])
        return rng.choice(
            [
                *[f"{column} {sign} {other}" for sign in ("=", "<>", "<", ">=")],
                *[f"{column} IS{is_not} NULL" for is_not in ("", " NOT")],
                *[f"{column}{is_not} BETWEEN {other} AND 2" for is_not in ("", " NOT")],
                *[f"{column}{is_not} IN (0, {number})" for is_not in ("", " NOT")],
            ]
        )
    if kind < 0.45:
        return f"NOT {condition(rng, names, depth - 1)}"
    if kind < 0.6:
        return f"({condition(rng, names, depth - 1)})"
    parts = [condition(rng, names, depth - 1) for _ in range(rng.choice([2, 2, 3]))]
    return f" {rng.choice(['AND', 'AND', 'OR'])} ".join(parts)


def beside_a_key(rng, names, other, name):
    """An equality of two streams, and perhaps more."""
    parts = [f"{other}.k = {name}.k"]
    parts += [condition(rng, names) for _ in range(rng.choice([0, 1, 1, 2]))]
    rng.shuffle(parts)
    text = " AND ".join(parts)
    return f"({text})" if rng.random() < 0.2 else text


def random_tables(rng, names):
    def row(number):
        return {"k": rng.choice([1, 1, 2, None]), "v": rng.choice([None, 0, 1, 2]), "n": number}

    return {n: pa.RecordBatch.from_pylist([row(at) for at in range(6)], ROWS) for n in names}


def by_duckdb(tables, shown, source):
    with duckdb.connect(config={"threads": 1}) as db:
        db.execute("PRAGMA disable_optimizer")
        for name, batch in tables.items():
            db.register("arrow", pa.Table.from_batches([batch]))
            db.execute(f"CREATE TABLE {name} AS SELECT * FROM arrow")
        columns = ", ".join(f"{name}.*" for name in tables if name in shown)
        return Counter(db.execute(f"SELECT {columns} FROM {source}").fetchall())


def standing(join, tables, order):
    found = Counter()
    for name in order:
        for piece in join.process(name, tables[name]):
            for row in piece.to_pylist():
                found[tuple(row.values())[1:]] += 1 if row["op"] == "+I" else -1
    return +found


@pytest.mark.parametrize("runs", RUNS)
def test_joins_of_all_types(runs):
    rng, equal = random.Random(runs), 0
    for _ in range(runs):
        names, shown = list("abc"[: rng.choice([2, 2, 3])]), ["a"]
        text = "a"
        for name in names[1:]:
            kind = rng.choice(KINDS)
            on = beside_a_key(rng, [*shown, name], rng.choice(shown), name)
            text += f" {kind} {name} ON {on}"
            shown += [] if kind in ("SEMI JOIN", "ANTI JOIN") else [name]
        tables = random_tables(rng, names)
        try:
            join = MultiwayJoin(
                dict.fromkeys(names, ROWS), text, emit="changes", state=State(backend="memory")
            )
        except InvalidArgumentError:
            continue
        with join:
            found = standing(join, tables, rng.sample(names, len(names)))
        assert found == by_duckdb(tables, shown, text), text
        equal += 1
    assert equal > runs / 3


@pytest.mark.parametrize("runs", RUNS)
def test_keys_and_the_rest_of_inner_joins(runs):
    """Each part by itself, in parentheses, is what the whole is."""
    rng, equal = random.Random(runs), 0
    for _ in range(runs):
        text = beside_a_key(rng, ["a", "b"], "a", "b")
        tables = random_tables(rng, "ab")
        try:
            parts = split_condition(text, dict.fromkeys("ab", ROWS.names))
        except InvalidArgumentError:
            continue
        split = " AND ".join(f"({part})" for part in (parts.keys, *parts.rest))
        found = by_duckdb(tables, "ab", f"a, b WHERE {split}")
        assert found == by_duckdb(tables, "ab", f"a, b WHERE {text}"), text
        equal += 1
    assert equal > runs / 3
