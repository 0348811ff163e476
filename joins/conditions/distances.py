"""Distances as functions of the language of conditions: of two columns, in float64.

A pair without a distance has a null: a value is null, a vector is not finite, or it is zero under
an angle. ``levenshtein`` counts characters.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.distances import exact
from lsmstate.errors import InvalidArgumentError

#: Functions of vectors, in the order of ``cython_ext.distances.exact``.
VECTOR_DISTANCES: Final = (
    "l2_distance",
    "cosine_distance",
    "angular_distance",
    "manhattan_distance",
    "chebyshev_distance",
    "hamming_distance",
    "haversine_distance",
)
LEVENSHTEIN: Final = "levenshtein"
DISTANCES: Final = (*VECTOR_DISTANCES, "jaccard_distance", LEVENSHTEIN)


def distances(name: str, values: Sequence[pa.Array]) -> pa.Array:
    """The distance of each pair.

    Raises:
        InvalidArgumentError: There are not two columns, or their types or dimensions do not fit.
    """
    if len(values) != 2:
        raise InvalidArgumentError(
            f"{name} takes two columns, and {len(values)} are given; write {name}(a.v, b.v)"
        )
    a, b = values
    there = a.is_valid().to_numpy(zero_copy_only=False) & b.is_valid().to_numpy(
        zero_copy_only=False
    )
    places = np.flatnonzero(there)
    some = pa.array(places)
    first, second = a.take(some), b.take(some)
    if name == LEVENSHTEIN:
        found, is_known = _edits(first, second), np.ones(len(places), np.bool_)
    elif name == "jaccard_distance":
        found, is_known = _unshared(first, second), np.ones(len(places), np.bool_)
    else:
        found, is_known = _of_vectors(name, first, second)
    result = np.zeros(len(a))
    result[places] = found
    lacks = ~there
    lacks[places] |= ~is_known
    return pa.array(result, mask=lacks)


def _edits(a: pa.Array, b: pa.Array) -> npt.NDArray[np.float64]:
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise InvalidArgumentError(
            "levenshtein needs the package rapidfuzz; run: pip install 'lsmstate[similarity]'"
        ) from error
    pairs = zip(a.to_pylist(), b.to_pylist(), strict=True)
    return np.array([Levenshtein.distance(x, y) for x, y in pairs], np.float64)


def _unshared(a: pa.Array, b: pa.Array) -> npt.NDArray[np.float64]:
    found = []
    for x, y in zip(map(set, a.to_pylist()), map(set, b.to_pylist()), strict=True):
        union = len(x | y)
        found.append((union - len(x & y)) / union if union else 0.0)
    return np.array(found, np.float64)


def _of_vectors(
    name: str, a: pa.Array, b: pa.Array
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    one, two = _matrix(name, a), _matrix(name, b)
    if not len(a):
        return np.zeros(0), np.zeros(0, np.bool_)
    if one.shape != two.shape:
        raise InvalidArgumentError(
            f"{name}: vectors have {one.shape[1]} and {two.shape[1]} components; compare vectors "
            "of one dimension"
        )
    if name == "haversine_distance" and one.shape[1] != 2:
        raise InvalidArgumentError(
            f"{name}: a vector has {one.shape[1]} components; give [longitude, latitude]"
        )
    is_known = np.isfinite(one).all(axis=1) & np.isfinite(two).all(axis=1)
    if name in ("cosine_distance", "angular_distance"):
        is_known &= (one != 0).any(axis=1) & (two != 0).any(axis=1)
    at = np.arange(len(a), dtype=np.int32)
    one[~is_known], two[~is_known] = 1.0, 1.0
    return exact.distances(VECTOR_DISTANCES.index(name), one, at, two, at), is_known


def _matrix(name: str, column: pa.Array) -> npt.NDArray[Any]:
    kind = column.type
    is_list = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    if not is_list or not (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    ):
        raise InvalidArgumentError(
            f"{name}: a column is {kind}; give lists of numbers of one length"
        )
    values = column.flatten()
    if values.null_count:
        raise InvalidArgumentError(f"{name}: a vector has a null component; leave such rows out")
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if len(set(lengths.tolist())) > 1:
        raise InvalidArgumentError(
            f"{name}: vectors have {lengths.min()} and {lengths.max()} components; compare "
            "vectors of one dimension"
        )
    width = int(lengths[0]) if len(lengths) else 0
    found = values.to_numpy(zero_copy_only=False).astype(np.float64)
    return np.asarray(found.reshape(len(column), width))
