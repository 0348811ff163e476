"""Rows and keys that are none of their schema, behind right checksums: errors name the place."""

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from lsmstate.cli.main import app
from lsmstate.errors import CorruptionError
from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import StreamSchema
from support.resealing import blocks_of, reseal

KEY = pa.schema([("k", pa.string())])
ROWS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("text", pa.string())])
STREAMS = [StreamSchema("before", KEY, ROWS), StreamSchema("s", KEY, ROWS)]
OPTIONS = Options(memory_bytes=16 * MIB, compression="none", bottom_compression="none")
COUNT = 2000


def opened(directory):
    return LsmStore.open(str(directory), STREAMS, options=OPTIONS)


def keys_of(*numbers):
    return pa.record_batch([pa.array([f"key {n:05}" for n in numbers])], schema=KEY)


def append(store, stream):
    names = [f"key {n:05}" for n in range(COUNT)]
    texts = [f"text {n:05}" for n in range(COUNT)]
    rows = pa.record_batch([names, list(range(COUNT)), texts], schema=ROWS)
    store.append(stream, rows, rows.select(["k"]))
    store.flush()


def replace(path, kind, old, new):
    """Other bytes where these stand; the offset of their block."""
    data = bytearray(path.read_bytes())
    for offset, size in blocks_of(data, kind):
        place = data.find(old, offset, offset + size)
        if place >= 0:
            data[place : place + len(new)] = new
            reseal(data, offset, size)
            path.write_bytes(data)
            return offset
    raise AssertionError(f"no {kind} block has {old!r}")


@pytest.fixture
def damaged(tmp_path):
    """A function that damages the second of three files of a state, and gives path and offset."""
    with opened(tmp_path) as store:
        append(store, "before")
        append(store, "s")
        append(store, "s")
        names = [file.name for run in store._runs.version.runs for file in run.files]
    assert len(names) == 3
    path = tmp_path / names[1]

    def damage(kind, old, new):
        process_memory().cache.clear()
        return path, replace(path, kind, old, new)

    return damage


def expect(read, path, offset, message):
    with pytest.raises(CorruptionError, match=message) as caught:
        read()
    assert (caught.value.path, caught.value.offset) == (str(path), offset)


def test_a_row_that_does_not_decode_is_named(tmp_path, damaged):
    path, offset = damaged("row", b"\x0atext 01234", b"\x7f")
    message = r"stream 's': row 0, column 'text': .*damaged or of another schema"
    with opened(tmp_path) as store:
        snapshot = store.snapshot()
        for reads in (store, snapshot):
            expect(lambda reads=reads: reads.get("s", ("key 01234",)), path, offset, message)
            expect(lambda reads=reads: list(reads.scan("s")), path, offset, message)
            expect(lambda reads=reads: list(reads.iterate("s")), path, offset, message)
            assert reads.get("s", ("key 00004",)).num_rows == 2, "the others can be read"
            assert sum(piece.num_rows for piece in reads.scan("before")) == COUNT
        expect(store.check, path, offset, message)
        snapshot.close()


def test_a_key_that_does_not_decode_is_named(tmp_path):
    """One whose text has no end."""
    with opened(tmp_path) as store:
        append(store, "before")
        row = pa.record_batch([["only key"], [1], ["text"]], schema=ROWS)
        store.append("s", row, row.select(["k"]))
        store.flush()
        (path,) = (tmp_path / file.name for file in store._runs.version.runs[1].files)
    offset = replace(path, "key", b"only key\x00", b"only key\x07")
    with opened(tmp_path) as store:
        message = r"stream 's': a stored key is damaged or of another schema"
        expect(lambda: list(store.iterate("s")), path, offset, message)
        assert sum(piece.num_rows for piece in store.scan("before")) == COUNT


def test_a_retracted_row_that_does_not_decode_is_found(tmp_path):
    """It lies in a stream of its own, which no stream of the schema names."""
    with opened(tmp_path) as store:
        append(store, "before")
        append(store, "s")
        row = pa.record_batch([["key 00007"], [7], ["text 00007"]], schema=ROWS)
        store.retract("s", row, row.select(["k"]))
        store.flush()
        (path,) = (tmp_path / file.name for file in store._runs.version.runs[-1].files)
    process_memory().cache.clear()
    offset = replace(path, "row", b"\x0atext 00007", b"\x7f")
    with opened(tmp_path) as store:
        expect(store.check, path, offset, r"stream 's': row 0, column 'text': .*damaged")
    done = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert done.exit_code == 1
    assert f"DAMAGED {path.name}: " in done.output


def test_the_command_finds_it(tmp_path, damaged):
    path, offset = damaged("row", b"\x0atext 00000", b"\x7f")
    done = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert done.exit_code == 1
    said = [line for line in done.output.splitlines() if line.startswith("DAMAGED")]
    assert len(said) == 1
    assert f"DAMAGED {path.name}: {path} at offset {offset}: stream 's': row 0" in said[0]
    assert done.output.count("ok ") >= 2
