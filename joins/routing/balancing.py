"""Placing work on buckets so that all have about as much.

Worksets of overloaded buckets are moved to underloaded ones, the one that helps most first, until
no move helps. A move helps if the imbalance it takes away, less a cost for the rows it concerns, is
more than nothing (the *net rule*). A workset with more load than a part of the average has
*shards*, each of which stores some of its rows.

Source: Siachamis et al., *Adaptive distributed streaming similarity joins* (DEBS 2023), algorithm
1. As printed it adds where that may not help, and leaves the largest workset of a bucket alone.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Loads = npt.NDArray[np.float64]
#: By workset the buckets of its shards, of which one may have several.
Places = tuple[tuple[int, ...], ...]

#: The most load of a shard, in parts of the average of a bucket.
MOST_SHARD: Final = 0.25


def load_of(new: tuple[int, int, int], stored: tuple[int, int, int] = (0, 0, 0)) -> float:
    """The comparisons of a workset of S3J in a while: of inner rows, outliers and outer rows that
    came, and of those that were there."""
    inner, outliers, outer = new
    old_inner, old_outliers, old_outer = stored
    return (
        outliers * (old_outer + old_outliers + old_inner)
        + outer * (old_inner + old_outliers)
        + inner * (old_outer + old_outliers)
        + outliers * (outer + inner)
        + outer * inner
        + outliers * (outliers - 1) / 2
    )


def bucket_loads(loads: Loads, places: Places, buckets: int) -> Loads:
    """The load of each bucket; that of a workset is shared by its shards."""
    found = np.zeros(buckets)
    for load, own in zip(loads, places, strict=True):
        np.add.at(found, list(own), load / len(own))
    return found


def balanced(
    loads: Loads,
    places: Places,
    buckets: int,
    *,
    costs: Sequence[float] | None = None,
    most_shard: float = MOST_SHARD,
) -> Places:
    """Places under which the buckets have about as much load. Pure.

    Args:
        loads: Of each workset.
        places: Where they are.
        buckets: How many there are.
        costs: What a move of each workset costs, in units of load. Default: nothing.
        most_shard: The most load of a shard, in parts of the average of a bucket.

    Returns:
        The new places; those given if nothing helps.
    """
    average = float(loads.sum()) / buckets
    if average <= 0:
        return places
    owners, where, weights = [], [], []
    for workset, (load, own) in enumerate(zip(loads, places, strict=True)):
        shards = max(1, min(buckets, int(np.ceil(load / (most_shard * average)))))
        shards = len(own) if shards <= len(own) < 2 * shards else shards
        # Shards that are new begin where their workset is, and are moved from there.
        owners += [workset] * shards
        where += [own[at] if at < len(own) else own[0] for at in range(shards)]
        weights += [float(load) / shards] * shards
    moved = _moved(np.array(weights), where, buckets, average, owners, costs)
    found: list[list[int]] = [[] for _ in places]
    for workset, bucket in zip(owners, moved, strict=True):
        found[workset].append(bucket)
    return tuple(map(tuple, found))


def _moved(
    weights: Loads,
    where: Sequence[int],
    buckets: int,
    average: float,
    owners: Sequence[int],
    costs: Sequence[float] | None,
) -> list[int]:
    at = np.array(where, np.int64)
    price = np.zeros(len(weights)) if costs is None else np.array(costs)[np.array(owners)]
    full = np.bincount(at, weights, minlength=buckets)
    ignored = np.zeros(len(weights), np.bool_)
    while True:
        own = full[at]
        removal = np.abs(own - average) - np.abs(own - weights - average) - price
        removal[(own <= average) | ignored | (removal <= 0)] = -np.inf
        best = int(removal.argmax()) if len(removal) else 0
        if not len(removal) or not np.isfinite(removal[best]):
            return [int(bucket) for bucket in at]
        addition = np.abs(full - average) - np.abs(full + weights[best] - average)
        addition[full >= average] = -np.inf
        target = int(addition.argmax())
        if not removal[best] + addition[target] > 0:
            ignored[best] = True
            continue
        full[at[best]] -= weights[best]
        full[target] += weights[best]
        at[best] = target
