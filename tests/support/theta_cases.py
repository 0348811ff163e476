"""Random streams and conditions of every class, and their results by brute force.

The conditions are judged by Python alone, in Spark's meaning: NaN is the greatest value and equals
itself, -0.0 equals 0.0, a comparison with null is unknown, BIGINT and DOUBLE compare as DOUBLE.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

Row = Mapping[str, Any]
#: A row of each stream -> True, False, or None where it is unknown.
Judge = Callable[[Mapping[str, Row]], bool | None]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int64()),
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("m", pa.decimal128(9, 2)),
        ("s", pa.string()),
        ("t", pa.timestamp("us")),
        ("e", pa.date32()),
    ]
)
#: Columns whose values compare with each other.
ALIKE = (("i", "n", "d", "f", "m", "big"), ("s",), ("t", "e"))
SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
START = datetime(2024, 1, 1)


def value(name: str, rng: random.Random, spread: int) -> Any:
    """A value of a column; null now and then."""
    if name != "id" and rng.random() < 0.1:
        return None
    number = rng.randint(-spread, spread)
    match name:
        case "big":
            return rng.choice([number, -(1 << 63), (1 << 63) - 1, (1 << 53) + 1, 1 << 53])
        case "d":
            special = [math.nan, -0.0, math.inf, -math.inf]
            return rng.choice(special) if rng.random() < 0.2 else number + rng.choice([0.0, 0.5])
        case "f":
            return rng.choice([math.nan, math.inf]) if rng.random() < 0.1 else number + 0.25
        case "m":
            return Decimal(number * 100 + rng.choice([0, 50])).scaleb(-2)
        case "s":
            return f"{number % 7}" * (number % 3)
        case "t":
            return START + timedelta(hours=number)
        case "e":
            return (START + timedelta(days=number)).date()
    return number


def rows(count: int, rng: random.Random, spread: int = 6) -> list[dict[str, Any]]:
    """Rows, of which ``id`` is the place."""
    found = []
    for at in range(count):
        row = {name: value(name, rng, spread) for name in SCHEMA.names}
        found.append({**row, "id": at})
    return found


def batch(of: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(row) for row in of], schema=SCHEMA)


def comparable(kind: str, other: str, mine: Any, its: Any) -> tuple[Any, Any]:
    """Both values so that Python compares them as Spark does."""
    if isinstance(mine, date) or isinstance(its, date):
        mine, its = (
            each if isinstance(each, datetime) else datetime(each.year, each.month, each.day)
            for each in (mine, its)
        )
        return mine, its
    if isinstance(mine, str):
        return mine.encode(), its.encode()
    if any(isinstance(each, float) for each in (mine, its)):
        return tuple((math.isnan(n), 0.0 if math.isnan(n) else n) for n in map(float, (mine, its)))
    return mine, its


def compared(sign: str, mine: Any, its: Any) -> bool | None:
    if mine is None or its is None:
        return None
    return SIGNS[sign](*comparable("", "", mine, its))


@dataclass(frozen=True)
class Condition:
    """SQL, and what judges rows by it."""

    sql: str
    judge: Judge


def of_columns(sign: str, one: tuple[str, str], other: tuple[str, str]) -> Condition:
    return Condition(
        f"{one[0]}.{one[1]} {sign} {other[0]}.{other[1]}",
        lambda found: compared(sign, found[one[0]][one[1]], found[other[0]][other[1]]),
    )


def every(conditions: Sequence[Condition]) -> Condition:
    def judge(found: Mapping[str, Row]) -> bool | None:
        told = [each.judge(found) for each in conditions]
        return False if False in told else None if None in told else True

    return Condition(" AND ".join(each.sql for each in conditions), judge)


def any_of(conditions: Sequence[Condition]) -> Condition:
    def judge(found: Mapping[str, Row]) -> bool | None:
        told = [each.judge(found) for each in conditions]
        return True if True in told else None if None in told else False

    return Condition("(" + " OR ".join(each.sql for each in conditions) + ")", judge)


def narrow(value: Any, is_float: bool) -> Any:
    return np.float32(value) if is_float else value


def added(sign: str, mine: Any, its: Any) -> Any:
    """A sum or a difference in the type that Spark computes it in."""
    if mine is None or its is None:
        return None
    with np.errstate(all="ignore"):
        return mine + its if sign == "+" else mine - its


def random_condition(streams: Sequence[str], rng: random.Random) -> Condition:
    """One conjunct, mostly of two streams."""
    one, other = rng.sample(list(streams), 2)
    sign = rng.choice(list(SIGNS))
    alike = rng.choice(ALIKE)
    column = lambda: rng.choice(alike)  # noqa: E731
    match rng.randrange(10):
        case 0:
            alike = rng.choice([("i", "n"), ("s",), ("d",), ("e",), ("f", "d")])
            return of_columns("=", (one, column()), (other, column()))
        case 1 | 2:
            return of_columns(sign, (one, column()), (other, column()))
        case 3:
            low, high = column(), column()
            mine = column()
            both = every(
                [of_columns(">=", (one, mine), (other, low)),
                 of_columns("<=", (one, mine), (other, high))]
            )  # fmt: skip
            return Condition(f"{one}.{mine} BETWEEN {other}.{low} AND {other}.{high}", both.judge)
        case 4:
            most, kind = rng.choice([0, 2, 5]), rng.choice(["i", "d", "f"])
            sign = rng.choice(["<", "<="])

            def near(found: Mapping[str, Row]) -> bool | None:
                mine, its = (
                    None if found[s][kind] is None else narrow(found[s][kind], kind == "f")
                    for s in (one, other)
                )
                distance = added("-", mine, its)
                return compared(sign, None if distance is None else _plain(abs(distance)), most)

            return Condition(f"abs({one}.{kind} - {other}.{kind}) {sign} {most}", near)
        case 5:
            return sum_condition(one, other, sign, rng)
        case 6:
            hours = rng.choice([1, 4])

            def in_time(found: Mapping[str, Row]) -> bool | None:
                mine, its = found[one]["t"], found[other]["t"]
                if mine is None or its is None:
                    return None
                return bool(abs(mine - its) <= timedelta(hours=hours))

            span = f"INTERVAL {hours} HOURS"
            return Condition(f"{one}.t BETWEEN {other}.t - {span} AND {other}.t + {span}", in_time)
        case 7 if len(streams) > 2:
            third = rng.choice([name for name in streams if name not in (one, other)])
            return Condition(
                f"{one}.i + {other}.i {sign} {third}.i",
                lambda found: compared(
                    sign, added("+", found[one]["i"], found[other]["i"]), found[third]["i"]
                ),
            )
        case 8:
            return any_of([random_condition(streams, rng), random_condition(streams, rng)])
    least = rng.randint(-4, 4)
    return Condition(f"{one}.i >= {least}", lambda found: compared(">=", found[one]["i"], least))


def ranges_condition(streams: Sequence[str], rng: random.Random) -> Condition:
    """Ranges of several columns of the same two streams, at times beside an equality."""
    one, other = rng.sample(list(streams), 2)
    found = [of_columns("=", (one, "i"), (other, "n"))] if rng.random() < 0.2 else []
    for _ in range(rng.choice([2, 2, 3])):
        alike = rng.choice(ALIKE)
        sign = rng.choice(["<", "<=", ">", ">="])
        if rng.random() < 0.6:
            found.append(of_columns(sign, *((s, rng.choice(alike)) for s in (one, other))))
        else:
            found.append(sum_condition(one, other, sign, rng))
    rng.shuffle(found)
    return every(found)


def sum_condition(one: str, other: str, sign: str, rng: random.Random) -> Condition:
    """A sum or a difference of two streams' columns, compared with a number."""
    number = rng.choice(["i", "n", "d", "d", "m"])
    step, most = rng.choice(["+", "-"]), rng.choice([-4, 0, 3])
    return Condition(
        f"{one}.{number} {step} {other}.{number} {sign} {most}",
        lambda found: compared(sign, added(step, found[one][number], found[other][number]), most),
    )


def _plain(number: Any) -> Any:
    return float(number) if isinstance(number, np.floating) else number


def expected(condition: Condition, tables: Mapping[str, Sequence[Row]]) -> Counter[tuple[int, ...]]:
    """The ids of all combinations that the condition holds for."""
    found: Counter[tuple[int, ...]] = Counter()
    for combination in itertools.product(*tables.values()):
        if condition.judge(dict(zip(tables, combination, strict=True))) is True:
            found[tuple(row["id"] for row in combination)] += 1
    return found
