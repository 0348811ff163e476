"""Key classes: the columns that a join condition makes equal."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.key_types import common_key_type, keeps_differences
from lsmstate.joins.conditions.predicate import Equal

Pair = tuple[Column, Column]


def key_classes(
    streams: Mapping[str, pa.Schema], text: str, *, splits: bool = False
) -> list[list[Column]]:
    """Union-find over the equalities: each class holds at most one column of a stream.

    Classes and their members stand in the order of the text. InvalidArgumentError names what
    the streams do not have, and a class that equates two columns of one stream; with ``splits`` an
    equality that would make such a class is one of its own, so columns may be in several.
    """
    parent: dict[Column, Column] = {}

    def root(column: Column) -> Column:
        parent.setdefault(column, column)
        while parent[column] != column:
            parent[column] = parent[parent[column]]
            column = parent[column]
        return column

    def members(at: Column) -> list[Column]:
        return [column for column in list(parent) if root(column) == at]

    apart: dict[frozenset[Column], list[Column]] = {}
    for left, right in written_pairs(streams, text):
        first, second = root(left), root(right)
        together = {*members(first), *members(second)}
        is_one_each = len({column.stream for column in together}) == len(together)
        if splits and not is_one_each and left.stream != right.stream:
            apart.setdefault(frozenset((left, right)), [left, right])
        else:
            # The earlier root wins, so that classes keep the order of the text.
            parent[second] = first
    classes: dict[Column, list[Column]] = {}
    for column in list(parent):
        classes.setdefault(root(column), []).append(column)
    found = [*classes.values(), *apart.values()]
    for each in found:
        _check_once(each)
    return [each for each in found if len(each) > 1 or not splits]


def written_pairs(streams: Mapping[str, pa.Schema], text: str) -> list[Pair]:
    """The equalities of a condition that has nothing else. InvalidArgumentError names what is none,
    and what the streams do not have."""
    from lsmstate.joins.conditions.parser import parse_conjuncts

    pairs = []
    columns = {name: schema.names for name, schema in streams.items()}
    for conjunct in parse_conjuncts(text, columns):
        match conjunct.predicate:
            case Equal(Column() as left, Column() as right):
                pairs.append((left, right))
            case _:
                raise InvalidArgumentError(
                    f"join condition: {conjunct.text!r} equates no two columns in {text!r}; "
                    'supported here are equalities of columns joined by AND, such as "a.id = b.id '
                    'AND a.day = b.day"; filter the inputs before the join for anything else'
                )
    return pairs


def class_type(streams: Mapping[str, pa.Schema], columns: Mapping[str, str]) -> pa.DataType:
    """The type in which the columns of a class, one per stream that holds it, are compared.
    InvalidArgumentError if there is none."""
    try:
        return common_key_type([streams[name].field(c).type for name, c in columns.items()])
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"join key {_typed(streams, columns.items())}: {error}; cast one of them before the "
            "join"
        ) from None


def check_differences(
    streams: Mapping[str, pa.Schema], columns: Mapping[str, str], written: Sequence[Pair] | None
) -> None:
    """InvalidArgumentError if the columns of a class, in its one type, would be equal where SQL
    tells them apart. SQL compares the columns of each equality ``written`` in a type of their own,
    and no others; None: each of the class with each. So ``int64 = double = int64`` is right by
    ``a.k = b.k AND b.k = c.k``, and not by ``a.k = c.k AND b.k = c.k`` of the same types."""
    members = [Column(*item) for item in columns.items()]
    common = class_type(streams, columns)
    for left, right in combinations(members, 2) if written is None else written:
        if left not in members or right not in members:
            continue
        found = class_type(streams, dict([left, right]))
        if not keeps_differences(found, common):
            raise InvalidArgumentError(
                f"join key: {_typed(streams, [left])} and {_typed(streams, [right])} are compared "
                f"as {found}, but the whole key {_typed(streams, members)} only as {common}, in "
                "which different values would be equal; cast the columns to one type first"
            )


def _typed(streams: Mapping[str, pa.Schema], columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{s}.{column} ({streams[s].field(column).type})" for s, column in columns)


def _check_once(members: Sequence[Column]) -> None:
    counts = Counter(column.stream for column in members)
    name, count = counts.most_common(1)[0]
    if count > 1:
        listed = " = ".join(f"{column.stream}.{column.name}" for column in members)
        raise InvalidArgumentError(
            f"join condition: {listed} equates several columns of stream {name!r}; filter "
            f"{name!r} for their equality before the join and name one of them here"
        )
