"""What options refuse, each by its name and value, and what they fill in."""

import itertools

import pyarrow as pa
import pytest

import lsmstate
from lsmstate.errors import InvalidArgumentError
from lsmstate.options import KIB, MIB, Options, parse_bytes
from lsmstate.store import StreamSchema

REFUSED = {
    "memory_bytes": [0, -1, 5 * MIB - 1, "64m", 64.0 * MIB, None, True],
    "memtable_bytes": [0, 256 * KIB - 1, 32 * MIB + 1, "1m", 1e6],
    "block_bytes": [0, KIB - 1, 256 * KIB + 1, 8.5 * KIB, True],
    "filter_bits_per_key": [-1, 33, 9.6, "10", None],
    "compression": ["LZ4", "snappy", "", None, 1],
    "bottom_compression": ["gzip", None],
    "fanout": [1, 17, 0, 2.5, True],
    "merging": ["universal", None],
    "max_runs": [1, 33, 8.0],
    "file_bytes": [0, 64 * KIB - 1, 1024 * MIB + 1, "32m"],
    "retained_batches": [0, -1, 1.5],
    "sync": ["sometimes", "", 1],
    "background": ["yes", "false", 0, 1, 1.0],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_values_that_cannot_be_are_refused_by_name(name, value):
    with pytest.raises(InvalidArgumentError) as refused:
        Options(**{name: value})
    assert str(refused.value).startswith(f"{name}={value!r}: ")


def test_whatever_goes_together_leaves_room_for_a_merge():
    """Or is refused: buffers of a merge of the most runs there may be fit the cap."""
    for memory, block, fanout, runs in itertools.product(
        (5 * MIB, 16 * MIB, 64 * MIB), (KIB, 8 * KIB, 64 * KIB, 256 * KIB), (2, 4, 16), (2, 8, 32)
    ):
        given = {"memory_bytes": memory, "block_bytes": block, "fanout": fanout, "max_runs": runs}
        if block > KIB and 4 * max(fanout, runs) * block > memory:
            with pytest.raises(InvalidArgumentError, match="block_bytes"):
                Options(**given)
            continue
        options = Options(**given)
        assert runs <= options.most_runs <= runs + fanout
        assert options.memtable_limit_bytes <= memory // 2


def test_a_store_is_opened_without_options_and_what_is_none_is_refused(tmp_path):
    schema = pa.schema([("k", pa.int64())])
    twice = pa.schema([("k", pa.int64()), ("k", pa.string())])
    stream = StreamSchema("s", schema, schema)
    with lsmstate.open_store(tmp_path / "store", [stream]) as store:
        assert store.stats().memory_limit_bytes == 64 * MIB
    for open_one in (
        lambda: lsmstate.open_store(tmp_path / "new", [stream], options={}),
        lambda: lsmstate.open_checkpoint(tmp_path / "store", "x", options="64m"),
    ):
        with pytest.raises(InvalidArgumentError, match=r"options=.*give (lsmstate\.)?Options\("):
            open_one()
    for streams, said in (
        (["s"], "stream 's' is a str; give a StreamSchema"),
        ("s", "streams='s' is a str; give a list"),
        (stream, "is a StreamSchema; give a list"),
        ([StreamSchema("s", twice, schema)], "key of stream 's' has several columns called 'k'"),
        ([StreamSchema("s", schema, twice)], "rows of stream 's' has several columns called 'k'"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            lsmstate.open_store(tmp_path / "new", streams)
    with pytest.raises(InvalidArgumentError, match="key of stream 's' is a list; give a pyarrow"):
        StreamSchema("s", ["k"], schema)
    with pytest.raises(InvalidArgumentError, match="name of stream 7 is a int; give a text"):
        StreamSchema(7, schema, schema)
    assert not (tmp_path / "new").exists()


def test_blocks_are_a_part_of_the_cap_within_limits():
    caps = {5 * MIB: 8, 16 * MIB: 8, 32 * MIB: 8, 48 * MIB: 12, 64 * MIB: 16, 1024 * MIB: 16}
    for cap, block in caps.items():
        assert Options(memory_bytes=cap).block_limit_bytes == block * KIB
    assert Options(memory_bytes=5 * MIB, fanout=16, max_runs=32).block_limit_bytes == 8 * KIB
    assert Options(block_bytes=4 * KIB).block_limit_bytes == 4 * KIB


def test_sizes_are_read_as_spark_writes_them():
    sizes = {"64m": 64 * MIB, "1g": 1024 * MIB, "8 KiB": 8 * KIB, "1.5k": 1536, "7": 7, "7b": 7}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    assert parse_bytes(5) == 5
    for text in ("", "m", "-1m", "64 parsecs", True, None, 1.5j):
        with pytest.raises(InvalidArgumentError, match="is not a size"):
            parse_bytes(text)
