"""ThetaSpec: streams joined by any condition, the indexes that it needs, and the order of probes.

- The condition is split into conjuncts. For each stream that a conjunct names it is an equality, a
  range, or a check on candidates (``conditions.restrictions``).
- The rows of each stream are looked up in the others one after another, the most selective first.
  Each such *step* uses one index of the stream it looks into.
- An index is keyed by equal columns, then by one column that is bounded. Two bounded columns are an
  *interval*: its index is keyed by equal columns, a length class, and the lower column.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values, evaluated
from lsmstate.joins.conditions.key_parts import KeyPart
from lsmstate.joins.conditions.names import unknown
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.conditions.predicate import Expression, streams_of, text_of
from lsmstate.joins.conditions.restrictions import (
    Range,
    Restriction,
    all_conjuncts,
    restrictions_on,
)
from lsmstate.joins.specs.described import described
from lsmstate.joins.specs.one_key import check_streams, joined_schema
from lsmstate.store import StreamSchema

#: Types whose values have a length between them.
_LENGTHS: Final = (pa.types.is_int64, pa.types.is_float64, pa.types.is_date32)


@dataclass(frozen=True)
class ThetaIndex:
    """A stream of the store: the rows of ``stream`` by its key."""

    stream: str
    equal: tuple[KeyPart, ...] = ()
    low: KeyPart | None = None
    """The bounded column."""
    high: KeyPart | None = None
    """The upper end of an interval, whose lower one is ``low``."""

    @property
    def name(self) -> str:
        """As the store knows it."""
        shown = [f"{part}" for part in self.equal]
        if self.high is not None:
            shown.append(f"{self.low} to {self.high}")
        elif self.low is not None:
            shown.append(f"{self.low}")
        kinds = [str(p.type) for p in (*self.equal, self.low) if p is not None]
        return f"{self.stream} by {', '.join(shown) or 'nothing'} ({', '.join(kinds)})"

    @property
    def lengths_name(self) -> str:
        """The stream of the store that holds the length classes in use."""
        return f"{self.name} lengths"

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The columns that rows are stored under."""
        fields = [pa.field(f"k{at}", part.type) for at, part in enumerate(self.equal)]
        if self.high is not None:
            fields.append(pa.field("length", pa.int16()))
        if self.low is not None:
            fields.append(pa.field("low", self.low.type))
        return pa.schema(fields or [("all", pa.int8())])

    def serves(self, other: "ThetaIndex") -> bool:
        """Whether it finds all that the other one does."""
        if self.stream != other.stream or other.low is not None:
            return self == other
        columns = self.equal
        if self.low is not None and self.high is None:
            columns = (*columns, self.low)
        return columns[: len(other.equal)] == other.equal


@dataclass(frozen=True)
class Zone:
    """A range of a stored column beside those of the key, by which row blocks are left out."""

    column: str
    type: pa.DataType
    asked: Range


@dataclass(frozen=True)
class Step:
    """One stream is looked into for rows of those that are known."""

    target: str
    index: ThetaIndex
    equal: tuple[Restriction, ...] = ()
    """In the order of the index's columns."""
    low: Range | None = None
    high: Range | None = None
    """Of an interval: what bounds its upper end from below."""
    second: Range | None = None
    """A range of another column, by which the rows of a stretch are ordered."""
    zones: tuple[Zone, ...] = ()
    """The ranges of other columns that are stored as they are compared."""
    checks: tuple[PairCondition, ...] = field(default=())
    """What candidates have to keep."""

    @property
    def kind(self) -> str:
        """How rows are found."""
        if self.high is not None:
            return "interval"
        if self.low is not None:
            return "range"
        return "key" if self.equal else "scan"

    @cached_property
    def counting(self) -> "Step | None":
        """The same step by exact bounds: all rows that the index has in a range match, so that
        they can be counted. None if some have to be judged."""
        low = None if self.low is None else self.low.exactly()
        if self.kind not in ("key", "range") or (low is None and self.low is not None):
            return None
        answered = frozenset[Expression]() if low is None else low.answered
        if not all(check.predicate in answered for check in self.checks):
            return None
        return replace(self, low=low, second=None, zones=(), checks=())

    def failing(self, columns: Values, count: int) -> frozenset[Expression]:
        """The conjuncts that fail on one of the known combinations whatever its partner is."""
        return frozenset[Expression]().union(*(r.failing(columns, count) for r in self._ranges))

    @property
    def _ranges(self) -> list[Range]:
        return [each for each in (self.low, self.high, self.second) if each is not None]

    @property
    def reads(self) -> set[str]:
        """The streams that it asks for columns."""
        found = [*self.equal, *(each for own in self._ranges for each in own.restrictions)]
        asked = {name for each in found for name in streams_of(each.conjunct)}
        asked |= {name for check in self.checks for name in streams_of(check.predicate)}
        return asked - {self.target}


@dataclass(frozen=True)
class ThetaSpec:
    """Made by ``create``."""

    streams: Mapping[str, pa.Schema]
    on: str
    """Its conjuncts as SQL, joined by AND."""
    event_time: ClassVar[None] = None
    sides: ClassVar[None] = None
    """What inner joins do not have: a preserved side."""
    operations: ClassVar[Mapping[str, str]] = {}
    emits_changes: ClassVar[bool] = False
    graph: ClassVar[None] = None

    @property
    def shown_rows(self) -> Mapping[str, pa.Schema]:
        """The columns of each stream that are part of a result."""
        return self.streams

    @property
    def key_columns(self) -> tuple[Mapping[str, str], ...]:
        """Columns that are equal in a result, by their streams."""
        return tuple(
            {n: p.expression.name for n, p in parts.items() if isinstance(p.expression, Column)}
            for parts in self.equal_parts()
        )

    @property
    def theta(self) -> "ThetaSpec":
        """The condition, as all joins by any condition have it."""
        return self

    @classmethod
    def create(cls, streams: Mapping[str, pa.Schema], on: str) -> "ThetaSpec":
        """Check the streams and the condition. InvalidArgumentError names what does not fit, such
        as a function that is not known here."""
        check_streams(streams)
        columns = {name: schema.names for name, schema in streams.items()}
        kept = []
        for written in parse_conjuncts(on, columns):
            condition = PairCondition(written.predicate)
            condition.check(streams)
            if condition.columns:
                kept.append(text_of(written.predicate))
            else:
                _check_is_true(condition)
        spec = cls(dict(streams), " AND ".join(kept))
        assert len(spec.output_schema) == sum(len(schema) for schema in streams.values())
        return spec

    @cached_property
    def conjuncts(self) -> tuple[Expression, ...]:
        """What has to be true, each by itself."""
        if not self.on:
            return ()
        columns = {name: schema.names for name, schema in self.streams.items()}
        written = (found.predicate for found in parse_conjuncts(self.on, columns))
        return tuple(each for predicate in written for each in all_conjuncts(predicate))

    def filters(self, stream: str) -> tuple[PairCondition, ...]:
        """The conditions on a stream alone: what they do not hold for is in no result."""
        return tuple(PairCondition(c) for c in self.conjuncts if streams_of(c) == {stream})

    @cached_property
    def steps(self) -> Mapping[str, tuple[Step, ...]]:
        """By the stream whose rows arrive, the other ones in the order they are looked into."""
        found = {name: self._steps_from(name) for name in self.streams}
        wanted = [step.index for steps in found.values() for step in steps]
        # An index with a bounded column also finds what only its equal columns are asked for.
        wanted.sort(key=lambda index: index.low is None)
        kept: list[ThetaIndex] = []
        for index in wanted:
            if not any(other.serves(index) for other in kept):
                kept.append(index)
        return {name: tuple(_served(step, kept) for step in steps) for name, steps in found.items()}

    @cached_property
    def indexes(self) -> tuple[ThetaIndex, ...]:
        """What is stored, in the streams' order. Each row stands in all indexes of its stream."""
        found = {step.index for steps in self.steps.values() for step in steps}
        order = list(self.streams)
        return tuple(sorted(found, key=lambda index: (order.index(index.stream), index.name)))

    def indexes_of(self, stream: str) -> tuple[ThetaIndex, ...]:
        """Those of one stream."""
        return tuple(index for index in self.indexes if index.stream == stream)

    @property
    def output_schema(self) -> pa.Schema:
        """All columns of all streams, in the order of the streams."""
        return joined_schema(self.streams)

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The indexes, and the length classes that are in use in those of intervals."""
        found = []
        for index in self.indexes:
            rows = self.streams[index.stream]
            zones = sorted(self._zones_of(index))
            found.append(StreamSchema(index.name, index.key_schema, rows, zones=tuple(zones)))
            if index.high is not None:
                found.append(StreamSchema(index.lengths_name, LENGTHS, LENGTHS))
        return tuple(found)

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, the input whose rows it holds."""
        return {index.name: index.stream for index in self.indexes}

    def computed(self, stream: str) -> Sequence[str]:
        """None: keys are made of the rows."""
        return ()

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return {**described(()), "condition": sorted({text_of(c) for c in self.conjuncts})}

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        if stream not in self.streams:
            raise unknown("stream", stream, self.streams)

    def equal_parts(self) -> tuple[Mapping[str, KeyPart], ...]:
        """Values that are equal in every result, by the streams that have them: one of each."""
        classes: list[dict[str, KeyPart]] = []
        for conjunct in self.conjuncts:
            pair = {
                name: each.part
                for name in self.streams
                for each in restrictions_on(name, conjunct, self.streams)
                if each.sign == "=" and each.is_exact
            }
            if len(pair) != 2:
                continue
            together = [c for c in classes if any(c.get(n) == part for n, part in pair.items())]
            merged = dict(pair)
            is_fit = True
            for other in together:
                is_fit = is_fit and all(merged.get(n, part) == part for n, part in other.items())
                merged.update(other)
            if is_fit:
                classes = [c for c in classes if c not in together] + [merged]
        return tuple(classes)

    def unconnected(self) -> tuple[str, ...]:
        """Streams that no condition connects to the first one: with them it is a product."""
        reached = [next(iter(self.streams))]
        for name in reached:
            near = {n for c in self.conjuncts if name in streams_of(c) for n in streams_of(c)}
            reached += [n for n in self.streams if n in near and n not in reached]
        return tuple(name for name in self.streams if name not in reached)

    def explained(self) -> tuple[str, ...]:
        """How each part of the condition is used, and how rows of each stream find the others."""
        lines = [
            f"condition {text_of(c)}: {', '.join(self._uses(c))}; {self._cost(c)}"
            for c in self.conjuncts
        ]
        for name, steps in self.steps.items():
            ways = ", then ".join(_way(step) for step in steps)
            lines.append(f"a row of {name} looks into {ways}")
        for index in self.indexes:
            lines.append(f"stored: {index.name}")
        apart = self.unconnected()
        if apart:
            lines.append(
                f"warning: no condition connects {', '.join(apart)} to {next(iter(self.streams))}, "
                "so each of their rows meets each row of the others; most_results= bounds that"
            )
        return tuple(lines)

    def _zones_of(self, index: ThetaIndex) -> set[str]:
        steps = (step for steps in self.steps.values() for step in steps)
        return {zone.column for step in steps if step.index == index for zone in step.zones}

    def _uses(self, conjunct: Expression) -> list[str]:
        if len(streams_of(conjunct)) == 1:
            return ["filters rows before they are stored"]
        found: dict[str, None] = {}
        for step in (step for steps in self.steps.values() for step in steps):
            ranges = [r for r in (step.low, step.high) if r is not None]
            if any(each.conjunct == conjunct for each in step.equal):
                found[f"key of {step.target}"] = None
            elif any(each.is_of(conjunct) for each in ranges):
                found[f"{step.kind} in {step.target}"] = None
            elif any(zone.asked.is_of(conjunct) for zone in step.zones):
                found[f"zone in {step.target}"] = None
            if any(check.predicate == conjunct for check in step.checks):
                found["checked on candidates"] = None
        return list(found)

    def _cost(self, conjunct: Expression) -> str:
        """What a conjunct costs for each row that arrives."""
        if len(streams_of(conjunct)) == 1:
            return "evaluated once for each row"
        costs: dict[str, None] = {}
        for step in (step for steps in self.steps.values() for step in steps):
            ranges = [r for r in (step.low, step.high) if r is not None]
            if any(each.conjunct == conjunct for each in step.equal):
                costs[f"a row reads its equal rows of {step.target}"] = None
            elif any(each.is_of(conjunct) for each in ranges):
                costs[f"a row reads {_read_by_range(step)} {step.target}"] = None
            elif any(check.predicate == conjunct for check in step.checks):
                of = "row" if step.kind == "scan" else "candidate"
                costs[f"evaluated on each {of} of {step.target}"] = None
        return ", ".join(costs)

    def _steps_from(self, stream: str) -> list[Step]:
        known, steps = {stream}, []
        while len(known) < len(self.streams):
            others = (name for name in self.streams if name not in known)
            steps.append(max((self._step(known, name) for name in others), key=_selectivity))
            known.add(steps[-1].target)
        return steps

    def _step(self, known: set[str], target: str) -> Step:
        reach = {*known, target}
        usable = [c for c in self.conjuncts if target in streams_of(c) and streams_of(c) <= reach]
        found = [r for c in usable for r in restrictions_on(target, c, self.streams)]
        equal = _equal(found)
        low, high = _bounded([r for r in found if r not in equal and r.sign != "="])
        # What is equal only after rearranging is a range of one value.
        if low is None:
            low = _range([r for r in found if r.sign == "=" and not r.is_exact])
        index = ThetaIndex(
            target,
            tuple(r.part for r in equal),
            low.part if low is not None else None,
            high.part if high is not None else None,
        )
        answered = {r.conjunct for r in equal} | (low.answered if low is not None else set())
        if high is not None and low is not None:
            answered -= {r.conjunct for r in high.restrictions}
        checks = tuple(
            PairCondition(c) for c in usable if c not in answered and len(streams_of(c)) > 1
        )
        second = high if high is not None else _second(found, low)
        if second is not None and not _is_ordered(second):
            second = None
        zones = _zones(found, low, self.streams[target])
        return Step(target, index, equal, low, high, second, zones, checks)


#: The key, and the rows, of a stream that holds length classes.
LENGTHS: Final = pa.schema([("length", pa.int16())])


def _read_by_range(step: Step) -> str:
    if step.kind == "interval":
        return "one range for each class of lengths of"
    assert step.low is not None
    is_closed = step.low.lower and step.low.upper
    return "the rows between two bounds of" if is_closed else "all rows beyond one bound of"


def _way(step: Step) -> str:
    """How a stream is looked into, and what that reads."""
    match step.kind:
        case "scan":
            return f"all rows of {step.target} (each of them is read for each batch)"
        case "key":
            return f"{step.target} by an equality (its equal rows are read)"
        case "interval":
            return f"{step.target} by an interval (one range per class of lengths is read)"
    assert step.low is not None
    is_open = not (step.low.lower and step.low.upper)
    return f"{step.target} by a range{' without an end' if is_open else ''} (its rows are read)"


def _check_is_true(condition: PairCondition) -> None:
    found = evaluated(condition.predicate, _no_column, 1)
    if not found[0].as_py():
        raise InvalidArgumentError(
            f"join condition {str(condition)!r} is never true, so there is no result; leave it out"
        )


def _no_column(column: Column) -> pa.Array:
    raise AssertionError(f"{column} is in a condition without columns")


def _equal(found: Iterable[Restriction]) -> tuple[Restriction, ...]:
    """Exact equalities, of each part one, in an order that the text has no say in."""
    by_part: dict[KeyPart, Restriction] = {}
    for each in found:
        if each.sign == "=" and each.is_exact:
            by_part.setdefault(each.part, each)
    return tuple(by_part[part] for part in sorted(by_part, key=lambda p: (str(p), str(p.type))))


def _bounded(found: Sequence[Restriction]) -> tuple[Range | None, Range | None]:
    """The ranges of one part, or of the two ends of an interval: of a part that is bounded from
    both sides, or else of two parts, or else of one from one side."""
    ranges = [
        Range([each for each in found if each.part == part])
        for part in dict.fromkeys(each.part for each in found)
    ]
    for each in ranges:
        if each.lower and each.upper:
            return each, None
    for low in ranges:
        for high in ranges:
            is_interval = low.upper and high.lower and low.part.type == high.part.type
            if is_interval and has_lengths(low.part.type) and not low.takes_nan:
                return low, high
    return (ranges[0], None) if ranges else (None, None)


def _range(found: Sequence[Restriction]) -> Range | None:
    return Range([each for each in found if each.part == found[0].part]) if found else None


def _second(found: Sequence[Restriction], low: Range | None) -> Range | None:
    """Beside a range of one column, that of another one."""
    if low is None:
        return None
    others = [each for each in found if each.part != low.part and each.sign != "="]
    return _range(others)


def _zones(found: Sequence[Restriction], low: Range | None, rows: pa.Schema) -> tuple[Zone, ...]:
    """Beside a range of one column, those of others whose stored values it is about."""
    if low is None:
        return ()
    zones: dict[str, Zone] = {}
    others = [each for each in found if each.part != low.part and each.sign != "="]
    for part in dict.fromkeys(each.part for each in others):
        if isinstance(part.expression, Column):
            name = part.expression.name
            stored = rows.field(name).type
            if has_lengths(part.type) and _are_alike(stored, part.type):
                asked = Range([each for each in others if each.part == part])
                zones.setdefault(name, Zone(name, stored, asked))
    return tuple(zones.values())


def _are_alike(stored: pa.DataType, compared: pa.DataType) -> bool:
    """Whether a stored value is compared as it is, or as a wider number."""
    kinds = (pa.types.is_integer, pa.types.is_floating)
    return stored == compared or any(is_one(stored) and is_one(compared) for is_one in kinds)


def _is_ordered(second: Range) -> bool:
    """Whether NumPy orders its values as conditions do."""
    return has_lengths(second.part.type) and all(each.is_exact for each in second.restrictions)


def has_lengths(kind: pa.DataType) -> bool:
    """Whether there is a length between two values, which NumPy orders as conditions do."""
    return pa.types.is_timestamp(kind) or any(is_one(kind) for is_one in _LENGTHS)


def _selectivity(step: Step) -> tuple[int, bool]:
    is_two_sided = step.low is not None and bool(step.low.lower and step.low.upper)
    rank = {"key": 4, "interval": 2, "range": 3 if is_two_sided else 1, "scan": 0}[step.kind]
    return (5 if step.equal and rank in (2, 3) else 4 if step.equal else rank), bool(step.checks)


def _served(step: Step, kept: Sequence[ThetaIndex]) -> Step:
    index = next(each for each in kept if each.serves(step.index))
    return replace(step, index=index)
