"""Conditions of pairs of rows beside the keys of a join: named, checked and evaluated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values, evaluated, type_of
from lsmstate.joins.conditions.predicate import (
    Compare,
    Expression,
    columns_of,
    needed_streams,
    text_of,
)


@dataclass(frozen=True, slots=True)
class PairCondition:
    """Made by ``of`` or of a part of a tree; a value."""

    predicate: Expression

    @classmethod
    def of(cls, text: str, columns: Mapping[str, Sequence[str]]) -> "PairCondition":
        """``columns`` of the streams. InvalidArgumentError names what does not fit."""
        from lsmstate.joins.conditions.parser import parse_condition

        found = cls(parse_condition(text, columns))
        found.check_names_columns()
        return found

    @classmethod
    def compared(cls, left: Column, sign: Literal["<", "<="], right: Column) -> "PairCondition":
        """``left sign right``."""
        return cls(Compare(sign, left, right))

    @property
    def columns(self) -> tuple[Column, ...]:
        """All that it names, each once."""
        return columns_of(self.predicate)

    @property
    def streams(self) -> set[str]:
        """Those of its columns."""
        return {column.stream for column in self.columns}

    @property
    def needed(self) -> set[str]:
        """The streams without a row of which, so with nulls for all their columns, it is never
        true."""
        return needed_streams(self.predicate)

    def __str__(self) -> str:
        return text_of(self.predicate)

    def check_names_columns(self) -> None:
        """InvalidArgumentError for a condition of constants, which says nothing of rows."""
        if not self.columns:
            raise InvalidArgumentError(
                f"join condition {str(self)!r} names no column; leave it out, or compare a column"
            )

    def check(self, streams: Mapping[str, pa.Schema]) -> None:
        """InvalidArgumentError for a column that is not stored, and for what is not evaluated here
        as Spark evaluates it."""
        for stream, name in self.columns:
            if name not in streams[stream].names:
                raise InvalidArgumentError(
                    f"join condition {str(self)!r}: {stream}.{name} is an operation column, which "
                    "is not part of a row; leave it out"
                )
        found = type_of(self.predicate, streams)
        if not (pa.types.is_boolean(found) or pa.types.is_null(found)):
            raise InvalidArgumentError(
                f"join condition {str(self)!r} is {found}, and no condition; compare it with "
                "something"
            )

    def holds(self, values: Values) -> npt.NDArray[np.bool_]:
        """Of each pair of rows whether it is true; not where it is unknown. Cost: a few vector
        operations a comparison."""
        taken = {column: values(column) for column in self.columns}
        rows = len(next(iter(taken.values())))
        known = evaluated(self.predicate, taken.__getitem__, rows)
        known = known.cast(pa.bool_()).fill_null(False)
        return np.asarray(known.to_numpy(zero_copy_only=False)).astype(np.bool_)
