"""The next layout, from a sample of the rows of late.

Its cut points are quantiles of the positions of all streams. How far rows may reach before they are
wide is chosen for each stream: nothing is wide, or what a quantile of the sample leaves out. That
combination is taken under which the sample would be sent the least, where a unit that stores more
than others counts as if all were sent that much more.

Sums are rounded once (``fsum``), so that every machine finds the same layout.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import fsum
from typing import Final

import numpy as np

from lsmstate.joins.routing.ranges.layout import FAR, Layout, Reach
from lsmstate.joins.routing.ranges.positions import Positions
from lsmstate.joins.routing.ranges.range_sample import Sample

#: A layout is replaced by one under which the sample costs at most this part of it.
BETTER: Final = 0.7
#: Rows of the sample for each unit, below which no layout is replaced.
LEAST_ROWS: Final = 8
#: Which part of a stream's rows is not wide.
_LEVELS: Final = (1.0, 0.999, 0.99)
#: The part of the sample that says how wide a stripe beyond it is; the rest may be outliers.
_MIDDLE: Final = (0.05, 0.95)


def next_layout(
    current: Layout, samples: Mapping[str, Sample], others: Mapping[str, tuple[str, ...]]
) -> Layout:
    """The best layout for such rows; ``current`` unless another is better by far. Pure.

    Args:
        current: The layout so far.
        samples: By stream.
        others: By stream, those it looks for matches in.
    """
    found = {stream: sample for stream, sample in samples.items() if len(sample.weights)}
    if not found:
        return current
    count = sum(len(sample.weights) for sample in found.values())
    if current.edges and count < LEAST_ROWS * current.units:
        return current
    best = _cheapest(_layouts(current.units, found), found, others)
    # Rows without a bound reach fewer units where the outer stripes have no end.
    endless = replace(best, step=0.0)
    if cost(endless, found, others) < BETTER * cost(best, found, others):
        best = endless
    is_better = cost(best, found, others) < BETTER * cost(current, found, others)
    return best if is_better else current


def cost(
    layout: Layout, samples: Mapping[str, Sample], others: Mapping[str, tuple[str, ...]]
) -> float:
    """Messages for each row, times what the fullest unit stores in proportion to the average."""
    messages, total = 0.0, 0.0
    stored = np.zeros(layout.units)
    for stream, sample in samples.items():
        reached = np.zeros((len(sample.weights), layout.units), np.bool_)
        for other in others[stream]:
            reached |= layout.reached(other, sample.rows)
        own = layout.stored(stream, sample.rows, sample.hashes)
        reached[np.arange(len(own)), own] = True
        messages += fsum((reached.sum(axis=1) * sample.weights).tolist())
        stored += np.bincount(own, sample.weights, minlength=layout.units)
        total += fsum(sample.weights.tolist())
    return messages / total * float(stored.max()) * layout.units / fsum(stored.tolist())


def _cheapest(
    layouts: Iterable[Layout],
    samples: Mapping[str, Sample],
    others: Mapping[str, tuple[str, ...]],
) -> Layout:
    return min(layouts, key=lambda layout: cost(layout, samples, others))


def _layouts(units: int, samples: Mapping[str, Sample]) -> Iterator[Layout]:
    values = np.concatenate([sample.rows.value for sample in samples.values()])
    weights = np.concatenate([sample.weights for sample in samples.values()])
    choices = ([FAR, *_reaches(sample)] if units > 1 else [FAR] for sample in samples.values())
    for reach in product(*choices):
        chosen = dict(zip(samples, reach, strict=True))
        striped = Layout(units, (0.0, 0.0), reach=chosen).striped
        edges = _quantiles(values, weights, np.linspace(0, 1, striped + 1))
        low, high = _quantiles(values, weights, np.array(_MIDDLE)).tolist()
        step = (high - low) / (_MIDDLE[1] - _MIDDLE[0]) / striped
        yield Layout(units, tuple(edges.tolist()), step if np.isfinite(step) else 0.0, chosen)


def _reaches(sample: Sample) -> list[Reach]:
    """How far rows may reach before they are wide."""
    levels = np.array(_LEVELS)
    below = _quantiles(sample.rows.below(), sample.weights, levels)
    above = _quantiles(sample.rows.above(), sample.weights, levels)
    return list(dict.fromkeys(zip(below.tolist(), above.tolist(), strict=True)))


def _quantiles(values: Positions, weights: Positions, levels: Positions) -> Positions:
    """The smallest values that have at least such a part of the weight at or below them."""
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order])
    places = np.searchsorted(sums, levels * sums[-1] * (1 - 2.0**-40))
    found: Positions = values[order][np.minimum(places, len(order) - 1)]
    return found
