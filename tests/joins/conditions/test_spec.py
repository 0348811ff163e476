"""JoinSpec: what a condition may say, how types are coerced and columns called; hash routing."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.key_types import common_key_type
from lsmstate.joins.routing.hash import NO_BUCKET, bucket_of, bucket_of_hashes, overlapping
from lsmstate.joins.specs.multi_key import create_spec
from lsmstate.joins.specs.one_key import JoinSpec, output_names

CU = pa.schema([("a", pa.int32()), ("x", pa.string()), ("z", pa.int8())])
SR = pa.schema([("b", pa.int64()), ("y", pa.string()), ("Z", pa.int8())])
WR = pa.schema([("c", pa.decimal128(5, 2)), ("y y", pa.large_string()), ("and", pa.string())])
STREAMS = {"cu": CU, "sr": SR, "wr": WR}


@pytest.mark.parametrize(
    "text",
    [
        "cu.a = sr.b AND cu.a = wr.c AND cu.x = sr.y AND cu.x = wr.`y y`",
        "wr.c = sr.b and\n  sr.b==cu.a aNd (sr.y=wr.`y y`) AND ((wr.`y y`=cu.x))",
        "((CU.A = SR.B AND (cu.x = sr.Y AND `cu`.`a`=wr.c)) AND sr.y = WR.`Y Y`)",
        "cu.x = sr.y AND cu.a = sr.b AND wr.`y y` = sr.y AND wr.c = sr.b AND cu.a = wr.c",
    ],
)
def test_one_condition_written_in_several_ways(text):
    spec = JoinSpec.create(STREAMS, text)
    assert spec.keys == {"cu": ("a", "x"), "sr": ("b", "y"), "wr": ("c", "y y")}
    assert spec.key_schema == pa.schema([("k0", pa.decimal128(22, 2)), ("k1", pa.string())])
    assert spec == JoinSpec.create(
        STREAMS, {"sr": ["y", "b"], "cu": ["x", "a"], "wr": ["y y", "c"]}
    )


def test_a_list_of_shared_columns():
    spec = JoinSpec.create({"l": CU, "r": CU}, ["Z", "a"])
    assert spec.keys == {"l": ("a", "z"), "r": ("a", "z")}


def test_quoted_keywords_are_names():
    spec = JoinSpec.create({"cu": CU, "and": WR}, "cu.x = `and`.`and`")
    assert spec.keys == {"cu": ("x",), "and": ("and",)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cu.a = sr.b OR cu.a = wr.c", "'cu.a = sr.b OR cu.a = wr.c' equates no two columns"),
        ("cu.x = sr.y AND cu.a < sr.b", "'cu.a < sr.b' equates no two columns"),
        ("cu.a <=> sr.b", "'cu.a <=> sr.b' equates no two columns"),
        ("cu.a <> sr.b", "equates no two columns"),
        ("cu.a = 1", "'cu.a = 1' equates no two columns"),
        ("cu.x = 'k AND l'", "supported here are equalities"),
        ("a = sr.b", "stream's name in front, as in cu.id; found 'a' in 'a = sr.b'"),
        ("cu.a = sr.b = wr.c", "equates no two columns"),
        ("cu.a = sr.b AND", "syntax error at 'AND', line 1, column 13"),
        ("(cu.a = sr.b", r"syntax error at 'the end', line 1, column 13 .* a '\(' is not closed"),
        ("cu.a = sr.b)", r"syntax error at '\)', line 1, column 12"),
        ("cu.a + 1 = sr.b", "equates no two columns"),
        ("NOT cu.a = sr.b", "equates no two columns"),
        ("upper(cu.x) = sr.y", r"'upper\(cu.x\) = sr.y' equates no two columns"),
        ("`cu.a = sr.b", "syntax error at '`', line 1, column 1"),
        ("", "syntax error at 'the end'"),
        ("cu.a = sr.b", "stream 'wr' is not connected to cu.a = sr.b"),
        ("cu.a = sr.b AND cu.x = wr.`y y`", "is not connected"),
        ("cu.a = sr.b AND cu.a = wr.c AND cu.z = sr.b", "several columns of stream 'cu'"),
        ("cu.a = cu.z", "several columns of stream 'cu'; filter"),
        ("cu.a = sr.bb AND cu.a = wr.c", "no column 'bb' in stream 'sr'; did you mean 'b'"),
        ("ccu.a = sr.b", "no stream 'ccu'; did you mean 'cu'"),
        (
            "cu.x = sr.b AND cu.x = wr.c",
            r"cu.x \(string\), sr.b \(int64\), wr.c \(decimal128\(5, 2\)\).*cannot be compared",
        ),
    ],
)
def test_what_a_condition_may_not_say(text, message):
    with pytest.raises(InvalidArgumentError, match=message):
        JoinSpec.create(STREAMS, text)


@given(st.text("abcu.=() `AND\n<'", max_size=30))
def test_any_text_is_parsed_or_refused(text):
    try:
        spec = JoinSpec.create({"a": CU, "b": CU}, text)
    except InvalidArgumentError:
        return
    assert len(spec.keys["a"]) == len(spec.keys["b"]) > 0


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ({"cu": ["a"], "sr": ["b"]}, "stream 'wr' has no key columns"),
        ({"cu": ["a"], "sr": ["b", "y"], "wr": ["c"]}, "cu has 1, sr has 2, wr has 1"),
        ({"cu": [], "sr": [], "wr": []}, "at least one"),
        ({"cu": "a", "sr": ["b"], "wr": ["c"]}, r"write a list of columns, as in \['a'\]"),
        ({"cu": ["a", "a"], "sr": ["b", "Z"], "wr": ["c", "and"]}, "cu.a stands twice"),
        ({"cu": ["a"], "sr": ["b"], "wr": ["c"], "cr": ["d"]}, "no stream 'cr'"),
        (["a"], "no column 'a' in stream 'sr'"),
        ([], "at least one"),
    ],
)
def test_what_column_lists_may_not_say(on, message):
    with pytest.raises(InvalidArgumentError, match=message):
        JoinSpec.create(STREAMS, on)


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ({"cu": CU}, "at least two streams"),
        ({"cu": CU, "CU": CU}, "case does not count"),
        ({"cu": CU, "": CU}, "name is empty"),
        ({"cu": CU, "sr": pa.schema([("a", pa.int32()), ("A", pa.int8())])}, "several columns"),
    ],
)
def test_streams_that_are_refused(streams, message):
    with pytest.raises(InvalidArgumentError, match=message):
        JoinSpec.create(streams, ["a"])


# What Spark 4.3 casts both sides of '=' to, read off its analyzed plans.
I8, I16, I32, I64, F32, F64 = (
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
)
DEC = pa.decimal128


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        (I8, I8, I8),
        (I8, I32, I32),
        (I32, I64, I64),
        (I8, F32, F64),
        (I64, F32, F64),
        (F32, F64, F64),
        (F32, F32, F32),
        (DEC(10, 2), F32, F64),
        (DEC(38, 18), F64, F64),
        (I8, DEC(10, 2), DEC(10, 2)),
        (I32, DEC(10, 2), DEC(12, 2)),
        (I32, DEC(12, 5), DEC(15, 5)),
        (I64, DEC(10, 2), DEC(22, 2)),
        (I64, DEC(38, 18), DEC(38, 18)),
        (DEC(10, 2), DEC(12, 5), DEC(13, 5)),
        (DEC(10, 2), DEC(38, 18), DEC(38, 18)),
        (DEC(38, 0), DEC(38, 18), DEC(38, 0)),
        (DEC(38, 0), DEC(12, 5), DEC(38, 0)),
        (pa.string(), pa.large_string(), pa.string()),
        (pa.date32(), pa.timestamp("us"), pa.timestamp("us")),
        (pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.uint32(), I64, I64),
        (pa.uint64(), I64, DEC(20, 0)),
        (pa.null(), pa.string(), pa.string()),
        (pa.null(), pa.null(), I64),
    ],
)
def test_common_types_are_those_of_spark(left, right, common):
    assert common_key_type([left, right]) == common
    assert common_key_type([right, left]) == common


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (I32, pa.string()),
        (I32, pa.bool_()),
        (I32, pa.date32()),
        (pa.string(), pa.binary()),
        (pa.string(), pa.date32()),
        (pa.timestamp("us"), F64),
        (pa.bool_(), pa.binary()),
    ],
)
def test_types_that_cannot_be_compared(left, right):
    with pytest.raises(InvalidArgumentError, match=re.escape(f"{left} and {right}")):
        common_key_type([left, right])


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            [pa.int64(), pa.int64(), pa.float64()],
            r"a.k \(int64\) and b.k \(int64\) are compared as int64, but the whole key .* only as "
            "double, in which different values would be equal",
        ),
        (
            [pa.float64(), pa.decimal128(5, 2), pa.decimal128(6, 2)],
            r"b.k \(.*\) and c.k \(.*\) are compared as decimal128\(6, 2\)",
        ),
        (
            [pa.decimal128(38, 30), pa.decimal128(38, 30), pa.int64()],
            r"a.k \(.*\) and b.k \(.*\) are compared as decimal128\(38, 30\)",
        ),
        (
            [pa.timestamp("us"), pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin")],
            "a.k .* and b.k .* are compared as",
        ),
        ([pa.int32(), pa.int32(), pa.float64()], None),
        ([pa.float32(), pa.float32(), pa.float64()], None),
        ([pa.int64(), pa.uint64(), pa.int8()], None),
        ([pa.decimal128(5, 2), pa.decimal128(20, 4), pa.int32()], None),
        ([pa.date32(), pa.timestamp("s"), pa.timestamp("ns")], None),
        ([pa.list_(pa.int8()), pa.list_(pa.int8()), pa.list_(pa.int64())], None),
        ([pa.null(), pa.int32(), pa.float64()], None),
    ],
)
def test_a_key_of_three_is_compared_as_each_two_of_them(kinds, message):
    streams = {name: pa.schema([("k", kind)]) for name, kind in zip("abc", kinds, strict=True)}
    for on in ("a.k = b.k AND b.k = c.k", ["k"]):
        if message is None:
            create_spec(streams, on)
        else:
            with pytest.raises(InvalidArgumentError, match=message):
                create_spec(streams, on)


@pytest.mark.parametrize(
    ("kinds", "on"),
    [
        ((I64, F64, I64), "a.k = b.k AND b.k = c.k"),
        ((I64, I64, F64), "c.k = a.k AND c.k = b.k"),
        ((pa.decimal128(5, 2), F64, pa.decimal128(5, 2)), "a.k = b.k AND B.K = C.K"),
        ((pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us")),
         "b.k = a.k AND c.k = b.k"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("more", ["", " AND c.x = d.x"])
def test_columns_that_the_condition_does_not_compare_need_no_type_of_their_own(kinds, on, more):
    """Each with the third as it is compared there; all of them with each other, they would not."""
    streams = {name: pa.schema([("k", kind)]) for name, kind in zip("abc", kinds, strict=True)}
    if more:
        streams["c"] = streams["c"].append(pa.field("x", I64))
        streams["d"] = pa.schema([("x", I64)])
    else:
        with pytest.raises(InvalidArgumentError, match="different values would be equal"):
            create_spec(streams, ["k"])
    create_spec(streams, on + more)
    first, second = [n for n, kind in zip("abc", kinds, strict=True) if kinds.count(kind) == 2]
    with pytest.raises(InvalidArgumentError, match=rf"{first}.k .* and {second}.k .* are compared"):
        create_spec(streams, f"{on} AND {first}.k = {second}.k{more}")


def test_output_names():
    assert output_names({"l": ["id", "v"], "r": ["ID", "w"]}) == {
        "l": ["l_id", "v"],
        "r": ["r_ID", "w"],
    }
    spec = JoinSpec.create(STREAMS, "cu.a = sr.b AND sr.b = wr.c")
    assert spec.output_schema.names == ["a", "x", "cu_z", "b", "y", "sr_Z", "c", "y y", "and"]
    assert spec.output_schema.types == [*CU.types, *SR.types, *WR.types]


def test_names_are_compared_in_lower_case_as_spark_does():
    names = output_names({"a": ["straße", "Ä"], "b": ["strasse", "ä"]})
    assert names == {"a": ["straße", "a_Ä"], "b": ["strasse", "b_ä"]}


@pytest.mark.parametrize(
    "streams",
    [
        {"l": ["id", "L_ID"], "r": ["id"]},
        {"l": ["id"], "r": ["id", "l_id"]},
        {"a": ["b_c"], "a_b": ["c", "b_c"], "x": ["c"]},
    ],
)
def test_names_that_collide_again_are_refused(streams):
    with pytest.raises(InvalidArgumentError, match="rename one of them"):
        output_names(streams)


def keys_of(values):
    return KeyCodec(pa.schema([("k", I64)])).encode(
        pa.RecordBatch.from_arrays([pa.array(values, I64)], ["k"])
    )


def test_buckets_are_even_and_follow_from_the_key_alone():
    keys = keys_of([*range(20_000), None])
    for buckets in (1, 2, 3, 7, 16):
        found = bucket_of(keys, buckets)
        assert found[-1] == NO_BUCKET
        counts = np.bincount(found[:-1], minlength=buckets)
        assert len(counts) == buckets
        assert counts.min() > 0.9 * 20_000 / buckets
        assert bucket_of(keys_of([777]), buckets)[0] == found[777]


def test_buckets_are_pinned_by_the_checkpoint_format():
    hashes = np.array([0, 1, 2, 2**63, 2**64 - 1], dtype=np.uint64)
    valid = np.array([True, True, True, True, False])
    assert bucket_of_hashes(hashes, valid, 1000).tolist() == [0, 338, 858, 147, -1]
    with pytest.raises(InvalidArgumentError, match="buckets=0"):
        bucket_of_hashes(hashes, valid, 0)


def test_buckets_of_another_number_that_overlap():
    hashes = np.array(
        [(i * 0x9E3779B97F4A7C15) & (2**64 - 1) for i in range(20_000)], dtype=np.uint64
    )
    valid = np.ones(len(hashes), bool)
    for buckets, others in ((2, 3), (3, 2), (1, 5), (5, 1), (7, 7), (4, 16)):
        pairs = zip(
            bucket_of_hashes(hashes, valid, buckets).tolist(),
            bucket_of_hashes(hashes, valid, others).tolist(),
            strict=True,
        )
        found = {(a, b) for a in range(buckets) for b in overlapping(a, buckets, others)}
        assert set(pairs) == found


def test_a_bucket_keeps_all_bits_of_the_hash():
    # A filter inside a bucket sees hashes that differ in their upper bits as much as before.
    keys = keys_of(list(range(4000)))
    chosen = keys.hashes[bucket_of(keys, 8) == 3]
    upper = np.bincount((chosen >> np.uint64(61)).astype(np.int64), minlength=8)
    assert upper.min() > 30
