"""A disk that loses what was not forced to it: what a power cut may leave of a directory."""

import errno
import os
from pathlib import Path
from random import Random


class Disk:
    """A fault hook (see cython_ext.file) that follows one directory from its beginning.

    Operation number ``cut_at`` and all after it fail: the power is off. Sync number
    ``fail_sync`` (from 0) fails, and what it should have forced never reaches the disk, as on
    Linux, where the next sync of the same file says that all is well. Strict as POSIX: a name, and
    the end of a name, last once their directory is synced; bytes once their file is.
    """

    def __init__(self, directory: Path, *, cut_at: int = 1 << 30, fail_sync: int = -1) -> None:
        self.seen = self.syncs = 0
        self._directory = directory
        self._removed = directory.parent / f"{directory.name}.removed"
        self._cut_at = cut_at
        self._fail_sync = fail_sync
        self._forced: dict[str, int] = {}
        self._lost: set[str] = set()
        self._new_names: set[str] = set()
        self._old_names: set[str] = set()

    def __call__(self, operation: str, path: str, offset: int, size: int) -> None:
        here = str(self._directory)
        if operation in ("open", "read") or here not in (path, os.path.dirname(path)):
            return
        if self.seen >= self._cut_at:
            raise OSError(errno.EIO, "the power is off", path)
        self.seen += 1
        name = os.path.basename(path)
        if operation in ("create", "link"):
            self._new_names.add(name)
            self._lost.discard(name)
            if name in self._old_names:
                self._old_names.remove(name)
                (self._removed / name).unlink()
            self._forced[name] = 0
        elif operation == "append":
            return
        elif operation == "remove":
            self._remove(path, name)
        else:
            self._sync(path, name)

    def _sync(self, path: str, name: str) -> None:
        self.syncs += 1
        if self.syncs - 1 == self._fail_sync:
            self._lost.add(name)
            raise OSError(errno.EIO, "the disk did not take it (injected)", path)
        if os.path.isdir(path):
            self._new_names.clear()
            for old in self._old_names:
                (self._removed / old).unlink()
            self._old_names.clear()
        elif name not in self._lost:
            self._forced[name] = os.path.getsize(path)

    def _remove(self, path: str, name: str) -> None:
        if os.path.exists(path):
            self._removed.mkdir(exist_ok=True)
            os.link(path, self._removed / name)
            self._old_names.add(name)

    def moved_to(self, directory: Path) -> None:
        """Go on with a copy of the directory."""
        self._directory = directory

    def after_the_cut(self, target: Path, chance: Random) -> None:
        """Fill ``target`` with what one power cut would have left now."""
        target.mkdir()
        places = [(path, False) for path in sorted(self._directory.iterdir())]
        places += [(self._removed / name, True) for name in sorted(self._old_names)]
        for path, is_removed in places:
            if (is_removed or path.name in self._new_names) and chance.random() < 0.5:
                continue
            data = path.read_bytes()
            forced = self._forced.get(path.name, len(data))
            kept = forced
            if path.name not in self._lost:
                kept = chance.choice([forced, len(data), chance.randint(forced, len(data))])
            (target / path.name).write_bytes(data[:kept])
