"""Joins by several keys on Spark: chains and cycles over streams, conditions beside the keys."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import Skew, State, explain_join, multiway_join, rescale
from support.grouped import grouped
from support.spark_streams import (
    BACKEND,
    FileStream,
    assert_same_rows,
    committed,
    pieces,
    run_to_end,
)

pytestmark = pytest.mark.spark

CHAIN = "c.ck = o.ck AND o.ok = l.ok"
CHAIN_SQL = """
SELECT c.ck AS c_ck, seg, o.ok AS o_ok, o.ck AS o_ck, day, l.ok AS l_ok, ship, k0
FROM {c} c JOIN {o} o ON c.ck = o.ck JOIN {l} l ON o.ok = l.ok"""


@pytest.fixture
def streams(tmp_path: Path) -> dict[str, FileStream]:
    """Customers, orders and their lines; keys of different types, some null."""
    rng = random.Random(7)

    def some(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.05 else v for v in values], kind)

    c = pa.table({"ck": some(list(range(60)), pa.int32()), "seg": [f"s{i % 3}" for i in range(60)]})
    o = pa.table(
        {
            "ok": some([rng.randrange(150) for _ in range(200)], pa.int64()),
            "ck": some([rng.randrange(70) for _ in range(200)], pa.int64()),
            "day": some([rng.randrange(30) for _ in range(200)], pa.int32()),
        }
    )
    lines = pa.table(
        {
            "ok": some([rng.randrange(160) for _ in range(400)], pa.int32()),
            "ship": some([rng.randrange(40) for _ in range(400)], pa.int32()),
            "k0": some([i / 4 for i in range(400)], pa.float64()),
        }
    )
    return {
        "c": FileStream(tmp_path / "c", "ck INT, seg STRING").add(*pieces(c, 2)),
        "o": FileStream(tmp_path / "o", "ok BIGINT, ck BIGINT, day INT").add(*pieces(o, 2)),
        "l": FileStream(tmp_path / "l", "ok INT, ship INT, k0 DOUBLE").add(*pieces(lines, 2)),
    }


def sql_of(streams: dict[str, FileStream]) -> str:
    return CHAIN_SQL.format(**{name: stream.sql for name, stream in streams.items()})


def frames(spark: Any, streams: dict[str, FileStream]) -> dict[str, Any]:
    return {name: stream.read(spark) for name, stream in streams.items()}


def test_a_chain_with_a_restart_and_conditions_beside_the_keys(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    on = f"{CHAIN} AND (o.day < l.ship OR c.seg = 's1') AND l.k0 BETWEEN 1 AND 90"
    joined = multiway_join(
        frames(spark, streams), on, state=State(backend=BACKEND, memory="8m", buckets=4)
    )
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    streams["o"].add(pa.table({"ok": [5, 6], "ck": [1, 2], "day": pa.array([0, 0], pa.int32())}))
    if BACKEND == "lsm":
        assert rescale(str(tmp_path / "checkpoint"), 6).rows > 1_000
    # The pinned shares stay, whatever another start would choose.
    again = multiway_join(
        frames(spark, streams),
        on,
        skew=Skew(rows={"c": 1, "o": 90, "l": 10}),
        state=State(backend=BACKEND, memory="8m"),
    )
    run_to_end(again, tmp_path / "checkpoint", tmp_path / "out")
    expected = sql_of(streams) + " WHERE (day < ship OR seg = 's1') AND k0 BETWEEN 1 AND 90"
    assert_same_rows(expected, committed(tmp_path / "out"), at_least=50)


@pytest.mark.stress
@pytest.mark.parametrize("shares", [{"c.ck": 3}, {"c.ck": 2, "o.ok": 2}])
def test_forced_shares_give_the_same_rows_and_are_pinned(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path, shares: dict[str, int]
) -> None:
    options = {"backend": BACKEND, "memory": "8m", "buckets": 4}
    joined = multiway_join(frames(spark, streams), CHAIN, **grouped(shares=shares, **options))
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    assert_same_rows(sql_of(streams), committed(tmp_path / "out"), at_least=50)
    pinned = json.loads((tmp_path / "checkpoint" / "lsmstate" / "query.json").read_text())
    assert pinned["settings"]["forced shares"] == shares
    other = multiway_join(frames(spark, streams), CHAIN, **grouped(shares={"o.ok": 4}, **options))
    query = other.writeStream.format("noop").option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    with pytest.raises(Exception, match="forced shares"):
        query.start().awaitTermination()
    why = "give shares for the new buckets" if BACKEND == "lsm" else "only that of 'lsm'"
    with pytest.raises(InvalidArgumentError, match=why):
        rescale(str(tmp_path / "checkpoint"), 2)
    if BACKEND == "lsm" and len(shares) == 1:
        rescale(str(tmp_path / "checkpoint"), 6, shares={"o.ok": 4})
        assert rescale(str(tmp_path / "checkpoint"), 6, shares={"o.ok": 5}).rows > 0
        assert rescale(str(tmp_path / "checkpoint"), 6, shares={"o.ok": 5}).rows == 0
        more = {"ok": [5, 6], "ck": [1, 2], "day": pa.array([0, 0], pa.int32())}
        streams["o"].add(pa.table(more))
        options["buckets"] = 6
        joined = multiway_join(
            frames(spark, streams), CHAIN, **grouped(shares={"o.ok": 5}, **options)
        )
        run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
        assert_same_rows(sql_of(streams), committed(tmp_path / "out"), at_least=50)


@pytest.mark.stress
def test_a_triangle(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(3)
    streams = {}
    for name in "abc":
        table = pa.table({"x": [rng.randrange(8) for _ in range(60)],
                          "y": [rng.randrange(8) for _ in range(60)]})  # fmt: skip
        streams[name] = FileStream(tmp_path / name, "x BIGINT, y BIGINT").add(*pieces(table, 2))
    on = "a.y = b.x AND b.y = c.x AND c.y = a.x"
    joined = multiway_join(
        frames(spark, streams), on, state=State(backend=BACKEND, memory="8m", buckets=8)
    )
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    sources = ", ".join(f"{stream.sql} {name}" for name, stream in streams.items())
    columns = ", ".join(f"{name}.{c} AS {name}_{c}" for name in "abc" for c in "xy")
    expected = f"SELECT {columns} FROM {sources} WHERE {on}"
    assert_same_rows(expected, committed(tmp_path / "out"), at_least=100)


def test_the_choice_is_explained(spark: Any, streams: dict[str, FileStream]) -> None:
    rows = {"c": 150, "o": 1500, "l": 6000}
    joined = multiway_join(
        frames(spark, streams), CHAIN, skew=Skew(rows=rows), state=State(buckets=4)
    )
    text = explain_join(joined)
    assert "keys: c.ck = o.ck; o.ok = l.ok" in text
    assert "indexes: c(ck), o(ck), o(ok), l(ok)" in text
    assert "o.ok 4" in text
    one_key = multiway_join(frames(spark, {k: streams[k] for k in "co"}), "c.ck = o.ck")
    assert "one key: c.ck = o.ck" in explain_join(one_key)
    with pytest.raises(InvalidArgumentError, match="no multiway_join"):
        explain_join(streams["c"].read(spark))


@pytest.mark.parametrize(
    ("on", "options", "words"),
    [
        (CHAIN, {"rows": {"x": 5}}, "no stream 'x'"),
        (CHAIN, {"rows": {"c": -5}}, "rows of 'c': -5"),
        (CHAIN, {"shares": {"c.cc": 2}}, "did you mean c.ck"),
        (CHAIN, {"shares": {"c.ck": 200}, "buckets": 4}, "need 200 buckets"),
        (f"{CHAIN} AND c.nope < 3", {}, "there is no column 'nope' in stream 'c'"),
        (f"{CHAIN} AND o.day <", {}, "syntax error at '<', line 1"),
        ("c.ck = o.ck", {"hot_keys": "spread"}, "no equality connects all of the streams c, o, l"),
    ],
)
def test_what_does_not_fit_is_refused(
    spark: Any, streams: dict[str, FileStream], on: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        multiway_join(frames(spark, streams), on, **grouped(**options))


def test_shares_need_several_keys(spark: Any, streams: dict[str, FileStream]) -> None:
    two = frames(spark, {name: streams[name] for name in "co"})
    with pytest.raises(InvalidArgumentError, match="leave rows out"):
        multiway_join(two, "c.ck = o.ck", skew=Skew(rows={"c": 1}))


@pytest.mark.stress
def test_as_many_copies_as_rows_are_not_the_rows(spark: Any, tmp_path: Path) -> None:
    """One of two rows has no key, the other goes to two buckets."""
    streams = {
        "c": FileStream(tmp_path / "c", "ck BIGINT").add(pa.table({"ck": [None, 1]})),
        "o": FileStream(tmp_path / "o", "ok BIGINT, ck BIGINT").add(
            pa.table({"ok": list(range(8)), "ck": [1] * 8})
        ),
        "l": FileStream(tmp_path / "l", "ok BIGINT").add(pa.table({"ok": list(range(8))})),
    }
    joined = multiway_join(
        frames(spark, streams),
        CHAIN,
        skew=Skew(shares={"o.ok": 2}),
        state=State(backend=BACKEND, buckets=2),
    )
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    expected = "SELECT 1 AS c_ck, i AS o_ok, 1 AS o_ck, i AS l_ok FROM range(8) t(i)"
    assert assert_same_rows(expected, committed(tmp_path / "out")) == 8
