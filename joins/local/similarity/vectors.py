"""Columns that are compared, as NumPy arrays: vectors, sets and texts."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.cython_ext.distances.exact import squared_norms
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.specs.similarity import JACCARD, LEVENSHTEIN, SimilaritySpec

Mask = npt.NDArray[np.bool_]
#: Vectors as rows, of float32 or float64.
Matrix = npt.NDArray[Any]

_ANGLES: Final = ("cosine", "angular")


@dataclass(frozen=True, slots=True)
class Arrived:
    """The compared column of rows that arrive."""

    is_usable: Mask
    """Rows that can match: not null, finite, and not zero under an angle."""
    dimension: int | None
    """Of its vectors; None: there are none, or they are no vectors."""


def vector_type(spec: SimilaritySpec) -> np.dtype[Any]:
    """The type in which the vectors of both streams are read."""
    kinds = [spec.streams[n].field(c).type.value_type for n, c in spec.columns.items()]
    is_narrow = all(pa.types.is_float32(kind) or pa.types.is_float16(kind) for kind in kinds)
    return np.dtype(np.float32 if is_narrow else np.float64)


def arrived(spec: SimilaritySpec, stream: str, rows: pa.RecordBatch, known: int | None) -> Arrived:
    """Look at the compared column of a batch.

    Args:
        spec: What is joined.
        stream: The stream of the batch.
        rows: The batch.
        known: The dimension of vectors that came before; None: none came.

    Raises:
        InvalidArgumentError: A vector has another dimension, or a null component.
    """
    column = rows.column(spec.columns[stream])
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    where = f"process({stream!r}): column {spec.columns[stream]!r}"
    if spec.metric == LEVENSHTEIN:
        return Arrived(is_there, None)
    if spec.metric == JACCARD:
        _check_elements(column, where)
        return Arrived(is_there, None)
    if not is_there.any():
        return Arrived(is_there, None)
    present = column if is_there.all() else column.drop_null()
    _check_elements(present, where)
    if known is None:
        known = _first_length(present)
    if spec.metric == "haversine" and known != 2:
        raise InvalidArgumentError(
            f"{where}: a vector has {known} components, and haversine compares "
            "[longitude, latitude]; give two numbers, in degrees"
        )
    _check_lengths(present, known, where)
    found = matrix(present, known, np.dtype(np.float64))
    good = np.isfinite(found).all(axis=1)
    if spec.metric in _ANGLES:
        good &= (found != 0).any(axis=1)
    usable = is_there.copy()
    usable[is_there] = good
    return Arrived(usable, known)


def matrix(column: pa.Array, dimension: int, kind: np.dtype[Any]) -> Matrix:
    """Vectors of one dimension, none null, as rows of a matrix. Cost: no copy of float32 lists."""
    values = column.flatten()
    found = values.to_numpy(zero_copy_only=False).astype(kind, copy=False)
    return np.ascontiguousarray(found.reshape(len(column), dimension))


def _check_elements(column: pa.Array, where: str) -> None:
    values = column.flatten()
    if values.null_count:
        lists = column.to_pylist()
        at = next(i for i, each in enumerate(lists) if each is not None and None in each)
        raise InvalidArgumentError(
            f"{where}: the list of row {at} holds a null; leave such rows out, or give a value"
        )


def _first_length(column: pa.Array) -> int:
    if pa.types.is_fixed_size_list(column.type):
        return int(column.type.list_size)
    return int(pc.list_value_length(column.slice(0, 1))[0].as_py())


def _check_lengths(column: pa.Array, known: int, where: str) -> None:
    if pa.types.is_fixed_size_list(column.type):
        others = np.full(len(column), column.type.list_size) != known
    else:
        others = pc.list_value_length(column).to_numpy(zero_copy_only=False) != known
    if others.any():
        at = int(np.flatnonzero(others)[0])
        raise InvalidArgumentError(
            f"{where}: a vector has {len(column[at])} components, and the first one had {known}; "
            "all vectors of a join have one dimension: leave the others out"
        )


def norms(vectors: Matrix) -> npt.NDArray[np.float64]:
    """The lengths of vectors."""
    return np.sqrt(squared_norms(vectors))
