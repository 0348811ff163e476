"""Rescale the state of a stopped query to another number of buckets.

    read the pointers of the last micro-batch -> fill one new bucket after another -> switch

- The new buckets have ids that were never used, so Spark has no state for them. The pointers they
  begin with stand in the new settings, ``query-0002.json``.
- Creating that file is the switch. Before it, nothing that the query reads has changed. The
  original buckets stay until ``drop_original``.
- Each complete new bucket is recorded, so a killed run continues where it was.
- Rows of a key keep their order within one original bucket, because they are read and appended in
  that order. In a join by several keys, rows of one index come from several buckets; equal rows
  still come from one.
- State may lie on any supported file system. Remote buckets are read and written through copies on
  the local disk, as commits do, and are sent when they are complete.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.options import JoinOptions, Options, parse_bytes
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
    """The result of a rescale.

    Attributes:
        buckets_before: Number of buckets before.
        buckets: Number of buckets now.
        rows: Rows that this call wrote into new buckets.
    """

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
    """Give a stopped query another number of buckets; it then continues exactly where it was.

    A killed call is continued by the same call. Nothing happens if the query has that number
    already. The original state stays: ``undo_rescale`` goes back to it as long as no micro-batch
    has begun since, and ``drop_original`` deletes it. Spark is not needed.

    Args:
        checkpoint: Checkpoint location of the query: a local path, or an address on a supported
            file system (S3, GCS, ABFS, HDFS).
        buckets: The new number of buckets, 1 to 4096.
        state_dir: The ``state_dir`` of the query, if it was started with one.
        shares: Buckets per key for the new number, if the query was started with ``shares``. Start
            it with the same ones afterwards. Otherwise a join by several keys gets a new grid,
            chosen by how many rows its streams have.
        memory: Cap of what the stores of this call hold in memory.
        storage_options: Options of the file systems of ``checkpoint`` and ``state_dir``.
        cache_dir: Local directory for copies of remote files.
        cache: Most bytes of these copies.
        report: Function that is called with a line of text for each step.

    Returns:
        The numbers of buckets before and after, and the number of rows written.

    Raises:
        InvalidArgumentError: Nothing has changed, and the message says why: the query runs, a
            micro-batch of it was interrupted, it has no committed micro-batch, or its backend is
            not "lsm". A ``stateful_batches`` is refused if its function stores rows under other
            keys than those of its inputs, if that is unknown because it has one bucket, or if its
            state has expiry rules.
        OSError: A request to a remote file system failed several times. The same call continues.

    Cost:
        Each original bucket is read once per new bucket that takes keys from it. In a join by
        several keys that is each new bucket, and one more read counts the rows. The state is
        written once. Disk for two states is needed. On a remote file system each original file is
        fetched once if the copies have room, and each new bucket is sent once.

    Example:
        ```python
        rescale("/data/checkpoint", 16, report=print)
        ```
    """
    if not 1 <= buckets <= _MOST_BUCKETS:
        raise InvalidArgumentError(f"buckets={buckets}: must be from 1 to {_MOST_BUCKETS}")
    options = JoinOptions(memory_bytes=parse_bytes(memory), sync="commit")
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
    """Give up an unfinished rescale, or undo the last finished one.

    A killed call is continued by the same call. If the killed call had just ended, and two rescales
    were done without a micro-batch between them, the earlier one is undone too.

    Args:
        checkpoint: Checkpoint location of the stopped query.
        state_dir: The ``state_dir`` of the query, if it was started with one.
        storage_options: Options of the file systems of ``checkpoint`` and ``state_dir``.

    Returns:
        The number of buckets that the query has now.

    Raises:
        InvalidArgumentError: Nothing has changed: a micro-batch has begun since the rescale, the
            original state was deleted or is being deleted, or there is nothing to undo.
        CorruptionError: Nothing has changed: earlier settings are damaged.
    """
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
    """Delete the buckets that the last rescale has replaced.

    A killed call is continued by the same call.

    Args:
        checkpoint: Checkpoint location of the query.
        state_dir: The ``state_dir`` of the query, if it was started with one.
        storage_options: Options of the file systems of ``checkpoint`` and ``state_dir``.

    Returns:
        How many bytes that freed.

    Raises:
        InvalidArgumentError: Nothing was deleted: a rescale is not finished, or is being undone.
    """
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
        report(f"continuing the rescale to {buckets} buckets after micro-batch {batch_id}")
        return plan
    if plan is not None:
        report("giving up another rescale, which was not finished")
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
    """Write every new bucket that is not complete. Returns the rows written, and all records."""
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
            f"{wrong}; the original state is unchanged: check it with lsmstate verify",
            state.place.where,
        )
    return written, records


def _new_settings(
    state: StoppedQuery, plan: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The settings with the new buckets. A bucket without rows has no pointer."""
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
