"""Joins of streams by one common key: random ones, and rows of one schema."""

import random

import hypothesis.strategies as st
import pyarrow as pa

from lsmstate.joins.specs.one_key import JoinSpec
from support.join_cases import FAMILIES, MOST_ROWS, PAYLOADS, random_arrivals, random_table


@st.composite
def joins(draw):
    """A spec, the tables of its streams, an arrival of (stream, first row, last row), restarts.

    Drawn from one seed: independent draws would hardly ever make keys match in all streams.
    """
    rng = random.Random(draw(st.integers(0, 2**32)))
    families = rng.sample(FAMILIES, rng.choice([1, 1, 2]))
    # A few values, the first of them often: keys match, and are skewed.
    pools = []
    for _, values in families:
        few = rng.sample(values, rng.randint(2, min(4, len(values))))
        pools.append([few[0]] * rng.randint(1, 4) + few)
    streams, tables, keys = {}, {}, {}
    for name in [f"s{number}" for number in range(rng.choice(list(MOST_ROWS)))]:
        payloads = rng.sample(PAYLOADS, rng.randint(0, 2))
        kinds = [rng.choice(kinds) for kinds, _ in families]
        names = [f"k{k}" for k in range(len(kinds))] + [f"p{k}" for k in range(len(payloads))]
        types = [*kinds, *(kind for kind, _ in payloads)]
        streams[name] = pa.schema(list(zip(names, types, strict=True)))
        keys[name] = names[: len(kinds)]
        tables[name] = random_table(rng, streams[name], [*pools, *(pool for _, pool in payloads)])
    most = MOST_ROWS[len(streams)]
    tables = {name: table.slice(0, most) for name, table in tables.items()}
    return JoinSpec.create(streams, keys), tables, *random_arrivals(rng, tables)


INT = pa.schema([("id", pa.int64()), ("v", pa.string())])


def batch_of(ids, values=None):
    values = values or [f"v{n}" for n in range(len(ids))]
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array(values, pa.string())], schema=INT
    )
