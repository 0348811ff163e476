"""A join as notebooks and terminals show it."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from lsmstate.shown import ShownTable, fields_shown
from lsmstate.stats import state_shown
from lsmstate.store import MultimapStore


def join_shown(
    title: str,
    streams: Mapping[str, pa.Schema],
    described: Mapping[str, object],
    counts: Mapping[str, int],
    store: MultimapStore,
) -> Iterable[ShownTable]:
    """Show the streams, what is joined, the counters and the state."""
    rows = [
        (name, ", ".join(f"{field.name}: {field.type}" for field in schema))
        for name, schema in streams.items()
    ]
    yield ShownTable(title, ("stream", "columns"), rows)
    yield fields_shown("join", {**described, **counts})
    yield state_shown(store.stats)
