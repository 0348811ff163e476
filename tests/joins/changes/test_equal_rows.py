"""Retractions of rows that are equal but have other bits: -0.0 and 0.0, NaNs, also nested.

What is taken back is the row that came, with its own bits; so results that go are those that came.
"""

import datetime
import math
import random
from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lsmstate.join import MultiwayJoin
from support.changing_cases import apply
from support.grouped import grouped
from support.sampling import each_value

NAN = float("nan")
OTHER_NAN = np.array([0x7FF8000000000001], dtype=np.int64).view(np.float64)[0].item()
VALUES = [0.0, -0.0, NAN, OTHER_NAN, 1.5, None]
START = datetime.datetime(2026, 1, 1)
KEYED = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("na", pa.int64())])
FLOATS = pa.schema(
    [
        ("f", pa.float64()),
        ("s", pa.struct([("x", pa.list_(pa.float64())), ("text", pa.string())])),
        ("k", pa.int64()),
        ("at", pa.timestamp("us")),
        ("d", pa.dictionary(pa.int8(), pa.string())),
        ("op", pa.string()),
    ]
)
NEAR = "b.at BETWEEN a.at - INTERVAL 1 HOUR AND a.at"
JOINS = {
    "by one key": ("a FULL JOIN b USING (k)", {}),
    "by several keys": ("a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.f = c.f", {}),
    "inner by several keys": ("a.k = b.k AND b.f = c.f", {}),
    "in time": (f"a FULL JOIN b ON a.k = b.k AND {NEAR}", {"event_time": {"a": "at", "b": "at"}}),
}


def opened(kind, path=None, backend="memory"):
    on, options = JOINS[kind]
    schemas = {"a": KEYED, "b": FLOATS, "c": pa.schema([("f", pa.float64())])}
    if "c." not in on:
        del schemas["c"]
    return MultiwayJoin(
        schemas,
        on,
        **grouped(
            emit="changes",
            changes={"b": "op"},
            unmatched="error",
            state_dir=path,
            backend=backend,
            memory="16m",
            **options,
        ),
    )


def row(k, value):
    return {"f": value, "s": {"x": [value, 2.0], "text": "t"}, "k": k, "at": START, "d": "t"}


def changes(*signed):
    rows = [{**found, "op": op} for op, found in signed]
    return pa.RecordBatch.from_pylist(rows, schema=FLOATS)


def bits(pieces):
    """(operation, bits of ``f``, of the first value in ``s.x``) of each result with a row of b."""
    found = []
    for piece in pieces:
        piece = piece.filter(pc.is_valid(piece["s"]))
        f, x = piece[f_of(piece.schema)], piece["s"].field("x").flatten()[::2]
        numbers = [[bits_of(n) for n in each.to_numpy().tolist()] for each in (f, x)]
        found += zip(piece["op"].to_pylist(), *numbers, strict=True)
    return found


def f_of(schema):
    """What the column ``f`` of b is called in a result."""
    return "f" if "f" in schema.names else "b_f"


def bits_of(number):
    return np.float64(number).tobytes()


def start(join):
    """What the other streams give."""
    yield from join.process("a", pa.record_batch([[1], [START], [7]], schema=KEYED))
    if "c" in join.spec.streams:
        yield from join.process("c", pa.record_batch([[0.0, NAN]], schema=join.spec.streams["c"]))


@each_value(
    times=2,
    kind=JOINS,
    values=[(-0.0, 0.0), (0.0, -0.0), (OTHER_NAN, NAN)],
    backend=["memory", "lsm"],
)
def test_an_equal_row_is_taken_and_its_own_bits_go(tmp_path, kind, values, backend):
    """Stored before, over a restart."""
    came, goes = values
    with opened(kind, str(tmp_path), backend) as join:
        list(start(join))
        come = bits(join.process("b", changes(("+I", row(1, came)))))
        join.commit()
    with opened(kind, str(tmp_path), backend) as join:
        gone = bits(join.process("b", changes(("-D", row(1, goes)))))
    assert [found for op, *found in gone if op == "-D"] == [[bits_of(came)] * 2]
    assert [found for op, *found in come if op == "+I"] == [[bits_of(came)] * 2]


@pytest.mark.parametrize("kind", JOINS)
def test_an_identical_row_goes_before_the_oldest_equal_one(kind):
    with opened(kind) as join:
        list(start(join))
        list(join.process("b", changes(("+I", row(1, -0.0)), ("+I", row(1, 1.5)))))
        list(join.process("b", changes(("+I", row(1, 0.0)), ("-D", row(1, 1.5)))))
        gone = bits(join.process("b", changes(("-D", row(1, 0.0)))))
        assert gone_of(gone) == [bits_of(0.0)]
        gone = bits(join.process("b", changes(("-D", row(1, 0.0)))))
        assert gone_of(gone) == [bits_of(-0.0)]
        list(join.process("b", changes(("+I", row(1, NAN)), ("+I", row(1, OTHER_NAN)))))
        list(join.process("b", changes(("+I", row(1, NAN)))))
        both = changes(("-D", row(1, OTHER_NAN)), ("-D", row(1, OTHER_NAN)))
        gone = bits(join.process("b", both))
        assert sorted(gone_of(gone)) == sorted(map(bits_of, [NAN, OTHER_NAN]))
        gone = bits(join.process("b", changes(("-D", row(1, OTHER_NAN)))))
        assert gone_of(gone) == [bits_of(NAN)]


@pytest.mark.parametrize("kind", JOINS)
def test_an_update_to_an_equal_row_of_other_bits_is_one(kind):
    with opened(kind) as join:
        list(start(join))
        list(join.process("b", changes(("+I", row(1, 0.0)))))
        both = bits(join.process("b", changes(("-U", row(1, 0.0)), ("+U", row(1, -0.0)))))
        assert gone_of(both) == [bits_of(0.0)]
        assert gone_of(both, "+I") == [bits_of(-0.0)]
        gone = bits(join.process("b", changes(("-D", row(1, 0.0)))))
        assert gone_of(gone) == [bits_of(-0.0)]


@pytest.mark.parametrize("kind", JOINS)
def test_what_comes_and_goes_in_one_batch_cancels_out_whatever_its_bits(kind):
    with opened(kind) as join:
        list(start(join))
        assert list(join.process("b", changes(("-D", row(1, NAN)), ("+I", row(1, NAN))))) == []
        assert list(join.process("b", changes(("-D", row(1, 0.0)), ("+I", row(1, -0.0))))) == []
        both = changes(("-D", row(1, NAN)), ("+I", row(1, OTHER_NAN)), ("+I", row(1, 0.0)))
        assert gone_of(bits(join.process("b", both)), "+I") == [bits_of(0.0)]
        assert join.unmatched_retractions == 0


def gone_of(found, wanted="-D"):
    return [f for op, f, *_ in found if op == wanted]


@pytest.mark.parametrize("kind", JOINS)
def test_what_stands_equals_duckdbs_join_of_the_rows_that_live(kind):
    """Random rows, taken back with any bits; DuckDB compares floats as Spark does."""
    rng = random.Random(6)
    live, shown = [], Counter()
    with opened(kind) as join:
        apply(shown, start(join))
        for _ in range(40):
            signed = []
            for _ in range(rng.randrange(5)):
                if live and rng.random() < 0.5:
                    k, value = live.pop(rng.randrange(len(live)))
                    equal = [v for v in VALUES if same(v) == same(value)]
                    signed.append(("-D", row(k, rng.choice(equal))))
                else:
                    live.append((rng.choice([1, 1, 2, None]), rng.choice(VALUES)))
                    signed.append(("+I", row(*live[-1])))
            apply(shown, join.process("b", changes(*signed)))
        names = join.output_schema.names[1:]
        at = {"na": names.index("na"), "f": names.index(f_of(join.output_schema))}
    standing = Counter()
    for found, count in shown.items():
        number = found[at["f"]]
        value = number[0] if isinstance(number, tuple) else number
        na = found[at["na"]]
        standing[na and int(na[1]), same(NAN if value == "nan" else value)] += count
    expected = by_duckdb(kind, live)
    assert +standing == expected


def same(value):
    return "nan" if value is not None and math.isnan(value) else value


def by_duckdb(kind, live):
    with duckdb.connect() as db:
        schema = pa.schema([("k", pa.int64()), ("f", pa.float64())])
        db.register("b_rows", pa.table(list(zip(*live, strict=True)), schema=schema))
        db.execute(f"CREATE TABLE a AS SELECT 1 AS k, TIMESTAMP '{START}' AS at, 7 AS na")
        db.execute(f"CREATE TABLE b AS SELECT *, TIMESTAMP '{START}' AS at FROM b_rows")
        db.execute("CREATE TABLE c AS SELECT unnest([0.0::DOUBLE, 'nan']) AS f")
        on = JOINS[kind][0]
        source = on if "JOIN" in on else f"a, b, c WHERE {on}"
        found = db.execute(f"SELECT na, b.f FROM {source}").fetchall()
    return Counter((na, same(f)) for na, f in found)
