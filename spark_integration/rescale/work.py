"""The records of a rescale under way, in ``rescale-<version>/`` beside the state.

    plan.json          what is to be done, for whoever continues
    bucket-<id>.json   one per complete new bucket: see ``fill``
    OWNER              on remote file systems: the process that works on it

While a plan exists for the newest settings, no query starts or goes on (``pinned_settings.py``).

One process works on a rescale. A local directory is locked. A remote file system has no lock that
ends with its process: there the last one that came owns the work. An earlier one that still runs
notices that before it records, deletes or switches anything more.
"""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from lsmstate.errors import CorruptionError, InvalidArgumentError, LsmStateError
from lsmstate.lsm.directory_lock import DirectoryLock
from lsmstate.remote.directory import remove_if_there
from lsmstate.remote.retries import retried
from lsmstate.spark_integration.checkpoint.json_records import create_record_in, read_record_in
from lsmstate.spark_integration.checkpoint.pinned_settings import plan_name, work_name
from lsmstate.state_location import StatePlace, bucket_directory_name

_RECORD_END: Final = ".json"
_OWNER: Final = "OWNER"

_Result = TypeVar("_Result")


class RescaleWork:
    """The work of the rescale to one version of the settings. OSError if a request fails."""

    def __init__(self, place: StatePlace, version: int) -> None:
        self._place = place
        self._name = work_name(version)
        self._plan = plan_name(version)
        self._id = uuid.uuid4().hex.encode()

    def exists(self) -> bool:
        """Whether one was begun, and not ended."""
        return self._name in self._asked(self._place.files.directories)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own the work for a while. A refusal before there is a plan leaves nothing behind.
        StoreLockedError if another live process owns it, for a local state."""
        with self._claimed():
            try:
                yield
            except BaseException:
                with suppress(OSError, LsmStateError):
                    if self._is_owned() and self.plan() is None:
                        self.end()
                raise

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        local = self._place.local_directory
        if local is None:
            self._asked(partial(self._place.files.write, self._path(_OWNER), [self._id]))
            yield
            return
        directory = os.path.join(local, self._name)
        os.makedirs(directory, exist_ok=True)
        lock = DirectoryLock(directory)
        try:
            yield
        finally:
            lock.release()

    def check_owned(self) -> None:
        """InvalidArgumentError if another process has taken over. Cost: one request, none of a
        local state."""
        if not self._is_owned():
            raise InvalidArgumentError(
                f"another rescale of {self._place.where} has taken over from this one; let it "
                "finish"
            )

    def _is_owned(self) -> bool:
        if self._place.local_directory is not None:
            return True
        read = partial(self._place.files.read, self._path(_OWNER), 0, len(self._id))
        try:
            return self._asked(read) == self._id
        except FileNotFoundError:
            return False

    def plan(self) -> dict[str, Any] | None:
        """The plan; None if it cannot be read, as after a power failure while it was written."""
        try:
            return read_record_in(self._place, self._plan)
        except CorruptionError:
            return None

    def begin(self, plan: dict[str, Any]) -> None:
        """Record what is to be done. Records of another plan are removed first."""
        self._remove_records()
        self._remove(self._plan)
        self._create(self._plan, plan)

    def done(self, bucket: int) -> dict[str, Any] | None:
        """The record of a new bucket; None if it is not complete. A damaged record does not
        count."""
        path = self._record(bucket)
        try:
            return read_record_in(self._place, path)
        except CorruptionError:
            self._remove(path)
            return None

    def note(self, bucket: int, record: dict[str, Any]) -> None:
        """Record that a new bucket is complete."""
        self._create(self._record(bucket), record)

    def give_up(self, buckets: Iterable[int]) -> None:
        """Delete what was begun, among it these buckets. The plan goes last, so that this can be
        continued after an interruption."""
        self._remove_records()
        for bucket in buckets:
            self.check_owned()
            self._place.remove_bucket(bucket)
        self._remove(self._plan)

    def end(self) -> None:
        """Remove the records. The plan goes first: that ends a switch."""
        self._remove(self._plan)
        self._asked(self._place.files.below(self._name).remove_tree)

    def _path(self, name: str) -> str:
        return f"{self._name}/{name}"

    def _record(self, bucket: int) -> str:
        return self._path(bucket_directory_name(bucket) + _RECORD_END)

    def _create(self, path: str, content: dict[str, Any]) -> None:
        self.check_owned()
        if not create_record_in(self._place, path, content, sync=True):
            raise InvalidArgumentError(
                f"another rescale of {self._place.where} is running: {path} exists already; run "
                "one at a time"
            )

    def _remove_records(self) -> None:
        for name in self._asked(self._place.files.below(self._name).sizes):
            path = self._path(name)
            if name.endswith(_RECORD_END) and path != self._plan:
                self._remove(path)

    def _remove(self, path: str) -> None:
        self.check_owned()
        remove_if_there(self._place.files, path)

    def _asked(self, request: Callable[[], _Result]) -> _Result:
        return retried(request, f"working on {self._place.where}/{self._name}")
