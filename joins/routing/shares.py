"""The router of a join with several keys: shares (HyperCube).

Buckets are the cells of a grid with one dimension per *key class* (columns that are equal in every
result); a class's *share* is the length of its dimension. A row has a coordinate along each class
it holds, the hash of its value, and is copied along the others.

Each result is found in exactly one bucket. Its rows agree on the value of every class, so all of
them are in the cell of these values' hashes; and every other cell differs from it along some class,
whose holders among the rows are not there. Nothing has to be asked of a result. This is true of
inner joins: a copy without a partner in its bucket may have one in another.

The assignment is pinned by the checkpoint, as that of ``lsmstate.joins.routing.hash``, whose
function it uses: with a single class split the two are the same.

Sources: Afrati, Ullman, *Optimizing joins in a map-reduce environment* (EDBT 2010): the number of
copies; Beame, Koutris, Suciu, *Communication steps for parallel query processing* (PODS 2013):
load; Chu, Balazinska, Suciu, *From theory to practice: efficient join query evaluation in a
parallel database system* (SIGMOD 2015): a search of integer shares instead of rounded real ones.
"""

import difflib
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.hash import bucket_of_hashes

#: The search looks at every grid up to this size: 1.6 million of them at both limits.
MAX_SEARCHED_BUCKETS = 256
MAX_SEARCHED_CLASSES = 12

#: The most the hash of a coordinate takes.
MAX_BUCKETS = 1 << 20

#: A grid may fill its fullest bucket this much more than the evenest one, to save copies.
LOAD_SLACK = 1.5

#: Of the assignment of rows to buckets; a checkpoint of another version is refused.
_VERSION = 1
#: 2**64 / golden ratio: tells the dimensions' hashes apart, so that equal values of two classes
#: do not meet on the grid's diagonal.
_DIMENSION_SEED = 0x9E3779B97F4A7C15

_Grids = npt.NDArray[np.int16]


@dataclass(frozen=True, kw_only=True)
class JoinGraph:
    """Who holds which key, and how much there is of it.

    ``rows``: rows per stream that reach the join, from a hint, statistics or a sample; only their
    relation counts, and 0 counts as 1. ``classes``: per key class the streams that hold it. The
    rows of a class that one stream holds are dealt along its dimension. ``distinct``: values per
    class where known, so that the keys of 25 nations are not spread over 64 buckets. A stream
    without a class is copied to every bucket.
    InvalidArgumentError names what is wrong.
    """

    rows: Mapping[str, int]
    classes: Mapping[str, tuple[str, ...]]
    distinct: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.classes:
            raise InvalidArgumentError("no key class: shares need at least one key to join by")
        for stream, count in self.rows.items():
            _check_count(f"rows of {stream!r}", count, least=0)
        for name, holders in self.classes.items():
            for stream in holders:
                _check_name("stream", stream, self.rows)
            if not holders or len(set(holders)) < len(holders):
                raise InvalidArgumentError(
                    f"key class {name!r} is held by {', '.join(holders) or 'no stream'}; name each "
                    "stream that holds it once"
                )
        for name, count in self.distinct.items():
            _check_name("key class", name, self.classes)
            _check_count(f"distinct values of {name!r}", count, least=1)

    def holds(self, stream: str, name: str) -> bool:
        return stream in self.classes[name]


@dataclass(frozen=True)
class Shares:
    """A grid of buckets for a join graph; made by ``choose`` or ``Shares.from_json``.

    ``shares`` has an entry per key class, 1 where the class is not split. Their product, the number
    of cells, is at most ``buckets``; the buckets beyond it stay empty.
    """

    graph: JoinGraph
    buckets: int
    shares: Mapping[str, int]
    forced: bool = False

    def route(
        self,
        stream: str,
        hashes: Mapping[str, npt.NDArray[np.uint64]],
        valid: npt.NDArray[np.bool_],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the rows of a batch go: their positions, and beside each the bucket of a copy.

        ``hashes``: of the row's value of each split class the stream holds, taken after the cast to
        the class's common type. ``valid``: no join key of the row is null; other rows are in no
        result and go nowhere. Sorted by position, then bucket.
        Cost: a few vector operations and 32 bytes per copy.
        """
        _check_name("stream", stream, self.graph.rows)
        corner = np.zeros(len(valid), np.int64)
        offsets = np.zeros(1, np.int64)
        for dimension, (name, share) in enumerate(self._dimensions):
            if self.graph.holds(stream, name):
                seed = np.uint64(dimension * _DIMENSION_SEED % 2**64)
                along = bucket_of_hashes(_hashes_of(name, hashes, valid) ^ seed, valid, share)
                corner = corner * share + along
                offsets = offsets * share
            else:
                corner = corner * share
                offsets = (offsets[:, None] * share + np.arange(share)).ravel()
        rows = np.flatnonzero(valid)
        return np.repeat(rows, len(offsets)), (corner[rows, None] + offsets).ravel()

    def copies(self, stream: str) -> int:
        """In how many buckets each row of the stream lies."""
        _check_name("stream", stream, self.graph.rows)
        return math.prod(s for name, s in self._dimensions if not self.graph.holds(stream, name))

    @property
    def cells(self) -> int:
        """Buckets in use."""
        return math.prod(self.shares.values())

    @cached_property
    def copies_per_row(self) -> float:
        """Estimated copies over all streams, per row; 1.0 is none but the row itself."""
        return float(_copies(self.graph, self._grid)[0]) / sum(_sizes(self.graph).values())

    @cached_property
    def fullest_load(self) -> float:
        """Estimated part of all input rows that the fullest bucket sees; at best 1 / buckets."""
        return float(_fullest(self.graph, self._grid)[0]) / sum(_sizes(self.graph).values())

    def explain(self) -> str:
        """The choice and what it is expected to cost, in a few lines."""
        split = " x ".join(f"{name} {share}" for name, share in self._dimensions) or "no key split"
        whole = [name for name, share in self.shares.items() if share == 1]
        width = max(len(stream) for stream in self.graph.rows)
        lines = [
            f"shares ({'forced' if self.forced else 'chosen'}): {split}; "
            f"{self.cells} of {self.buckets} buckets",
            *([f"not split: {', '.join(whole)}"] if whole else []),
            *(
                f"  {stream:<{width}}  {count:>15,} rows, each in {self.copies(stream)} of them"
                for stream, count in self.graph.rows.items()
            ),
            f"estimated: {self.copies_per_row:.2f} copies per row, {self.fullest_load:.1%} of the "
            f"rows in the fullest bucket (even: {1 / self.buckets:.1%})",
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """What a checkpoint keeps: what decides where a row goes, and its signature."""
        pinned = {
            "version": _VERSION,
            **_shape(self.graph),
            "buckets": self.buckets,
            "shares": [[name, share] for name, share in self.shares.items()],
            "forced": self.forced,
        }
        return json.dumps({**pinned, "signature": _signature(pinned)})

    @classmethod
    def from_json(
        cls, text: str, graph: JoinGraph, forced: Mapping[str, int] | None = None
    ) -> "Shares":
        """The pinned shares, for the same streams and classes in the same order.

        The graph's sizes may have changed: they serve estimates only. InvalidArgumentError for
        another join or other ``forced`` shares, naming both, and for a text that ``to_json`` did
        not write.
        """
        try:
            pinned = json.loads(text)
            signature = pinned.pop("signature")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"these are no pinned shares: {text[:80]!r}") from error
        if signature != _signature(pinned):
            raise InvalidArgumentError(
                f"pinned shares are damaged: their signature is {signature!r}, that of their "
                f"content {_signature(pinned)!r}; restore the checkpoint from a copy"
            )
        if pinned["version"] != _VERSION:
            raise InvalidArgumentError(
                f"pinned shares have version {pinned['version']}, this release reads {_VERSION}"
            )
        for what, now in _shape(graph).items():
            if pinned[what] != now:
                raise InvalidArgumentError(
                    f"the checkpoint was written with {what} {pinned[what]}, the join has {now}; "
                    "restore the join or start on a new checkpoint"
                )
        shares = cls(graph, pinned["buckets"], dict(pinned["shares"]), pinned["forced"])
        if forced is not None and _forced(graph, shares.buckets, forced).shares != shares.shares:
            raise InvalidArgumentError(
                f"the checkpoint was written with shares {shares.shares}, now forced: "
                f"{dict(forced)}; force none or start on a new checkpoint"
            )
        return shares

    @cached_property
    def _dimensions(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, share) for name, share in self.shares.items() if share > 1)

    @property
    def _grid(self) -> npt.NDArray[np.int64]:
        return np.array([list(self.shares.values())], np.int64)


def choose(
    graph: JoinGraph,
    buckets: int,
    forced: Mapping[str, int] | None = None,
    splittable: Collection[str] | None = None,
) -> Shares:
    """The shares with the fewest estimated copies; the same for the same arguments.

    Looked at are all grids of at most ``buckets`` cells in which no share can grow (fewest copies
    alone would use one bucket) and no share exceeds its class's distinct values. Those whose
    fullest bucket is over ``LOAD_SLACK`` times as full as the evenest grid's are left out; of equal
    copies the lesser load wins, then the larger share of the class named first.
    Estimates take hashes to be independent and know no heavy hitters.

    ``forced`` sets the shares instead, 1 for classes it does not name; ``splittable`` are the only
    classes that may be split, by default all. InvalidArgumentError if they do not fit, or if there
    is too much to search: over 256 buckets or 12 classes.
    """
    _check_count("buckets", buckets, least=1, most=MAX_BUCKETS)
    splittable = graph.classes if splittable is None else splittable
    if forced is not None:
        for name, share in forced.items():
            if name in graph.classes and name not in splittable and share != 1:
                raise InvalidArgumentError(
                    f"forced shares: outer, semi and anti joins need all partners of a row in its "
                    f"bucket, which a split by {name!r} does not give; split by "
                    f"{', '.join(splittable)}"
                )
        return _forced(graph, buckets, forced)
    if buckets > MAX_SEARCHED_BUCKETS or len(graph.classes) > MAX_SEARCHED_CLASSES:
        raise InvalidArgumentError(
            f"shares for {buckets} buckets and {len(graph.classes)} key classes: at most "
            f"{MAX_SEARCHED_BUCKETS} and {MAX_SEARCHED_CLASSES} are searched; use fewer, or give "
            "the shares yourself"
        )
    grids = _full_grids(graph, buckets, splittable)
    load = _fullest(graph, grids)
    grids = grids[load <= LOAD_SLACK * load.min()]
    order = np.lexsort((*-grids.T[::-1], _fullest(graph, grids), _copies(graph, grids)))
    best = grids[order[0]].tolist()
    return Shares(graph, buckets, dict(zip(graph.classes, best, strict=True)))


def _forced(graph: JoinGraph, buckets: int, forced: Mapping[str, int]) -> Shares:
    for name, share in forced.items():
        _check_name("key class", name, graph.classes)
        _check_count(f"share of {name!r}", share, least=1)
    cells = math.prod(forced.values())
    if cells > buckets:
        given = " x ".join(f"{name} {share}" for name, share in forced.items())
        raise InvalidArgumentError(
            f"forced shares {given} need {cells} buckets, there are {buckets}; "
            "lower a share or raise the number of buckets"
        )
    return Shares(graph, buckets, {name: forced.get(name, 1) for name in graph.classes}, True)


def _full_grids(graph: JoinGraph, buckets: int, splittable: Collection[str]) -> _Grids:
    """All grids in which no share can grow; a row each, a column per class."""
    most = np.array(
        [
            min(graph.distinct.get(name, buckets), buckets) if name in splittable else 1
            for name in graph.classes
        ]
    )
    grids: _Grids = np.ones((1, 0), np.int16)
    cells = np.ones(1, np.int64)
    for limit in most:
        choices = np.minimum(buckets // cells, limit)
        first = np.repeat(np.cumsum(choices) - choices, choices)
        share = np.arange(len(first)) - first + 1
        grids = np.column_stack((np.repeat(grids, choices, axis=0), share.astype(np.int16)))
        cells = np.repeat(cells, choices) * share
    full = np.ones(len(grids), np.bool_)
    for column, limit in zip(grids.T, most, strict=True):
        full &= (column == limit) | (cells // column * (column + 1) > buckets)
    return grids[full]


def _copies(graph: JoinGraph, grids: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Rows in all buckets together, per grid: each is copied along the classes it lacks."""
    return _sum_of_rows(graph, list(grids.T), held=False)


def _fullest(graph: JoinGraph, grids: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Rows in the fullest bucket, per grid, as if the streams' fullest buckets were the same."""
    parts = [
        _fullest_part(share, graph.distinct.get(name))
        for name, share in zip(graph.classes, grids.T, strict=True)
    ]
    return _sum_of_rows(graph, parts, held=True)


def _sum_of_rows(
    graph: JoinGraph, factors: Sequence[npt.NDArray[Any]], held: bool
) -> npt.NDArray[np.float64]:
    """Per grid the streams' rows, times the factors of the classes that each holds, or lacks."""
    total = np.zeros(len(factors[0]))
    for stream, count in _sizes(graph).items():
        rows = np.full(len(total), float(count))
        for name, factor in zip(graph.classes, factors, strict=True):
            if graph.holds(stream, name) == held:
                rows *= factor
        total += rows
    return total


def _fullest_part(share: npt.NDArray[Any], distinct: int | None) -> npt.NDArray[np.float64]:
    """The part of a class's values that hash to the fullest of ``share`` coordinates.

    Balls into bins: of v balls in s bins the fullest holds about v/s + sqrt(2 v/s ln s)
    (Raab, Steger, RANDOM 1998).
    """
    part: npt.NDArray[np.float64] = 1 / share
    if distinct is not None:
        part = np.minimum(1.0, part + np.sqrt(2 * part / distinct * np.log(share)))
    return part


def _sizes(graph: JoinGraph) -> dict[str, int]:
    return {stream: max(1, count) for stream, count in graph.rows.items()}


def _hashes_of(
    name: str, hashes: Mapping[str, npt.NDArray[np.uint64]], valid: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint64]:
    _check_name("hashes of key class", name, hashes)
    if len(hashes[name]) != len(valid):
        raise InvalidArgumentError(
            f"{len(hashes[name])} hashes of key class {name!r} for {len(valid)} rows"
        )
    return hashes[name]


def _shape(graph: JoinGraph) -> dict[str, list[Any]]:
    return {
        "streams": list(graph.rows),
        "key classes": [
            [name, [stream for stream in graph.rows if stream in holders]]
            for name, holders in graph.classes.items()
        ],
    }


def _signature(pinned: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()[:16]


def _check_count(what: str, value: object, least: int, most: int = 1 << 62) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidArgumentError(
            f"{what}: {value!r} is not an integer between {least} and {most}"
        )


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1) or known
        raise InvalidArgumentError(f"no {what} {name!r}; did you mean {', '.join(near)}?")
