"""Columns that are compared, as NumPy arrays: vectors, sets and texts."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.cython_ext.distances.exact import squared_norms
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.specs.similarity import LEVENSHTEIN, SimilaritySpec

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
#: Vectors as rows, of float32 or float64.
Matrix = npt.NDArray[Any]

_ANGLES: Final = ("cosine", "angular")


@dataclass(frozen=True, slots=True)
class Arrived:
    """The compared column of rows that arrive."""

    is_usable: Mask
    """Rows that can match: well formed, not null, finite, and not zero under an angle."""
    is_malformed: Mask
    """Rows whose list holds a null, or has another length than the vectors of the join."""
    dimension: int | None
    """Of its vectors; None: there are none, or they are no vectors."""

    def kept(self) -> "Arrived":
        """Without malformed rows."""
        kept = ~self.is_malformed
        return Arrived(self.is_usable[kept], self.is_malformed[kept], self.dimension)


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
        InvalidArgumentError: A vector has another dimension, or a null component, and the spec
            refuses such batches.
    """
    column = rows.column(spec.columns[stream])
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    if spec.metric == LEVENSHTEIN:
        return Arrived(is_there, ~is_there & is_there, None)
    lengths = _lengths(column)
    holds_null = _holding_nulls(column, np.where(is_there, lengths, 0))
    is_malformed = holds_null
    if spec.compares_vectors:
        if known is None:
            known = spec.known_dimension
        if known is None:
            whole = np.flatnonzero(is_there & ~holds_null)
            known = int(lengths[whole[0]]) if len(whole) else None
        if known is not None:
            is_malformed = holds_null | (is_there & (lengths != known))
    if is_malformed.any() and spec.malformed == "refuse":
        at = int(is_malformed.argmax())
        fault = "holds a null" if holds_null[at] else _of_another(spec, int(lengths[at]), known)
        raise InvalidArgumentError(
            f"process({stream!r}): column {spec.columns[stream]!r}: the list of row {at} {fault}; "
            'correct it, or leave such rows out by malformed="skip"'
        )
    usable = is_there & ~is_malformed
    if spec.compares_vectors and known is not None and usable.any():
        good = column if usable.all() else column.filter(pa.array(usable))
        found = matrix(good, known, np.dtype(np.float64))
        can_match = np.isfinite(found).all(axis=1)
        if spec.metric in _ANGLES:
            can_match &= (found != 0).any(axis=1)
        usable[usable] = can_match
    return Arrived(usable, is_malformed, known)


def _of_another(spec: SimilaritySpec, length: int, known: int | None) -> str:
    if spec.metric == "haversine":
        return f"has {length} components, and haversine compares [longitude, latitude]"
    which = "the first vector has" if spec.dimension is None else "dimension says"
    return f"has {length} components, and {which} {known}"


def _lengths(column: pa.Array) -> Numbers:
    """The length of each list; of a null any."""
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    found = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.int64)


def _holding_nulls(column: pa.Array, lengths: Numbers) -> Mask:
    """Which lists hold a null. ``lengths``: of each list, 0 of a null."""
    found = np.zeros(len(column), np.bool_)
    values = column.flatten()  # without those of lists that are null
    if values.null_count:
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        found[np.repeat(np.arange(len(column)), lengths)[nulls]] = True
    return found


def matrix(column: pa.Array, dimension: int, kind: np.dtype[Any]) -> Matrix:
    """Vectors of one dimension, none null, as rows of a matrix. Cost: no copy of float32 lists."""
    values = column.flatten()
    found = values.to_numpy(zero_copy_only=False).astype(kind, copy=False)
    return np.ascontiguousarray(found.reshape(len(column), dimension))


def norms(vectors: Matrix) -> npt.NDArray[np.float64]:
    """The lengths of vectors."""
    return np.sqrt(squared_norms(vectors))


def directions(vectors: Matrix) -> Matrix:
    """Vectors, none of which is zero, at the length 1; of float64."""
    found = vectors.astype(np.float64)
    if len(found):
        found /= np.abs(found).max(axis=1, keepdims=True)  # whose squares are numbers
    return np.asarray(found / norms(found)[:, None])
