"""A pyarrow file system below a local directory that fails, tears or dawdles when told to."""

import errno
import random
import time
from pathlib import Path

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystemHandler, LocalFileSystem, PyFileSystem


class FlakyHandler(FileSystemHandler):
    """Operation number ``fail_at`` (from 0) fails, and so does a ``share`` of all, drawn by
    ``seed``; from ``dead_from`` on all fail, as for a machine that dies. A write that fails leaves
    the half that was sent; ``torn`` bytes of each written file whose name ends with ``torn_name``
    are lost without a word. The first answer to each operation of the kind ``lost`` is lost: it is
    done, and fails. ``calls`` names them all; the others may change at any time."""

    def __init__(
        self,
        root: Path,
        *,
        fail_at: int = -1,
        dead_from: int | None = None,
        share: float = 0,
        torn: int = 0,
        wait_seconds: float = 0,
        seed: int = 0,
    ):
        self.calls: list[tuple[str, str]] = []
        self.share = share
        self._random = random.Random(seed)
        self._root = root
        self._local = LocalFileSystem()
        self.fail_at = fail_at
        self.dead_from = dead_from
        self.torn = torn
        self.torn_name = ""
        self.lost = ""
        self._lost_before: set[str] = set()
        self._wait_seconds = wait_seconds

    def _place(self, path: str) -> str:
        return str(self._root / path)

    def step(self, operation: str, path: str) -> None:
        time.sleep(self._wait_seconds)
        self.calls.append((operation, path))
        number = len(self.calls) - 1
        is_dead = self.dead_from is not None and number >= self.dead_from
        if is_dead or number == self.fail_at or self._random.random() < self.share:
            raise OSError(errno.EIO, f"injected: {operation}", path)

    def _answer(self, operation: str, path: str) -> None:
        if operation == self.lost and path not in self._lost_before:
            self._lost_before.add(path)
            raise OSError(errno.EIO, f"injected: the answer to {operation} is lost", path)

    def get_type_name(self):
        return "flaky"

    def normalize_path(self, path):
        return path

    def get_file_info(self, paths):
        self.step("info", paths[0])
        return self._local.get_file_info([self._place(path) for path in paths])

    def get_file_info_selector(self, selector):
        self.step("list", selector.base_dir)
        inner = FileSelector(
            self._place(selector.base_dir), selector.allow_not_found, selector.recursive
        )
        return self._local.get_file_info(inner)

    def create_dir(self, path, recursive):
        self.step("create_dir", path)
        self._local.create_dir(self._place(path), recursive=recursive)

    def delete_file(self, path):
        self.step("delete", path)
        self._local.delete_file(self._place(path))
        self._answer("delete", path)

    def delete_dir(self, path):
        self.step("delete_dir", path)
        self._local.delete_dir(self._place(path))
        self._answer("delete_dir", path)

    def open_input_stream(self, path):
        self.step("read", path)
        return pa.PythonFile(_ShortReads(self._place(path)), mode="r")

    def open_input_file(self, path):
        self.step("read", path)
        return pa.PythonFile(open(self._place(path), "rb"), mode="r")

    def open_output_stream(self, path, metadata):
        self.step("open", path)
        if not Path(self._place(path)).parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        torn = self.torn if path.endswith(self.torn_name) else 0
        return pa.PythonFile(_Output(self, path, self._place(path), torn), mode="w")

    def _not_used(self, *_):
        raise NotImplementedError

    delete_dir_contents = delete_root_dir_contents = _not_used
    move = copy_file = open_append_stream = _not_used


class _Output:
    """Written to the file when it is closed, as an object store does."""

    def __init__(self, handler: FlakyHandler, name: str, path: str, torn: int) -> None:
        self._handler = handler
        self._name = name
        self._path = path
        self._torn = torn
        self._parts: list[bytes] = []
        self.closed = False

    def write(self, data) -> int:
        data = bytes(data)
        try:
            self._handler.step("write", self._name)
        except OSError:
            self._parts.append(data[: len(data) // 2])
            raise
        self._parts.append(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is sent before the end."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            data = b"".join(self._parts)
            Path(self._path).write_bytes(data[: len(data) - self._torn])
            self._handler.step("close", self._name)


class _ShortReads:
    """Answers with less than was asked for, as a network does."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115

    def read(self, size=-1):
        return self._file.read(min(size, 100_003) if size > 0 else size)

    @property
    def closed(self):
        return self._file.closed

    def close(self) -> None:
        self._file.close()


def flaky(root: Path, **how) -> tuple[PyFileSystem, FlakyHandler]:
    """The file system and its handler. It lists files under their names in ``root``."""
    root.mkdir(exist_ok=True)
    handler = FlakyHandler(root, **how)
    return PyFileSystem(handler), handler
