"""The system may write, or read, less than it is asked for: every write goes on until all is
written."""

import os
import resource
import signal

import pytest

from lsmstate.cython_ext.base.file import AppendFile, set_write_limit
from lsmstate.errors import StoreLockedError
from lsmstate.lsm.directory_lock import DirectoryLock, check_unowned
from lsmstate.opening import open_store
from lsmstate.process.whole_writes import write_at
from lsmstate.remote.file_cache import FileCache
from support.changelog_cases import all_ids, logs, opened
from support.child_process import in_child
from support.faults import filled, memory, write_sst
from support.sample_streams import STREAMS, customers, ids, keys_of, scanned


@pytest.fixture(params=[1, 3, 16, 1000])
def short(request, monkeypatch):
    """No write takes more than so many bytes; nor does a read of os."""
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(
        os, "pwrite", lambda file, data, at: pwrite(file, data[: request.param], at)
    )
    monkeypatch.setattr(
        os, "pread", lambda file, size, at: pread(file, min(size, request.param), at)
    )
    set_write_limit(request.param)
    yield request.param
    set_write_limit(None)


def test_a_lock_is_held_however_little_is_written_at_a_time(tmp_path, short):
    lock = DirectoryLock(str(tmp_path))
    lock.check_held()
    lock.check_untaken()

    def other():
        text = (tmp_path / "LOCK").read_text()  # the owner would drop its lock by that
        assert text.startswith(f"{os.getppid()} ")
        assert text.endswith("\n")
        with pytest.raises(StoreLockedError, match=f"another process .{os.getppid()}."):
            DirectoryLock(str(tmp_path))
        with pytest.raises(StoreLockedError, match=f"is open in process {os.getppid()};"):
            check_unowned(str(tmp_path))

    in_child(other)
    lock.check_held()
    lock.release()


@pytest.mark.parametrize("backend", ["lsm", "memory"])
def test_a_store_works(tmp_path, short, backend):
    with open_store(str(tmp_path), STREAMS, backend=backend) as store:
        for number in range(3):
            store.append("customers", customers(number, name="w" * 700), keys_of(number))
        store.commit()
        store.append("customers", customers(3), keys_of(3))
        if backend == "memory":  # it has no log
            store.commit()
    with open_store(str(tmp_path), STREAMS, backend=backend) as store:
        assert sorted(ids(scanned(store, "customers"))) == [0, 1, 2, 3]


def test_a_log_is_the_same_however_it_was_written(tmp_path, short):
    def log(name):
        with opened(tmp_path / name) as store:
            store.append("customers", customers(1, name="w" * 5000), keys_of(1))
            store.append("customers", customers(2), keys_of(2))
            return logs(tmp_path / name)[0].read_bytes()

    cut = log("short")
    set_write_limit(None)
    assert log("long") == cut
    assert all_ids(tmp_path / "short") == [1, 2]


def test_an_sstable_is_the_same_however_it_was_written(tmp_path, short):
    budget, _ = memory()
    entries = {b"%05d" % n: [b"row" * 50] for n in range(300)}

    def table(name):
        write_sst(str(tmp_path / name), budget, filled(budget, entries).source(), uid=7)
        return (tmp_path / name).read_bytes()

    cut = table("short")
    set_write_limit(None)
    assert table("long") == cut


def test_pieces_are_written_whole_and_in_order(tmp_path, short):
    pieces = [
        b"",
        b"a" * 5,
        b"",
        b"b" * 2000,
        b"c",
        memoryview(b"dd")[1:],
        bytearray(b"e" * 17),
        b"",
    ]
    for number, some in enumerate([pieces, pieces * 300, [b""], [], [b"x"]]):
        file = AppendFile(str(tmp_path / f"{number}"))
        file.append(*some)
        file.append(*some)
        assert file.size == 2 * sum(map(len, some))
        file.close()
        assert (tmp_path / f"{number}").read_bytes() == b"".join(map(bytes, some)) * 2


def test_the_books_of_copies_are_whole(tmp_path, short):
    cache = FileCache(str(tmp_path), 1000)
    with cache._open_books() as lock:
        books = cache._books(lock)
        books._noted(123_456)
    assert (tmp_path / "LOCK").read_bytes() == b"123456".ljust(20) + b"\n"


def test_write_at_goes_on_where_it_was_left(tmp_path, short):
    file = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    write_at(file, b"0123456789" * 10, 5)
    write_at(file, memoryview(b"xyz"), 7)
    os.close(file)
    assert (tmp_path / "f").read_bytes() == bytes(5) + b"01xyz56789" + b"0123456789" * 9


def test_a_write_that_takes_nothing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: 0)
    file = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError, match="Input/output"):
        write_at(file, b"abc", 0)
    os.close(file)


def test_a_file_that_may_grow_no_more(tmp_path):
    """The system writes what fits, and refuses the rest when it is asked again."""

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        file = AppendFile(str(tmp_path / "f"))
        file.append(b"a" * 700)
        with pytest.raises(OSError, match="File too large"):
            file.append(b"b" * 200, b"c" * 200)

    in_child(work)
    assert (tmp_path / "f").read_bytes() == b"a" * 700 + b"b" * 200 + b"c" * 100


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ValueError, match="limit of 0 bytes"):
        set_write_limit(0)
