"""Changelogs that random tests of joins are fed with, and what is made of their results."""

import random
import tempfile
from collections import Counter

import hypothesis.strategies as st
import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.join_tree import SQL_NAMES, Comparison, Join, shown_streams
from lsmstate.joins.local.parts.changelog import OPERATIONS
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.changes import ChangeSpec, GraphChangeSpec
from lsmstate.joins.specs.one_key import JoinSpec
from support.join_cases import FAMILIES, MOST_ROWS, PAYLOADS, attempt
from support.multi_key_cases import random_graph
from support.oracle import counted

#: Rows a stream holds at most, by the number of streams: results stay small enough to compare.
MOST_TREE_ROWS = {2: 12, 3: 7, 4: 5, 5: 4, 6: 3}


def random_changes(rng, pools, live, is_changelog, most):
    """A batch of (operation, row), and what lives after it."""
    live, batch = list(live), []
    for _ in range(rng.randint(0, 5)):
        if is_changelog and live and rng.random() < 0.45:
            batch.append((rng.choice(["-U", "-D"]), live.pop(rng.randrange(len(live)))))
        elif len(live) < most:
            row = tuple(rng.choice(pool) for pool in pools)
            live.append(row)
            batch.append((rng.choice(["+I", "+U"]), row))
    if rng.random() < 0.3:
        rng.shuffle(batch)  # rows of a batch have no order
    return batch, live


def random_batches(rng, names, pools, operations, most):
    """Batches of (stream, changes, all that lives after them), one of each of ``names``; of no
    stream more than ``most`` rows."""
    live = {name: [] for name in pools}
    for name in names:
        batch, after = random_changes(rng, pools[name], live[name], name in operations, most)
        live = {**live, name: after}
        yield name, batch, live


def table_of(schema, rows):
    columns = [pa.array([row[c] for row in rows], kind) for c, kind in enumerate(schema.types)]
    return pa.table(columns, schema=schema)


def batch_of(spec, name, changes):
    """As it arrives: with its operation column where it has one."""
    table = table_of(spec.streams[name], [row for _, row in changes])
    if name in spec.operations:
        operations = pa.array([operation for operation, _ in changes], pa.string())
        table = table.add_column(len(changes) % table.num_columns, "op", operations)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def apply(shown, pieces):
    """Follow a changelog: what is taken back must be there."""
    for piece in pieces:
        assert piece.num_rows > 0
        (operation,) = set(piece.column("op").to_pylist())
        rows = counted([piece.select(range(1, piece.num_columns))])
        if OPERATIONS[operation]:
            shown.update(rows)
        else:
            assert rows <= shown, "a result is taken back that was never there"
            shown.subtract(rows)


def check_changes(case, join_over, expected, backend, piece_bytes):
    """Feeds a case, (spec, batches, whether to start again before each), to what ``join_over``
    makes over a store; after every batch there stands what is ``expected`` of all that lives."""
    spec, batches, restarts = case
    shown = Counter()
    with tempfile.TemporaryDirectory() as directory:
        store = pointer = None
        for number, (name, changes, live) in enumerate(batches):
            if store is None or restarts:
                if store is not None:
                    pointer = store.commit()
                    store.close()
                store = attempt(directory, spec, backend, number, pointer)
                join = join_over(spec, store, piece_bytes, unmatched="error")
            pieces = list(join.process(Batch(name, batch_of(spec, name, changes))))
            assert all(piece.schema == spec.output_schema for piece in pieces)
            apply(shown, pieces)
            tables = {n: table_of(spec.streams[n], rows) for n, rows in live.items()}
            assert +shown == expected(spec, tables), spec
        store.close()


@st.composite
def changing_graphs(draw):
    """A spec, batches of (stream, changes, all that lives after them), and restarts or none."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    graph, pools = random_graph(rng)
    names = list(graph.streams)
    operations = {name: "op" for name in names if rng.random() < 0.7}
    spec = GraphChangeSpec.of(graph, "changes", operations)
    arriving = names + [rng.choice(names) for _ in range(rng.randint(2, 8))]
    batches = random_batches(rng, arriving, pools, operations, MOST_ROWS[len(names)])
    return spec, list(batches), rng.random() < 0.4


def random_tree(rng, names, columns):
    """Any joins of the streams, compared by any of those that are shown."""
    if len(names) == 1:
        return names[0]
    cut = rng.choice([len(names) - 1, len(names) - 1, rng.randint(1, len(names) - 1)])
    sides = [random_tree(rng, part, columns) for part in (names[:cut], names[cut:])]
    comparisons = []
    for column in columns:
        compared = []
        for side in sides:
            shown = shown_streams(side)
            some = rng.sample(shown, rng.choice([1, len(shown)]))
            compared.append(tuple(Column(name, column) for name in some))
        comparisons.append(Comparison(*compared))
    return Join(rng.choice(list(SQL_NAMES)), *sides, tuple(comparisons))


@st.composite
def changing_trees(draw):
    """A spec, and batches of (stream, changes, all that lives after them)."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    families = rng.sample(FAMILIES, rng.choice([1, 1, 2]))
    key_pools = []
    for _, values in families:
        few = rng.sample(values, rng.randint(2, min(4, len(values))))
        key_pools.append([few[0]] * rng.randint(1, 2) + few)
    names = [f"s{number}" for number in range(rng.choice(list(MOST_TREE_ROWS)))]
    keys = [f"k{k}" for k in range(len(families))]
    streams, pools = {}, {}
    for name in names:
        payloads = rng.sample(PAYLOADS, rng.randint(0, 2))
        columns = [*keys, *(f"p{number}" for number in range(len(payloads)))]
        kinds = [rng.choice(kinds) for kinds, _ in families] + [kind for kind, _ in payloads]
        streams[name] = pa.schema(list(zip(columns, kinds, strict=True)))
        pools[name] = key_pools + [pool for _, pool in payloads]
    operations = {name: "op" for name in names if rng.random() < 0.6}
    tree = random_tree(rng, rng.sample(names, len(names)), keys)
    spec = ChangeSpec.of(JoinSpec.create(streams, keys), tree, "changes", operations)
    arriving = [rng.choice(names) for _ in range(rng.randint(3, 12))]
    batches = random_batches(rng, arriving, pools, operations, MOST_TREE_ROWS[len(names)])
    return spec, list(batches), rng.random() < 0.4
