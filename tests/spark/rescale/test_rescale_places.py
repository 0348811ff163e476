"""Where a rescale takes rows from and brings them to: as the query's own router would have."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.hash import bucket_of
from lsmstate.joins.routing.shares import JoinGraph, Shares, choose
from lsmstate.store import Entries, StreamSchema

pytest.importorskip("pyspark")

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.spark_integration.rescale.fill import misplaced
from lsmstate.spark_integration.rescale.places import GridPlaces, HashPlaces
from lsmstate.spark_integration.rescale.plan import check_wanted

GRAPH = JoinGraph(
    rows={"c": 60, "o": 200, "l": 400}, classes={"c.ck": ("c", "o"), "o.ok": ("o", "l")}
)
COLUMNS = ({"c": "ck", "o": "ck"}, {"o": "ok", "l": "ok"})
KEYS = {"c": ("ck",), "o": ("ck", "ok"), "l": ("ok",)}


@pytest.fixture
def rows() -> dict[str, pa.RecordBatch]:
    rng = np.random.default_rng(5)
    return {
        name: pa.record_batch(
            {**{key: rng.integers(0, 60, count) for key in KEYS[name]}, "n": np.arange(count)}
        )
        for name, count in GRAPH.rows.items()
    }


def by_bucket(
    shares: Shares, rows: Mapping[str, pa.RecordBatch]
) -> dict[tuple[str, int], list[int]]:
    """The numbers of the rows in each bucket, as the router has them."""
    found: dict[tuple[str, int], list[int]] = {}
    for name, batch in rows.items():
        hashes = {
            c: KeyCodec(batch.select([key]).schema).encode(batch.select([key])).hashes
            for c, holders in zip(GRAPH.classes, COLUMNS, strict=True)
            if (key := holders.get(name)) is not None
        }
        positions, buckets = shares.route(name, hashes, np.ones(len(batch), np.bool_))
        for bucket in range(shares.cells):
            found[name, bucket] = positions[buckets == bucket].tolist()
    return found


@pytest.mark.parametrize("before", [{"c.ck": 2, "o.ok": 2}, {"c.ck": 3}, {"o.ok": 4}, {}])
@pytest.mark.parametrize("after", [{"c.ck": 2, "o.ok": 3}, {"o.ok": 2}, {"c.ck": 5}, {}])
def test_from_one_grid_to_another(
    rows: dict[str, pa.RecordBatch], before: dict[str, int], after: dict[str, int]
) -> None:
    old, new = choose(GRAPH, 6, before), choose(GRAPH, 6, after)
    places = GridPlaces(old, new, COLUMNS)
    held, records = by_bucket(old, rows), []
    for number in range(new.cells):
        record: dict[str, list[tuple[int, str, int, int]]] = {"read": []}
        for name, batch in rows.items():
            index = StreamSchema(f"{name}(key)", batch.select([0]).schema, batch.schema)
            brought: list[int] = []
            for place in places.sources(number):
                here = batch.take(pa.array(held[name, place], pa.int64()))
                taken = places.taken(index, Entries(here.select([0]), here), place, number)
                brought += here["n"].take(pa.array(taken.positions)).to_pylist()
                record["read"].append((place, index.name, taken.owned, len(taken.positions)))
            assert sorted(brought) == by_bucket(new, rows)[name, number]
        records.append(record)
    assert misplaced(records, places) is None
    place, stream, owned, taken = next(r for r in records[0]["read"] if r[3])
    records[0]["read"].append((place, stream, owned, 1))
    assert "rows were written instead of" in str(misplaced(records, places))


def test_rows_of_an_input_that_is_named_like_late_ones_are_counted_as_copies() -> None:
    places: Any = SimpleNamespace(copies=lambda _stream: 4)
    records = [{"read": [(0, "clicks (late)", 10, taken)]} for taken in (10, 30)]
    assert misplaced(records, places) is None
    assert "40 rows were written instead of 10" in str(
        misplaced(records, places, ["clicks (late)"])
    )


def test_keys_of_somebody_elses_are_noticed() -> None:
    keys = pa.record_batch({"k": np.arange(40)})
    stream = StreamSchema("s", keys.schema, keys.schema)
    mine = np.flatnonzero(bucket_of(KeyCodec(keys.schema).encode(keys), 2) == 1)
    here = keys.take(pa.array(mine))
    taken = HashPlaces(2, 2).taken(stream, Entries(here, here), 1, 1)
    assert taken.positions.tolist() == list(range(len(mine)))
    with pytest.raises(InvalidArgumentError, match="under keys of its own"):
        HashPlaces(2, 3).taken(stream, Entries(keys, keys), 1, 0)


def test_a_row_in_a_cell_that_is_not_its_own_is_noticed(rows: dict[str, pa.RecordBatch]) -> None:
    shares = choose(GRAPH, 4, {"c.ck": 2, "o.ok": 2})
    index = StreamSchema("o(ck)", rows["o"].select([0]).schema, rows["o"].schema)
    found = Entries(rows["o"].select([0]), rows["o"])
    with pytest.raises(
        InvalidArgumentError, match="bucket 3 of the grid, where its keys do not belong"
    ):
        GridPlaces(shares, shares, COLUMNS).taken(index, found, 3, 0)


def test_what_cannot_be_checked_or_was_not_said_is_refused() -> None:
    stateful = {"buckets": 1, "key": ["df.id"]}
    with pytest.raises(InvalidArgumentError, match="with one bucket, where it is unknown"):
        check_wanted("state", stateful, None)
    check_wanted("state", stateful | {"buckets": 2}, None)
    join = {"buckets": 1, "condition": "a.x = b.x"}
    check_wanted("state", join, None)
    with pytest.raises(InvalidArgumentError, match=r"shares=\{'a.x': 2\}: the query was started"):
        check_wanted("state", join, {"a.x": 2})
    with pytest.raises(InvalidArgumentError, match="give shares for the new buckets"):
        check_wanted("state", join | {"forced shares": {"a.x": 1}}, None)
