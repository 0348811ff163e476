"""One of several routings that give the same results: the cheapest, as the first start saw it.

A later start may have another number of buckets by default, or the estimates of a newer release. It
goes on with what the first one chose, since rows lie where that put them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lsmstate.joins.protocols import Router, Routing

#: Under which the name of the routing stands among what a checkpoint's later starts adopt.
ROUTING: Final = "routing"


@dataclass(frozen=True)
class ChosenRouting:
    """Settles as one of its candidates."""

    candidates: Mapping[str, Routing]
    """By name; none of them has marks. The first is that of checkpoints that name none."""
    costs: Mapping[str, float]
    """Beside each its cost, in messages for each row that comes."""

    @property
    def name(self) -> str:
        """The cheapest; of several, the first."""
        return min(self.candidates, key=self.costs.__getitem__)

    @property
    def chosen(self) -> Routing:
        """What a first start settles as."""
        return self.candidates[self.name]

    @property
    def adopted(self) -> Mapping[str, Any]:
        """The name, and what the routing of that name fixes."""
        return {ROUTING: self.name, **self.chosen.adopted}

    @property
    def marks(self) -> pa.Schema:
        """None."""
        return self.chosen.marks

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> Routing:
        """The routing that the first start chose, as it fixed it."""
        name = adopted.get(ROUTING, next(iter(self.candidates)))
        return self.candidates[name].settled(buckets, adopted)

    def router(self, stream: str, rows: pa.Schema, keys: pa.Schema, table: Any = None) -> Router:
        """The router of one stream by what a first start settles as."""
        return self.chosen.router(stream, rows, keys, table)
