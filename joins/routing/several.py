"""Several joins in one operator: each routes its own streams."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lsmstate.joins.protocols import Router, Routing
from lsmstate.joins.routing.hash_router import NO_MARKS
from lsmstate.joins.routing.shares_router import SHARES


@dataclass(frozen=True)
class SeveralRoutings:
    """The routing of each join, and the streams that are its own."""

    routings: tuple[Routing, ...]
    streams: tuple[frozenset[str], ...]

    @property
    def adopted(self) -> Mapping[str, Any]:
        """The shares of each join; None for one that has none."""
        return {SHARES: [routing.adopted.get(SHARES) for routing in self.routings]}

    @property
    def marks(self) -> pa.Schema:
        """None."""
        return NO_MARKS

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "SeveralRoutings":
        """Each routing as the first start fixed it."""
        own = zip(self.routings, adopted[SHARES], strict=True)
        settled = (routing.settled(buckets, {SHARES: shares}) for routing, shares in own)
        return SeveralRoutings(tuple(settled), self.streams)

    def router(self, stream: str, rows: pa.Schema, keys: pa.Schema, table: Any = None) -> Router:
        """The router of one stream."""
        number = next(n for n, names in enumerate(self.streams) if stream in names)
        return self.routings[number].router(stream, rows, keys, table)
