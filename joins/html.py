"""A join as notebooks show it."""

from collections.abc import Mapping

import pyarrow as pa

from lsmstate.errors import StoreClosedError
from lsmstate.html import html_fields, html_table
from lsmstate.store import MultimapStore


def join_html(
    title: str,
    streams: Mapping[str, pa.Schema],
    described: Mapping[str, object],
    counts: Mapping[str, int],
    store: MultimapStore,
) -> str:
    """Show the streams, what is joined, the counters and the state."""
    rows = [
        (name, ", ".join(f"{field.name}: {field.type}" for field in schema))
        for name, schema in streams.items()
    ]
    found = html_table(title, ("stream", "columns"), rows)
    found += html_fields("join", {**described, **counts})
    try:
        stats = store.stats()
    except StoreClosedError:
        return found + "<p>closed</p>"
    return found + html_fields(
        "state",
        {
            "disk_bytes": stats.disk_bytes,
            "memory_bytes": stats.memory_bytes,
            "memory_limit_bytes": stats.memory_limit_bytes,
        },
    )
