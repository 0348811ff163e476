"""Expressions of plans that a join computes itself."""

from decimal import Decimal

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column as StreamColumn
from lsmstate.joins.conditions.evaluate import evaluated
from lsmstate.joins.plan.computed_here import Computing
from lsmstate.joins.plan.conditions import Column, Literal, Opaque

PRICE, DISCOUNT, COST = (Column(name) for name in ("price", "discount", "cost"))
MONEY = pa.decimal128(15, 2)
ROWS = pa.schema([(str(column), MONEY) for column in (PRICE, DISCOUNT, COST)])
COMPUTING = Computing({c: StreamColumn("l", c.name) for c in (PRICE, DISCOUNT, COST)}, {"l": ROWS})


def literal(value: int, digits: int) -> Opaque:
    """As Spark writes a whole number beside a decimal."""
    return Opaque(f"Cast[decimal({digits},0)]", (Literal(value, str(value)),))


def volume(one: Opaque) -> Opaque:
    """TPC-H's ``l_extendedprice * (1 - l_discount)``."""
    return Opaque("Multiply", (PRICE, Opaque("Subtract", (one, DISCOUNT))))


@pytest.mark.parametrize("scaled", [1, 10**12])
def test_a_whole_number_beside_a_decimal(scaled: int) -> None:
    """With and without values that fit into 64 bits."""
    profit = Opaque("Subtract", (volume(literal(1, 1)), Opaque("Multiply", (COST, COST))))
    found = COMPUTING.of(profit)
    assert COMPUTING.type_of(found) == pa.decimal128(33, 4)
    rows = [("10.50", ".25", "2.00"), ("0.01", ".10", "0.00"), (None, ".1", "1"), ("1", "0", "-3")]
    scale = Decimal(scaled)
    columns = [
        pa.array([None if v is None else Decimal(v) * (scale if at else 1) for v in c], MONEY)
        for at, c in enumerate(zip(*rows, strict=True))
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=ROWS)
    wanted = [
        None if price is None else price * (1 - discount) - cost * cost
        for price, discount, cost in zip(*(c.to_pylist() for c in columns), strict=True)
    ]
    values = evaluated(found, lambda column: batch.column(column.name), len(rows))
    assert values.to_pylist() == wanted


def test_a_whole_number_that_its_digits_do_not_hold_is_left_to_spark() -> None:
    assert COMPUTING.of(volume(literal(999, 3)))
    with pytest.raises(InvalidArgumentError, match="not computed inside the join"):
        COMPUTING.of(volume(literal(1000, 3)))
