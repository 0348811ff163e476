"""Near-duplicate texts: keep the first of each, by embeddings that the script computes.

python examples/near_duplicates.py [TEXTS.txt]

An embedding is made of the text's three-letter groups, hashed into 256 numbers.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa

from lsmstate.join import State, similarity_join

WIDTH = 256
TEXTS = pa.schema([("text", pa.string()), ("v", pa.list_(pa.float32(), WIDTH))])
SOME = ["the cat sat on the mat", "the cat sat on a mat", "a dog ran home", "the dog ran home"]


def embedding(text: str) -> list[float]:
    """How often each group of three letters stands in the text."""
    padded = f"  {text.lower()}  "
    groups = [crc32(padded[at : at + 3].encode()) % WIDTH for at in range(len(padded) - 2)]
    return list(np.bincount(groups, minlength=WIDTH).astype(float))


def first_of_each(texts: Iterable[str], threshold: float = 0.3) -> Iterator[str]:
    """The texts that are close to no earlier one."""
    with similarity_join(
        {"a": TEXTS},
        on="a.v ~ b.v",
        metric="cosine",
        threshold=threshold,
        how="anti",
        state=State(memory="32m"),
    ) as join:
        for some in batched_texts(texts):
            rows = [{"text": text, "v": embedding(text)} for text in some]
            for row in join.process("a", rows).rows():
                yield row["text"]


def batched_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    """A thousand at a time."""
    waiting = iter(texts)
    while some := list(islice(waiting, 1000)):
        yield some


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines() if len(sys.argv) > 1 else SOME
    for kept in first_of_each(lines):
        print(kept)
