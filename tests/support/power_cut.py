"""A disk that loses what was not forced to it: what a power cut may leave of a directory."""

import errno
import os
from pathlib import Path
from random import Random
from threading import Lock

#: What a disk writes as a whole, or not at all.
SECTOR_BYTES = 512


class Disk:
    """A fault hook (see lsmstate.cython_ext.base.file) that follows one directory from its
    beginning.

    Operation number ``cut_at`` and all after it fail: the power is off. Sync number
    ``fail_sync`` (from 0) fails, and what it should have forced never reaches the disk, as on
    Linux, where the next sync of the same file says that all is well. Strict as POSIX: a name, and
    the end of a name, last once their directory is synced, and of a renamed file one of both names
    does; bytes last once their file is synced. Of others a part may be there, or zeros instead, in
    any of the sectors.

    The store's threads call it too. An operation is let through before it is done, so while the
    directory is read one of each thread may still come to its end, and no other begins.
    """

    def __init__(self, directory: Path, *, cut_at: int = 1 << 30, fail_sync: int = -1) -> None:
        self.seen = self.syncs = 0
        self._lock = Lock()
        self._directory = directory
        self._removed = directory.parent / f"{directory.name}.removed"
        self._cut_at = cut_at
        self._fail_sync = fail_sync
        self._forced: dict[str, int] = {}
        self._lost: set[str] = set()
        self._new_names: set[str] = set()
        self._old_names: set[str] = set()
        #: What a renamed file was called, until its directory is synced.
        self._former: dict[str, str] = {}
        #: By the new name: which names the files had, by inode, when one was about to be renamed.
        self._renaming: dict[str, dict[int, str]] = {}

    def __call__(self, operation: str, path: str, offset: int, size: int) -> None:
        with self._lock:
            self._follow(operation, path)

    def _follow(self, operation: str, path: str) -> None:
        here = str(self._directory)
        if operation in ("open", "read") or here not in (path, os.path.dirname(path)):
            return
        if self.seen >= self._cut_at:
            raise OSError(errno.EIO, "the power is off", path)
        self.seen += 1
        self._settle_names()
        name = os.path.basename(path)
        if operation in ("create", "link"):
            self._new_names.add(name)
            self._lost.discard(name)
            if name in self._old_names:
                self._old_names.remove(name)
                (self._removed / name).unlink()
            self._forced[name] = 0
        elif operation == "rename":
            self._renaming[name] = {
                each.stat().st_ino: each.name for each in self._directory.iterdir()
            }
        elif operation in ("append", "write back"):
            return
        elif operation == "remove":
            self._remove(path, name)
        else:
            self._sync(path, name)

    def _settle_names(self) -> None:
        """Follow files to the names that they have got since."""
        for name in [each for each in self._renaming if self._is_there(each)]:
            former = self._renaming.pop(name)[(self._directory / name).stat().st_ino]
            self._former[name] = former
            self._new_names.add(name)
            self._forced[name] = self._forced.pop(former, 0)
            if former in self._lost:
                self._lost.add(name)

    def _sync(self, path: str, name: str) -> None:
        self.syncs += 1
        if self.syncs - 1 == self._fail_sync:
            self._lost.add(name)
            raise OSError(errno.EIO, "the disk did not take it (injected)", path)
        if os.path.isdir(path):
            self._new_names.clear()
            self._former.clear()
            for old in [each for each in self._old_names if not self._is_there(each)]:
                (self._removed / old).unlink()
                self._old_names.remove(old)
        elif name not in self._lost:
            self._forced[name] = os.path.getsize(path)

    def _remove(self, path: str, name: str) -> None:
        # An old name may still be there: of a thread that was let through, in a copy made then.
        if os.path.exists(path) and name not in self._old_names:
            self._removed.mkdir(exist_ok=True)
            os.link(path, self._removed / name)
            self._old_names.add(name)

    def _is_there(self, name: str) -> bool:
        return (self._directory / name).exists()

    def move_to(self, directory: Path) -> None:
        """Go on with a copy of the directory, which is made here: what is done in the old one from
        now on is no longer followed."""
        with self._lock:
            self._settle_names()
            directory.mkdir()
            for path in self._directory.iterdir():
                (directory / path.name).write_bytes(self._bytes_of(path))
            self._directory = directory

    def after_the_cut(self, target: Path, chance: Random) -> None:
        """Fill ``target`` with what one power cut would have left now."""
        target.mkdir()
        with self._lock:
            self._settle_names()
            places = [(path, False) for path in sorted(self._directory.iterdir())]
            places += [(self._removed / name, True) for name in sorted(self._old_names)]
            for path, is_removed in places:
                name: str | None = path.name
                if (is_removed or path.name in self._new_names) and chance.random() < 0.5:
                    name = self._former.get(path.name)
                if name is None or (name != path.name and chance.random() < 0.5):
                    continue
                data = self._bytes_of(path)
                forced = self._forced.get(path.name, len(data))
                if path.name in self._lost:
                    data = data[:forced]
                (target / name).write_bytes(_left_of(data, forced, chance))

    def _bytes_of(self, path: Path) -> bytes:
        """A file of the directory, which may have been removed since its name was read."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return (self._removed / path.name).read_bytes()


def _left_of(data: bytes, forced: int, chance: Random) -> bytes:
    """The forced bytes and a part of the others: what is before some place, and nothing behind it
    or, where the file's length was on the disk before its bytes were, zeros; or any sectors, the
    others being as they were forced."""
    if chance.random() < 0.4:
        left = bytearray(data[: chance.choice([len(data), chance.randint(forced, len(data))])])
        for sector in range(forced - forced % SECTOR_BYTES, len(left), SECTOR_BYTES):
            if chance.random() < 0.5:
                first, end = max(forced, sector), min(sector + SECTOR_BYTES, len(left))
                left[first:end] = bytes(end - first)
        return bytes(left)
    kept = chance.choice([forced, len(data), chance.randint(forced, len(data))])
    if chance.random() < 0.6:
        return data[:kept]
    kept = max(forced, kept - kept % SECTOR_BYTES)
    return data[:kept] + bytes(chance.choice([len(data), chance.randint(kept, len(data))]) - kept)
