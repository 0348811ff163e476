"""``how``: join types by name, and the tree of joins they mean together with the condition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.classify import equated
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.from_clause import is_from_clause, parse_joins
from lsmstate.joins.conditions.intervals import Bound, bounds_in
from lsmstate.joins.conditions.join_tree import (
    SQL_NAMES,
    Comparison,
    Join,
    Kind,
    Tree,
    bound_text,
    bounds_of,
    conditions_of,
    joins_of,
    shown_streams,
)
from lsmstate.joins.conditions.names import resolved, unknown
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.specs.one_key import Condition, JoinSpec

#: One type for every stream but the first, or the types of some; the others are inner joins.
How = Kind | Mapping[str, Kind]

_SPELLINGS: dict[str, Kind] = {
    **{kind: kind for kind in SQL_NAMES},
    "leftouter": "left",
    "rightouter": "right",
    "outer": "full",
    "fullouter": "full",
    "leftsemi": "semi",
    "leftanti": "anti",
}


@dataclass(frozen=True, slots=True)
class TypedCondition:
    """What is joined by which equalities (``on``), and how: ``tree``, None for inner joins."""

    on: Condition
    tree: Tree | None


def typed_condition(
    streams: Mapping[str, Sequence[str]], on: Condition, how: How = "inner"
) -> TypedCondition:
    """``streams``: the columns of each. ``on``: SQL text of joins, which says all by itself; or a
    condition as in JoinSpec, that ``how`` gives types to: the streams are joined in their order,
    each to all before it, by the conditions between it and those. There an equality ``a.k = c.k``
    compares with just that stream, as in SQL; lists of columns compare with the first of the
    streams before that has a row, as SQL's USING does. Conditions of inner joins stay in ``on``.
    InvalidArgumentError names what does not fit."""
    if not isinstance(on, str | Mapping | Sequence) or isinstance(on, bytes):
        raise InvalidArgumentError(
            f"on={on!r} is a {type(on).__name__}; give a condition as text, or lists of columns"
        )
    if isinstance(on, str) and is_from_clause(on):
        if how != "inner":
            raise InvalidArgumentError(
                f"how={how!r}: the joins in {on!r} have their types in the text; leave how out"
            )
        tree = parse_joins(on, streams)
    else:
        kinds = kinds_of(streams, how)
        if set(kinds.values()) == {"inner"}:
            return TypedCondition(on, None)
        if isinstance(on, str):
            pairs, bounds, others = _split(streams, on)
            compared = partial(_with_earlier, pairs, list(streams))
            tree = _left_deep(streams, kinds, compared, bounds, others)
        else:
            tree = _left_deep(streams, kinds, partial(_by_position, streams, on), (), ())
    joins = list(joins_of(tree))
    if isinstance(on, str):
        on = " AND ".join(_equalities(joins))
    if all(join.kind == "inner" for join in joins):
        assert isinstance(on, str), "lists of columns are given types in other ways"
        rest = [*map(bound_text, bounds_of(tree)), *map(str, conditions_of(tree))]
        return TypedCondition(" AND ".join([on, *rest]), None)
    return TypedCondition(on, tree)


def in_text(typed: TypedCondition) -> str:
    """The equalities as text, also where lists of columns were given."""
    if isinstance(typed.on, str):
        return typed.on
    assert typed.tree is not None, "inner joins may be by lists of columns"
    return " AND ".join(_equalities(list(joins_of(typed.tree))))


def inner_joins(spec: JoinSpec) -> Tree:
    """The tree of a join of which all types are inner."""
    kinds: dict[str, Kind] = dict.fromkeys(list(spec.streams)[1:], "inner")
    return _left_deep(spec.keys, kinds, partial(_by_position, spec.keys, spec.keys), (), ())


def check_tree(tree: Tree, spec: JoinSpec) -> None:
    """InvalidArgumentError unless every join of ``tree`` compares the whole key of ``spec``, and
    nothing else."""
    places = {
        Column(name, column): place
        for name, columns in spec.keys.items()
        for place, column in enumerate(columns)
    }
    for join in joins_of(tree):
        if join.bounds:
            raise InvalidArgumentError(
                f"joins: {join}: time intervals need emit='changes', or emit='final', by which a "
                "row waits until the watermark says that no partner comes; give one of them"
            )
        compared = {places[c] for on in join.on for c in (*on.left, *on.right)}
        for place in range(len(spec.key_schema)):
            if place not in compared:
                columns = " = ".join(f"{n}.{keys[place]}" for n, keys in spec.keys.items())
                raise InvalidArgumentError(
                    f"joins: {join} leaves out a part of the key, {columns}; joins of types other "
                    "than inner must all compare the whole key: add the equality"
                )


def kinds_of(streams: Mapping[str, Sequence[str]], how: How) -> dict[str, Kind]:
    """The type by which each stream but the first is joined to those before it."""
    later = list(streams)[1:]
    if isinstance(how, str):
        return dict.fromkeys(later, _kind(how))
    if not isinstance(how, Mapping):
        raise InvalidArgumentError(
            f'how={how!r}: give a join type, or one per stream as in {{"b": "left"}}'
        )
    kinds: dict[str, Kind] = dict.fromkeys(later, "inner")
    for given, kind in how.items():
        name = resolved("stream", given, streams)
        if name not in later:
            raise InvalidArgumentError(
                f"how[{given!r}]={kind!r}: the first stream has no join of its own; give the types "
                f"of {', '.join(map(repr, later))}, or name the streams in another order"
            )
        kinds[name] = _kind(kind)
    return kinds


def _kind(text: str) -> Kind:
    spelled = str(text).lower().replace("_", "").replace(" ", "")
    if spelled not in _SPELLINGS:
        raise unknown("join type", str(text), SQL_NAMES)
    return _SPELLINGS[spelled]


def _split(
    streams: Mapping[str, Sequence[str]], on: str
) -> tuple[list[tuple[Column, Column]], tuple[Bound, ...], tuple[PairCondition, ...]]:
    """The equalities, the time intervals beside them, and the other conditions."""
    pairs: list[tuple[Column, Column]] = []
    bounds: list[Bound] = []
    others: list[PairCondition] = []
    for conjunct in parse_conjuncts(on, streams):
        pair = equated(conjunct.predicate)
        found = bounds_in(conjunct.predicate)
        if pair is not None:
            pairs.append(pair)
        elif not found or any(bound.later.stream == bound.earlier.stream for bound in found):
            others.append(PairCondition(conjunct.predicate))
            others[-1].check_names_columns()
        else:
            bounds += found
    if not pairs:
        raise InvalidArgumentError(
            f"join condition: no column is equal to one of another stream in {on!r}; equate a "
            "column of each stream with one of a stream before it, as in a.id = b.id"
        )
    return pairs, tuple(bounds), tuple(others)


def _left_deep(
    streams: Mapping[str, Sequence[str]],
    kinds: Mapping[str, Kind],
    compared: Callable[[Sequence[str], str], Sequence[Comparison]],
    bounds: Sequence[Bound],
    others: Sequence[PairCondition],
) -> Tree:
    first, *later = streams
    order = list(streams)
    tree: Tree = first
    for name in later:
        before = shown_streams(tree)
        comparisons = tuple(compared(before, name))
        if not comparisons or any(on.left[0].stream not in before for on in comparisons):
            raise InvalidArgumentError(
                f"how: {name!r} is joined to {', '.join(map(repr, before))} and must be compared "
                "with these and no other; equate one of its columns with one of theirs, or name "
                "the streams in another order (streams of semi and anti joins have no columns)"
            )
        own = tuple(b for b in bounds if name == max(_streams_of(b), key=order.index))
        if any(min(_streams_of(b), key=order.index) not in before for b in own):
            raise InvalidArgumentError(
                f"how: the time intervals of {name!r} must refer to "
                f"{', '.join(map(repr, before))}; name the streams in another order"
            )
        conditions = tuple(c for c in others if name == max(c.streams, key=order.index))
        if any(not c.streams <= {*before, name} for c in conditions):
            raise InvalidArgumentError(
                f"how: the conditions of {name!r} must refer to it and {', '.join(before)}; name "
                "the streams in another order"
            )
        tree = Join(kinds[name], tree, name, comparisons, own, conditions)
    for condition in others:
        if condition.streams <= {first}:
            raise InvalidArgumentError(
                f"how: the condition {condition} is on {first!r} alone and belongs to no join; "
                f"write the joins out, as in {first} LEFT JOIN {later[0]} ON ..., or filter "
                f"{first} before the join"
            )
    return tree


def _streams_of(bound: Bound) -> tuple[str, str]:
    return bound.later.stream, bound.earlier.stream


def _with_earlier(
    pairs: Sequence[tuple[Column, Column]],
    order: Sequence[str],
    _before: Sequence[str],
    name: str,
) -> list[Comparison]:
    return [
        Comparison((one,), (other,))
        for pair in pairs
        for one, other in (pair, pair[::-1])
        if other.stream == name and order.index(one.stream) < order.index(name)
    ]


def _by_position(
    streams: Mapping[str, Sequence[str]],
    on: Mapping[str, Sequence[str]] | Sequence[str],
    before: Sequence[str],
    name: str,
) -> list[Comparison]:
    given = on if isinstance(on, Mapping) else dict.fromkeys(streams, on)
    lists = {resolved("stream", stream, streams): list(names) for stream, names in given.items()}

    def column(stream: str, place: int) -> Column:
        return Column(stream, resolved("column", lists[stream][place], streams[stream], stream))

    return [
        Comparison(tuple(column(stream, place) for stream in before), (column(name, place),))
        for place in range(len(lists[name]))
    ]


def _equalities(joins: Sequence[Join]) -> list[str]:
    """Equalities of all columns that are compared, two by two."""
    return [
        str(Comparison((one,), (other,)))
        for join in joins
        for on in join.on
        for one, other in combinations((*on.left, *on.right), 2)
    ]
