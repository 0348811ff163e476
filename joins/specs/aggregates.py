"""What a query above a join aggregates: groups of results, and what is computed of each.

A join that is told so hands out *partial aggregates*: rows that each stand for several results of
one group. Whoever combines them (sums of counts, sums of sums, least of leasts) has the aggregates
of the results. Nothing of it is stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import type_of
from lsmstate.joins.conditions.predicate import Expression, columns_of, text_of

#: The stream that the operation of a result, which says whether it comes or goes, is a column of.
OPERATION_STREAM: Final = ""

AggregateFunction = Literal["count", "sum", "min", "max"]
#: Digits of a sum of decimals, before the query above gives it a type.
_SUM_DIGITS: Final = 38


@dataclass(frozen=True)
class Partial:
    """A partial aggregate of the results of a group."""

    function: AggregateFunction
    of: Expression | None = None
    """Counted are results for which it is not null; None: all. Other functions need it."""
    is_double: bool = False
    """Whether a sum of whole numbers is handed out as a DOUBLE, as an average needs it."""
    wraps: bool = False
    """Whether a sum that does not fit into a BIGINT wraps around, as without ANSI mode. Otherwise
    it is handed out in several parts, whose sum overflows where the whole does."""

    def __str__(self) -> str:
        return f"{self.function}({'*' if self.of is None else text_of(self.of)})"


@dataclass(frozen=True)
class Aggregates:
    """Groups of results and their partial aggregates; a value."""

    by: tuple[Expression, ...]
    """What is equal in a group, nulls included. Groups that only the query above takes for one,
    such as -0.0 and 0.0, may be handed out apart."""
    partials: tuple[Partial, ...]

    @property
    def streams_read(self) -> set[str]:
        """The streams of which columns are read."""
        read = [*self.by, *(each.of for each in self.partials)]
        return {stream for each in read for stream in streams_read(each)}

    def schema(self, streams: Mapping[str, pa.Schema]) -> pa.Schema:
        """The columns that are handed out: ``g0``, ``g1`` ... of the group, then ``p0``, ``p1`` ...
        InvalidArgumentError for what cannot be computed here."""
        if not self.by and not self.partials:
            raise InvalidArgumentError("an aggregate of neither groups nor values")
        groups = [(f"g{at}", _group_type(each, streams)) for at, each in enumerate(self.by)]
        parts = [(f"p{at}", _type(each, streams)) for at, each in enumerate(self.partials)]
        return pa.schema([*groups, *parts])


def column_type(of: Expression, streams: Mapping[str, pa.Schema]) -> pa.DataType:
    """The type of an expression; of a column the one that it is stored in."""
    if isinstance(of, Column):
        return streams[of.stream].field(of.name).type
    return type_of(of, streams)


def streams_read(of: Expression | None) -> set[str]:
    """The streams whose columns an expression reads."""
    return set() if of is None else {column.stream for column in columns_of(of)}


def _group_type(of: Expression, streams: Mapping[str, pa.Schema]) -> pa.DataType:
    found = column_type(of, streams)
    if not _is_plain(found):
        raise InvalidArgumentError(f"a group by {text_of(of)}, which is {found}")
    return found


def _type(partial: Partial, streams: Mapping[str, pa.Schema]) -> pa.DataType:
    if partial.of is None:
        if partial.function != "count":
            raise InvalidArgumentError(f"{partial.function} needs a value")
        return pa.int64()
    found = column_type(partial.of, streams)
    if partial.function == "count":
        return pa.int64()
    if partial.function == "sum":
        if pa.types.is_floating(found):
            return pa.float64()
        if pa.types.is_signed_integer(found):
            return pa.float64() if partial.is_double else pa.int64()
        if pa.types.is_decimal128(found):
            return pa.decimal128(_SUM_DIGITS, found.scale)
    elif _is_plain(found):
        return found
    raise InvalidArgumentError(f"{partial} of {found}")


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of the type make groups, and are ordered, here."""
    return bool(
        pa.types.is_signed_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )
