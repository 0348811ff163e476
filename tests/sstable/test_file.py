"""Files: exact reads, append only once, hooks."""

import errno
import os

import pytest

from lsmstate.cython_ext.base.file import AppendFile, ReadFile, remove, sync_directory
from lsmstate.errors import CorruptionError
from support.faults import Faults, faults, filled, in_use, memory, write_sst


def written(path, data):
    file = AppendFile(str(path))
    file.append(data)
    assert file.size == len(data)
    file.sync()
    file.close()
    file.close()
    return str(path)


def test_what_is_appended_is_read(tmp_path):
    path = written(tmp_path / "f", b"0123456789")
    file = ReadFile(path)
    assert (file.size, file.path) == (10, path)
    assert file.read(0, 10) == b"0123456789"
    assert file.read(3, 4) == b"3456"
    assert file.read(10, 0) == b""
    for offset, size in ((0, 11), (10, 1), (-1, 2), (3, -1), (1 << 62, 1), (5, 1 << 62)):
        with pytest.raises(CorruptionError, match="expected"):
            file.read(offset, size)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.read(0, 1)


@pytest.mark.parametrize("to_be_synced", [True, False])
def test_a_file_that_is_to_be_synced_is_given_to_the_disk_early(tmp_path, to_be_synced):
    """A megabyte at a time, each once and one behind the other; what is left is the sync's."""
    pieces = [bytes([number]) * (300 << 10) for number in range(12)]
    asked = []

    def hook(operation, path, offset, size):
        if operation in ("write back", "sync"):
            asked.append((operation, offset, size))

    with faults(hook):
        file = AppendFile(str(tmp_path / "f"), to_be_synced=to_be_synced)
        for piece in pieces:
            file.append(piece)
        file.sync()
        file.close()
    early = [("write back", place, 1200 << 10) for place in range(0, 3600 << 10, 1200 << 10)]
    assert asked == [*(early if to_be_synced else []), ("sync", 0, 3600 << 10)]
    assert (tmp_path / "f").read_bytes() == b"".join(pieces)


def test_a_file_that_shrinks_while_it_is_open_is_damaged(tmp_path):
    path = written(tmp_path / "f", b"0123456789")
    file = ReadFile(path)
    os.truncate(path, 4)
    assert file.read(0, 4) == b"0123"
    with pytest.raises(CorruptionError, match="ends after 4 of 10"):
        file.read(0, 10)


def test_an_existing_file_is_never_written(tmp_path):
    path = written(tmp_path / "f", b"kept")
    with pytest.raises(FileExistsError) as caught:
        AppendFile(path)
    assert caught.value.filename == path
    assert ReadFile(path).read(0, 4) == b"kept"
    file = AppendFile(str(tmp_path / "g"))
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        file.append(b"x")


def test_system_errors_name_the_file(tmp_path):
    missing = str(tmp_path / "missing" / "f")
    for call in (
        lambda: ReadFile(missing),
        lambda: AppendFile(missing),
        lambda: sync_directory(missing),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert caught.value.filename == missing
    remove(missing)  # an absent file is no error
    os.mkdir(tmp_path / "d")
    with pytest.raises(OSError, match="d"):
        remove(str(tmp_path / "d"))
    sync_directory(str(tmp_path))


def test_an_error_that_comes_with_the_close_is_not_lost(tmp_path):
    """Network file systems tell of a full disk only then."""
    file = AppendFile(str(tmp_path / "f"))
    (descriptor,) = [
        int(each)
        for each in os.listdir("/proc/self/fd")
        if os.path.realpath(f"/proc/self/fd/{each}") == str(tmp_path / "f")
    ]
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.close()
    file.close()


def test_hooks_see_every_operation_and_inject_errors(tmp_path):
    with faults(Faults(operations=("create", "append", "sync", "open", "read", "remove"))) as hook:
        path = written(tmp_path / "f", b"abcdef")
        ReadFile(path).read(0, 2)
        sync_directory(str(tmp_path))
        remove(path)
    assert [operation for operation, _ in hook.seen] == [
        "create",
        "append",
        "sync",
        "open",
        "read",
        "sync",
        "remove",
    ]
    with faults(Faults(1, tear=0.5)), pytest.raises(OSError, match="torn") as caught:
        written(tmp_path / "g", b"abcdef")
    assert caught.value.errno == errno.EIO
    assert (tmp_path / "g").read_bytes() == b"abc"
    with faults(Faults(0)), pytest.raises(OSError, match="create"):
        AppendFile(str(tmp_path / "h"))
    assert not (tmp_path / "h").exists()
    written(tmp_path / "h", b"without the hook")


def test_descriptors_are_closed_with_their_objects(tmp_path):
    path = written(tmp_path / "f", b"x")
    for number in range(50):
        ReadFile(path).read(0, 1)
        AppendFile(str(tmp_path / str(number)))
        with pytest.raises(FileExistsError):
            AppendFile(path)
    left = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    assert [name for name in left if name.startswith(str(tmp_path))] == []


@pytest.mark.parametrize("huge", [0, 3 << 20])
def test_a_table_goes_to_its_file_in_pieces_that_end_at_multiples_of_128_kib(tmp_path, huge):
    """But for a huge row's, whose memory is given back at once."""
    rows = {number.to_bytes(4, "big"): [os.urandom(1000)] for number in range(1500)}
    if huge:
        rows[(700).to_bytes(4, "big")] = [os.urandom(huge)]
    ends = []

    def seen(operation, path, offset, size):
        if operation == "append":
            ends.append(offset + size)

    budget = memory()[0]
    table = filled(budget, rows)
    with faults(seen):
        write_sst(str(tmp_path / "table"), budget, table.source(), codec="none", block_bytes=8192)
    assert ends[-1] == os.path.getsize(tmp_path / "table")
    unaligned = [end for end in ends[1:-1] if end % (128 << 10)]  # but for header and footer
    assert len(unaligned) == bool(huge)
    assert len(ends) > 10
    table.release()
    assert in_use(budget) == {}
