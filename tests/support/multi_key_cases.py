"""Joins of streams by several keys: random graphs, and a chain of three streams."""

import itertools
import random

import hypothesis.strategies as st
import pyarrow as pa

from lsmstate.joins.specs.multi_key import GraphSpec
from support.join_cases import FAMILIES, MOST_ROWS, PAYLOADS, random_arrivals, random_table


def random_classes(rng, names):
    """Per key class the streams that hold it: connected, with a cycle now and then."""
    classes = []
    for number in range(1, len(names)):
        other = rng.choice(names[:number])
        held = [members for members in classes if other in members]
        if held and rng.random() < 0.3:
            rng.choice(held).append(names[number])
        else:
            classes.append([other, names[number]])
    for _ in range(rng.choice([0, 0, 1, 2])):
        classes.append(rng.sample(names, rng.randint(2, min(3, len(names)))))
    return classes


def random_graph(rng):
    """A spec, and per stream the values of each column."""
    names = [f"s{number}" for number in range(rng.choice(list(MOST_ROWS)))]
    classes = random_classes(rng, names)
    fields = {name: [] for name in names}
    pools = {name: [] for name in names}
    for number, members in enumerate(classes):
        kinds, values = rng.choice(FAMILIES)
        few = rng.sample(values, 2)
        pool = [few[0]] * rng.randint(1, 4) + few
        for name in members:
            fields[name].append(pa.field(f"k{number}", rng.choice(kinds)))
            pools[name].append(pool)
    for name in names:
        for number, (kind, pool) in enumerate(rng.sample(PAYLOADS, rng.randint(0, 2))):
            fields[name].append(pa.field(f"p{number}", kind))
            pools[name].append(pool)
    streams = {name: pa.schema(fields[name]) for name in names}
    on = " AND ".join(
        f"{a}.k{number} = {b}.k{number}"
        for number, members in enumerate(classes)
        for a, b in itertools.pairwise(members)
    )
    return GraphSpec.create(streams, on), pools


@st.composite
def graph_joins(draw):
    """A spec, the tables of its streams, an arrival of (stream, first row, last row), restarts."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    spec, pools = random_graph(rng)
    streams, most = spec.streams, MOST_ROWS[len(spec.streams)]
    tables = {n: random_table(rng, streams[n], pools[n]).slice(0, most) for n in streams}
    return spec, tables, *random_arrivals(rng, tables)


INTS = {
    "c": pa.schema([("ck", pa.int64()), ("seg", pa.string())]),
    "o": pa.schema([("ok", pa.int64()), ("ck", pa.int64()), ("day", pa.int32())]),
    "l": pa.schema([("ok", pa.int64()), ("price", pa.float64())]),
}
CHAIN = "c.ck = o.ck AND o.ok = l.ok"


def rows(stream, *columns):
    schema = INTS[stream]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
