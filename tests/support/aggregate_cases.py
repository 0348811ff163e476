"""Random aggregates of the results of joins, and what they are of results that are known."""

import math
import random
from collections import defaultdict
from datetime import date
from decimal import Decimal

import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.predicate import Case, Compare, IsNull, Not
from lsmstate.joins.specs.aggregates import Aggregates, Partial

NUMBERS = (pa.types.is_signed_integer, pa.types.is_floating, pa.types.is_decimal)
PLAIN = (*NUMBERS, pa.types.is_string, pa.types.is_boolean, pa.types.is_date32)


def shown(spec):
    """The columns of results by their streams, without that of the operation."""
    if hasattr(spec, "shown_rows"):
        return spec.shown_rows
    rows = spec.streams if getattr(spec, "graph", None) is None else spec.graph.shown_rows
    return {name: rows[name] for name in getattr(spec, "shown", rows)}


def columns_of(streams, *kinds):
    return [
        Column(name, field.name)
        for name, schema in streams.items()
        for field in schema
        if any(is_one(field.type) for is_one in kinds)
    ]


def random_aggregates(streams, seed):
    """Groups by up to three columns; functions of columns, and of a column where two of any streams
    compare."""
    rng = random.Random(seed)
    plain, numbers = columns_of(streams, *PLAIN), columns_of(streams, *NUMBERS)
    by = tuple(rng.sample(plain, min(len(plain), rng.randint(0, 3))))
    partials = [Partial("count")] if not by or rng.random() < 0.5 else []
    for _ in range(rng.randint(0, 4)):
        function = rng.choice(["count", "sum", "min", "max"])
        some = numbers if function == "sum" else plain
        if some:
            partials.append(Partial(function, only_some(rng, rng.choice(some), numbers)))
    return Aggregates(by, tuple(dict.fromkeys(partials)))


def only_some(rng, column, numbers):
    if rng.random() < 0.6 or len(numbers) < 2:
        return column
    left, right = rng.sample(numbers, 2)
    condition = rng.choice([Compare("<", left, right), Not(IsNull(left))])
    return Case(((condition, column),), None)


def value_of(expression, row):
    match expression:
        case Column():
            return row[expression]
        case Case(((condition, value),)):
            return value_of(value, row) if is_true(condition, row) else None
    raise AssertionError(expression)


def is_true(condition, row):
    match condition:
        case Compare("<", left, right):
            values = row[left], row[right]
            return None not in values and order(values[0]) < order(values[1])
        case Not(IsNull(value)):
            return row[value] is not None
    raise AssertionError(condition)


def order(value):
    """Spark's: NaN is the greatest."""
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value)


def plain(value):
    """As a key of a group."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def aggregate(function, values):
    """Of values, each with how often it counts."""
    known = [(value, times) for value, times in values if value is not None]
    if function == "count":
        return sum(times for _, times in known)
    if not known:
        return None
    if function == "sum":
        return sum(value * times for value, times in known)
    extreme = min if function == "min" else max
    return extreme((value for value, _ in known), key=order)


def expected(streams, aggregates, results):
    """By group the aggregates of results, a multiset of the columns of ``streams``."""
    names = [Column(name, column) for name, s in streams.items() for column in s.names]
    groups = defaultdict(list)
    for values, times in results.items():
        row = dict(zip(names, map(bare, values), strict=True))
        key = tuple(plain(row[column]) for column in aggregates.by)
        groups[key].append((row, times))
    return {
        key: [
            aggregate(
                partial.function,
                [
                    (1 if partial.of is None else value_of(partial.of, row), times)
                    for row, times in rows
                ],
            )
            for partial in aggregates.partials
        ]
        for key, rows in groups.items()
    }


def bare(exact):
    """A value of the oracle, which adds to it what tells types apart."""
    makes = {"int": int, "Decimal": Decimal, "date": date.fromisoformat, "bool": "True".__eq__}
    match exact:
        case None:
            return None
        case "nan":
            return math.nan
        case (str(kind), str(text)):
            return makes.get(kind, str)(text)
        case (float(value), _):
            return value
    return exact


def combined(aggregates, batches):
    """What a query above makes of partial aggregates."""
    width = len(aggregates.by)
    groups = defaultdict(list)
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            groups[tuple(map(plain, row[:width]))].append(row[width:])
    merges = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
    return {
        key: [
            aggregate(merges[partial.function], [(row[at], 1) for row in rows])
            for at, partial in enumerate(aggregates.partials)
        ]
        for key, rows in groups.items()
    }


def alike(found, wanted):
    return found.keys() == wanted.keys() and all(
        alike_values(a, b) for key in found for a, b in zip(found[key], wanted[key], strict=True)
    )


def alike_values(found, wanted):
    if isinstance(wanted, float) and isinstance(found, float):
        return (
            found == wanted
            or math.isclose(found, wanted, rel_tol=1e-9)
            or (math.isnan(found) and math.isnan(wanted))
        )
    return found == wanted and (found is None) == (wanted is None)
