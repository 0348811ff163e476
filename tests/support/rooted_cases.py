"""Random joins of any type by several keys over changelogs, and their results by DuckDB."""

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.join_tree import SQL_NAMES
from lsmstate.joins.specs.changes_multi_key import RootedChangeSpec
from lsmstate.joins.specs.event_time import NO_TIME
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.typed_condition import typed_condition
from lsmstate.joins.specs.typed_tree import settled
from support.changing_cases import random_batches, table_of
from support.condition_cases import random_condition
from support.join_cases import UNSEEN
from support.oracle import counted

ROWS = pa.schema([("x", pa.int64()), ("y", pa.int64()), ("n", pa.string())])
POOLS = [[None, 1, 1, 2, 3], [None, 1, 2, 2], ["a", "b", None]]
MOST = {2: 15, 3: 8, 4: 6, 5: 4}


def random_joins(rng, names, cycles=0.0):
    """Text of joins, the streams one after the other, with two keys somewhere. ``cycles``: how many
    that can be are with several of those before."""
    text, shown = names[0], [names[0]]
    for name in names[1:]:
        other = rng.choice(shown)
        others = [other]
        kind = rng.choice(
            ["inner", "left", "left", "semi", "anti", "right", "right", "full", "full"]
        )
        if rng.random() < cycles:
            others = rng.sample(shown, min(len(shown), rng.choice([2, 2, 3])))
        keys = []
        for each in others[: rng.choice([1, 2, 2, 3])]:
            pairs = rng.choice([["xx"], ["xy"], ["yx"], ["yy"], ["xx", "yy"]])
            keys += [f"{each}.{a} = {name}.{b}" for a, b in pairs]
        on = " AND ".join(keys)
        if rng.random() < 0.4:
            both = [f"{stream}.{column}" for stream in (*others, name) for column in "xyn"]
            on += f" AND {random_condition(rng, [c for c in both if c[-1] != 'n'], both[2::3])}"
        text += f" {SQL_NAMES[kind]} {name} ON {on}"
        shown += [] if kind in ("semi", "anti") else [name]
    return text


def spec_of(names, typed, operations):
    graph = GraphSpec.create(dict.fromkeys(names, ROWS), typed.on, splits=True)
    tree = settled(typed.tree, graph.streams)
    return RootedChangeSpec.of(graph, tree, "changes", operations, NO_TIME)


def random_case(rng, cycles=0.5):
    """A spec, batches of (stream, changes, all that lives after them), and restarts or none."""
    while True:
        names = [f"s{number}" for number in range(rng.choice([3, 3, 4, 5, 6]))]
        text = random_joins(rng, rng.sample(names, len(names)), cycles)
        operations = {name: "op" for name in names if rng.random() < 0.6}
        typed = typed_condition(dict.fromkeys(names, ROWS.names), text)
        if typed.tree is None:
            continue
        try:
            spec = spec_of(names, typed, operations)
            break
        except InvalidArgumentError as refusal:
            if not any(words in str(refusal) for words in UNSEEN):
                raise
    arriving = [rng.choice(names) for _ in range(rng.randint(4, 12))]
    pools = dict.fromkeys(names, POOLS)
    batches = random_batches(rng, arriving, pools, operations, MOST[len(names) - 1])
    return spec, list(batches), rng.random() < 0.5


def by_duckdb(db, spec, tables):
    for name, table in tables.items():
        db.register("arrow", table)
        db.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM arrow")
    sql = str(spec.tree).replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI")
    columns = ", ".join(f"{name}.{column}" for name in spec.shown for column in ROWS.names)
    found = db.execute(f"SELECT {columns} FROM {sql}").fetchall()
    return counted(table_of(spec.rows_schema, found).to_batches())
