"""The order of probing: follows rates and costs, changes while running, never changes a result."""

import itertools
import random
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given, settings

from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts import probe_order
from lsmstate.joins.local.parts.probe_order import FADING_KEYS, RECHECKED_SLICES, ProbeOrder
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.multi_key import create_spec
from lsmstate.joins.specs.one_key import JoinSpec
from support.examples import examples
from support.join_cases import QUICK, attempt
from support.multi_key_cases import CHAIN, INTS, rows
from support.one_key_cases import INT, batch_of, joins


class Simulated:
    """A join of one stream with others of known rates and costs, on a clock of its own."""

    def __init__(self, rates, costs=None, keys=1000, filters=None):
        self.filters = filters
        self.rates = rates
        self.costs = costs or dict.fromkeys(rates, 1e-6)
        self.keys = keys
        self.now = 0.0
        self.order = ProbeOrder(lambda: self.now)

    def slice(self):
        """One slice; returns the order in which the streams were to be asked."""
        names = self.order.order("s", list(self.rates), self.filters)
        left = self.keys
        for name in names:
            self.now += left * self.costs[name]
            asked, left = left, int(left * self.rates[name])
            self.order.record("s", name, asked, left)
        return names

    def usual(self, slices=RECHECKED_SLICES):
        return Counter(tuple(self.slice()) for _ in range(slices)).most_common(1)[0][0]


def test_each_stream_comes_first_a_few_times_then_the_most_selective_one():
    join = Simulated({"a": 0.9, "b": 0.5, "c": 0.01})
    assert join.slice() == ["a", "b", "c"]
    assert Counter(join.slice()[0] for _ in range(5)) == {"a": 1, "b": 2, "c": 2}
    assert join.usual() == ("c", "b", "a")


def test_of_two_that_let_as_much_through_the_cheaper_one_comes_first():
    join = Simulated({"dear": 0.5, "cheap": 0.5}, {"dear": 5e-6, "cheap": 1e-6})
    assert join.usual() == ("cheap", "dear")


def test_cost_and_rate_are_weighed():
    # 1 us / 0.2 refused is dearer than 3 us / 0.9 refused.
    join = Simulated({"cheap": 0.8, "selective": 0.1}, {"cheap": 1e-6, "selective": 3e-6})
    assert join.usual() == ("selective", "cheap")
    join.costs["selective"] = 9e-6
    join.usual(4 * FADING_KEYS // join.keys)
    assert join.usual() == ("cheap", "selective")


def test_a_stream_that_refuses_no_key_is_never_first_and_the_others_are_measured():
    rates = {"outer": 1.0, "dear": 0.5, "cheap": 0.5}
    costs = {"outer": 1e-9, "dear": 5e-6, "cheap": 1e-6}
    join = Simulated(rates, costs, filters={"dear", "cheap"})
    assert {join.slice()[-1] for _ in range(5)} == {"outer"}
    assert join.usual() == ("cheap", "dear", "outer")


def test_a_single_slow_look_up_changes_nothing():
    join = Simulated({"a": 0.5, "b": 0.5, "c": 0.01})
    join.costs["c"] = 1.0
    while join.slice()[0] != "c":
        pass
    join.costs["c"] = 1e-6
    join.usual(4)
    assert join.usual() == ("c", "a", "b")


def test_the_order_follows_rates_that_change():
    join = Simulated({"a": 0.9, "b": 0.05, "c": 0.6})
    assert join.usual() == ("b", "c", "a")
    join.rates = {"a": 0.05, "b": 0.9, "c": 0.6}
    join.usual(4 * FADING_KEYS // join.keys)
    assert join.usual() == ("a", "c", "b")


def test_what_nothing_reaches_is_asked_again_now_and_then():
    join = Simulated({"a": 0.0, "b": 0.5})
    for _ in range(5):
        join.slice()
    firsts = [join.slice()[0] for _ in range(2 * RECHECKED_SLICES + 2)]
    assert 1 <= firsts.count("b") <= 3


def test_a_join_probes_fewer_keys_once_it_has_learned_and_again_after_a_change(
    tmp_path, monkeypatch
):
    """200 keys of which b holds half, c a tenth, d one; then d and b change roles."""
    monkeypatch.setattr(probe_order, "FADING_KEYS", 2000)
    spec = JoinSpec.create(dict.fromkeys("abcd", INT), ["id"])
    with closing(attempt(tmp_path, spec, "memory")) as store:
        # Every look-up takes the same time, whatever else the machine does.
        join = UMJoin(spec, store, probe_order=ProbeOrder(itertools.count().__next__))
        held = {"b": range(100), "c": range(20), "d": range(1)}
        for name, ids in held.items():
            list(join.process(Batch(name, batch_of(list(ids)))))

        def probed(first):
            before = store.stats().counters["probed_keys"]
            list(join.process(Batch("a", batch_of(list(range(first, first + 200))))))
            return store.stats().counters["probed_keys"] - before

        assert probed(0) == 200 + 100 + 20
        for _ in range(6):
            probed(0)
        assert probed(0) == 200 + 1 + 1
        list(join.process(Batch("d", batch_of(list(range(1000, 1150))))))
        list(join.process(Batch("b", batch_of([1000]))))
        list(join.process(Batch("c", batch_of(list(range(1000, 1020))))))
        before = probed(1000)
        for _ in range(60):
            probed(1000)
        assert before == 200 + 150 + 20
        assert sorted(probed(1000) for _ in range(9))[4] <= 200 + 1 + 1


class AnyOrder(ProbeOrder):
    """Asks in an order drawn anew each time."""

    def __init__(self, seed):
        super().__init__()
        self._rng = random.Random(seed)

    def order(self, asking, others):
        names = super().order(asking, others)
        self._rng.shuffle(names)
        return names


@settings(QUICK, max_examples=examples(12))
@given(joins())
def test_the_rows_come_alike_in_any_order_of_probing(tmp_path_factory, case):
    spec, tables, arrivals, _ = case
    found = []
    for seed in range(3):
        with closing(attempt(tmp_path_factory.mktemp("order"), spec, "memory")) as store:
            join = UMJoin(spec, store, 400, AnyOrder(seed))
            got = []
            for name, first, last in arrivals:
                for batch in tables[name].slice(first, last - first).combine_chunks().to_batches():
                    got += [
                        row
                        for piece in join.process(Batch(name, batch))
                        for row in piece.to_pylist()
                    ]
            found.append(repr(got))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("seed", range(3))
def test_a_join_by_several_keys_too(tmp_path, seed):
    spec = create_spec(INTS, CHAIN)
    with closing(attempt(tmp_path, spec, "memory")) as store:
        join = GraphJoin(spec, store, probe_order=AnyOrder(seed))
        list(join.process(Batch("c", rows("c", [1, 2, 3], ["x", "y", "z"]))))
        list(join.process(Batch("l", rows("l", [10, 10, 12, 13], [0.5, 1.5, 2.5, 3.5]))))
        found = join.process(Batch("o", rows("o", [10, 11, 12, 13], [1, 1, 2, 4], [5, 6, 7, 8])))
        got = [(r["seg"], r["day"], r["price"]) for piece in found for r in piece.to_pylist()]
    assert sorted(got) == [("x", 5, 0.5), ("x", 5, 1.5), ("y", 7, 2.5)]


def test_a_stream_that_was_not_looked_into_for_very_long():
    order = ProbeOrder()
    for _ in range(10):
        for name in order.order("a", ["b", "c"]):
            order.record("a", name, 10_000, 10_000)
    for _ in range(100):  # b lets nothing through, so nobody asks c
        order.order("a", ["b"])
        order.record("a", "b", 1_000_000, 0)
    order.order("a", ["c"])
    order.record("a", "c", 10_000, 10_000)
    assert set(order.order("a", ["b", "c"])) == {"b", "c"}
