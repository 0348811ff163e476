"""Expiry with a rule of the user's that keeps rows for good."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.options import MIB
from support.expiring_cases import (
    BACKENDS,
    LIFE,
    OPTIONS,
    all_ids,
    batch,
    even,
    ids,
    keys_of,
    opened,
)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def test_a_rule_may_keep_rows_for_good(tmp_path, backend):
    with opened(tmp_path, backend, keep=even) as store:
        store.append("timed", *batch(*((n % 5, n, n) for n in range(300))))
        for watermark in (150, 260, 10**6, 10**7):
            store.advance("timed", watermark)
            due = max(0, watermark - LIFE)
            expected = [n for n in range(300) if n > due or n % 2 == 0]
            assert all_ids(store) == expected
        assert store.append("timed", *batch((1, 1000, 5), (1, 1001, 5))) == 1
        assert 1000 in ids(store.get("timed", (1,)))
        assert store.probe("timed", keys_of(*range(5))).counts.sum() == 151


def test_an_answer_of_the_rule_that_is_none_is_refused_before_anything_changes(tmp_path):
    with opened(tmp_path, keep=lambda rows: pa.nulls(rows.num_rows, pa.bool_())) as store:
        store.append("timed", *batch((1, 1, 10), (1, 2, 10**6)))
        store.advance("timed", 50)
        with pytest.raises(InvalidArgumentError, match="a boolean for each"):
            store.append("timed", *batch((1, 3, -(10**6))))
        assert all_ids(store) == [1, 2]


@pytest.mark.parametrize("due", [True, False], ids=["ring", "out of the ring"])
def test_a_rule_that_fails_in_the_middle_of_a_move(tmp_path, backend, due):
    """Whatever comes next, reading or deleting, finds each row once."""
    asked_until_it_fails = []

    def rule(rows):
        if asked_until_it_fails:
            asked_until_it_fails.pop()
            if not asked_until_it_fails:
                raise ArithmeticError("a bug of the user's")
        return even(rows)

    count = 4000  # rows of more than two pieces
    times = [1000 if due else 1000 + 10 * LIFE] * count
    if not due:
        times[count // 2 :: 2] = [1000 - 10 * LIFE] * (count // 4)  # asked about while they move
    rows = [(i, i, at) for i, at in enumerate(times)]
    big = [*batch(*rows)]
    big[0] = big[0].set_column(2, "text", pa.array([f"row {i} " * 25 for i in range(count)]))
    with opened(tmp_path, backend, keep=rule) as store:
        if not due:
            store.append("timed", *batch((10**6, 10**6, 1000)))  # the ring is around it
        store.append("timed", *big)
        asked_until_it_fails[:] = [True, True]
        with pytest.raises(ArithmeticError) as failed:
            store.advance("timed", 1000 + (2 * LIFE if due else LIFE // 2 + 1))
        assert failed.value.__notes__ == ["in the keep rule of stream 'timed'"]
        kept = [i for i in range(count) if i % 2 == 0 or (not due and times[i] > 1000)]
        assert [i for i in all_ids(store) if i < count] == kept
        asked_until_it_fails[:] = []
        store.delete("timed", keys_of(*range(count // 2)))
        store.advance("timed", 1000 + 3 * LIFE)
        with store.snapshot() as snapshot:
            found = [i for i in all_ids(snapshot) if i < count]
        assert found == [i for i in kept if i >= count // 2]


def test_rows_of_almost_a_quarter_of_the_cap_are_stored_and_moved(tmp_path, backend):
    rows, keys = batch(*((i, i, 1000) for i in range(0, 2000, 2)))
    texts = ["x" * 100] * 1000
    texts[500] = "x" * (7 * MIB // 4)
    rows = rows.set_column(2, "text", pa.array(texts))
    options = dataclasses.replace(OPTIONS, memory_bytes=8 * MIB)
    with opened(tmp_path, backend, keep=even, options=options) as store:
        assert store.append("timed", rows, keys) == 1000
        store.advance("timed", 2000)
        assert all_ids(store) == list(range(0, 2000, 2))
        assert store.put("timed", rows.slice(500, 1), keys.slice(500, 1)) == 1


def test_a_rule_that_changes_its_mind_is_an_error(tmp_path):
    answers = [True]
    with opened(
        tmp_path, keep=lambda rows: pa.array([answers[0]] * rows.num_rows, pa.bool_())
    ) as store:
        store.append("timed", *batch((1, 1, 1000), (2, 2, 1001), (3, 3, 1060), (3, 4, 10**6)))
        store.advance("timed", 1101)
        probe = store.probe("timed", keys_of(1, 2))
        assert probe.counts.tolist() == [1, 1]
        answers[0] = False
        with pytest.raises(InvalidArgumentError, match="depend on the row alone"):
            list(probe.fetch(np.array([0, 1]), 1 << 20))
