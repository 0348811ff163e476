"""similarity_join: rows of one or two streams that are close to each other, in plain Python."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from lsmstate.joins.options import GROUPS, NO_BUCKETS, STATE, TIME, State, Time, refuse_other_fields
from lsmstate.joins.spec_join import SpecJoin
from lsmstate.joins.specs.malformed import Malformed
from lsmstate.joins.specs.similarity import SimilaritySpec, with_time
from lsmstate.option_names import names_checked

_TIME_HERE = ("event_time", "within", "window", "late")
_NO_TIME = 'name its column of time stamps, as in time=Time(event_time={"a": "at"})'
_ON_SPARK = "has no effect on a similarity join in plain Python; leave it out"

#: How candidates are found; all give the same pairs.
Algorithm = Literal["auto", "tiles", "grid", "pivots", "keys", "s3j"]
How = Literal["inner", "anti"]


@names_checked(GROUPS, NO_BUCKETS)
def similarity_join(
    streams: Mapping[str, pa.Schema],
    on: str,
    *,
    metric: str | Callable[[Any, Any], Any],
    threshold: float,
    by: Sequence[str] | Mapping[str, Sequence[str]] | str = (),
    how: How = "inner",
    distance: str | None = "distance",
    columns: Sequence[str] | None = None,
    algorithm: Algorithm = "auto",
    dimension: int | None = None,
    malformed: Malformed = "refuse",
    piece_bytes: int = 1 << 20,
    time: Time = TIME,
    state: State = STATE,
) -> SpecJoin:
    """Join two streams, or one with itself, by closeness: all pairs at most a threshold apart.

    Args:
        streams: Columns of one or two streams by name.
        on: The two columns, as in ``"a.v ~ b.v"``. Of one stream, the other name is that of the
            second row of a pair.
        metric: "l2", "cosine", "angular", "manhattan", "chebyshev", "hamming", "haversine",
            "jaccard", "levenshtein", or a function of two matrices of equal shape that gives the
            distance of each row.
        threshold: The largest distance of a pair.
        by: Columns that are equal in a pair, such as a tenant.
        how: "inner" gives pairs. "anti", of one stream, gives the rows without an earlier partner.
        distance: Name of the column of distances; None: there is none.
        columns: Columns of the results by name; None: all. They keep their order.
        algorithm: How candidates are found.
        dimension: Components of every vector. Default: as many as the first one has.
        malformed: What becomes of a row whose list holds a null, or has another length. "refuse"
            refuses the batch. "skip" leaves the row out and counts it. "side" gives it in
            ``malformed_rows`` too.
        piece_bytes: Most bytes of a piece of the results, unless a row is larger.
        time: Event times of the streams, how far those of a pair are apart at most, which windows
            hold both, and what becomes of late rows, with ``event_time``, ``within``, ``window``
            and ``late``. Without ``within`` and ``window`` rows are kept for ever.
        state: Where the state lies, and what it may take, with ``memory``, ``backend``,
            ``state_dir`` and ``options``.

    Returns:
        The join: ``process(stream, batch)`` stores a batch and returns its new results.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Example:
        ```python
        with similarity_join({"a": texts}, "a.v ~ b.v", metric="cosine", threshold=0.05) as join:
            for pair in join.process("a", batch).rows():
                print(pair["a_id"], pair["b_id"], pair["distance"])
        ```
    """
    refuse_other_fields(time, _TIME_HERE, _ON_SPARK)
    spec = SimilaritySpec.of(
        streams,
        on,
        metric=metric,  # type: ignore[arg-type]
        threshold=threshold,
        by=by,
        how=how,
        distance=distance,
        algorithm=algorithm,
        dimension=dimension,
        malformed=malformed,
    )
    spec = with_time(spec, time.event_time or {}, time.within, time.window, time.late, _NO_TIME)
    return SpecJoin(
        spec.showing(columns),
        piece_bytes=piece_bytes,
        state=state,
    )
