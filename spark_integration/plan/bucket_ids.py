"""Bucket ids that Spark's own hash spreads evenly over the state partitions.

Spark puts a group on partition ``pmod(murmur3(key), partitions)``. With the ids 0, 1, 2 and so on,
some tasks would get two buckets and some none. So bucket ``b`` gets the smallest unused number that
Spark puts on partition ``b % partitions``.
"""

from collections.abc import Collection

from lsmstate.errors import InvalidArgumentError

_MASK = 0xFFFFFFFF
_SPARK_SEED = 42


def bucket_ids(
    buckets: int, partitions: int, taken: Collection[int] = frozenset()
) -> tuple[int, ...]:
    """One id per bucket, none of them in ``taken``; bucket ``b`` lands on partition
    ``b % partitions``.

    Cost: about ``buckets * partitions`` hashes, once per query.
    """
    if buckets < 1 or partitions < 1:
        raise InvalidArgumentError(
            f"buckets={buckets}, partitions={partitions}: both must be at least 1"
        )
    free: dict[int, list[int]] = {}
    ids: list[int] = []
    candidate = 0
    for bucket in range(buckets):
        wanted = bucket % partitions
        while not free.get(wanted):
            if candidate not in taken:
                free.setdefault(spark_hash_long(candidate) % partitions, []).append(candidate)
            candidate += 1
        ids.append(free[wanted].pop(0))
    return tuple(ids)


def spark_hash_long(value: int, seed: int = _SPARK_SEED) -> int:
    """Spark's ``hash(bigint)``: 32-bit Murmur3 over the two halves, as a signed number."""
    hashed = _mix(seed & _MASK, value & _MASK)
    hashed = _mix(hashed, (value >> 32) & _MASK)
    hashed ^= 8
    hashed ^= hashed >> 16
    hashed = (hashed * 0x85EBCA6B) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * 0xC2B2AE35) & _MASK
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _mix(hashed: int, word: int) -> int:
    word = _rotate((word * 0xCC9E2D51) & _MASK, 15)
    word = (word * 0x1B873593) & _MASK
    return (_rotate(hashed ^ word, 13) * 5 + 0xE6546B64) & _MASK


def _rotate(word: int, by: int) -> int:
    return ((word << by) | (word >> (32 - by))) & _MASK
