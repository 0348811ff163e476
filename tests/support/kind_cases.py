"""One case of every kind of join: how it is opened, rows for it, and DuckDB's answer."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from lsmstate.join import MultiwayJoin, NaturalJoin, State, asof_join
from lsmstate.joins.kinds import Kind, register
from lsmstate.joins.spec_join import SpecJoin
from lsmstate.joins.specs.similarity import SimilaritySpec
from support.cross_join.local_join import CrossJoin
from support.cross_join.spec import CrossSpec
from support.grouped import grouped

START = datetime(2024, 1, 1, tzinfo=UTC)
#: After every row.
LAST = datetime(2030, 1, 1, tzinfo=UTC)

A = pa.schema([("k", pa.int64()), ("x", pa.string())])
B = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("y", pa.int64())])
C = pa.schema([("j", pa.int64()), ("z", pa.float64())])
TIMED_A, TIMED_B = (
    pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), (name, pa.int64())])
    for name in ("x", "y")
)
POINTS = pa.schema([("k", pa.int64()), ("v", pa.list_(pa.float64()))])
NEAR = "b.at BETWEEN a.at - INTERVAL 10 MINUTES AND a.at + INTERVAL 10 MINUTES"

Rows = Counter[tuple[Any, ...]]


@dataclass(frozen=True)
class KindCase:
    """A join, and the same join in DuckDB's SQL."""

    streams: Mapping[str, pa.Schema]
    sql: str
    on: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    is_changing: bool = False
    """Whether results have an operation column."""
    other_on: Any = None
    """Another condition, which is refused for the same state."""
    similar: Mapping[str, Any] | None = None
    """Of a similarity join: what is compared."""

    def opened(self, backend: str, path: str | None, *, is_other: bool = False, **more: Any) -> Any:
        """The join."""
        if self.similar is not None:
            asked = {**self.similar, "threshold": self.similar["threshold"] + is_other}
            spec = SimilaritySpec.of(self.streams, self.on, **asked)
            return SpecJoin(spec, **grouped(backend=backend, state_dir=path, **more))
        if self.on is None:
            names = list(self.streams)[:: -1 if is_other else 1]
            spec = CrossSpec.of({name: self.streams[name] for name in names})
            return SpecJoin(spec, **grouped(backend=backend, state_dir=path, **more))
        on = self.other_on if is_other else self.on
        return MultiwayJoin(
            self.streams, on, **grouped(backend=backend, state_dir=path, **{**self.options, **more})
        )

    def on_spark(self, streams: Mapping[str, Any], *, is_other: bool = False, **more: Any) -> Any:
        """The join of streaming DataFrames, whose event times are the columns of watermarks."""
        if self.similar is not None:
            from lsmstate.spark import similarity_join

            asked = {**self.similar, "threshold": self.similar["threshold"] + is_other}
            return similarity_join(streams, self.on, **asked, **grouped(**more))
        if self.on is None:
            from pyspark import cloudpickle

            from support.cross_join import local_join, spec
            from support.cross_join.face import cross_join

            for module in (spec, local_join):  # workers cannot import what tests share
                cloudpickle.register_pickle_by_value(module)
            names = list(streams)[:: -1 if is_other else 1]
            return cross_join({name: streams[name] for name in names}, **grouped(**more))
        from lsmstate.spark import multiway_join

        options = {name: v for name, v in self.options.items() if name != "event_time"}
        on = self.other_on if is_other else self.on
        return multiway_join(streams, on, **grouped(**options, **more))

    @property
    def is_timed(self) -> bool:
        """Whether its streams have event times, in the columns ``at``."""
        return "event_time" in self.options

    def rows(self, count: int, seed: int) -> dict[str, pa.Table]:
        """Rows with nulls and equal rows among them; time stamps are never null."""
        rng = random.Random(seed)
        return {
            name: pa.table([_column(f, count, rng) for f in schema], schema=schema)
            for name, schema in self.streams.items()
        }

    def expected(self, tables: Mapping[str, pa.Table]) -> Rows:
        """DuckDB's answer."""
        with duckdb.connect() as db:
            db.execute("SET TimeZone = 'UTC'")
            for name, table in tables.items():
                db.register(name, table)
            return Counter(_shown(db.execute(self.sql).to_arrow_table()))

    def found(self, results: Iterator[pa.RecordBatch]) -> Rows:
        """Results as rows; retracted ones count less than nothing."""
        found: Rows = Counter()
        for piece in results:
            for row in _shown(pa.table(piece)):
                if self.is_changing:
                    found[row[1:]] += 1 if row[0] == "+I" else -1
                else:
                    found[row] += 1
        return found


@dataclass(frozen=True)
class DocumentCase(KindCase):
    """A natural join of documents. Each stream has its documents in the column ``doc``."""

    def opened(self, backend: str, path: str | None, *, is_other: bool = False, **more: Any) -> Any:
        """The join."""
        state = State(backend=backend, state_dir=path)
        options: dict[str, Any] = {"at_least": 2} if is_other else {}
        return NaturalJoin(self.streams, "doc", state=state, **options, **more)

    def on_spark(self, streams: Mapping[str, Any], *, is_other: bool = False, **more: Any) -> Any:
        """The join of streaming DataFrames."""
        from lsmstate.spark import natural_join

        return natural_join(streams, "doc", at_least=1 + is_other, **grouped(**more))

    def rows(self, count: int, seed: int) -> dict[str, pa.Table]:
        """Documents of up to three attributes; some have none of them."""
        rng = random.Random(seed)
        found = {}
        for name, schema in self.streams.items():
            docs = [
                {a: rng.randrange(6) for a in "uvw" if rng.random() < 0.6} for _ in range(count)
            ]
            ids = [None if rng.random() < 0.1 else number for number in range(count)]
            found[name] = pa.table([ids, list(map(json.dumps, docs))], schema=schema)
        return found


@dataclass(frozen=True)
class AsofCase(KindCase):
    """An as-of join by ``k``. Rows of a stream have different times, so one is the nearest."""

    def opened(self, backend: str, path: str | None, *, is_other: bool = False, **more: Any) -> Any:
        """The join."""
        return asof_join(
            self.streams, self.on, **self._asked(is_other), **_in(backend, path), **more
        )

    def on_spark(self, streams: Mapping[str, Any], *, is_other: bool = False, **more: Any) -> Any:
        """The join of streaming DataFrames."""
        from lsmstate.spark import asof_join

        return asof_join(streams, self.on, **self._asked(is_other), **grouped(**more))

    def _asked(self, is_other: bool) -> dict[str, Any]:
        return {"by": "k", "how": "left", "tolerance": "5 minutes" if is_other else "9 minutes"}

    @property
    def is_timed(self) -> bool:
        """Its streams have event times."""
        return True

    def rows(self, count: int, seed: int) -> dict[str, pa.Table]:
        """Rows whose times within a stream differ."""
        rng = random.Random(seed)
        found = {}
        for name, table in super().rows(count, seed).items():
            times = [START + timedelta(seconds=s) for s in rng.sample(range(2400), count)]
            at = table.schema.get_field_index("at")
            found[name] = table.set_column(
                at, table.schema.field(at), pa.array(times, table.schema.field(at).type)
            )
        return found


def parts_of(tables: dict[str, pa.Table], rng: random.Random) -> list[tuple[str, pa.RecordBatch]]:
    """All rows in batches of random sizes, some of them empty, the streams in turns."""
    waiting = {name: table.combine_chunks().to_batches()[0] for name, table in tables.items()}
    parts = []
    while waiting:
        name = rng.choice(sorted(waiting))
        rows = waiting.pop(name)
        count = rng.choice([0, 1, 7, 20])
        parts.append((name, rows.slice(0, count)))
        if count < rows.num_rows:
            waiting[name] = rows.slice(count)
    return parts


def _in(backend: str, path: str | None) -> dict[str, Any]:
    return {"state": State(backend=backend, state_dir=path)}


def _asof_sql() -> str:
    near = "b.at >= a.at - INTERVAL 9 MINUTES"
    shown = ", ".join(f"CASE WHEN {near} THEN b.{c} END" for c in TIMED_B.names)
    return f"SELECT a.*, {shown} FROM a ASOF LEFT JOIN b ON a.k = b.k AND a.at >= b.at"


def _documents_sql() -> str:
    equal = [f"(a.doc->>'{each}') = (b.doc->>'{each}')" for each in "uvw"]
    agree = " AND ".join(f"coalesce({each}, true)" for each in equal)
    return f"SELECT a.*, b.* FROM a JOIN b ON {agree} AND coalesce({' OR '.join(equal)}, false)"


def _column(kind: pa.Field, count: int, rng: random.Random) -> pa.Array:
    def value() -> Any:
        if pa.types.is_timestamp(kind.type):
            return START + timedelta(minutes=rng.randrange(40))
        if rng.random() < 0.1:
            return None
        if pa.types.is_list(kind.type):
            return [rng.randrange(6), rng.randrange(6)]
        number = rng.randrange(6)
        return f"t{number}" * number if pa.types.is_string(kind.type) else number

    return pa.array([value() for _ in range(count)], kind.type)


def _shown(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = (map(_hashable, column.to_pylist()) for column in table.columns)
    return list(zip(*columns, strict=True))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


register(Kind("cross join", CrossSpec, CrossJoin, counters=("pairs",)))

ABC = {"a": A, "b": B, "c": C}
TIMED = {"a": TIMED_A, "b": TIMED_B}
TIMES = {"event_time": {"a": "at", "b": "at"}}
CHAIN = "a.k = b.k AND b.j = c.j"
LEFT = f"a LEFT JOIN b ON a.k = b.k AND {NEAR}"

CASES = {
    "inner by one key": KindCase(
        {"a": A, "b": B}, "SELECT a.*, b.* FROM a JOIN b ON a.k = b.k", "a.k = b.k",
        other_on="a.k = b.j",
    ),
    "inner by several keys": KindCase(
        ABC, "SELECT a.*, b.*, c.* FROM a JOIN b ON a.k = b.k JOIN c ON b.j = c.j", CHAIN,
        other_on="a.k = b.k AND b.y = c.j",
    ),
    "binary tree": KindCase(
        ABC, "SELECT a.*, b.*, c.* FROM a JOIN b ON a.k = b.k JOIN c ON b.j = c.j", CHAIN,
        {"algorithm": "tree"}, other_on="a.k = b.k AND b.y = c.j",
    ),
    "inner in time": KindCase(
        TIMED, f"SELECT a.*, b.* FROM a JOIN b ON a.k = b.k AND {NEAR}", f"a.k = b.k AND {NEAR}",
        TIMES, other_on=f"a.k = b.y AND {NEAR}",
    ),
    "changes by one key": KindCase(
        {"a": A, "b": B}, "SELECT a.*, b.* FROM a FULL JOIN b ON a.k = b.k",
        "a FULL JOIN b ON a.k = b.k", {"emit": "changes"}, is_changing=True,
        other_on="a LEFT JOIN b ON a.k = b.k",
    ),
    "changes by several keys": KindCase(
        ABC, "SELECT a.*, b.*, c.* FROM a JOIN b ON a.k = b.k JOIN c ON b.j = c.j", CHAIN,
        {"emit": "changes"}, is_changing=True, other_on="a.k = b.k AND b.y = c.j",
    ),
    "changes of joins of any type": KindCase(
        ABC, "SELECT a.*, b.*, c.* FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.j = c.j",
        "a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.j = c.j", {"emit": "changes"},
        is_changing=True, other_on="a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.y = c.j",
    ),
    "final": KindCase(
        TIMED, f"SELECT a.*, b.* FROM {LEFT}", LEFT, {"emit": "final", **TIMES},
        other_on=LEFT.replace("LEFT", "FULL"),
    ),
    "theta": KindCase(
        {"a": A, "b": B, "c": C},
        "SELECT a.*, b.*, c.* FROM a JOIN b ON a.k BETWEEN b.j AND b.y JOIN c ON c.z - b.y <= 1 "
        "AND c.z > a.k",
        "a.k BETWEEN b.j AND b.y AND c.z - b.y <= 1 AND c.z > a.k",
        other_on="a.k BETWEEN b.j AND b.y AND c.z - b.y <= 2 AND c.z > a.k",
    ),
    "theta tree": KindCase(
        {"a": A, "b": B, "c": C},
        "SELECT a.*, b.*, c.* FROM a JOIN b ON a.k BETWEEN b.j AND b.y JOIN c ON c.z - b.y <= 1 "
        "AND c.j = a.k",
        "a.k BETWEEN b.j AND b.y AND c.z - b.y <= 1 AND c.j = a.k", {"algorithm": "tree"},
        other_on="a.k BETWEEN b.j AND b.y AND c.z - b.y <= 2 AND c.j = a.k",
    ),
    "theta in time": KindCase(
        TIMED, f"SELECT a.*, b.* FROM a JOIN b ON {NEAR} AND a.x <= b.y", f"{NEAR} AND a.x <= b.y",
        TIMES, other_on=f"{NEAR} AND a.x < b.y",
    ),
    "theta changes": KindCase(
        {"a": A, "b": B}, "SELECT a.*, b.* FROM a LEFT JOIN b ON a.k BETWEEN b.j AND b.y",
        "a LEFT JOIN b ON a.k BETWEEN b.j AND b.y", {"emit": "changes"}, is_changing=True,
        other_on="a LEFT ANTI JOIN b ON a.k BETWEEN b.j AND b.y",
    ),
    "theta final": KindCase(
        TIMED, f"SELECT a.*, b.* FROM a LEFT JOIN b ON {NEAR} AND a.x = b.y + 1",
        f"a LEFT JOIN b ON {NEAR} AND a.x = b.y + 1", {"emit": "final", **TIMES},
        other_on=f"a LEFT JOIN b ON {NEAR} AND a.x = b.y + 2",
    ),
    "natural join of documents": DocumentCase(
        {n: pa.schema([(f"{n}_id", pa.int64()), ("doc", pa.string())]) for n in "ab"},
        _documents_sql(),
    ),
    "as of": AsofCase(TIMED, _asof_sql(), "a.at >= b.at"),
    "cross join": KindCase({"a": A, "c": C}, "SELECT a.*, c.* FROM a CROSS JOIN c"),
    "similarity": KindCase(
        {"a": POINTS, "b": POINTS},
        "SELECT a.*, b.*, list_distance(a.v, b.v) FROM a JOIN b ON a.k = b.k "
        "AND list_distance(a.v, b.v) <= 2", "a.v ~ b.v",
        similar={"metric": "l2", "threshold": 2, "by": "k"},
    ),
}  # fmt: skip
