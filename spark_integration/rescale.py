"""Another number of buckets for a query that is stopped: its state is written anew beside the old.

    read the pointers of the last micro-batch -> fill one new bucket after another -> switch

The new buckets have ids that were never used, so Spark has no state for them; the pointers they
begin with stand in the new settings, ``query-0002.json``. Creating that file is the switch: until
then nothing that the query reads has changed, and the old buckets stay until ``drop_original``.

Each new bucket that is done is recorded, so a run that was killed goes on where it was. The order
of a key's rows is kept where they lie in one old bucket: they are read and appended in that order.
(By several keys, rows of one index come from several buckets; equal rows still from one.)
"""

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from cython_ext.file import remove
from lsmstate.directory_lock import DirectoryLock
from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.options import Options, parse_bytes
from spark_integration.buckets import bucket_directory_name, bucket_ids
from spark_integration.checkpoint import SparkCheckpoint
from spark_integration.pinned import STATE_NAME, Pinned, file_name, newest_settings
from spark_integration.query_state import QueryState
from spark_integration.records import create_record, read_record
from spark_integration.rescale_fill import Contents, fill, misplaced
from spark_integration.rescale_places import GridPlaces
from spark_integration.rescale_plan import (
    check_can_move,
    check_rules,
    check_wanted,
    new_places,
    new_shares,
    planned_places,
)

_MOST_BUCKETS: Final = 4096
_PLAN: Final = "plan.json"


@dataclass(frozen=True, slots=True)
class Rescaled:
    """What was done: buckets before and after, rows that were written anew by this call."""

    buckets_before: int
    buckets: int
    rows: int


def rescale(
    checkpoint: str,
    buckets: int,
    *,
    state_dir: str | None = None,
    shares: Mapping[str, int] | None = None,
    memory: int | str = "64m",
    report: Callable[[str], None] = lambda _: None,
) -> Rescaled:
    """Give the stopped query of a checkpoint ``buckets`` buckets; it goes on exactly where it was.

    Killed at any instant, the same call goes on. Nothing is done if the query has that number
    already. The old state stays: ``undo_rescale`` goes back as long as no micro-batch has been
    committed since, ``drop_original`` deletes it. ``memory`` caps what the stores take;
    ``report`` is told of each step.

    A join by several keys gets a new grid, chosen by how many rows its streams have. Where its
    query says ``shares``, those for the new buckets have to be said here, and by the query then.

    InvalidArgumentError, with nothing changed: the query runs or a micro-batch of it was broken
    off, it has no committed micro-batch, or its backend is not ``lsm``. So too a stateful_batches
    whose function keeps rows under other keys than those of its inputs, or has only one bucket,
    where that cannot be told; or whose state forgets by rules of its own.
    Cost: an old bucket is read once for each new one that takes keys from it (by several keys: for
    each new one, and once to count), the state is written once; disk for two states. Spark is not
    needed.
    """
    if not 1 <= buckets <= _MOST_BUCKETS:
        raise InvalidArgumentError(f"buckets={buckets}: must be from 1 to {_MOST_BUCKETS}")
    options = Options(memory_bytes=parse_bytes(memory), sync="commit")
    state = _State.of(checkpoint, state_dir)
    before = state.pinned
    check_wanted(state.root, state.settings, shares)
    if before.buckets == buckets:
        _remove_tree(state.work_directory(before.version))
        return Rescaled(before.buckets, buckets, 0)
    batch_id = _last_batch(state)
    work = state.work_directory(before.version + 1)
    os.makedirs(work, exist_ok=True)
    lock = DirectoryLock(work)
    try:
        plan = _begin(state, work, batch_id, buckets, shares, report)
        rows = _fill(state, work, plan, options, report)
        _switch(state, work, plan, batch_id)
    finally:
        lock.release()
        if not os.path.exists(os.path.join(work, _PLAN)):
            _remove_tree(work)
    _remove_tree(work)
    return Rescaled(before.buckets, buckets, rows)


def undo_rescale(checkpoint: str, *, state_dir: str | None = None) -> int:
    """Give up a rescale that is not finished, or take back the last one; returns the number of
    buckets the query has now. InvalidArgumentError if a micro-batch was committed since then, if
    the original was dropped, or if there is nothing to undo."""
    state = _State.of(checkpoint, state_dir)
    version = state.pinned.version
    work = state.work_directory(version + 1)
    if os.path.isdir(work):
        _give_up(state, work)
        return state.pinned.buckets
    if version == 1:
        raise InvalidArgumentError(f"{state.root} was never rescaled: there is nothing to undo")
    committed = state.spark.check_batch(None)
    if committed >= state.pinned.first_batch:
        raise InvalidArgumentError(
            f"micro-batch {committed} was committed with {state.pinned.buckets} buckets, the "
            "original ends before it; rescale to the former number instead"
        )
    origin = state.settings["rescaled"]["original"]
    missing = [bucket for bucket in map(int, origin) if not os.path.isdir(state.bucket(bucket))]
    if missing:
        raise InvalidArgumentError(f"the original was dropped: {state.bucket(missing[0])} is gone")
    remove(os.path.join(state.root, file_name(version)))
    for bucket in state.pinned.bucket_ids:
        _remove_tree(state.bucket(bucket))
    return _State.of(checkpoint, state_dir).pinned.buckets


def drop_original(checkpoint: str, *, state_dir: str | None = None) -> int:
    """Delete the buckets that a rescale has replaced; returns how many bytes that freed."""
    state = _State.of(checkpoint, state_dir)
    if os.path.isdir(state.work_directory(state.pinned.version + 1)):
        raise InvalidArgumentError(
            f"a rescale of {state.root} is not finished; finish it or give it up by --undo first"
        )
    kept = {bucket_directory_name(bucket) for bucket in state.pinned.bucket_ids}
    freed = 0
    for entry in os.scandir(state.root):
        if entry.is_dir() and entry.name.startswith("bucket-") and entry.name not in kept:
            freed += sum(file.stat().st_size for file in os.scandir(entry.path) if file.is_file())
            shutil.rmtree(entry.path)
    return freed


@dataclass(frozen=True, slots=True)
class _State:
    """The state of one query as its newest settings have it."""

    spark: SparkCheckpoint
    root: str
    settings: Mapping[str, Any]
    pinned: Pinned

    @classmethod
    def of(cls, checkpoint: str, state_dir: str | None) -> "_State":
        for place in filter(None, (checkpoint, state_dir)):
            if "://" in place:
                raise InvalidArgumentError(
                    f"{place} is not a local path; rescale works on local files: bring the "
                    "checkpoint and its state to a local directory, and back when it is done"
                )
        spark = SparkCheckpoint(checkpoint)
        root = os.path.abspath(state_dir or os.path.join(checkpoint, STATE_NAME))
        version, settings = newest_settings(root)
        if settings is None:
            raise InvalidArgumentError(
                f"{root} holds no query's state; name the checkpoint location, and with "
                "--state-dir the state_dir if the query was started with one"
            )
        owner = spark.query_id()
        if settings["query_id"] != owner:
            raise InvalidArgumentError(
                f"the state in {root} belongs to query {settings['query_id']}, the checkpoint "
                f"{checkpoint} to query {owner}; name the two of one query"
            )
        check_can_move(root, settings)
        pinned = Pinned.of(settings, version)
        return cls(spark, root, settings, pinned)

    def bucket(self, bucket: int) -> str:
        return os.path.join(self.root, bucket_directory_name(bucket))

    def work_directory(self, version: int) -> str:
        return os.path.join(self.root, f"rescale-{version:04d}")

    def used_ids(self) -> set[int]:
        """All bucket ids any version has had: Spark may keep state for them."""
        used: set[int] = set()
        for version in range(1, self.pinned.version + 1):
            settings = read_record(os.path.join(self.root, file_name(version)))
            used |= set(settings["bucket_ids"]) if settings else set()
        return used


def _last_batch(state: _State) -> int:
    """The last micro-batch, if the query stands right after it."""
    begun = state.spark.begun()
    if begun[-1:] != state.spark.committed()[-1:]:
        raise InvalidArgumentError(
            f"micro-batch {begun[-1]} of {state.spark.location} is under way or was broken off; "
            "let the query finish it (start it with trigger(availableNow=True)), then stop it and "
            "try again"
        )
    batch_id = begun[-1]
    if batch_id < state.pinned.first_batch - 1:
        raise InvalidArgumentError(
            f"the query stands at micro-batch {batch_id}, before it was rescaled to "
            f"{state.pinned.buckets} buckets; take that back by --undo first"
        )
    return batch_id


def _begin(
    state: _State,
    work: str,
    batch_id: int,
    buckets: int,
    shares: Mapping[str, int] | None,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """The plan of this rescale: the one that was begun, if it still fits, or a new one."""
    path = os.path.join(work, _PLAN)
    plan = read_record(path)
    asked = (batch_id, buckets, shares)
    # A release before this one had no grids: what it began is given up.
    if plan is not None and (plan["batch"], plan["buckets"], plan.get("forced", ())) == asked:
        report(f"going on with the rescale to {buckets} buckets after micro-batch {batch_id}")
        return plan
    if plan is not None:
        report(
            f"giving up a rescale to {plan['buckets']} buckets after micro-batch {plan['batch']}"
        )
        _clear(state, work, plan)
    original = state.pinned.pointers
    if batch_id >= state.pinned.first_batch:
        original = QueryState.open(state.spark.location, batch_id, state.root).pointers
    ids = bucket_ids(buckets, state.pinned.partitions, taken=state.used_ids())
    places = new_places(state.root, state.settings, state.pinned, original, buckets, shares)
    plan = {
        "batch": batch_id,
        "buckets": buckets,
        "forced": shares,
        "shares": places.after.to_json() if isinstance(places, GridPlaces) else None,
        "bucket_ids": list(ids),
        "original buckets": list(state.pinned.bucket_ids),
        "original": {str(bucket): pointer for bucket, pointer in original.items()},
    }
    create_record(path, plan, sync=True)
    return plan


def _fill(
    state: _State,
    work: str,
    plan: Mapping[str, Any],
    options: Options,
    report: Callable[[str], None],
) -> int:
    """Write every new bucket that is not written yet; returns the rows of those."""
    original = {int(bucket): pointer for bucket, pointer in plan["original"].items()}
    contents = Contents.of(state.root, original)
    check_rules(state.settings, contents)
    places = planned_places(state.settings, state.pinned, contents, plan)
    written = 0
    records = []
    for number, target in enumerate(plan["bucket_ids"]):
        record = os.path.join(work, f"{bucket_directory_name(target)}.json")
        done = read_record(record)
        if done is None:
            _remove_tree(state.bucket(target))
            try:
                done = fill(state.root, plan, contents, number, places, options)
            except InvalidArgumentError:
                _clear(state, work, plan)  # which no later call could finish
                raise
            create_record(record, done, sync=True)
            written += done["rows"]
            report(f"bucket {number + 1} of {plan['buckets']}: {done['rows']:,} rows")
        records.append(done)
    wrong = misplaced(records, places)
    if wrong is not None:
        raise CorruptionError(
            f"{wrong}; the original is as it was: check it with lsmstate verify", state.root
        )
    return written


def _switch(state: _State, work: str, plan: Mapping[str, Any], batch_id: int) -> None:
    """Create the new settings, unless the query has gone on meanwhile."""
    _check_unmoved(state, batch_id)
    records = {
        id_: read_record(os.path.join(work, f"{bucket_directory_name(id_)}.json"))
        for id_ in plan["bucket_ids"]
    }
    pointers = {
        str(bucket): done["pointer"]
        for bucket, done in records.items()
        if done is not None and done["pointer"] is not None
    }
    settings = {
        **state.settings,
        "buckets": plan["buckets"],
        "bucket_ids": plan["bucket_ids"],
        **new_shares(state.settings, plan),
        "rescaled": {
            "first batch": batch_id + 1,
            "pointers": pointers,
            "original": plan["original"],
        },
    }
    path = os.path.join(state.root, file_name(state.pinned.version + 1))
    create_record(path, settings, sync=True)
    try:
        # Spark notes a micro-batch before its first task: none has seen old and new settings.
        _check_unmoved(state, batch_id)
    except InvalidArgumentError:
        remove(path)
        raise


def _check_unmoved(state: _State, batch_id: int) -> None:
    begun = state.spark.begun()[-1]
    if begun != batch_id:
        raise InvalidArgumentError(
            f"the query runs: it began micro-batch {begun} while its state after micro-batch "
            f"{batch_id} was written anew; stop it and try again"
        )


def _give_up(state: _State, work: str) -> None:
    lock = DirectoryLock(work)
    try:
        plan = read_record(os.path.join(work, _PLAN))
        if plan is not None:
            _clear(state, work, plan)
    finally:
        lock.release()
    _remove_tree(work)


def _clear(state: _State, work: str, plan: Mapping[str, Any]) -> None:
    """Undo a rescale that was begun: its plan goes last, so that this can be broken off too."""
    for bucket in plan["bucket_ids"]:
        record = os.path.join(work, f"{bucket_directory_name(bucket)}.json")
        if os.path.exists(record):
            remove(record)
        _remove_tree(state.bucket(bucket))
    remove(os.path.join(work, _PLAN))


def _remove_tree(path: str) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
