"""What a bucket says of its rows for the next layout: a sample of them, and what it stores.

- The sample has the rows with the smallest hashes of their content. So it is the same however often
  and in whichever order a micro-batch is handled, and samples of buckets can be put together.
- What is stored is told by layout, so that a bucket that had no row in the last micro-batch can say
  it later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Final, Self

import numpy as np

from lsmstate.joins.routing.content import Hashes
from lsmstate.joins.routing.ranges.layout import number
from lsmstate.joins.routing.ranges.positions import Bounded, Positions
from lsmstate.joins.routing.ranges.range_table import Held

#: Rows of a stream in one bucket's sample.
SAMPLED: Final = 256


@dataclass(frozen=True)
class Sample:
    """Some rows of a stream by their positions, each with the number of rows that it stands for."""

    hashes: Hashes
    rows: Bounded
    weights: Positions

    @classmethod
    def of(cls, hashes: Hashes, rows: Bounded) -> Self:
        """The sample of all these rows, each of which counts once."""
        return cls(hashes, rows, np.ones(len(hashes))).smallest()

    def smallest(self, most: int = SAMPLED) -> Self:
        """The rows with the smallest hashes; equal ones count as one of more weight."""
        hashes, first, places = np.unique(self.hashes, return_index=True, return_inverse=True)
        weights = np.bincount(places, self.weights, minlength=len(hashes)).astype(np.float64)
        return type(self)(hashes[:most], self.rows.at(first[:most]), weights[:most])

    def and_also(self, other: "Sample") -> "Sample":
        """Of both."""
        return Sample(
            np.concatenate([self.hashes, other.hashes]),
            Bounded(*map(np.concatenate, zip(self.rows, other.rows, strict=True))),
            np.concatenate([self.weights, other.weights]),
        )

    def of_rows(self, count: int) -> Self:
        """With weights that add up to so many rows."""
        weights = self.weights * (count / max(1.0, fsum(self.weights.tolist())))
        return type(self)(self.hashes, self.rows, weights)

    def to_json(self) -> list[Any]:
        """The sample as JSON has it, without the hashes."""
        columns = [*self.rows, self.weights]
        return [[number(value) for value in column.tolist()] for column in columns]

    @classmethod
    def from_json(cls, found: Sequence[Sequence[Any]]) -> Self:
        """The inverse of ``to_json``."""
        value, low, high, weights = (np.array(column, np.float64) for column in found)
        return cls(np.arange(len(value), dtype=np.uint64), Bounded(value, low, high), weights)


EMPTY: Final = Sample(np.empty(0, np.uint64), Bounded(*[np.empty(0)] * 3), np.empty(0))


@dataclass(frozen=True)
class SeenRanges:
    """What one bucket has seen."""

    bucket: int
    samples: Mapping[str, Sample] = field(default_factory=dict)
    """By stream: rows of the last micro-batch. Their weights say how many there were."""
    held: Mapping[int, Mapping[str, Held]] = field(default_factory=dict)
    """By the first micro-batch of a layout and by stream, what is stored by it."""

    def to_json(self) -> dict[str, Any]:
        """What was seen as JSON has it."""
        return {
            "samples": {stream: sample.to_json() for stream, sample in self.samples.items()},
            "held": [
                [batch, {stream: list(map(number, held)) for stream, held in by_stream.items()}]
                for batch, by_stream in self.held.items()
            ],
        }

    @classmethod
    def from_json(cls, bucket: int, found: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``."""
        samples = found.get("samples", {}).items()
        return cls(
            bucket,
            {stream: Sample.from_json(columns) for stream, columns in samples},
            {
                batch: {stream: Held(*map(float, held)) for stream, held in by_stream.items()}
                for batch, by_stream in found.get("held", ())
            },
        )
