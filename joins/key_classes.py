"""Key classes: the columns that a join condition makes equal, and the names it calls them by."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import pyarrow as pa

from joins.condition import Column, parse_condition
from joins.key_types import common_key_type, keeps_differences
from lsmstate.errors import InvalidArgumentError


def key_classes(streams: Mapping[str, pa.Schema], text: str) -> list[list[Column]]:
    """Union-find over the equalities: each class holds at most one column of a stream.

    Classes and their members stand in the order of the text. InvalidArgumentError names what
    the streams do not have, and a class that equates two columns of one stream.
    """
    parent: dict[Column, Column] = {}

    def root(column: Column) -> Column:
        parent.setdefault(column, column)
        while parent[column] != column:
            parent[column] = parent[parent[column]]
            column = parent[column]
        return column

    for pair in parse_condition(text):
        left, right = (_resolved_column(streams, column) for column in pair)
        # The earlier root wins, so that classes keep the order of the text.
        parent[root(right)] = root(left)
    classes: dict[Column, list[Column]] = {}
    for column in list(parent):
        classes.setdefault(root(column), []).append(column)
    for members in classes.values():
        _check_once(members)
    return list(classes.values())


def class_type(streams: Mapping[str, pa.Schema], columns: Mapping[str, str]) -> pa.DataType:
    """The type in which the columns of a class, one per stream that holds it, are compared.
    InvalidArgumentError if there is none, or two of them would be equal that SQL tells apart."""
    types = {
        f"{name}.{column} ({kind})": kind
        for name, column in columns.items()
        for kind in [streams[name].field(column).type]
    }
    try:
        common = common_key_type(list(types.values()))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"join key {', '.join(types)}: {error}; cast one of them before the join"
        ) from None
    for left, right in combinations(types, 2):
        found = common_key_type([types[left], types[right]])
        if not keeps_differences(found, common):
            raise InvalidArgumentError(
                f"join key: {left} and {right} are compared as {found}, but the whole key "
                f"{', '.join(types)} only as {common}, which would call different values equal; "
                "cast the columns to one type first"
            )
    return common


def resolved(what: str, name: str, known: Iterable[str], stream: str = "") -> str:
    """The known name that equals ``name``, without regard to case, as Spark resolves."""
    for candidate in known:
        if candidate.lower() == name.lower():
            return candidate
    raise unknown(what, name, known, stream)


def unknown(what: str, name: str, known: Iterable[str], stream: str = "") -> InvalidArgumentError:
    """The error for a name that is not there, with the nearest one that is."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    owner = f" in stream {stream!r}" if stream else ""
    return InvalidArgumentError(
        f"there is no {what} {name!r}{owner}; did you mean {near[0]!r}? Known: {', '.join(known)}"
    )


def _resolved_column(streams: Mapping[str, pa.Schema], column: Column) -> Column:
    stream = resolved("stream", column.stream, streams)
    return Column(stream, resolved("column", column.name, streams[stream].names, stream))


def _check_once(members: Sequence[Column]) -> None:
    counts = Counter(column.stream for column in members)
    name, count = counts.most_common(1)[0]
    if count > 1:
        listed = " = ".join(f"{column.stream}.{column.name}" for column in members)
        raise InvalidArgumentError(
            f"join condition: {listed} equates several columns of stream {name!r}; filter "
            f"{name!r} for their equality before the join and name one of them here"
        )
