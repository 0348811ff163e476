"""Partial aggregates of joins: combined, they are the aggregates of the results that DuckDB finds,
for any join, arrival order, cut into batches, restart, and limit of memory."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lsmstate.joins.local.aggregates.groups import Groups
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.specs.multi_key import GraphSpec
from support.aggregate_cases import alike, combined, expected, random_aggregates, shown
from support.examples import examples
from support.join_cases import QUICK, run
from support.multi_key_cases import graph_joins
from support.one_key_cases import joins
from support.oracle import joined, joined_graph


class Aggregating:
    """A local join whose results are partial aggregates."""

    def __init__(self, spec, join, aggregates, most_bytes):
        self._join = join
        self._groups = Groups(aggregates, shown(spec), most_bytes)

    def process(self, batch):
        yield from self._groups.add(self._join.process(batch))
        yield from self._groups.rows()


def check(case, backend, piece_bytes, seed, most_bytes):
    spec, *_ = case
    kind, oracle = (GraphJoin, joined_graph) if isinstance(spec, GraphSpec) else (UMJoin, joined)
    aggregates = random_aggregates(shown(spec), seed)
    found = run(
        lambda store: Aggregating(spec, kind(spec, store, piece_bytes), aggregates, most_bytes),
        *case,
        backend,
    )
    schema = aggregates.schema(shown(spec))
    assert all(batch.schema == schema for batch in found)
    wanted = expected(shown(spec), aggregates, oracle(spec, case[1]))
    assert alike(combined(aggregates, found), wanted)


CASES = st.one_of(joins(), graph_joins())
SIZES = st.sampled_from([1, 400, 1 << 20])


@settings(QUICK, max_examples=examples(150))
@given(CASES, SIZES, st.integers(0, 1 << 30), SIZES)
def test_combined_they_are_the_aggregates_of_all_results(case, piece_bytes, seed, most_bytes):
    check(case, "memory", piece_bytes, seed, most_bytes)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["memory", "lsm", "rocksdb"])
@settings(QUICK, derandomize=False, max_examples=1500)
@given(CASES, SIZES, st.integers(0, 1 << 30), SIZES)
def test_many_on_every_store(backend, case, piece_bytes, seed, most_bytes):
    check(case, backend, piece_bytes, seed, most_bytes)
