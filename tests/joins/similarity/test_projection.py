"""Vectors in fewer components lose no pair, and are used where they pay."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.joins.local.similarity import measures
from lsmstate.joins.local.similarity.measures import VectorMeasure, measure_of
from lsmstate.joins.local.similarity.projection import Projection
from lsmstate.joins.specs.similarity import SimilaritySpec
from support.similar_cases import all_distances


def vectors(rng: Any, count: int, width: int) -> Any:
    """Of few leading directions, some of them nearly the same."""
    scales = np.arange(1, width + 1) ** -0.8
    found = rng.standard_normal((count, width)) * scales
    found[count // 2 :] = found[: count - count // 2] * (
        1 + 0.02 * rng.standard_normal((count - count // 2, width))
    )
    turn, _ = np.linalg.qr(rng.standard_normal((width, width)))
    return found @ turn


def measured(metric: str, threshold: float, width: int) -> VectorMeasure:
    kind = pa.list_(pa.float64())
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    spec = SimilaritySpec.of({"a": schema}, "a.v ~ b.v", metric=metric, threshold=threshold)
    found = measure_of(spec, width)
    assert isinstance(found, VectorMeasure)
    return found


def candidates(measure: VectorMeasure, queries: Any, rows: Any) -> set[tuple[int, int]]:
    ready, panels = measure.ready(rows), measure.panels(queries)
    assert ready is not None
    assert panels is not None
    return {
        (int(q), int(x))
        for some in panels.candidates(ready, slice(0, len(rows)), 0, len(queries))
        for q, x in zip(*some, strict=True)
    }


@pytest.mark.parametrize("metric", ["l2", "cosine", "angular"])
@pytest.mark.parametrize(
    ("width", "scale", "part"), [(64, 1, 0), (130, 1e-9, 0.05), (384, 1e12, 0.002)]
)
def test_no_close_pair_is_lost(
    metric: str, width: int, scale: float, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "_PAIRS_BEFORE", 1)
    rng = np.random.default_rng(width)
    rows, queries = vectors(rng, 300, width) * scale, vectors(rng, 200, width) * scale
    queries[:90] = rows[:90] * (1 + 0.01 * rng.standard_normal((90, width)))
    queries[90:95] = rows[90:95]
    apart = all_distances(metric, queries / scale, rows / scale)
    threshold = float(np.quantile(apart, part))
    close = {(int(q), int(x)) for q, x in np.argwhere(apart <= threshold)}
    measure = measured(metric, threshold * (scale if metric == "l2" else 1), width)
    assert close <= candidates(measure, queries, rows)
    assert measure.pairs == 200 * 300
    found = candidates(measure, queries, rows)
    assert close <= found
    if width == 384:
        assert measure._choice is not None
        assert len(found) < 0.1 * apart.size


def test_products_are_bounded_for_any_basis() -> None:
    rng = np.random.default_rng(5)
    some = vectors(rng, 80, 200)
    for count in (1, 17, 120):
        basis, _ = np.linalg.qr(rng.standard_normal((200, count)))
        made = Projection(basis)
        short = made(some).astype(np.float64)
        lengths = np.linalg.norm(some, axis=1)
        both = lengths[:, None] * lengths
        assert (short @ short.T >= some @ some.T - 2.1 * made.loss * both).all()
        lengths_now = np.linalg.norm(short, axis=1)
        assert (lengths_now >= lengths).all()
        assert (lengths_now <= lengths * (1 + 1.1 * made.loss) + 1e-12).all()


def test_a_projection_that_leaves_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_PAIRS_BEFORE", 1000)
    rng = np.random.default_rng(1)
    rows, queries = vectors(rng, 300, 160), vectors(rng, 200, 160)
    measure = measured("cosine", 0.05, 160)
    for _ in range(2):
        candidates(measure, queries, rows)
    assert measure._choice is not None
    # Now all lie in directions that the basis does not have.
    others = rng.standard_normal((300, 160))
    others -= (others @ measure._choice.projection._basis) @ measure._choice.projection._basis.T
    candidates(measure, others[:200], others)
    candidates(measure, others[:200], others)
    assert measure._choice is None
