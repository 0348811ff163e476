"""Random queries over random tables: joins, subqueries, expressions, aliases, by a seed.

All of it means the same in Spark and DuckDB: no division, no overflow, no order.
"""

import datetime
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

KINDS = {
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "SMALLINT": pa.int16(),
    "DECIMAL(5,1)": pa.decimal128(5, 1),
    "STRING": pa.string(),
    "DATE": pa.date32(),
}
NUMBERS = ("INT", "BIGINT", "SMALLINT", "DECIMAL(5,1)")
NAMES = ("a", "b", "Key", "k_a", "n", "select_")


@dataclass(frozen=True)
class Value:
    """An expression and what it is: ``number``, ``text`` or ``date``."""

    text: str
    kind: str


def family(kind: str) -> str:
    return {"STRING": "text", "DATE": "date"}.get(kind, "number")


class RandomQuery:
    """Tables t0, t1, ... of a few columns, and a query that joins inputs made of them.

    ``mode``: complete if it aggregates, else append.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tables = {f"t{number}": self._columns() for number in range(self.rng.randint(2, 4))}
        self.mode = "append"
        self._ctes: dict[str, tuple[str, list[Value]]] = {}
        self.sql = self._query()

    def rows(self, name: str) -> pa.Table:
        columns = self.tables[name]
        count = self.rng.randint(6, 18)
        arrays = [
            pa.array([self._cell(kind) for _ in range(count)], KINDS[kind])
            for kind in columns.values()
        ]
        return pa.table(arrays, names=list(columns))

    def _columns(self) -> dict[str, str]:
        """At least one number: every input has something to be joined by."""
        names = self.rng.sample(NAMES, self.rng.randint(2, 4))
        kinds = self.rng.choices(list(KINDS), k=len(names) - 1)
        return dict(zip(names, [self.rng.choice(NUMBERS), *kinds], strict=True))

    def _cell(self, kind: str) -> Any:
        number = self.rng.randrange(5)
        if self.rng.random() < 0.1:
            return None
        if kind == "STRING":
            return "xyzXY"[number]
        if kind == "DATE":
            return datetime.date(2024, 2, 27) + datetime.timedelta(days=number)
        return Decimal(number) if kind.startswith("DECIMAL") else number

    def _query(self) -> str:
        if self.rng.random() < 0.2:
            kinds = self.rng.choices(["number", "text", "date"], k=self.rng.randint(1, 3))
            query = " UNION ALL ".join(self._one(kinds) for _ in range(self.rng.randint(2, 3)))
        else:
            query = self._one()
        ctes = ", ".join(f"{name} AS ({sql})" for name, (sql, _) in self._ctes.items())
        return (f"WITH {ctes} " if ctes else "") + query

    def _one(self, kinds: list[str] | None = None) -> str:
        """A query without WITH; the kinds of its columns, or any."""
        inputs = [self.rng.choice(list(self.tables)) for _ in range(self.rng.randint(2, 4))]
        sources = [self._source(table, depth=0) for table in inputs]
        joined, values = self._joined(sources)
        if kinds is not None:
            shown = [self._of(kind, values).text for kind in kinds]
            columns = ", ".join(f"{text} AS v{place}" for place, text in enumerate(shown))
            return f"SELECT {columns} {joined}"
        return self._select(values).replace("<from>", joined)

    def _select(self, values: list[Value]) -> str:
        if self.rng.random() < 0.2:
            self.mode = "complete"
            group, number = self._any(values), self._of("number", values)
            return (
                f"SELECT {group.text} AS g, count(*) AS c, sum({number.text}) AS s, "
                f"max({self._any(values).text}) AS m <from> GROUP BY {group.text}"
            )
        shown = [f"{self._any(values).text} AS v{place}" for place in range(self.rng.randint(1, 4))]
        return f"SELECT {', '.join(shown)} <from>"

    def _source(self, table: str, depth: int) -> tuple[str, list[Value]]:
        """What may stand in FROM, without an alias, and its columns by their bare names."""
        chance = self.rng.random()
        if chance < 0.35 or depth > 1:
            plain = [Value(c, family(kind)) for c, kind in self.tables[table].items()]
            return table, plain
        if chance < 0.65:
            return self._projected(table, depth)
        if chance < 0.75:
            return self._union(table)
        if chance < 0.85 and self._ctes:
            name = self.rng.choice(list(self._ctes))
            return name, self._ctes[name][1]
        if chance < 0.92:
            sql, columns = self._projected(table, 2)
            name = f"cte{len(self._ctes)}"
            self._ctes[name] = (sql[1:-1], columns)
            return name, columns
        return self._joined_inside(table, depth)

    def _projected(self, table: str, depth: int) -> tuple[str, list[Value]]:
        """A subquery with expressions for columns, and maybe a filter."""
        source, below = self._source(table, depth + 1)
        alias = self.rng.choice(["i", "u", table])
        inside = [Value(f"{alias}.{value.text}", value.kind) for value in below]
        items, columns = self._named([self._of("number", inside), self._any(inside)])
        where = f" WHERE {self._condition(inside)}" if self.rng.random() < 0.5 else ""
        return f"(SELECT {items} FROM {source} {alias}{where})", columns

    def _union(self, table: str) -> tuple[str, list[Value]]:
        other = self.rng.choice(list(self.tables))
        sides = []
        for name in (table, other):
            number = next(c for c, kind in self.tables[name].items() if kind in NUMBERS)
            sides.append(f"SELECT CAST({number} AS BIGINT) AS w, {len(sides)} AS side FROM {name}")
        return f"({' UNION ALL '.join(sides)})", [Value("w", "number"), Value("side", "number")]

    def _joined_inside(self, table: str, depth: int) -> tuple[str, list[Value]]:
        other = self.rng.choice(list(self.tables))
        sources = [self._source(name, depth + 1) for name in (table, other)]
        joined, values = self._joined(sources)
        items, columns = self._named([self._of("number", values), self._any(values)])
        return f"(SELECT {items} {joined})", columns

    def _named(self, values: list[Value]) -> tuple[str, list[Value]]:
        names = self.rng.sample(NAMES, len(values))
        items = ", ".join(f"{v.text} AS {name}" for v, name in zip(values, names, strict=True))
        return items, [Value(name, v.kind) for v, name in zip(values, names, strict=True)]

    def _joined(self, sources: list[tuple[str, list[Value]]]) -> tuple[str, list[Value]]:
        """FROM and WHERE over the sources, every one linked to one before it by an equality."""
        by_comma = self.rng.random() < 0.4
        text, seen, where = "", list[Value](), list[str]()
        for number, (source, columns) in enumerate(sources):
            alias = f"q{number}"
            own = [Value(f"{alias}.{self._recased(c.text)}", c.kind) for c in columns]
            if not seen:
                text = f"FROM {source} {alias}"
            else:
                link = self._link(seen, own)
                if by_comma:
                    text += f", {source} {alias}"
                    where.append(link)
                else:
                    more = f" AND {self._condition(seen + own)}" * (self.rng.random() < 0.3)
                    text += f" JOIN {source} {alias} ON {link}{more}"
            seen += own
        where += [self._condition(seen) for _ in range(self.rng.choice([0, 0, 1, 2]))]
        return text + (f" WHERE {' AND '.join(where)}" if where else ""), seen

    def _recased(self, name: str) -> str:
        return self.rng.choice([name] * 4 + [name.upper()])

    def _link(self, seen: list[Value], own: list[Value]) -> str:
        """Of equal types or not; of columns, or of what is computed from one side."""
        right = self.rng.choice([value for value in own if value.kind == "number"])
        kinds = {value.kind for value in seen}
        others = [value for value in own if value.kind in kinds]
        right = self.rng.choice([right, right, self.rng.choice(others)])
        left = self.rng.choice([value for value in seen if value.kind == right.kind])
        if right.kind == "number":
            left, right = (
                self.rng.choice([v, v, v, Value(f"{v.text} + 1", v.kind), self._coalesced(v)])
                for v in (left, right)
            )
        return f"{left.text} = {right.text}"

    def _coalesced(self, value: Value) -> Value:
        return Value(f"coalesce({value.text}, 2)", value.kind)

    def _any(self, values: list[Value]) -> Value:
        return self._of(
            self.rng.choice(["number", *dict.fromkeys(value.kind for value in values)]), values
        )

    def _of(self, kind: str, values: list[Value]) -> Value:
        """An expression of a kind: a column more often than not."""
        columns = [value.text for value in values if value.kind == kind]
        if not columns:
            return Value({"text": "'x'", "date": "DATE '2024-02-28'"}.get(kind, "1"), kind)
        one, two = self.rng.choice(columns), self.rng.choice(columns)
        forms = {
            "number": [
                f"({one} + {two})",
                f"({one} * 2 - {two})",
                f"abs({one} - 3)",
                f"coalesce({one}, {two}, -1)",
                f"CASE WHEN {self._condition(values)} THEN {one} ELSE {two} END",
                f"nullif({one}, 2)",
                f"greatest({one}, {two})",
            ],
            "text": [
                f"upper({one})",
                f"({one} || {two})",
                f"coalesce({one}, 'z')",
                f"CASE WHEN {self._condition(values)} THEN {one} END",
            ],
            "date": [f"({one} + 1)", f"least({one}, {two})"],
        }
        return Value(self.rng.choice([one] * 5 + forms[kind]), kind)

    def _condition(self, values: list[Value], depth: int = 0) -> str:
        """Over one or several inputs, with unknown results where values are null."""
        kind = self.rng.choice([value.kind for value in values])
        columns = [value.text for value in values if value.kind == kind]
        one, two = self.rng.choice(columns), self.rng.choice(columns)
        literal = {"number": "2", "text": "'x'", "date": "DATE '2024-02-29'"}[kind]
        forms = [
            f"{one} <= {two}",
            f"{one} >= {literal}",
            f"{one} <> {literal}",
            f"{one} IN ({literal}, {two})",
            f"{one} IS NOT NULL",
            f"{one} IS DISTINCT FROM {two}",
            f"{one} BETWEEN {literal} AND {two}",
            f"NOT ({one} = {literal} AND {two} IS NULL)",
        ]
        if depth < 1:
            parts = [self._condition(values, depth + 1) for _ in range(2)]
            forms += [
                f"({parts[0]} OR {parts[1]})",
                # What both branches have in common.
                f"({one} = {two} AND {parts[0]} OR {one} = {two} AND {parts[1]})",
                f"NOT ({parts[0]} AND {parts[1]})",
            ]
        return self.rng.choice(forms)
