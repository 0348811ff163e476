"""KeySample: the same sample of the same rows, however they are ordered and cut into batches."""

import random
from collections import Counter

import numpy as np
import pyarrow as pa

from lsmstate.joins.routing.skew import key_sample
from lsmstate.joins.routing.skew.heavy_hitters import HeavyHitters
from lsmstate.joins.routing.skew.key_sample import KeySample

KEYS = pa.schema([("k", pa.string())])


def sampled(rows: list[tuple[int, str]], rng: random.Random, most: int) -> KeySample:
    """The sample of rows, each a content hash and a key, in any order and cut."""
    rng.shuffle(rows)
    found = KeySample(KEYS, most)
    while rows:
        some, rows = rows[: (step := rng.randrange(1, 60))], rows[step:]
        contents = np.array([content for content, _ in some], np.uint64)
        texts = [key for _, key in some]
        hashes = np.array([_hash(key) for key in texts], np.uint64)
        found.add(contents, hashes, pa.record_batch([pa.array(texts, pa.string())], schema=KEYS))
    return found


def counted(sample: KeySample) -> dict[int, float]:
    sketch = HeavyHitters()
    sample.add_to(sketch, lambda at: str(sample.keys.column(0)[at])[:8])
    return {hot.hash: hot.rows for hot in sketch.hottest()}


def _hash(key: str) -> int:
    return sum(key.encode()) * 0x9E3779B97F4A7C15 % (1 << 64)


def test_the_sample_is_the_same_in_any_order() -> None:
    rng = random.Random(3)
    # Keys of 4 bytes to 40 KB: the bytes of the sample are what bounds it.
    rows = [
        (rng.getrandbits(64), f"{at % 7}" * rng.choice([4, 3_000, 40_000])) for at in range(900)
    ]
    first = sampled([*rows], rng, 1024)
    assert 16 < len(first.keys) < 900
    assert first.keys.nbytes <= key_sample.SAMPLED_BYTES + 8 * 1024
    ranked = sorted(rows)
    assert first.keys.column(0).to_pylist() == [key for _, key in ranked[: len(first.keys)]]
    for _ in range(5):
        again = sampled([*rows], rng, 1024)
        assert again.keys == first.keys
        assert counted(again) == counted(first)


def test_a_long_hot_key_is_counted() -> None:
    """Its part of the sample is its part of the rows; those that are too long are left out."""
    rng = random.Random(5)
    hot, longest = "h" * 50_000, "x" * (key_sample.LONGEST_KEY_BYTES + 1)
    rows = [(rng.getrandbits(64), hot) for _ in range(400)]
    rows += [(rng.getrandbits(64), f"cold {at}") for at in range(400)]
    rows += [(rng.getrandbits(64), longest) for _ in range(9)]
    found = counted(sampled(rows, rng, 1024))
    assert max(found, key=lambda each: found[each]) == _hash(hot)
    assert 200 < found[_hash(hot)] < 700
    assert _hash(longest) not in found


def test_few_rows_are_counted_exactly() -> None:
    rng = random.Random(7)
    rows = [(content, f"key {content % 5}") for content in range(300)]
    rows += rng.sample(rows, 100)
    expected = Counter(_hash(key) for _, key in rows)
    assert counted(sampled([*rows], rng, 1024)) == dict(expected)
