"""Joins of any type and of changelogs on Spark: what stands in the end is the batch join."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import State, explain_join, multiway_join, rescale
from support.grouped import grouped
from support.spark_streams import BACKEND, FileStream, collected, metric, pieces, run_to_end

pytestmark = pytest.mark.spark

TREE = "o LEFT JOIN p ON o.id = p.of FULL JOIN s ON COALESCE(o.id, p.of) = s.ref"
CHANGES = {"emit": "changes", "changes": {"p": "op"}}
SQL = "SELECT o.id, what, o.day AS o_day, of, euros, p.day AS p_day, ref, weight FROM "


@pytest.fixture
def streams(tmp_path: Path) -> dict[str, FileStream]:
    """Orders, parcels, and payments that change; keys of different types, some null."""
    rng = random.Random(11)

    def keys(count: int, kind: pa.DataType) -> pa.Array:
        return pa.array(
            [None if rng.random() < 0.1 else rng.randrange(30) for _ in range(count)], kind
        )

    orders = pa.table({"id": keys(60, pa.int64()), "what": [f"w{i}" for i in range(60)],
                       "day": pa.array(range(60), pa.int32())})  # fmt: skip
    parcels = pa.table({"ref": keys(40, pa.int16()), "weight": [i / 4 for i in range(40)]})
    live: list[tuple[Any, ...]] = []
    payments = []
    for number in range(150):
        if live and rng.random() < 0.4:
            row = live.pop(rng.randrange(len(live)))
            payments.append((rng.choice(["-U", "-D"]), *row))
        else:
            key = None if rng.random() < 0.1 else rng.randrange(35)
            row = (key, number % 7, number)
            live.append(row)
            payments.append((rng.choice(["+I", "+U"]), *row))
    kinds = [pa.string(), pa.int32(), pa.int64(), pa.int32()]
    names = ["op", "of", "euros", "day"]
    columns = [pa.array(c, t) for c, t in zip(zip(*payments, strict=True), kinds, strict=True)]
    changes = pa.table(columns, names=names)
    return {
        "o": FileStream(tmp_path / "o", "id BIGINT, what STRING, day INT").add(*pieces(orders, 2)),
        "p": FileStream(tmp_path / "p", "op STRING, of INT, euros BIGINT, day INT").add(
            *pieces(changes, 2)
        ),
        "s": FileStream(tmp_path / "s", "ref SMALLINT, weight DOUBLE").add(*pieces(parcels, 2)),
    }


def frames(spark: Any, streams: dict[str, FileStream]) -> dict[str, Any]:
    return {name: stream.read(spark) for name, stream in streams.items()}


def batch_join(streams: dict[str, FileStream], sql: str) -> Counter:
    """DuckDB's join of what the streams come to."""
    with duckdb.connect() as db:
        for name in ("o", "s"):
            db.execute(f"CREATE TABLE {name} AS SELECT * FROM {streams[name].sql}")
        db.execute(
            "CREATE TABLE p AS SELECT of, euros, day FROM "
            f"(SELECT of, euros, day, sum(if(op[1] = '+', 1, -1)) AS n FROM {streams['p'].sql} "
            "GROUP BY ALL), range(100) t(i) WHERE i < n"
        )
        return Counter(db.execute(sql.replace("LEFT SEMI", "SEMI")).fetchall())


def net(rows: list[Any], shown: Counter) -> Counter:
    """Follow a changelog; what is taken back must be there once the micro-batch is over."""
    for operation, *row in rows:
        shown[tuple(row)] += 1 if operation == "+I" else -1
    assert min(shown.values(), default=0) >= 0
    return +shown


def test_a_tree_of_joins_of_a_changelog_with_a_restart(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    options = CHANGES | {"unmatched": "error", "buckets": 2, "backend": BACKEND, "memory": "8m"}
    joined = multiway_join(frames(spark, streams), TREE, **grouped(**options))
    assert joined.columns == ["op", "id", "what", "o_day", "of", "euros", "p_day", "ref", "weight"]
    assert [f.nullable for f in joined.schema] == [False] + [True] * 8
    shown: Counter = Counter()
    standing = net(collected(joined, tmp_path), shown)
    assert standing == batch_join(streams, SQL + TREE)
    assert sum(standing.values()) > 60
    # A payment goes with its order's last result; another comes to an order that has none.
    more_payments = {
        "op": ["+I", "+I", "-U", "+U"],
        "of": pa.array([77, 3, 3, 3], pa.int32()),
        "euros": [1, 2, 2, 5],
        "day": pa.array([1] * 4, pa.int32()),
    }
    streams["p"].add(pa.table(more_payments))
    streams["o"].add(pa.table({"id": [77], "what": ["new"], "day": pa.array([1], pa.int32())}))
    if BACKEND == "lsm":
        assert rescale(str(tmp_path / "checkpoint"), 5).rows > 80
        options["buckets"] = 5
    again = multiway_join(frames(spark, streams), TREE, **grouped(**options))
    more = collected(again, tmp_path)
    assert more
    assert net(more, shown) == batch_join(streams, SQL + TREE)


@pytest.mark.stress
def test_a_retraction_before_its_row_in_one_micro_batch(spark: Any, tmp_path: Path) -> None:
    """Rows of a micro-batch come in several pieces; which row is in which says nothing."""
    count = 40_000
    text = ["x" * 100] * count
    comes = pa.table({"op": ["+I"] * count, "k": list(range(count)), "text": text})
    goes = comes.set_column(0, "op", pa.array(["-D"] * count)).slice(10)
    a = FileStream(tmp_path / "a", "op STRING, k BIGINT, text STRING")
    a.add(pa.concat_tables([goes, comes]))
    b = FileStream(tmp_path / "b", "k BIGINT").add(pa.table({"k": [3, 20]}))
    joined = multiway_join(
        {"a": a.read(spark), "b": b.read(spark)},
        "a ANTI JOIN b USING (k)",
        emit="changes",
        changes={"a": "op"},
        unmatched="error",
        state=State(buckets=2, memory="16m", backend=BACKEND),
    )
    shown = net([(row.op, row.k) for row in collected(joined, tmp_path)], Counter())
    assert shown == Counter((k,) for k in range(10) if k != 3)


@pytest.mark.stress
def test_a_changelog_joined_by_several_keys(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    """Keys that Spark casts, rows copied to several buckets, retractions of either."""
    rest = "(o.day < p.day OR s.weight > 5.5) AND what NOT LIKE '%7'"
    on = f"o.id = p.of AND p.euros = s.ref AND {rest.replace('what', 'o.what')}"
    joined = multiway_join(
        frames(spark, streams),
        on,
        **grouped(
            **CHANGES,
            unmatched="error",
            backend=BACKEND,
            memory="8m",
            shares={"o.id": 2, "p.euros": 2},
            buckets=4,
        ),
    )
    assert joined.columns == ["op", "id", "what", "o_day", "of", "euros", "p_day", "ref", "weight"]
    assert "changelogs: p by op" in explain_join(joined)
    tree = f"o JOIN p ON o.id = p.of JOIN s ON p.euros = s.ref WHERE {rest}"
    expected = batch_join(streams, SQL + tree)
    assert net(collected(joined, tmp_path), Counter()) == expected
    assert sum(expected.values()) > 20


@pytest.mark.stress
def test_conditions_beside_one_key_filter_what_comes_and_what_goes(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    """Over a restart, which may not bring another condition."""
    rest = "abs(o.day - p.day) < 100 AND (o.what > 'w3' OR p.euros IS NULL OR p.euros IN (1, 5))"
    options = CHANGES | {"unmatched": "error", "buckets": 2, "backend": BACKEND, "memory": "8m"}
    two = {name: streams[name] for name in "op"}
    sql = "SELECT o.id, what, o.day, of, euros, p.day FROM o JOIN p ON o.id = p.of AND " + rest
    shown: Counter = Counter()
    for number in range(2):
        joined = multiway_join(frames(spark, two), f"o.id = p.of AND {rest}", **grouped(**options))
        assert joined.columns == ["op", "id", "what", "o_day", "of", "euros", "p_day"]
        expected = batch_join(streams, sql)
        assert net(collected(joined, tmp_path), shown) == expected
        assert sum(expected.values()) > 15
        if number == 0:
            gone = random.Random(3).sample(sorted(expected.elements(), key=str), 9)
            payments = [("-D", *payment) for payment in sorted({row[3:] for row in gone})]
            kinds = (pa.string(), pa.int32(), pa.int64(), pa.int32())
            columns = zip(zip(*payments, strict=True), kinds, strict=True)
            arrays = [pa.array(column, kind) for column, kind in columns]
            streams["p"].add(pa.table(arrays, names=["op", "of", "euros", "day"]))
    other = multiway_join(frames(spark, two), "o.id = p.of AND o.day < 9", **grouped(**options))
    with pytest.raises(Exception, match=r"other conditions = \(abs.*now has.*= \(o.day < 9\)"):
        collected(other, tmp_path)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("o.day < rand()", r"rand\(\).* may have another value when a result is retracted"),
        ("(o.day < 5 OR now() > TIMESTAMP '2026-01-01')", r"now\(\) may have another value"),
        ("o.day < (SELECT max(id) FROM range(9))", "may have another value"),
        ("random_udf(o.day) < 5", r"random_udf.* may have another value"),
        ("p.op = '+I'", "join condition \"p.op = '\\+I'\".*op.*Name columns as stream.column"),
        *(
            pytest.param(*each, marks=pytest.mark.stress)
            for each in (
                ("o.what <> concat('a', uuid())", r"uuid\(\).* may have another value"),
                ("o.day < unix_timestamp()", r"current_timestamp\(\) may have another value"),
                ("o.what <> current_user()", r"current_user\(\) may have another value"),
                (
                    "date_add(current_date(), o.day) > DATE '2026-01-01'",
                    "current_date.* may have another value",
                ),
                ("o.day IN (SELECT id FROM range(9))", "may have another value"),
            )
        ),
    ],
)
def test_conditions_that_may_change_their_mind_are_refused(
    spark: Any, streams: dict[str, FileStream], condition: str, words: str
) -> None:
    spark.udf.register("random_udf", F.udf(lambda x: x, "INT").asNondeterministic())
    two = {name: streams[name].read(spark) for name in "op"}
    with pytest.raises(InvalidArgumentError, match=words):
        multiway_join(two, f"o.id = p.of AND {condition}", **grouped(**CHANGES))


@pytest.mark.stress
def test_a_full_and_a_left_join_by_several_keys(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    """Two streams all of whose rows are results, and one that is copied to where they are."""
    tree = (
        "o FULL JOIN p ON o.id = p.of AND o.day < p.day "
        "LEFT JOIN s ON p.euros = s.ref AND (s.weight > 5.5 OR p.day NOT BETWEEN 20 AND 60)"
    )
    joined = multiway_join(
        frames(spark, streams),
        tree,
        **grouped(**CHANGES, unmatched="error", backend=BACKEND, memory="8m", buckets=3),
    )
    assert "shares (chosen): o.id 3" in explain_join(joined)
    expected = batch_join(streams, SQL + tree)
    assert net(collected(joined, tmp_path), Counter()) == expected
    assert {tuple(v is None for v in row[::3]) for row in expected} >= {
        (False, True, True), (True, False, True), (False, False, False)
    }  # fmt: skip


@pytest.mark.stress
@pytest.mark.parametrize(
    ("kind", "on", "split"),
    [
        ("LEFT", "c.y = a.y AND c.z = b.z", "a.x 2 x a.y 2"),
        ("FULL", "c.y = a.y AND c.z = a.x AND c.z = b.z AND (c.y > 1 OR b.x < 2)", "a.x 4"),
    ],
)
def test_a_cycle_of_outer_joins(spark: Any, tmp_path: Path, kind: str, on: str, split: str) -> None:
    """A stream compared with two before it, one of which may have no row; a restart."""
    rng = random.Random(3)

    def table(**kinds: pa.DataType) -> pa.Table:
        values = [None, 1, 2, 3, 4]
        return pa.table({n: pa.array(rng.choices(values, k=24), t) for n, t in kinds.items()})

    streams = {
        "a": FileStream(tmp_path / "a", "x BIGINT, y SMALLINT"),
        "b": FileStream(tmp_path / "b", "x INT, z BIGINT"),
        "c": FileStream(tmp_path / "c", "y BIGINT, z BIGINT, op STRING"),
    }
    tree = f"a LEFT JOIN b ON a.x = b.x {kind} JOIN c ON {on}"
    columns = "a.x AS a_x, a.y AS a_y, b.x AS b_x, b.z AS b_z, c.y AS c_y, c.z AS c_z"
    shown: Counter = Counter()
    there: list[pa.Table] = []
    for _ in range(2):
        streams["a"].add(table(x=pa.int64(), y=pa.int16()))
        streams["b"].add(*pieces(table(x=pa.int32(), z=pa.int64()), 2))
        there.append(table(y=pa.int64(), z=pa.int64()))
        for op, rows in [("+I", there[-1]), *[("-D", rows) for rows in there[:-1]]]:
            streams["c"].add(rows.append_column("op", pa.array([op] * len(rows))))
        joined = multiway_join(
            frames(spark, streams),
            tree,
            emit="changes",
            changes={"c": "op"},
            unmatched="error",
            state=State(backend=BACKEND, memory="8m", buckets=4),
        )
        assert f"shares (chosen): {split};" in explain_join(joined)
        standing = net(collected(joined, tmp_path), shown)
        with duckdb.connect() as db:
            for name in "ab":
                db.execute(f"CREATE TABLE {name} AS SELECT * FROM {streams[name].sql}")
            db.register("c", there[-1])
            assert standing == Counter(db.execute(f"SELECT {columns} FROM {tree}").fetchall())
    nulls = {tuple(v is None for v in row[2:6:2]) for row in standing}
    assert nulls >= {(True, True), (False, True), (False, False)}


@pytest.mark.stress
def test_what_meets_by_no_key_meets_in_one_bucket(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    """A row of the stream in between is with all of its one key, and with all of its other."""
    tree = "o FULL JOIN p ON o.id = p.of FULL JOIN s ON p.euros = s.ref"
    joined = multiway_join(
        frames(spark, streams),
        tree,
        **grouped(**CHANGES, unmatched="error", backend=BACKEND, memory="8m", buckets=1),
    )
    expected = batch_join(streams, SQL + tree)
    assert net(collected(joined, tmp_path), Counter()) == expected
    assert {tuple(v is None for v in row[::3]) for row in expected} >= {
        (True, True, False), (True, False, True), (False, True, True), (False, False, False)
    }  # fmt: skip


@pytest.mark.stress
def test_a_semi_join_of_rows_that_stay_is_append_only(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    joined = multiway_join(
        {"o": streams["o"].read(spark), "s": streams["s"].read(spark)},
        {"o": ["id"], "s": ["ref"]},
        how="left_semi",
        state=State(backend=BACKEND, buckets=2),
    )
    assert joined.columns == ["id", "what", "day"]
    query = run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    sql = "SELECT o.* FROM o LEFT SEMI JOIN s ON o.id = s.ref"
    expected = batch_join(streams, sql)
    assert Counter(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect())) == expected
    assert sum(metric(query, "rows_out")) == sum(expected.values()) > 10


@pytest.mark.stress
def test_the_types_are_pinned_and_explained(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    options = {"emit": "changes", "backend": BACKEND, "buckets": 2}
    two = {name: streams[name].read(spark) for name in "os"}
    joined = multiway_join(two, "o.id = s.ref", **grouped(how="left", **options))
    text = explain_join(joined)
    assert "joins: o LEFT JOIN s ON o.id = s.ref" in text
    assert "column 'op' is +I for a new one" in text
    collected(joined, tmp_path)
    for how, was in (("full", "o FULL JOIN s ON o.id = s.ref"), ("inner", "o JOIN s")):
        other = multiway_join(two, "o.id = s.ref", **grouped(how=how, **options))
        with pytest.raises(Exception, match="o LEFT JOIN s ON o.id = s.ref.*" + was):
            collected(other, tmp_path)
    plain = multiway_join(two, "o.id = s.ref", state=State(backend=BACKEND, buckets=2))
    with pytest.raises(Exception, match=r"LEFT JOIN s .* joins other than inner = nothing"):
        collected(plain, tmp_path)


@pytest.mark.parametrize(
    ("on", "options", "words"),
    [
        (TREE, {}, "use emit='changes'"),
        (TREE, {"emit": "final"}, "depends on 'o', 'p' also where there is no row"),
        (TREE, {"emit": "changes", "changes": {"p": "of"}}, "'of' is int32, operations are text"),
        (
            TREE,
            {"emit": "changes", "unmatched": "drop"},
            "did you mean .error.. Known: count, error",
        ),
        (TREE + " AND o.day < 5", {"emit": "changes"}, "outside of IS NULL, OR and COALESCE"),
        ("o.id = p.of AND o.id = s.ref AND o.day < 5", {"how": "left"} | CHANGES, "on 'o' alone"),
        (
            "o LEFT JOIN p ON o.id = p.of AND p.op = '+I' LEFT JOIN s ON o.id = s.ref",
            CHANGES,
            "p.op is an operation column",
        ),
        (
            "o FULL JOIN p ON o.id = p.of FULL JOIN s ON p.euros = s.ref",
            CHANGES,
            "no key by which each row of 'o' and 'p' and 's' and all .* give buckets=1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    spark: Any, streams: dict[str, FileStream], on: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        multiway_join(frames(spark, streams), on, **grouped(**options))
