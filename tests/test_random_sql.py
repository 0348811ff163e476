"""Random SQL over random tables gives the same rows converted, as a Spark batch, and in DuckDB."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from spark_streams import FileStream, collected, pieces

from lsmstate.spark import streaming_sql

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions")]

KINDS = {"INT": pa.int32(), "BIGINT": pa.int64(), "STRING": pa.string()}


class RandomQuery:
    """Tables t0, t1, ... with a few columns each, and a query that joins all of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tables = {f"t{n}": self.columns() for n in range(self.rng.randint(2, 4))}
        if self.rng.random() < 0.3:
            self.used = [*self.tables, "t0"]  # a self-join
        else:
            self.used = list(self.tables)
        self.sql = self.query()

    def columns(self) -> dict[str, str]:
        kinds = [self.rng.choice(["INT", "BIGINT"]) for _ in range(self.rng.randint(1, 3))]
        return {**{f"n{i}": kind for i, kind in enumerate(kinds)}, "s": "STRING"}

    def rows(self, name: str) -> pa.Table:
        def value(kind: str) -> Any:
            number = self.rng.randrange(6)
            if self.rng.random() < 0.1:
                return None
            return f"s{number % 3}" if kind == "STRING" else number

        columns = self.tables[name]
        count = self.rng.randint(8, 20)
        arrays = [pa.array([value(k) for _ in range(count)], KINDS[k]) for k in columns.values()]
        return pa.table(arrays, names=list(columns))

    def query(self) -> str:
        """Left-deep, by commas, or with a subquery in it; always linked by equalities."""
        sources, seen = [], []
        conditions = []
        for number, table in enumerate(self.used):
            alias = f"q{number}"
            source, columns = self.source(table)
            sources.append(f"{source} {alias}")
            if seen:
                other, others = self.rng.choice(seen)
                conditions.append(f"{self.number(other, others)} = {self.number(alias, columns)}")
            seen.append((alias, columns))
        conditions += [self.condition(seen) for _ in range(self.rng.randint(0, 2))]
        shown = [self.shown(seen, number) for number in range(self.rng.randint(2, 4))]
        where = " AND ".join(conditions)
        if self.rng.random() < 0.5:
            return f"SELECT {', '.join(shown)} FROM {', '.join(sources)} WHERE {where}"
        # Conditions on what comes later are not known to an earlier ON.
        joined = sources[0] + "".join(f" CROSS JOIN {source}" for source in sources[1:-1])
        return f"SELECT {', '.join(shown)} FROM {joined} JOIN {sources[-1]} ON {where}"

    def source(self, table: str) -> tuple[str, list[str]]:
        """A table, or a subquery with columns of other names."""
        numbers = [name for name in self.tables[table] if name != "s"]
        if self.rng.random() < 0.5:
            return table, numbers
        kept = self.rng.sample(numbers, self.rng.randint(1, len(numbers)))
        renamed = [f"{name} + {self.rng.randrange(2)} AS m{at}" for at, name in enumerate(kept)]
        where = f" WHERE {kept[0]} < {self.rng.randint(3, 6)}" if self.rng.random() < 0.5 else ""
        columns = [f"m{at}" for at in range(len(kept))]
        return f"(SELECT {', '.join(renamed)}, s FROM {table}{where})", columns

    def number(self, alias: str, columns: list[str]) -> str:
        column = f"{alias}.{self.rng.choice(columns)}"
        return self.rng.choice([column] * 4 + [f"{column} + 1"])

    def condition(self, seen: list[tuple[str, list[str]]]) -> str:
        left, right = (self.number(*self.rng.choice(seen)) for _ in range(2))
        alias = self.rng.choice(seen)[0]
        return self.rng.choice(
            [
                f"{left} <= {right}",
                f"({left} = {right} OR {alias}.s = 's1')",
                f"{alias}.s LIKE '%{self.rng.randrange(3)}'",
                f"{left} IN (1, 2, 3)",
                f"{left} IS NOT NULL",
                f"NOT ({left} = 2 AND {alias}.s <> 's0')",
            ]
        )

    def shown(self, seen: list[tuple[str, list[str]]], place: int) -> str:
        alias = self.rng.choice(seen)[0]
        value = self.number(*self.rng.choice(seen))
        what = self.rng.choice(
            [value, f"{value} * 2", f"{alias}.s", f"CASE WHEN {value} > 2 THEN {alias}.s END"]
        )
        return f"{what} AS v{place}"


@pytest.fixture
def _no_views_left(spark: Any) -> Iterator[None]:
    yield
    for view in spark.catalog.listTables():
        spark.catalog.dropTempView(view.name)


@pytest.mark.usefixtures("_no_views_left")
@pytest.mark.stress
@pytest.mark.parametrize("seed", range(1, 40))
def test_random_sql(spark: Any, tmp_path: Path, seed: int) -> None:
    query = RandomQuery(seed)
    print(query.sql)
    with duckdb.connect() as db:
        for name, columns in query.tables.items():
            ddl = ", ".join(f"{column} {kind}" for column, kind in columns.items())
            stream = FileStream(tmp_path / name, ddl).add(*pieces(query.rows(name), 2))
            stream.read(spark).createOrReplaceTempView(name)
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM {stream.sql}")
        expected = Counter(db.execute(query.sql).fetchall())
    converted = streaming_sql(spark, query.sql, strict=True, buckets=2, memory="8m")
    assert converted.is_converted
    found = Counter(map(tuple, collected(converted, tmp_path)))
    for name in query.tables:
        spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    batch = Counter(map(tuple, spark.sql(query.sql).collect()))
    assert found == batch == expected
