"""Documents to the cells of a grid, copied along the attributes that each of them lacks.

A dimension of the grid is an attribute, or several together, and its length a share of the buckets.
A document that has them has one coordinate along it, the hash of its values. A document that lacks
one has all. Several together deal values more evenly, where nearly all documents have them.
Documents that match agree on what both have, so they have a cell in common. Nothing is learned, so
nothing is unknown, and no table changes.

Source: shares of Afrati and Ullman (EDBT 2010), whose missing dimensions each row tells here.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.document_reading import MARKS, READING, Reading
from lsmstate.joins.routing.documents.cells import CellRouter, Cells
from lsmstate.joins.routing.documents.quality import Quality
from lsmstate.joins.routing.hash import bucket_of_hashes

SPLIT: Final = "split"
#: Documents of a sample that are looked at, attributes among which the dimensions are chosen, and
#: how many dimensions there are at most.
SAMPLE: Final = 1500
_ATTRIBUTES: Final = 6
_DIMENSIONS: Final = 3
#: Shares up to this are all tried.
_EVERY: Final = 20
#: By which part of the cost several attributes together must be better: less is chance.
_GAIN: Final = 0.025
_SEED: Final = 0x9E3779B97F4A7C15

#: The attributes of a dimension, together.
Dimension = tuple[str, ...]


@dataclass(frozen=True)
class HypercubeRouting:
    """Made by ``HypercubeRouting.chosen`` or from shares that are given."""

    split: Mapping[Dimension, int]
    """By dimension, into how many parts its values are dealt."""
    reading: Reading = READING
    marks: pa.Schema = MARKS

    @classmethod
    def chosen(
        cls, sample: Sequence[str], buckets: int, reading: Reading | None = None
    ) -> "HypercubeRouting":
        """The grid with the least load and the fewest copies of a sample of JSON texts."""
        reading = reading or READING
        documents = reading.read(pa.array(list(sample[:SAMPLE]), pa.string()))
        return cls(chosen_split(documents, buckets), reading)

    @property
    def adopted(self) -> Mapping[str, Any]:
        """The grid, which the first start fixes."""
        return {SPLIT: [[list(names), share] for names, share in self.split.items()]}

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "HypercubeRouting":
        """The routing by the grid that the first start fixed. InvalidArgumentError if it has more
        cells than there are buckets."""
        split = {tuple(names): int(share) for names, share in adopted[SPLIT]}
        check_split({" + ".join(names): share for names, share in split.items()}, buckets)
        return replace(self, split=split)

    def router(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, table: object = None
    ) -> CellRouter:
        """The router of one stream."""
        return CellRouter(lambda documents, _: self.cells(documents), self.reading)

    @property
    def count(self) -> int:
        """Cells of the grid."""
        return int(np.prod([*self.split.values(), 1]))

    def cells(self, documents: Documents) -> Cells:
        """The cells of documents."""
        coordinates = _coordinates(documents, list(self.split))
        return _cells(coordinates, list(self.split.values()), documents.sizes() > 0)

    def explain(self, sample: Documents | None = None) -> str:
        """The grid and, of a sample, what it costs: for people."""
        if not self.split:
            return "all documents go to one bucket: none has an attribute to split by"
        told = " x ".join(f"{' + '.join(names)} {share}" for names, share in self.split.items())
        lines = [f"documents are split by {told}: {self.count} cells"]
        if sample is not None and len(sample):
            lines.append(f"estimated: {Quality.of_cells(self.cells(sample), self.count)}")
        return "\n".join(lines)


def check_split(split: Mapping[str, int], buckets: int) -> None:
    """InvalidArgumentError unless the grid fits."""
    for name, share in split.items():
        if not isinstance(name, str) or isinstance(share, bool) or not isinstance(share, int):
            raise InvalidArgumentError(
                f"split[{name!r}]={share!r}: give attributes and whole numbers, as in "
                '{"user": 4, "host": 2}'
            )
        if share < 1:
            raise InvalidArgumentError(f"split[{name!r}]={share!r}: give 1 or more")
    cells = int(np.prod([*split.values(), 1]))
    if cells > buckets:
        raise InvalidArgumentError(
            f"split={dict(split)!r} needs {cells} buckets, and there are {buckets}; lower a share, "
            "or give more buckets"
        )


def chosen_split(documents: Documents, buckets: int) -> dict[Dimension, int]:
    """The grid of at most ``buckets`` cells that costs a sample least: the load of the fullest
    cell, as a multiple of an even one, and the copies of a document. Its dimensions are single
    attributes first, to which others are then added while that costs less.

    Cost: some hundred grids over at most ``SAMPLE`` documents.
    """
    _, numbers, hashes = documents.columns()
    if not len(numbers) or buckets < 2:
        return {}
    attributes, counts = np.unique(numbers, return_counts=True)
    pairs = np.unique(np.stack([numbers.astype(np.uint64), hashes]), axis=1)
    distinct = np.bincount(pairs[0].astype(np.int64))[attributes]
    score = counts * np.log2(np.minimum(distinct, 4 * buckets))
    best = [int(at) for at in np.argsort(-score, kind="stable")[:_ATTRIBUTES] if distinct[at] > 1]
    names = [documents.values.path(int(attributes[at])) for at in best]
    coordinates = _coordinates(documents, [(name,) for name in names])
    has_any = documents.sizes() > 0
    found: tuple[float, int, dict[Dimension, int]] = (float("inf"), 0, {})
    for count in range(1, min(_DIMENSIONS, len(names)) + 1):
        for chosen in itertools.combinations(range(len(names)), count):
            for shares in _grids(buckets, count):
                some = {at: coordinates[at] for at in chosen}
                cells = _cells(list(some.values()), list(shares), has_any)
                cost = Quality.of_cells(cells, buckets).cost(buckets)
                if cost < found[0] - 1e-9:
                    dimensions: list[Dimension] = [(names[at],) for at in chosen]
                    found = (cost, count, dict(zip(dimensions, shares, strict=True)))
    cost, _, split = found
    alone: dict[Dimension, int] = {} if not names else {(names[0],): buckets}
    for start in (split, alone):
        widened, less = _widened(documents, start, names, buckets)
        if less < (1 - _GAIN) * cost:
            split, cost = widened, less
    return split


def _widened(
    documents: Documents,
    split: dict[Dimension, int],
    names: Sequence[str],
    buckets: int,
) -> tuple[dict[Dimension, int], float]:
    """The grid with more attributes in its dimensions, one at a time, while that costs less; and
    what it costs."""
    has_any = documents.sizes() > 0
    cost = float("inf")
    tried = [split]
    while True:
        costs = []
        for each in tried:
            cells = _cells(_coordinates(documents, list(each)), list(each.values()), has_any)
            costs.append(Quality.of_cells(cells, buckets).cost(buckets))
        if not costs or min(costs) >= cost - 1e-9:
            return split, cost
        cost = min(costs)
        split = tried[costs.index(cost)]
        used = {name for own in split for name in own}
        tried = [
            {own if own != old else (*own, name): share for own, share in split.items()}
            for old in split
            for name in names
            if name not in used
        ]


def _grids(buckets: int, dimensions: int) -> list[tuple[int, ...]]:
    """Shares of at least two in which the last cannot grow. Of many buckets, shares that are close
    to others are left out."""
    tried = list(range(2, min(buckets, _EVERY) + 1))
    while (larger := tried[-1] + max(1, tried[-1] // 4)) <= buckets:
        tried.append(larger)
    found = []
    for shares in itertools.product(tried, repeat=dimensions - 1):
        before = int(np.prod([*shares, 1]))
        if 2 * before <= buckets:
            found.append((*shares, buckets // before))
    return found if dimensions > 1 else [(buckets,)]


#: Of one dimension: each document's hash of its values, and whether it has them.
_Coordinate = tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]


def _coordinates(documents: Documents, dimensions: Sequence[Dimension]) -> list[_Coordinate]:
    places, numbers, hashes = documents.columns()
    found = []
    for names in dimensions:
        values = np.zeros(len(documents), np.uint64)
        counts = np.zeros(len(documents), np.int64)
        for name in names:
            here = numbers == documents.values.number(name)
            values *= np.uint64(_SEED)
            values[places[here]] ^= hashes[here]
            counts[places[here]] += 1
        found.append((values, counts == len(names)))
    return found


def _cells(
    coordinates: Sequence[_Coordinate], shares: Sequence[int], has_any: npt.NDArray[np.bool_]
) -> Cells:
    """The cells of documents by their coordinates."""
    corner = np.zeros(len(has_any), np.int64)
    lacks = np.zeros(len(has_any), np.int64)
    for place, ((values, has), share) in enumerate(zip(coordinates, shares, strict=True)):
        seeded = values ^ np.uint64((place + 1) * _SEED % 2**64)
        along = bucket_of_hashes(seeded, has, share)
        corner = corner * share + np.where(has, along, 0)
        lacks |= (~has).astype(np.int64) << place
    rows: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    numbers: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    for lacking in np.unique(lacks):
        here = np.flatnonzero((lacks == lacking) & has_any)
        offsets = np.zeros(1, np.int64)
        for place, share in enumerate(shares):
            steps = np.arange(share) if lacking >> place & 1 else np.zeros(1, np.int64)
            offsets = (offsets[:, None] * share + steps).ravel()
        rows.append(np.repeat(here, len(offsets)))
        numbers.append((corner[here, None] + offsets).ravel())
    row, number = np.concatenate(rows), np.concatenate(numbers)
    order = np.lexsort((number, row))
    counts = np.bincount(row, minlength=len(has_any))
    return Cells(np.cumsum(counts).astype(np.int64), number[order])
