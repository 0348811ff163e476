"""Which files of an attempts' directory a restart could still need: pure functions.

Spark keeps one attempt's pointer per bucket and micro-batch, and which attempt's it keeps can
change (docs/design/commits.md), so every commit of a kept micro-batch counts as one that a restart
may open. Kept are the micro-batches younger than the horizon, and the newest one at or below it
that this bucket took part in: an idle bucket's old pointer is still the truth. Which one that is
only the attempts' ancestors tell: a commit may be there of a micro-batch that was repeated without
this bucket, or of a future that was given up when the query was set back.
"""

from collections.abc import Collection, Iterable

from lsmstate.lsm.file_names import Written


def kept_batches(
    commit_batches: Collection[int],
    current_batch: int,
    retained: int,
    ancestors: Iterable[int] = (),
) -> frozenset[int]:
    """The micro-batches of one bucket whose commits must stay.

    ``commit_batches`` are those that have a commit here, ``retained`` is how many micro-batches
    Spark can go back to (spark.sql.streaming.minBatchesToRetain). ``ancestors`` are those the
    current one came from, the newest first; no more are asked for than it takes.
    """
    horizon = current_batch - retained
    young = {batch for batch in commit_batches if batch > horizon}
    # The newest of all as well: where commits of an earlier release do not name their parents.
    newest_old = max((batch for batch in commit_batches if batch <= horizon), default=None)
    accepted_old = next((batch for batch in ancestors if batch <= horizon), None)
    return frozenset(young | {batch for batch in (newest_old, accepted_old) if batch is not None})


def collectable(
    files: Iterable[Written], live: Collection[str], kept: Collection[int], current_batch: int
) -> list[str]:
    """Names of files that nothing can need: not named by a kept commit, and of a micro-batch
    older than all that are kept, so that no attempt that is still running can be writing them."""
    oldest = min(kept, default=current_batch)
    return sorted(file.name for file in files if file.batch_id < oldest and file.name not in live)
