"""What a rescale notes of itself while it is under way, in ``rescale-<version>/`` beside the state.

    plan.json          what is to be done, for whoever goes on
    bucket-<id>.json   of each new bucket that is complete: see ``rescale_fill.fill``
    OWNER              elsewhere than on a local path: who works on it

One process works on it. A local directory is locked. Other file systems have no lock that goes with
its process: there whoever came last owns it, and one that was before, and still runs, notices
before it records, deletes or switches anything more.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from lsmstate.directory_lock import DirectoryLock
from lsmstate.errors import CorruptionError, InvalidArgumentError, LsmStateError
from lsmstate.retries import retried
from lsmstate.state_place import StatePlace
from spark_integration.buckets import bucket_directory_name
from spark_integration.records import create_record_in, read_record_in

_PLAN: Final = "plan.json"
_OWNER: Final = "OWNER"

_Result = TypeVar("_Result")


class RescaleWork:
    """Of the rescale to one version of the settings. OSError where a request fails."""

    def __init__(self, place: StatePlace, version: int) -> None:
        self._place = place
        self._name = f"rescale-{version:04d}"
        self._id = uuid.uuid4().hex.encode()

    def exists(self) -> bool:
        """Whether one was begun, and not ended."""
        return self._name in self._asked(self._place.files.directories)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """While the work is this process's; a refusal before there is a plan leaves nothing of it.
        StoreLockedError if it is another's that is alive, of a local state."""
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
                f"another rescale of {self._place.where} has begun, which goes on where this one "
                "was; let it finish"
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
        """None if there is none yet."""
        return self._read(_PLAN)

    def begin(self, plan: dict[str, Any]) -> None:
        """Note what is to be done."""
        self._create(_PLAN, plan)

    def done(self, bucket: int) -> dict[str, Any] | None:
        """The record of a new bucket, None if it is not complete."""
        return self._read(f"{bucket_directory_name(bucket)}.json")

    def note(self, bucket: int, record: dict[str, Any]) -> None:
        """A new bucket is complete."""
        self._create(f"{bucket_directory_name(bucket)}.json", record)

    def give_up(self, plan: Mapping[str, Any]) -> None:
        """Undo what was begun: its plan goes last, so that this can be broken off too."""
        self.check_owned()
        files, buckets = self._place.files, self._place.buckets()
        records = self._asked(files.below(self._name).sizes)
        for bucket in plan["bucket_ids"]:
            self.check_owned()
            record = f"{bucket_directory_name(bucket)}.json"
            if record in records:
                self._asked(partial(files.remove, self._path(record)))
            if bucket in buckets:
                self._place.remove_bucket(bucket)
        self._asked(partial(files.remove, self._path(_PLAN)))

    def end(self) -> None:
        """Nothing of it is needed any more."""
        self._asked(self._place.files.below(self._name).remove_tree)

    def _path(self, name: str) -> str:
        return f"{self._name}/{name}"

    def _create(self, name: str, content: dict[str, Any]) -> None:
        self.check_owned()
        if not create_record_in(self._place, self._path(name), content, sync=True):
            raise InvalidArgumentError(
                f"another rescale of {self._place.where} is at work too: {self._path(name)} is "
                "there already; run one alone"
            )

    def _read(self, name: str) -> dict[str, Any] | None:
        """Elsewhere the machine may have died over a file: then it was not written."""
        try:
            return read_record_in(self._place, self._path(name))
        except CorruptionError:
            if self._place.local_directory is not None:
                raise
            self._asked(partial(self._place.files.remove, self._path(name)))
            return None

    def _asked(self, request: Callable[[], _Result]) -> _Result:
        return retried(request, f"working on {self._place.where}/{self._name}")
