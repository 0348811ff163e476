"""A tree of joins as what becomes of each row of a *root* stream, one step after the other.

``a FULL JOIN b LEFT JOIN c`` is what comes of the rows of a (with b and c, or nulls), and what
comes of the rows of b that no row of a matches. Every result holds exactly one root's row, so once
nothing can match that row, or its partners, any more, the results it is in are known for good.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.join_tree import Join, Tree
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.unmatched_side import partners
from lsmstate.joins.specs.event_time import is_between_times
from lsmstate.joins.specs.multi_key import GraphSpec

StepKind = Literal["inner", "left", "semi", "anti"]


class StepKey(NamedTuple):
    """The columns of one key class that a step compares: that of ``earlier`` with its own."""

    earlier: str
    key_class: int


@dataclass(frozen=True, slots=True)
class Step:
    """One more stream joined to what is there. ``left`` adds nulls where nothing matches."""

    stream: str
    kind: StepKind
    keys: tuple[StepKey, ...]
    """Of one stream before it or of several: then the join graph has a cycle, mostly."""
    bounds: tuple[Bound, ...]
    equal_times: tuple[Bound, ...]
    """Of its keys that are time stamps what follows for their distance, which is none."""
    conditions: tuple[PairCondition, ...] = ()
    """What else has to hold, of its stream and those before it. A stream that has no row in a part
    counts as one of nulls."""

    @property
    def holders(self) -> dict[int, str]:
        """By key class it compares, ascending, the first stream that it compares it with."""
        found: dict[int, str] = {}
        for key in sorted(self.keys, key=lambda key: key.key_class):
            found.setdefault(key.key_class, key.earlier)
        return found

    @property
    def classes(self) -> tuple[int, ...]:
        """The key classes it compares, ascending."""
        return tuple(self.holders)

    @property
    def more_keys(self) -> tuple[StepKey, ...]:
        """Keys of further streams, which have to be equal too where rows of one were found by it:
        ``c.x = a.x AND c.x = b.x``."""
        holders = self.holders
        return tuple(key for key in self.keys if holders[key.key_class] != key.earlier)

    @property
    def is_checked(self) -> bool:
        """Whether rows that were found by ``classes`` match only if more holds as well."""
        return bool(self.bounds or self.conditions or self.more_keys)

    @property
    def timed_with(self) -> set[str]:
        """The other streams that its intervals are to."""
        named = {c.stream for bound in self.bounds for c in (bound.later, bound.earlier)}
        return named - {self.stream}

    @property
    def compared_with(self) -> set[str]:
        """The other streams that it names at all."""
        named = {key.earlier for key in self.keys} | self.timed_with
        named |= {stream for condition in self.conditions for stream in condition.streams}
        return named - {self.stream}

    @property
    def is_by_one(self) -> bool:
        """Whether it names one stream only, so that a row of that one has the same partners in
        whatever combination it is."""
        return len(self.compared_with) == 1

    @property
    def is_by_key(self) -> bool:
        """Whether rows of that one stream with equal keys have the same partners."""
        return self.is_by_one and not self.is_checked

    @property
    def earlier(self) -> str:
        """The stream it compares with, or that of them with the most keys."""
        named = [key.earlier for key in self.keys]
        return max(named, key=named.count)

    @property
    def earlier_classes(self) -> tuple[int, ...]:
        """The key classes it compares with ``earlier``, ascending."""
        return tuple(sorted(key.key_class for key in self.keys if key.earlier == self.earlier))


@dataclass(frozen=True, slots=True)
class RootedJoins:
    """What becomes of each row of ``root``."""

    root: str
    steps: tuple[Step, ...]
    unless: "RootedJoins | None" = None
    """Inner joins, the last of them with ``root``: rows of it that they have a result of are left
    out, as by an anti step that looks for combinations."""

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """Those of ``unless`` too."""
        return self.steps if self.unless is None else (*self.unless.steps, *self.steps)

    def step_of(self, stream: str) -> Step | None:
        """The step that joins a stream; None for the root."""
        return next((step for step in self.steps if step.stream == stream), None)

    def path(self, stream: str) -> list[Step]:
        """The steps that lead from ``stream`` to the root, each to one stream it compares with."""
        found: list[Step] = []
        while (step := self.step_of(stream)) is not None:
            found.append(step)
            stream = step.earlier
        return found

    def lineage(self, stream: str) -> tuple[Step, ...]:
        """In their order the steps of ``stream`` and of all streams that say, by way of others
        too, which rows it matches; none for the root."""
        needed = {stream}
        found = []
        for step in reversed(self.steps):
            # What a semi or anti join looked for has no row in the combinations.
            has_rows = step.kind in ("inner", "left") or step.stream == stream
            if step.stream in needed and has_rows:
                needed |= step.compared_with
                found.append(step)
        return tuple(reversed(found))

    @property
    def streams(self) -> set[str]:
        """All that are named but in ``unless``."""
        return {self.root, *(step.stream for step in self.steps)}

    def equal_with(self, stream: str, number: int) -> set[str]:
        """The streams of inner joins whose values of a key class are that of ``stream``."""
        pairs = [(s.stream, k.earlier) for s in self.steps for k in s.keys if k.key_class == number]
        found = {stream}
        for _ in pairs:
            found |= {name for pair in pairs if not found.isdisjoint(pair) for name in pair}
        return found

    @property
    def is_inner(self) -> bool:
        """Whether its results are those of inner joins."""
        return self.unless is None and all(step.kind == "inner" for step in self.steps)


class Reach(NamedTuple):
    """How far apart in time a row of the root and one of a stream that matter to each other are,
    in microseconds; None: any time."""

    ahead_us: int | None
    """The most by which the stream's time is after the root's."""
    behind_us: int | None
    """The most by which it is before."""


def rooted_joins(tree: Tree, graph: GraphSpec) -> tuple[RootedJoins, ...]:
    """The parts of ``tree`` by their roots; together they have each of its results once.
    InvalidArgumentError names what is not of this form."""
    if isinstance(tree, str):
        return (RootedJoins(tree, ()),)
    if not isinstance(tree.right, str):
        raise InvalidArgumentError(
            f"joins: ({tree.right}) stands on the right of a join; by several keys, and with "
            "emit='final', streams are joined one after the other: put this part first, or use "
            "one common key and emit='changes'"
        )
    extended = (_extended(part, tree, graph) for part in rooted_joins(tree.left, graph))
    parts = [part for part in extended if part is not None]
    if tree.kind in ("right", "full"):
        parts.append(_unmatched(tree, graph))
    return tuple(parts)


def reaches(joins: RootedJoins, event_times: Mapping[str, str]) -> dict[str, Reach]:
    """By stream, how far from a row of the root those rows are that have a say in its results."""
    found = {joins.root: Reach(0, 0)}
    if joins.unless is not None:
        found = _near(joins.unless, joins.root, event_times)
    for step in joins.steps:
        ahead: list[int] = []
        behind: list[int] = []
        for bound in _timed(step, event_times):
            if bound.later.stream == step.stream:
                known, distances = found[bound.earlier.stream].ahead_us, ahead
            else:
                known, distances = found[bound.later.stream].behind_us, behind
            if known is not None:
                distances.append(known + bound.most_us)
        found[step.stream] = Reach(min(ahead, default=None), min(behind, default=None))
    return found


def _near(joins: RootedJoins, stream: str, event_times: Mapping[str, str]) -> dict[str, Reach]:
    """How far from a row of ``stream`` the rows of inner joins are that have a result together:
    the shortest way by all bounds."""
    bounds = [bound for step in joins.steps for bound in _timed(step, event_times)]
    names = (joins.root, *(step.stream for step in joins.steps))
    ahead, behind = {stream: 0}, {stream: 0}
    for _ in names:
        for bound in bounds:
            ways = (
                (ahead, bound.earlier.stream, bound.later.stream),
                (behind, bound.later.stream, bound.earlier.stream),
            )
            for found, known, other in ways:
                if known in found and other != stream:
                    distance = found[known] + bound.most_us
                    found[other] = min(found.get(other, distance), distance)
    return {name: Reach(ahead.get(name), behind.get(name)) for name in names}


def _timed(step: Step, event_times: Mapping[str, str]) -> list[Bound]:
    """What bounds the distances of event times."""
    return [
        bound
        for bound in (*step.bounds, *step.equal_times)
        if all(event_times.get(c.stream) == c.name for c in (bound.later, bound.earlier))
    ]


def kept_us(
    parts: Iterable[RootedJoins], event_times: Mapping[str, str], streams: Iterable[str]
) -> dict[str, int | None]:
    """By stream, how long after its event time a row may have a part in results that a row or a
    retraction in time makes or takes back; None: for ever. A root's row has until the watermark
    has passed all that matters to it; any other until no root's row is left that it matters to."""
    found: dict[str, int | None] = {name: 0 if name in event_times else None for name in streams}
    for part in parts:
        near = reaches(part, event_times)
        ahead = [reach.ahead_us for reach in near.values()]
        known = [most for most in ahead if most is not None]
        for name, reach in near.items():
            kept = found[name]
            if kept is None or reach.behind_us is None or len(known) < len(ahead):
                found[name] = None
            else:
                found[name] = max(kept, reach.behind_us + max(known))
    return found


def meeting_classes(parts: Iterable[RootedJoins], graph: GraphSpec) -> tuple[int, ...]:
    """The key classes by whose values rows can be spread: all that has a say in a root's row has
    the row's own value of the class, or none and so is copied to all places."""
    parts = list(parts)
    return tuple(
        number
        for number in range(len(graph.classes))
        if all(_meets(part, number, graph) for part in parts)
    )


def _meets(part: RootedJoins, number: int, graph: GraphSpec) -> bool:
    if number not in graph.held_by(part.root):
        return False
    equal = {part.root}
    if part.unless is not None:
        equal = part.unless.equal_with(part.root, number)
        if any(number in graph.held_by(name) for name in part.unless.streams - equal):
            return False
    for step in part.steps:
        if number in graph.held_by(step.stream):
            if not any(k.key_class == number and k.earlier in equal for k in step.keys):
                return False
            equal.add(step.stream)
    return True


def _extended(part: RootedJoins, join: Join, graph: GraphSpec) -> RootedJoins | None:
    """The part with one more step; None if nothing comes of it."""
    assert isinstance(join.right, str)
    kind: StepKind = "inner"
    if join.kind in ("left", "full"):
        kind = "left"
    elif join.kind in ("semi", "anti"):
        kind = join.kind
    shown = {part.root} | {s.stream for s in part.steps if s.kind in ("inner", "left")}
    certain = {part.root} | {s.stream for s in part.steps if s.kind == "inner"}
    keys = []
    for on in join.on:
        there = [column.stream for column in on.left if column.stream in shown]
        if len(there) > 1 and there[0] not in certain:
            raise InvalidArgumentError(
                f"joins: {on} compares with whichever of {', '.join(there)} has a row; by several "
                "keys, and with emit='final', name one of them, as in a.k = b.k"
            )
        if there:
            (first, *_) = (column for column in on.left if column.stream == there[0])
            keys.append(StepKey(there[0], _class_of(first, on.right[0], graph)))
    others = {c.stream for bound in join.bounds for c in (bound.later, bound.earlier)}
    if len(keys) < len(join.on) or not others <= {*shown, join.right}:
        # Compared with what has no row here: nothing matches.
        return part if kind in ("left", "anti") else None
    return replace(part, steps=(*part.steps, _step(join.right, kind, keys, join, graph)))


def _unmatched(join: Join, graph: GraphSpec) -> RootedJoins:
    """The rows of the right side that no row of the left one matches."""
    assert isinstance(join.right, str)
    found = partners(join)
    if not isinstance(found.left, str):
        (unless,) = rooted_joins(found, graph)
        return RootedJoins(join.right, (), unless)
    keys = [StepKey(join.right, _class_of(on.left[0], on.right[0], graph)) for on in join.on]
    return RootedJoins(join.right, (_step(found.left, "anti", keys, join, graph),))


def _step(stream: str, kind: StepKind, keys: list[StepKey], join: Join, graph: GraphSpec) -> Step:
    equal: list[Bound] = []
    keys = list(dict.fromkeys(keys))
    for key in keys:
        written = graph.classes[key.key_class].written
        pair = (Column(stream, written[stream]), Column(key.earlier, written[key.earlier]))
        equal += [Bound(*pair, 0), Bound(*pair[::-1], 0)]
    equal_times = tuple(bound for bound in equal if is_between_times(graph.streams, bound))
    return Step(stream, kind, tuple(keys), join.bounds, equal_times, join.conditions)


def _class_of(left: Column, right: Column, graph: GraphSpec) -> int:
    return next(
        number
        for number, key_class in enumerate(graph.classes)
        if all(key_class.written.get(c.stream) == c.name for c in (left, right))
    )
