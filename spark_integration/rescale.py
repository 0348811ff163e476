"""Another number of buckets for a query that is stopped: its state is written anew beside the old.

    read the pointers of the last micro-batch -> fill one new bucket after another -> switch

The new buckets have ids that were never used, so Spark has no state for them; the pointers they
begin with stand in the new settings, ``query-0002.json``. Creating that file is the switch: until
then nothing that the query reads has changed, and the old buckets stay until ``drop_original``.

Each new bucket that is done is recorded, so a run that was killed goes on where it was. The order
of a key's rows is kept where they lie in one old bucket: they are read and appended in that order.
(By several keys, rows of one index come from several buckets; equal rows still from one.)

State may lie wherever queries keep it. Elsewhere than on a local path buckets are read and written
through copies on this machine's disk, as commits do it, and sent when they are complete.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.options import Options, parse_bytes
from lsmstate.retries import retried
from lsmstate.state_place import DEFAULT_CACHE, StatePlace
from spark_integration.buckets import bucket_ids
from spark_integration.checkpoint import SparkCheckpoint, below
from spark_integration.pinned import STATE_NAME, Pinned, file_name, newest_settings
from spark_integration.query_state import QueryState
from spark_integration.records import create_record_in, read_record_in
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
from spark_integration.rescale_work import RescaleWork

_MOST_BUCKETS: Final = 4096


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
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | None = None,
    cache: int | str = DEFAULT_CACHE,
    report: Callable[[str], None] = lambda _: None,
) -> Rescaled:
    """Give the stopped query of a checkpoint ``buckets`` buckets; it goes on exactly where it was.

    Killed at any instant, the same call goes on. Nothing is done if the query has that number
    already. The old state stays: ``undo_rescale`` goes back as long as no micro-batch has been
    committed since, ``drop_original`` deletes it. ``memory`` caps what the stores take;
    ``report`` is told of each step.

    Checkpoint and state_dir are local or on any file system of ``lsmstate.filesystems``, to which
    ``storage_options`` go; ``cache_dir`` and ``cache`` are as a ``StatePlace`` has them.

    A join by several keys gets a new grid, chosen by how many rows its streams have. Where its
    query says ``shares``, those for the new buckets have to be said here, and by the query then.

    InvalidArgumentError, with nothing changed: the query runs or a micro-batch of it was broken
    off, it has no committed micro-batch, or its backend is not ``lsm``. So too a stateful_batches
    whose function keeps rows under other keys than those of its inputs, or has only one bucket,
    where that cannot be told; or whose state forgets by rules of its own. OSError if a request
    failed several times: the same call goes on.
    Cost: an old bucket is read once for each new one that takes keys from it (by several keys: for
    each new one, and once to count), the state is written once; disk for two states. Elsewhere
    each old file is fetched once where the copies have room for all, each new bucket is sent once.
    Spark is not needed.
    """
    if not 1 <= buckets <= _MOST_BUCKETS:
        raise InvalidArgumentError(f"buckets={buckets}: must be from 1 to {_MOST_BUCKETS}")
    options = Options(memory_bytes=parse_bytes(memory), sync="commit")
    state = _State.of(checkpoint, state_dir, storage_options, cache_dir, cache)
    before = state.pinned
    check_wanted(state.place.where, state.settings, shares)
    state.work(before.version).end()  # where a run was killed right after the switch
    if before.buckets == buckets:
        return Rescaled(before.buckets, buckets, 0)
    batch_id = _last_batch(state)
    work = state.work(before.version + 1)
    with work.owned():
        _check_newest(state.place, before.version)
        plan = _begin(state, work, batch_id, buckets, shares, report)
        rows, records = _fill(state, work, plan, options, report)
        _switch(state, work, plan, records)
        work.end()
    return Rescaled(before.buckets, buckets, rows)


def undo_rescale(
    checkpoint: str,
    *,
    state_dir: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Give up a rescale that is not finished, or take back the last one; returns the number of
    buckets the query has now. InvalidArgumentError if a micro-batch was committed since then, if
    the original was dropped, or if there is nothing to undo."""
    state = _State.of(checkpoint, state_dir, storage_options)
    version = state.pinned.version
    work = state.work(version + 1)
    if work.exists():
        _give_up(work, state.place, version)
        return state.pinned.buckets
    if version == 1:
        raise InvalidArgumentError(
            f"{state.place.where} was never rescaled: there is nothing to undo"
        )
    committed = state.spark.check_batch(None)
    if committed >= state.pinned.first_batch:
        raise InvalidArgumentError(
            f"micro-batch {committed} was committed with {state.pinned.buckets} buckets, the "
            "original ends before it; rescale to the former number instead"
        )
    missing = set(map(int, state.settings["rescaled"]["original"])) - set(state.place.buckets())
    if missing:
        raise InvalidArgumentError(
            f"the original was dropped: bucket {min(missing)} of {state.place.where} is gone"
        )
    state.withdraw(version)
    done = state.work(version)
    if done.exists():  # killed right after the switch: its records would be taken for a beginning
        _give_up(done, state.place, version - 1)
    for bucket in state.pinned.bucket_ids:
        state.place.remove_bucket(bucket)
    return _State.of(checkpoint, state_dir, storage_options).pinned.buckets


def drop_original(
    checkpoint: str,
    *,
    state_dir: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Delete the buckets that a rescale has replaced; returns how many bytes that freed."""
    state = _State.of(checkpoint, state_dir, storage_options)
    if state.work(state.pinned.version + 1).exists():
        raise InvalidArgumentError(
            f"a rescale of {state.place.where} is not finished; finish it or give it up by --undo "
            "first"
        )
    state.work(state.pinned.version).end()
    replaced = set(state.place.buckets()) - set(state.pinned.bucket_ids)
    return sum(map(state.place.remove_bucket, sorted(replaced)))


@dataclass(frozen=True, slots=True)
class _State:
    """The state of one query as its newest settings have it."""

    spark: SparkCheckpoint
    place: StatePlace
    settings: Mapping[str, Any]
    pinned: Pinned
    storage_options: Mapping[str, Any] | None = field(repr=False)

    @classmethod
    def of(
        cls,
        checkpoint: str,
        state_dir: str | None,
        storage_options: Mapping[str, Any] | None,
        cache_dir: str | None = None,
        cache: int | str = DEFAULT_CACHE,
    ) -> "_State":
        spark = SparkCheckpoint(checkpoint, storage_options)
        place = StatePlace(
            state_dir or below(checkpoint, STATE_NAME),
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache=cache,
        )
        version, settings = _whole_settings(place, spark)
        if settings is None:
            raise InvalidArgumentError(
                f"{place.where} holds no query's state; name the checkpoint location, and with "
                "--state-dir the state_dir if the query was started with one"
            )
        owner = spark.query_id()
        if settings["query_id"] != owner:
            raise InvalidArgumentError(
                f"the state in {place.where} belongs to query {settings['query_id']}, the "
                f"checkpoint {checkpoint} to query {owner}; name the two of one query"
            )
        check_can_move(place.where, settings)
        return cls(spark, place, settings, Pinned.of(settings, version), storage_options)

    def work(self, version: int) -> RescaleWork:
        """The rescale to a version of the settings."""
        return RescaleWork(self.place, version)

    def withdraw(self, version: int) -> None:
        """Take a version of the settings away."""
        _withdraw(self.place, version)

    def pointers(self, batch_id: int) -> Mapping[int, str]:
        """Of each bucket, after the last micro-batch."""
        if batch_id < self.pinned.first_batch:
            return self.pinned.pointers
        location, options = self.spark.location, self.storage_options
        return QueryState.open(location, batch_id, self.place.url, options).pointers

    def used_ids(self) -> set[int]:
        """All bucket ids any version has had: Spark may keep state for them."""
        used: set[int] = set()
        for version in range(1, self.pinned.version + 1):
            settings = read_record_in(self.place, file_name(version))
            used |= set(settings["bucket_ids"]) if settings else set()
        return used


def _whole_settings(place: StatePlace, spark: SparkCheckpoint) -> tuple[int, dict[str, Any] | None]:
    """The newest. Elsewhere than on a local path a run may have died over writing them: those of a
    switch that was not finished are taken away, unless a micro-batch was begun since."""
    try:
        return newest_settings(place)
    except CorruptionError:
        names = retried(place.files.sizes, f"listing {place.where}")
        version = 1
        while file_name(version + 1) in names:
            version += 1
        plan = RescaleWork(place, version).plan()
        if plan is None or plan["batch"] != spark.begun()[-1]:
            raise
        _withdraw(place, version)
        return newest_settings(place)


def _withdraw(place: StatePlace, version: int) -> None:
    name = file_name(version)
    retried(partial(place.files.remove, name), f"deleting {place.where}/{name}")


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
    work: RescaleWork,
    batch_id: int,
    buckets: int,
    shares: Mapping[str, int] | None,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """The plan of this rescale: the one that was begun, if it still fits, or a new one."""
    plan = work.plan()
    asked = (batch_id, buckets, shares)
    # A release before this one had no grids: what it began is given up.
    if plan is not None and (plan["batch"], plan["buckets"], plan.get("forced", ())) == asked:
        report(f"going on with the rescale to {buckets} buckets after micro-batch {batch_id}")
        return plan
    if plan is not None:
        report(
            f"giving up a rescale to {plan['buckets']} buckets after micro-batch {plan['batch']}"
        )
        work.give_up(plan)
    original = state.pointers(batch_id)
    ids = bucket_ids(buckets, state.pinned.partitions, taken=state.used_ids())
    places = new_places(state.place, state.settings, state.pinned, original, buckets, shares)
    plan = {
        "batch": batch_id,
        "buckets": buckets,
        "forced": shares,
        "shares": places.after.to_json() if isinstance(places, GridPlaces) else None,
        "bucket_ids": list(ids),
        "original buckets": list(state.pinned.bucket_ids),
        "original": {str(bucket): pointer for bucket, pointer in original.items()},
    }
    work.begin(plan)
    return plan


def _fill(
    state: _State,
    work: RescaleWork,
    plan: Mapping[str, Any],
    options: Options,
    report: Callable[[str], None],
) -> tuple[int, list[dict[str, Any]]]:
    """Write every new bucket that is not written yet: the rows of those, and the records of all."""
    original = {int(bucket): pointer for bucket, pointer in plan["original"].items()}
    contents = Contents.of(state.place, original)
    check_rules(state.settings, contents)
    places = planned_places(state.settings, state.pinned, contents, plan)
    written = 0
    records: list[dict[str, Any]] = []
    for number, target in enumerate(plan["bucket_ids"]):
        done = work.done(target)
        if done is None:
            work.check_owned()
            state.place.remove_bucket(target)
            try:
                done = fill(state.place, plan, contents, number, places, options)
            except InvalidArgumentError:
                work.give_up(plan)  # which no later call could finish
                raise
            work.note(target, done)
            written += done["rows"]
            report(f"bucket {number + 1} of {plan['buckets']}: {done['rows']:,} rows")
        records.append(done)
    wrong = misplaced(records, places)
    if wrong is not None:
        raise CorruptionError(
            f"{wrong}; the original is as it was: check it with lsmstate verify",
            state.place.where,
        )
    return written, records


def _switch(
    state: _State, work: RescaleWork, plan: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> None:
    """Create the new settings, unless the query has gone on meanwhile. A bucket without rows has
    no pointer."""
    batch_id = plan["batch"]
    pointers = {
        str(bucket): done["pointer"]
        for bucket, done in zip(plan["bucket_ids"], records, strict=True)
        if done["pointer"] is not None
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
    version = state.pinned.version + 1
    _check_unmoved(state, work, batch_id)
    if not create_record_in(state.place, file_name(version), settings, sync=True):
        raise _done_meanwhile(state.place)
    try:
        # Spark notes a micro-batch before its first task: none has seen old and new settings.
        _check_unmoved(state, work, batch_id)
    except (InvalidArgumentError, OSError):
        state.withdraw(version)
        raise


def _check_unmoved(state: _State, work: RescaleWork, batch_id: int) -> None:
    work.check_owned()
    begun = state.spark.begun()[-1]
    if begun != batch_id:
        raise InvalidArgumentError(
            f"the query runs: it began micro-batch {begun} while its state after micro-batch "
            f"{batch_id} was written anew; stop it and try again"
        )


def _give_up(work: RescaleWork, place: StatePlace, version: int) -> None:
    """Delete what was begun on top of that version of the settings."""
    with work.owned():
        _check_newest(place, version)
        plan = work.plan()
        if plan is not None:
            work.give_up(plan)
        work.end()


def _check_newest(place: StatePlace, version: int) -> None:
    """Once the work is one's own: its buckets may be those of a rescale that ended just before."""
    if newest_settings(place)[0] != version:
        raise _done_meanwhile(place)


def _done_meanwhile(place: StatePlace) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"another rescale of {place.where} was done meanwhile; see what it made of it (lsmstate "
        "state), and try again"
    )
