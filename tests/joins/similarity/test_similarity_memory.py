"""Similarity joins stay under the memory cap, whatever the vectors are."""

import subprocess
import sys

import pytest

from support.paths import ROOT

PROGRAM = """
import resource, sys
import numpy as np, pyarrow as pa
from lsmstate.join import State, similarity_join

count, width, kind, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), width))])
rng = np.random.default_rng(0)
with similarity_join(
    {"a": schema}, "a.v ~ b.v", metric="l2", threshold=0.5, how=how, distance=None,
    state=State(memory="64m"),
) as join:
    base, found = 0, 0
    for first in range(0, count, 1000):
        vectors = np.ones((1000, width), np.float32)
        if kind == "random":
            vectors = rng.standard_normal((1000, width)).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width)
        results = join.process("a", pa.record_batch([range(first, first + 1000), column], schema))
        if kind == "random" and first % 50_000 or kind == "stored":
            results.close()
        else:
            found += sum(piece.num_rows for piece in results)
        if not base:
            base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) >> 10)
"""


def grown(*arguments: object) -> tuple[int, int]:
    """Results, and how many MiB the process grew after the first batch."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found, mebibytes = done.stdout.split()
    return int(found), int(mebibytes)


@pytest.mark.stress
def test_two_hundred_thousand_vectors_stay_under_the_cap() -> None:
    found, mebibytes = grown(200_000, 384, "random", "inner")
    assert found == 0
    assert mebibytes < 160


@pytest.mark.stress
@pytest.mark.parametrize("how", ["inner", "anti"])
def test_equal_vectors_stay_under_the_cap(how: str) -> None:
    found, mebibytes = grown(4000, 64, "equal", how)
    assert found == (4000 * 3999 // 2 if how == "inner" else 1)
    assert mebibytes < 160
