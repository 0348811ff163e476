"""The order-consistent protocol: pairs are lost and doubled without it, and none with it."""

import pytest

from bench.joins.ordered_protocol import HybridClock, InOrder, Network, Stamp, simulate


@pytest.mark.parametrize("dispatchers", [2, 3])
def test_without_the_protocol_pairs_are_lost_and_doubled_and_with_it_none(dispatchers: int) -> None:
    network = Network(dispatchers)
    without = [simulate("none", 500, seed, network) for seed in range(4)]
    assert sum(found.lost for found in without) > 0
    assert sum(found.doubled for found in without) > 0
    for protocol in ("hybrid clock", "own counter"):
        for seed in range(4):
            found = simulate(protocol, 500, seed, network)
            assert (found.lost, found.doubled) == (0, 0)
            assert found.left == 0 or protocol == "own counter"
            assert found.pairs > 200


def test_one_dispatcher_whose_messages_do_not_overtake_needs_no_protocol() -> None:
    found = simulate("none", 500, 1, Network(1))
    assert (found.lost, found.doubled) == (0, 0)


def test_counters_keep_more_rows_back_than_clocks() -> None:
    most = {
        protocol: max(simulate(protocol, 1000, seed).most_waiting for seed in range(4))
        for protocol in ("hybrid clock", "own counter")
    }
    assert most["hybrid clock"] < most["own counter"]


def test_an_idle_dispatcher_stops_counters_and_not_clocks() -> None:
    idle = Network(is_idle=True)
    assert simulate("hybrid clock", 300, 1, idle).left == 0
    stopped = simulate("own counter", 300, 1, idle)
    assert stopped.left > 300


def test_stamps_rise_and_no_later_one_is_as_low_as_a_punctuation() -> None:
    clock = HybridClock(2)
    stamps = [clock.stamp(now) for now in (5, 5, 4, 9)]
    assert stamps == [(5, 2), (6, 2), (7, 2), (9, 2)]
    assert clock.punctuation(3) == 9
    assert clock.stamp(3) == Stamp(10, 2)
    assert clock.punctuation(20) == 20
    assert clock.stamp(20) == Stamp(21, 2)


def test_rows_of_one_time_are_handled_by_the_number_of_their_dispatcher() -> None:
    order = InOrder(2)
    order.add(Stamp(3, 1), "b")
    order.add(Stamp(4, 0), "c")
    order.add(Stamp(3, 0), "a")
    assert list(order.passed(0, 9)) == []
    assert list(order.passed(1, 3)) == ["a", "b"]
    assert order.waiting == 1
    assert list(order.passed(1, 4)) == ["c"]
    assert order.most_waiting == 3
