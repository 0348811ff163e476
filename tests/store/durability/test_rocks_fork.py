"""A process forked from one that has RocksDB open neither hangs nor pretends to work."""

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("rocksdict")

from lsmstate import InvalidArgumentError, Options, StreamSchema, open_store

STREAM = StreamSchema("s", pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))


def in_child(work: Callable[[], str]) -> str:
    """What a forked child writes; it is killed should it hang."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.01)
    with os.fdopen(reading) as said:
        return said.read()


def test_a_forked_child_lets_go_of_a_database_and_opens_none(tmp_path: Path) -> None:
    rows = pa.record_batch({"v": range(100)}, schema=STREAM.rows)
    keys = pa.record_batch({"k": range(100)}, schema=STREAM.key)
    stores = [open_store(str(tmp_path / "a"), [STREAM], backend="rocksdb", options=Options())]
    stores[0].append("s", rows, keys)
    snapshot = [stores[0].snapshot()]

    def let_go() -> str:
        snapshot.clear()
        stores.clear()
        gc.collect()
        return "done"

    def open_another() -> str:
        with pytest.raises(InvalidArgumentError) as caught:
            open_store(str(tmp_path / "b"), [STREAM], backend="rocksdb", options=Options())
        return str(caught.value)

    assert in_child(let_go) == "done"
    assert f"was forked from process {os.getpid()}" in in_child(open_another)
    snapshot[0].close()
    stores[0].append("s", rows, keys)
    assert stores[0].probe("s", keys).counts.tolist() == [2] * 100
    stores[0].close()
