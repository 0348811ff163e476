"""What the random tests of joins have in common: data that meets, arrivals, restarts."""

import datetime
import decimal
import itertools
import tempfile

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from lsmstate.joins.protocols import Batch
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from support.examples import examples

QUICK = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
#: Bytes of a piece of results.
PIECES = st.sampled_from([1, 60, 400, 1 << 20])


def on_all_stores(check, cases, *, memory, lsm, many):
    """Tests of ``check(case, backend, piece_bytes)``: so many cases on the memory store, so many on
    the LSM tree, and, as a stress test, ``many`` that change from run to run on every store."""

    @settings(QUICK, max_examples=examples(memory))
    @given(cases, PIECES)
    def on_memory(case, piece_bytes):
        check(case, "memory", piece_bytes)

    @settings(QUICK, max_examples=examples(lsm))
    @given(cases, PIECES)
    def on_lsm(case, piece_bytes):
        check(case, "lsm", piece_bytes)

    @pytest.mark.stress
    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("backend", ["memory", "lsm", "rocksdb"])
    @settings(QUICK, derandomize=False, max_examples=many)
    @given(cases, PIECES)
    def on_any(backend, case, piece_bytes):
        check(case, backend, piece_bytes)

    return on_memory, on_lsm, on_any


NAN = float("nan")
D = decimal.Decimal
DAY = datetime.date(2020, 2, 28)

#: What right and full joins are refused for.
UNSEEN = ("put anti joins after", "also where there is no row")

#: Families of key types that are comparable, and values that fit all of them.
FAMILIES = [
    (
        [pa.int8(), pa.int32(), pa.int64(), pa.decimal128(9, 2), pa.decimal128(5, 0)],
        [None, 0, 1, -1, 7, 100],
    ),
    ([pa.float32(), pa.float64(), pa.int16()], [None, 0, 1, -3]),
    ([pa.float32(), pa.float64()], [None, 0.0, -0.0, NAN, 0.5, float("inf")]),
    ([pa.string(), pa.large_string()], [None, "", "a", "a\0", "ab", "ä" * 9]),
    ([pa.date32()], [None, DAY, datetime.date(1969, 12, 31)]),
    ([pa.bool_()], [None, True, False]),
    ([pa.decimal128(4, 1), pa.decimal128(12, 6)], [None, D("1.5"), D("-2"), D("0")]),
]
PAYLOADS = [
    (pa.int32(), [None, -5, 3]),
    (pa.string(), [None, "", "xyz" * 20]),
    (pa.float64(), [None, 0.0, -0.0, NAN]),
    (pa.decimal128(7, 2), [None, D("12.34")]),
    (pa.list_(pa.int8()), [None, [], [1, None, 3]]),
    (pa.timestamp("us", "UTC"), [None, datetime.datetime(2020, 1, 1)]),
]
#: Most rows of a stream, by the number of streams: results stay small enough to compare.
MOST_ROWS = {2: 20, 3: 8, 4: 5, 5: 4, 6: 4}


def random_table(rng, schema, pools):
    """Rows whose values come from ``pools``, one pool a column."""
    count = max(rng.randint(0, 25), rng.randint(0, 25))
    rows = [[rng.choice(pool) for pool in pools] for _ in range(count)]
    columns = [pa.array([row[c] for row in rows], kind) for c, kind in enumerate(schema.types)]
    return pa.table(columns, schema=schema)


def random_arrivals(rng, tables):
    """The tables cut into (stream, first row, last row), shuffled, and before which of these the
    store is opened anew."""
    arrivals = []
    for name, table in tables.items():
        count = table.num_rows
        cuts = sorted({0, count, *(rng.randint(0, count) for _ in range(rng.randint(0, 4)))})
        arrivals += [(name, a, b) for a, b in itertools.pairwise(cuts)]
    rng.shuffle(arrivals)
    restarts = {rng.randrange(len(arrivals) + 1) for _ in range(rng.randint(0, 2))}
    return arrivals, restarts


def attempt(directory, spec, backend, batch_id=1, pointer=None):
    """A task attempt's store for a join."""
    return open_attempt(
        str(directory),
        spec.stream_schemas,
        backend=backend,
        pointer=pointer,
        batch_id=batch_id,
        attempt_id="a",
        options=Options(),
    )


def run(join_over, spec, tables, arrivals, restarts, backend):
    """The results of one arrival, through an attempt's store that is committed at ``restarts``;
    ``join_over`` makes the operator over a store."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        pointer = store = None
        for at, (name, first, last) in enumerate(arrivals):
            if store is None or at in restarts:
                if store is not None:
                    pointer = store.commit()
                    store.close()
                store = attempt(directory, spec, backend, at, pointer)
                join = join_over(store)
            batches = tables[name].slice(first, last - first).combine_chunks().to_batches()
            nothing = pa.RecordBatch.from_pylist([], schema=tables[name].schema)
            found += list(join.process(Batch(name, batches[0] if batches else nothing)))
        if store is not None:
            store.close()
    return found
