"""The cases no join may get wrong, for each operator: inner joins and those beyond.

A case has values and, for each, what it equals (its class; None equals nothing). Every operator
joins three streams of them, in memory at once, and on our store with a restart after every batch.
"""

import datetime
import decimal
import itertools
from collections import Counter
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.join import MultiwayJoin, State, Time
from support.grouped import grouped
from support.sampling import each_value

D = decimal.Decimal
NAN = float("nan")
OTHER_NAN = np.array([0x7FF8000000000001], dtype=np.int64).view(np.float64)[0]
START = datetime.datetime(2026, 1, 1)
NEAR = "BETWEEN a.at - INTERVAL 1 HOUR AND a.at"
INNER = {
    "umjoin": "a.k = b.k AND b.k = c.k",
    "graph": "a.k = b.k AND b.k2 = c.k",
    "cycle": "a.k = b.k AND b.k2 = c.k AND c.at = a.at",
    "tree": "a.k = b.k AND b.k = c.k",
    "timed": f"a.k = b.k AND b.k = c.k AND b.at {NEAR} AND c.at {NEAR}",
    "changes": "a.k = b.k AND b.k = c.k",
}
OUTER = {
    "full by one key": "a FULL JOIN b USING (k) FULL JOIN c USING (k)",
    "right by two keys": "a RIGHT JOIN b ON a.k = b.k RIGHT JOIN c ON b.k2 = c.k",
    "left by two keys": "a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.k2 = c.k",
    "final": f"a LEFT JOIN b ON a.k = b.k AND b.at {NEAR} LEFT JOIN c ON a.k = c.k AND c.at = a.at",
}
#: Of these ``b`` is not in the results.
EXISTING = {
    "semi": "a LEFT SEMI JOIN b ON a.k = b.k JOIN c ON a.k = c.k",
    "anti": "a LEFT ANTI JOIN b ON a.k = b.k JOIN c ON a.k = c.k",
}
OPERATORS = {**INNER, **OUTER, **EXISTING}
TIMED = ("timed", "final")
CHANGES = ("changes", "full by one key", "left by two keys", "right by two keys", *EXISTING)
#: Of those that forget, when all is over.
LAST = START + datetime.timedelta(days=1)
INT64 = (-(2**63), 2**63 - 1)


def texts(*values):
    """A string column of any bytes, valid UTF-8 or not."""
    data = b"".join(value or b"" for value in values)
    ends = np.cumsum([0, *(len(value or b"") for value in values)], dtype=np.int32)
    valid = np.packbits([value is not None for value in values], bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def instants(zone, *hours):
    """Times of a zone, by hours in UTC around the night in which Berlin's clocks go back."""
    start = datetime.datetime(2024, 10, 26, 22, tzinfo=datetime.UTC)
    times = [None if h is None else start + datetime.timedelta(hours=h) for h in hours]
    return pa.array(times, pa.timestamp("us", zone))


def column(kind):
    return lambda *values: pa.array(values, kind)


#: Per case: the column of each stream, and the class of each of its values.
CASES = {
    "nulls": [(pa.array([None, 1, None, 2]), [None, 1, None, 2])] * 3,
    "only nulls": [(pa.array([None, None], pa.int32()), [None, None])] * 3,
    "floats": [
        (pa.array([0.0, -0.0, NAN, None, np.inf]), [0, 0, "nan", None, "inf"]),
        (pa.array([-0.0, OTHER_NAN, -np.inf], pa.float32()), [0, "nan", "-inf"]),
        (pa.array([-NAN, 0.0, 5e-324, np.inf]), ["nan", 0, "tiny", "inf"]),
    ],
    "strings with NUL": [
        (texts(b"a", b"a\0", b"a\0b", b"", b"\0", None), ["a", "a0", "a0b", "", "0", None]),
        (texts(b"a\0", b"\0\0", b"", b"a"), ["a0", "00", "", "a"]),
        (texts(b"\0", b"a\0b", b"a", b"a\0", b""), ["0", "a0b", "a", "a0", ""]),
    ],
    "strings that are no UTF-8": [
        (texts(b"\xff", b"\xc3", b"\xc3\xa4", b"\xed\xa0\x80", None), [1, 2, 3, 4, None]),
        (texts(b"\xc3", b"\xff\xff", b"\xff", b"\xed\xa0\x80"), [2, 5, 1, 4]),
        (texts(b"\xed\xa0\x80", b"\xff", b"\xc3\xa4", b"\xc3"), [4, 1, 3, 2]),
    ],
    "keys of 70 kB": [
        (texts(b"x" * 70_000, b"x" * 70_000 + b"\0", b"y" * 70_000), [1, 2, 3]),
        (texts(b"x" * 69_999 + b"y", b"x" * 70_000, b"x" * 70_000 + b"\0"), [4, 1, 2]),
        (texts(b"x" * 70_000 + b"\0", b"x" * 70_000, b"x"), [2, 1, 5]),
    ],
    "limits of integers": [
        (pa.array([*INT64, -1, 0, 2**31]), [*INT64, -1, 0, 2**31]),
        (pa.array([INT64[1], 2**63, 0], pa.uint64()), [INT64[1], 2**63, 0]),
        (pa.array([0, -1, *INT64]), [0, -1, *INT64]),
    ],
    "integers of different width": [
        (pa.array([-128, 127, -1], pa.int8()), [-128, 127, -1]),
        (pa.array([255, 127, 65535, 128], pa.uint16()), [255, 127, 65535, 128]),
        (pa.array([-(2**31), 127, -129, 255], pa.int32()), [-(2**31), 127, -129, 255]),
    ],
    "decimals of different scale": [
        (pa.array([D("1.50"), D("-0.01"), D(0), None], pa.decimal128(5, 2)), [15, -1, 0, None]),
        (pa.array([D("1.5"), D("1.4"), D("-0")], pa.decimal128(3, 1)), [15, 14, 0]),
        (pa.array([D("1.5000"), D("0.0000"), D("1.5001")], pa.decimal128(20, 4)), [15, 0, 16]),
    ],
    "times of different zones": [
        (instants("Europe/Berlin", 0, 2, 3, None, 4), [0, 2, 3, None, 4]),
        (instants("UTC", 3, 2, 5), [3, 2, 5]),
        (instants("America/New_York", 2, 3, 4), [2, 3, 4]),
    ],
    "dictionaries and views": [
        (pa.array(["a", None, "ä\0"] * 2).dictionary_encode(), ["a", None, "ä\0"] * 2),
        (pa.array(["ä\0", "a", "", None], pa.string_view()), ["ä\0", "a", "", None]),
        (pa.array(["a", "ä\0", ""], pa.large_string()), ["a", "ä\0", ""]),
    ],
    "duplicates": [
        (pa.array([7] * 5 + [8]), [7] * 5 + [8]),
        (pa.array([7, 8, 7, 8]), [7, 8, 7, 8]),
        (pa.array([8, 7, 7]), [8, 7, 7]),
    ],
    "an empty stream": [
        (pa.array([1, 2]), [1, 2]),
        (pa.array([], pa.int64()), []),
        (pa.array([1, 2]), [1, 2]),
    ],
}


def streams_of(case):
    """Name -> rows: the key (of ``b`` twice), a time that is the same for all, the row's number."""
    streams = {}
    for name, (key, _) in zip("abc", case, strict=True):
        at = pa.array([START] * len(key), pa.timestamp("us"))
        columns = {"k": key, "at": at, "n": pa.array(range(len(key)), pa.int64())}
        if name == "b":
            columns["k2"] = key
        streams[name] = pa.record_batch(columns)
    return streams


def open_join(streams, operator, **options):
    schemas = {name: batch.schema for name, batch in streams.items()}
    if operator == "tree":
        options["algorithm"] = "tree"
    if operator in TIMED:
        options["event_time"] = dict.fromkeys(streams, "at")
    if operator == "final":
        options["emit"] = "final"
    if operator in CHANGES:
        options["emit"] = "changes"
    if operator == "changes":
        options |= {"changes": dict.fromkeys(streams, "op"), "unmatched": "error"}
        schemas = {name: s.append(pa.field("op", pa.string())) for name, s in schemas.items()}
    return MultiwayJoin(schemas, OPERATORS[operator], **grouped(memory="8m", **options))


def fed(join, operator, stream, batch):
    """The results of a batch; of a changelog it comes twice and is taken back once."""
    operations = ("+I", "+U", "-D") if operator == "changes" else (None,)
    for operation in operations:
        rows = batch
        if operation is not None:
            rows = batch.append_column("op", pa.array([operation] * len(batch), pa.string()))
        yield from join.process(stream, rows)


def ended(join, operator):
    """What comes when time is over."""
    return list(join.advance(LAST) or ()) if operator in TIMED else []


def found_rows(pieces, streams):
    """(row of a, row of b, row of c) of each result that stands, after a look at the keys."""
    found = Counter()
    for piece in pieces:
        numbers_of = {}
        for name, batch in streams.items():
            if f"{name}_n" not in piece.schema.names:
                numbers_of[name] = [None] * len(piece)
                continue
            numbers = piece.column(f"{name}_n")
            numbers_of[name] = numbers.to_pylist()
            of_batch = plain(batch.column("k")).take(numbers)
            assert bits(of_batch) == bits(plain(piece.column(f"{name}_k")))
        rows = Counter(zip(*numbers_of.values(), strict=True))
        if "op" in piece.schema.names and "-D" in piece.column("op").to_pylist():
            assert rows <= found
            found -= rows
        else:
            found += rows
    return found


def plain(values):
    """Arrow takes nothing from a view."""
    text = pa.types.is_string_view(values.type) or pa.types.is_dictionary(values.type)
    return values.cast(pa.string()) if text else values


def bits(values):
    """What tells -0.0 from 0.0, one NaN from another, and shows bytes that are no text."""
    if pa.types.is_floating(values.type):
        return values.fill_null(0).to_numpy().tobytes()
    return (
        values.cast(pa.binary()).to_pylist() if values.type == pa.string() else values.to_pylist()
    )


def expected_rows(case, operator):
    a, b, c = (classes for _, classes in case)
    if operator == "full by one key":
        return Counter(full_join(a, b, c))
    found = Counter()
    if operator == "right by two keys":
        for row, key in enumerate(c):
            for of_b in partners(key, b):
                own = None if of_b is None else b[of_b]
                found.update((of_a, of_b, row) for of_a in partners(own, a))
        return found
    if operator in EXISTING:
        for row, key in enumerate(a):
            if (partners(key, b) != [None]) == (operator == "semi"):
                found.update((row, None, of_c) for of_c in partners(key, c) if of_c is not None)
        return found
    for row, key in enumerate(a):
        for of_b in partners(key, b):
            own = key if operator != "left by two keys" else None if of_b is None else b[of_b]
            found.update((row, of_b, of_c) for of_c in partners(own, c))
    if operator in INNER:
        found = Counter({row: n for row, n in found.items() if None not in row})
    return found


def full_join(*streams):
    rows = [{None: [None]} for _ in streams]
    for number, classes in enumerate(streams):
        for row, key in enumerate(classes):
            if key is None:
                yield tuple(row if n == number else None for n in range(len(streams)))
            else:
                rows[number].setdefault((type(key), key), []).append(row)
    for key in {key for found in rows for key in found} - {None}:
        yield from itertools.product(*(found.get(key, [None]) for found in rows))


def partners(key, classes):
    """The rows that equal the key, or None where there are none."""
    at = (n for n, other in enumerate(classes) if key is not None)
    return [n for n in at if type(classes[n]) is type(key) and classes[n] == key] or [None]


@pytest.mark.parametrize("operator", OPERATORS)
def test_results_have_the_declared_types_also_of_views(operator):
    streams = streams_of(CASES["dictionaries and views"])
    for name in "abc":
        texts = pa.array([["x", None]] * len(streams[name]), pa.list_(pa.string_view()))
        streams[name] = streams[name].append_column("texts", texts)
    pieces = []
    with open_join(streams, operator, backend="memory") as join:
        for name, batch in streams.items():
            pieces += fed(join, operator, name, batch)
        pieces += ended(join, operator)
        for name, batch in streams.items():
            for column in ("k", "texts"):
                kind = batch.schema.field(column).type
                shown = f"{name}_{column}"
                if name == "b" and operator in EXISTING:
                    continue
                assert join.output_schema.field(shown).type == kind
                assert {piece.schema.field(shown).type for piece in pieces} <= {kind}
    assert pieces or operator == "anti"  # nothing of it is without a partner
    found = {str(row) for piece in pieces for row in piece.column("a_texts").to_pylist()}
    assert found - {"None"} == (set() if operator == "anti" else {"['x', None]"})


NULLS = pa.list_(pa.null())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.map_(pa.string_view(), NULLS), [[("a", [None] * 3)], [("b", [None]), ("c", [])], None]),
        (
            pa.struct([("x", NULLS), ("y", pa.binary_view())]),
            [{"x": [None] * 3, "y": b"1"}, {"x": [None], "y": None}, None],
        ),
        (pa.list_view(pa.dictionary(pa.int8(), pa.string())), [["a", None], [], None]),
    ],
    ids=str,
)
def test_columns_that_arrow_casts_to_wrong_lists(kind, values):
    """Of lists of nulls it gives too few, of list views wrong offsets."""
    wide = pa.schema([("id", pa.int64()), ("v", kind)])
    narrow = pa.schema([("id", pa.int64())])
    whole = pa.record_batch([pa.array([1, 2, 3]), pa.array(values, kind)], schema=wide)
    for batch in (whole, whole.slice(1)):
        with MultiwayJoin(
            {"a": wide, "b": narrow}, "a.id = b.id", state=State(memory="8m")
        ) as join:
            assert list(join.process("b", pa.record_batch([pa.array([1, 2, 3])], ["id"]))) == []
            pieces = list(join.process("a", batch))
        found = pa.Table.from_batches(pieces)
        found.validate(full=True)
        assert found.schema.field("v").type == kind
        rows = dict(zip(found["a_id"].to_pylist(), found["v"].to_pylist(), strict=True))
        assert rows == dict(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def test_a_key_of_list_views():
    kind = pa.list_view(pa.string())
    schema = pa.schema([("k", kind)])
    batch = pa.record_batch([pa.array([["a", "b"], ["a"], None, []], kind)], schema=schema)
    with MultiwayJoin({"a": schema, "b": schema}, "a.k = b.k", state=State(memory="8m")) as join:
        assert list(join.process("a", batch.slice(1))) == []
        (piece,) = join.process("b", batch)
    assert piece.schema.types == [kind, kind]
    assert sorted(piece.column(0).to_pylist()) == sorted(piece.column(1).to_pylist()) == [[], ["a"]]


def test_late_rows_come_out_as_they_came():
    schema = pa.schema({"k": pa.string_view(), "at": pa.timestamp("us")})
    on = f"a.k = b.k AND b.at {NEAR}"
    times = dict.fromkeys("ab", "at")
    with MultiwayJoin(
        dict.fromkeys("ab", schema), on, time=Time(event_time=times, late="side")
    ) as join:
        join.advance(LAST)
        batch = pa.record_batch([pa.array(["x"], pa.string_view()), [START]], schema=schema)
        assert list(join.process("a", batch)) == []
        assert join.late_rows.equals(batch)


@each_value(times=3, name=CASES, operator=OPERATORS)
def test_in_memory_at_once(operator, name):
    streams = streams_of(CASES[name])
    with open_join(streams, operator, backend="memory") as join:
        pieces = [p for s, batch in streams.items() for p in fed(join, operator, s, batch)]
        pieces += ended(join, operator)
    assert found_rows(pieces, streams) == expected_rows(CASES[name], operator)


@each_value(name=CASES, operator=OPERATORS)
def test_on_our_store_with_a_restart_after_every_batch(tmp_path, operator, name):
    streams = streams_of(CASES[name])
    batches = [
        (stream, batch.slice(first, 2))
        for first in range(0, 6, 2)
        for stream, batch in streams.items()
        if first == 0 or first < batch.num_rows
    ]
    pieces = []
    for stream, batch in batches:
        with open_join(streams, operator, path=str(tmp_path / "state")) as join:
            pieces += list(fed(join, operator, stream, batch))
            join.commit()
    with open_join(streams, operator, path=str(tmp_path / "state")) as join:
        pieces += ended(join, operator)
    assert found_rows(pieces, streams) == expected_rows(CASES[name], operator)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_same_stream_three_times(operator):
    case = [(pa.array([1, 1, 2, None]), [1, 1, 2, None])] * 3
    streams = streams_of(case)
    with open_join(streams, operator) as join:
        pieces = [p for s, batch in streams.items() for p in fed(join, operator, s, batch)]
        pieces += ended(join, operator)
    found = found_rows(pieces, streams)
    assert found == expected_rows(case, operator)
    if operator in EXISTING:
        assert len(found) == (2**2 + 1 if operator == "semi" else 0)
    else:
        assert len([row for row in found if None not in row]) == 2**3 + 1


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_stream_that_does_not_speak_for_long(operator):
    streams = streams_of([(pa.array(range(300)), None)] * 3)
    pieces = []
    with open_join(streams, operator) as join:
        for first in range(0, 300, 30):
            for name in "ac":
                pieces += fed(join, operator, name, streams[name].slice(first, 30))
        assert operator in (*OUTER, "anti") or not pieces
        pieces += fed(join, operator, "b", streams["b"])
        pieces += ended(join, operator)
    expected = Counter((n, n, n) for n in range(300))
    if operator in EXISTING:
        expected = Counter((n, None, n) for n in range(300 if operator == "semi" else 0))
    assert found_rows(pieces, streams) == expected


def test_the_zones_of_the_case_have_a_night_with_an_hour_twice():
    berlin = ZoneInfo("Europe/Berlin")
    hours = [t.astimezone(berlin).hour for t in instants("UTC", 2, 3).to_pylist()]
    assert hours == [2, 2]
