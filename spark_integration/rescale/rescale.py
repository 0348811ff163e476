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
from dataclasses import dataclass
from typing import Any, Final

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.options import Options, parse_bytes
from lsmstate.spark_integration.plan.bucket_ids import bucket_ids
from lsmstate.spark_integration.rescale.fill import Contents, fill, misplaced
from lsmstate.spark_integration.rescale.places import GridPlaces
from lsmstate.spark_integration.rescale.plan import (
    FORCED,
    check_rules,
    check_wanted,
    new_places,
    new_shares,
    planned_places,
)
from lsmstate.spark_integration.rescale.stopped_query import QueryHome, StoppedQuery
from lsmstate.spark_integration.rescale.switch import (
    check_base,
    drop,
    give_up,
    settle,
    switch,
    take_back,
)
from lsmstate.spark_integration.rescale.work import RescaleWork
from lsmstate.state_location import DEFAULT_CACHE

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
    begun since, ``drop_original`` deletes it. ``memory`` caps what the stores take;
    ``report`` is told of each step.

    Checkpoint and state_dir are local or on any file system of ``lsmstate.remote.filesystems``, to
    which ``storage_options`` go; ``cache_dir`` and ``cache`` are as a ``StatePlace`` has them.

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
    home = QueryHome.of(checkpoint, state_dir, storage_options, cache_dir, cache)
    settle(home)
    state = home.newest()
    before = state.pinned
    check_wanted(home.place.where, state.settings, shares)
    has_them = (state.settings.get(FORCED) or None) == (shares or None)
    if before.buckets == buckets and has_them:
        return Rescaled(before.buckets, buckets, 0)
    batch_id = state.last_batch()
    work = home.work(before.version + 1)
    with work.owned():
        check_base(home, before.version)
        plan = _begin(state, work, batch_id, buckets, shares, report)
        rows, records = _fill(state, work, plan, options, report)
        switch(state, work, batch_id, _new_settings(state, plan, records))
    return Rescaled(before.buckets, buckets, rows)


def undo_rescale(
    checkpoint: str,
    *,
    state_dir: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Give up a rescale that is not finished, or take back the last one; returns the number of
    buckets the query has now. Killed at any instant, the same call goes on; if it had just ended,
    and two rescales were done without a micro-batch between, it takes the earlier one back too.
    InvalidArgumentError, with nothing changed, if a micro-batch was begun since then, if the
    original was dropped or is being dropped, or if there is nothing to undo. CorruptionError, with
    nothing changed, if earlier settings are damaged."""
    home = QueryHome.of(checkpoint, state_dir, storage_options)
    version = home.newest_version()
    if home.work(version + 1).exists():
        give_up(home, version)
    elif version == 1:
        raise InvalidArgumentError(
            f"{home.place.where} was never rescaled: there is nothing to undo"
        )
    else:
        take_back(home, version)
    return home.newest().pinned.buckets


def drop_original(
    checkpoint: str,
    *,
    state_dir: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Delete the buckets that a rescale has replaced; returns how many bytes that freed. Killed at
    any instant, the same call goes on. InvalidArgumentError, with nothing deleted, while a rescale
    is not finished, or is being taken back."""
    return drop(QueryHome.of(checkpoint, state_dir, storage_options))


def _begin(
    state: StoppedQuery,
    work: RescaleWork,
    batch_id: int,
    buckets: int,
    shares: Mapping[str, int] | None,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """The plan of this rescale: the one that was begun, if it still fits, or a new one."""
    plan = work.plan()
    original = state.pointers(batch_id)
    asked = {
        "batch": batch_id,
        "buckets": buckets,
        "forced": dict(shares) if shares else None,
        "original": {str(bucket): pointer for bucket, pointer in original.items()},
    }
    # One that is being taken back has none of these, one of an earlier release no "forced".
    if plan is not None and asked.items() <= plan.items():
        report(f"going on with the rescale to {buckets} buckets after micro-batch {batch_id}")
        return plan
    if plan is not None:
        report("giving up another rescale that was not finished")
        work.give_up(state.home.unnamed_buckets())
    taken = state.home.named_buckets(state.pinned.version)
    ids = bucket_ids(buckets, state.pinned.partitions, taken=taken)
    places = new_places(state.place, state.settings, state.pinned, original, buckets, shares)
    plan = {
        **asked,
        "shares": places.after.to_json() if isinstance(places, GridPlaces) else None,
        "bucket_ids": list(ids),
        "original buckets": list(state.pinned.bucket_ids),
    }
    work.begin(plan)
    return plan


def _fill(
    state: StoppedQuery,
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
                work.give_up(state.home.unnamed_buckets())  # which no later call could finish
                raise
            work.note(target, done)
            written += done["rows"]
            report(f"bucket {number + 1} of {plan['buckets']}: {done['rows']:,} rows")
        records.append(done)
    wrong = misplaced(records, places, [stream.name for stream in contents.late])
    if wrong is not None:
        raise CorruptionError(
            f"{wrong}; the original is as it was: check it with lsmstate verify",
            state.place.where,
        )
    return written, records


def _new_settings(
    state: StoppedQuery, plan: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A bucket without rows has no pointer."""
    pointers = {
        str(bucket): done["pointer"]
        for bucket, done in zip(plan["bucket_ids"], records, strict=True)
        if done["pointer"] is not None
    }
    return {
        **state.settings,
        "buckets": plan["buckets"],
        "bucket_ids": plan["bucket_ids"],
        **new_shares(state.settings, plan),
        "rescaled": {
            "first batch": plan["batch"] + 1,
            "pointers": pointers,
            "original": plan["original"],
        },
    }
