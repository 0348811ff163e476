"""asof_join: each row of one stream with the nearest one of another in time, in plain Python."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.options import GROUPS, NO_BUCKETS, STATE, TIME, State, Time, refuse_other_fields
from lsmstate.joins.spec_join import SpecJoin
from lsmstate.joins.specs.asof import AsofSpec
from lsmstate.joins.specs.event_time import EventTime
from lsmstate.option_names import names_checked

_TIME_HERE = ("within", "window", "late")
_ON_SPARK = "has no effect on an as-of join in plain Python; leave it out"

How = Literal["inner", "left"]
AsofEmit = Literal["final", "changes"]


class AsofJoin(SpecJoin):
    """An as-of join; made by ``asof_join``."""

    spec: AsofSpec

    def advance(self, watermark: datetime | int) -> Results:
        """Set the watermark, and return the results that are final by it.

        Rows with a time up to the watermark come no more. A lower watermark than before changes
        nothing.

        Args:
            watermark: A datetime, with a time zone if the times have one. A whole number if the
                times are whole numbers.

        Returns:
            The results. Read them to the end, or close them, before the next call.

        Raises:
            InvalidArgumentError: The watermark does not fit the times, or earlier results are not
                read.
        """
        if self.spec.has_stamps:
            if not isinstance(watermark, datetime):
                raise InvalidArgumentError(
                    f"watermark {watermark!r}: the times are time stamps; give a datetime"
                )
            return super().advance(watermark)
        if isinstance(watermark, bool) or not isinstance(watermark, int):
            raise InvalidArgumentError(
                f"watermark {watermark!r}: the times are whole numbers; give a whole number"
            )
        return super().advance(watermark)

    @property
    def event_time(self) -> EventTime:
        """What the join knows of event time."""
        return self.spec.event_time


@names_checked(GROUPS, NO_BUCKETS)
def asof_join(
    streams: Mapping[str, pa.Schema],
    on: str,
    *,
    by: Sequence[str] | Mapping[str, Sequence[str]] | str = (),
    how: How = "inner",
    emit: AsofEmit = "final",
    tolerance: str | timedelta | int | None = None,
    piece_bytes: int = 1 << 20,
    time: Time = TIME,
    state: State = STATE,
) -> AsofJoin:
    """Join each row of one stream with the nearest row of another one, before it or after it.

    A result comes when the watermark says that no nearer row can come. Of several rows of one time,
    the one that arrived last counts.

    Args:
        streams: Columns of two streams by name, first the one that each result has one row of.
        on: One comparison of their times, which are time stamps or whole numbers. ``"q.at >=
            p.at"`` and ``>`` find the latest row before, ``<=`` and ``<`` the first one after,
            ``~`` the nearest of both.
        by: Columns that are equal, such as a symbol: one list for both streams, or one for each.
        how: "inner" gives rows with a partner. "left" gives all rows of the first stream.
        emit: "final": results come once, by the watermark. "changes": they come at once, with a
            column ``op``, and are taken back when a nearer row comes.
        tolerance: How far the times may be apart: "5 minutes", a timedelta, or a whole number if
            the times are whole numbers.
        piece_bytes: Most bytes of a piece of the results, unless a row is larger.
        time: What becomes of late rows, with ``late``. With ``window`` the nearest row is one of
            the same window. ``within`` is another word for ``tolerance``.
        state: Where the state lies, and what it may take, with ``memory``, ``backend``,
            ``state_dir`` and ``options``.

    Returns:
        The join: ``process(stream, batch)`` stores a batch, ``advance(watermark)`` returns the
        results that are final.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Example:
        ```python
        with asof_join({"q": trades, "p": quotes}, "q.at >= p.at", by="symbol") as join:
            join.process("p", quote_rows).close()
            join.process("q", trade_rows).close()
            for row in join.advance(watermark).rows():
                print(row["price"], row["bid"])
        ```
    """
    refuse_other_fields(time, _TIME_HERE, "is not an option of asof_join; leave it out")
    spec = AsofSpec.of(streams, on, by=by, how=how, emit=emit, **in_time(time, tolerance))
    return AsofJoin(
        spec,
        piece_bytes=piece_bytes,
        state=state,
    )


def in_time(time: Time, tolerance: str | timedelta | int | None) -> dict[str, Any]:
    """What options of time say to an ``AsofSpec``. InvalidArgumentError for two distances."""
    if time.within is not None and tolerance is not None:
        raise InvalidArgumentError(
            f"within={time.within!r} and tolerance={tolerance!r} say both how far the times may be "
            "apart; give one of them"
        )
    most = tolerance if time.within is None else time.within
    return {"tolerance": most, "window": time.window, "late": time.late}
