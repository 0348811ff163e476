"""Retractions where there is an expiry: they follow their row's event time."""

import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.store import KeyBounds, Mutation
from support.expiring_cases import (
    BACKENDS,
    LIFE,
    all_ids,
    batch,
    keys_of,
    opened,
)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def retract(store, *rows):
    return store.retract("timed", *batch(*rows))


def test_a_retraction_takes_one_equal_row(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        row, other, timeless = (1, 1, 1000), (1, 2, 1000), (2, 3, None)
        store.append("timed", *batch(row, row, other, timeless))
        assert retract(store, row, timeless) == 2
        assert all_ids(store) == [1, 2]
        assert store.probe("timed", keys_of(1, 2)).counts.tolist() == [2, 0]
        store.commit()
    with opened(tmp_path, backend) as store:
        store.advance("timed", 1050)
        assert retract(store, row) == 1
        assert all_ids(store) == [2]


def test_it_waits_for_its_row_until_that_would_be_due(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        assert retract(store, (1, 2, 1000), (1, 4, 1000), (1, 6, None)) == 3
        store.append("timed", *batch((1, 2, 1000), (1, 6, None)))
        assert all_ids(store) == []
        store.advance("timed", 1000 + 5 * LIFE)
        store.append("timed", *batch((1, 4, 1000)))  # due by now
        assert all_ids(store) == []


def test_a_row_that_is_due_cannot_be_retracted(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch((1, 1, 1000), (1, 2, 1090)))
        store.advance("timed", 1000 + LIFE)
        assert retract(store, (1, 1, 1000), (1, 2, 1090)) == 1
        assert all_ids(store) == []


def test_a_row_out_of_the_ring_can_be_before_and_after_it_moves(tmp_path, backend):
    near, far, further = (1, 1, 1000), (1, 2, 1000 + 10 * LIFE), (1, 3, 1000 + 10 * LIFE)
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch(near))  # the ring is around it
        store.append("timed", *batch(far, far, further))
        assert retract(store, far) == 1
        assert all_ids(store) == [1, 2, 3]
        store.advance("timed", 1000 + 10 * LIFE)  # they move into the ring
        assert all_ids(store) == [2, 3]
        assert retract(store, further) == 1
        assert all_ids(store) == [2]


def test_one_out_of_the_ring_cannot_wait(tmp_path, backend):
    near, far = (1, 1, 1000), (1, 2, 1000 + 10 * LIFE)
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch(near))
        store.append("timed", *batch(far))
        with pytest.raises(
            InvalidArgumentError, match=r"'timed': a retraction of .*'id': 2,.* wait"
        ):
            retract(store, near, far, far)
        assert all_ids(store) == [1, 2]
        assert retract(store, near, far) == 2
        assert all_ids(store) == []


def test_it_sees_what_its_own_write_did_before(tmp_path, backend):
    near, far = (1, 1, 1000), (1, 2, 1000 + 10 * LIFE)
    rows, keys = batch(far)
    append, retraction = (
        Mutation("append", "timed", keys, rows),
        Mutation("retract", "timed", keys, rows),
    )
    delete = Mutation("delete", "timed", keys)
    everything = Mutation("delete_range", "timed", KeyBounds())
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch(near))
        assert store.write([append, append, retraction]) == 3
        assert all_ids(store) == [1, 2]
        for taken in (retraction, delete, everything):
            with pytest.raises(InvalidArgumentError, match="append it first"):
                store.write([taken, retraction])
        assert store.write([delete, append, retraction]) == 2
        assert all_ids(store) == []


def test_streams_without_expiry_beside_it(tmp_path, backend):
    rows, keys = batch((1, 1, 50), (1, 2, 50))
    with opened(tmp_path, backend) as store:
        for stream in ("plain", "timed"):
            store.append(stream, rows, keys)
        assert store.retract("plain", rows.slice(1), keys.slice(1)) == 1
        both = [Mutation("delete", "plain", keys), Mutation("retract", "timed", keys, rows)]
        assert store.write(both) == 2
        assert (all_ids(store, "plain"), all_ids(store)) == ([], [])
