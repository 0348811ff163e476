"""Which files of the attempts' directory a restart could still need: pure functions.

- Spark keeps one attempt's pointer per bucket and micro-batch, and may change which one
  (docs/design/commits.md). A restart may therefore open any commit of a kept micro-batch.
- Kept are the micro-batches younger than the horizon, and the newest one at or below it in which
  this bucket took part: the old pointer of an idle bucket is still valid.
- Only the ancestors of an attempt tell which one that is. There may be commits of a micro-batch
  that was repeated without this bucket, or of a future that was given up when the query was set
  back.
"""

from collections.abc import Collection, Iterable

from lsmstate.lsm.file_names import Written


def kept_batches(
    commit_batches: Collection[int],
    current_batch: int,
    retained: int,
    ancestors: Iterable[int] = (),
) -> frozenset[int]:
    """Return the micro-batches of one bucket whose commits must stay.

    Args:
        commit_batches: Micro-batches that have a commit here.
        retained: Number of micro-batches that Spark can go back to
            (spark.sql.streaming.minBatchesToRetain).
        ancestors: Micro-batches that the current one came from, newest first; read only as far as
            necessary.
    """
    horizon = current_batch - retained
    young = {batch for batch in commit_batches if batch > horizon}
    # The newest one stays too: commits of an earlier release do not name their parents.
    newest_old = max((batch for batch in commit_batches if batch <= horizon), default=None)
    accepted_old = next((batch for batch in ancestors if batch <= horizon), None)
    return frozenset(young | {batch for batch in (newest_old, accepted_old) if batch is not None})


def collectable(
    files: Iterable[Written], live: Collection[str], kept: Collection[int], current_batch: int
) -> list[str]:
    """Return the files that nothing can need: no kept commit names them, and their micro-batch is
    older than all kept ones, so no running attempt is writing them."""
    oldest = min(kept, default=current_batch)
    return sorted(file.name for file in files if file.batch_id < oldest and file.name not in live)
