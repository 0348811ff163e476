"""Streaming joins in plain Python, without Spark."""

from lsmstate.joins.asof import AsofJoin, asof_join
from lsmstate.joins.deduplication import Deduplication, deduplicate
from lsmstate.joins.documents import NaturalJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.multiway import MultiwayJoin
from lsmstate.joins.options import State, Time
from lsmstate.joins.similarity import similarity_join
from lsmstate.joins.spec_join import SpecJoin
from lsmstate.joins.specs.one_key import JoinSpec, output_names

__all__ = [
    "AsofJoin",
    "Deduplication",
    "JoinSpec",
    "MultiwayJoin",
    "NaturalJoin",
    "Results",
    "SpecJoin",
    "State",
    "Time",
    "UMJoin",
    "asof_join",
    "deduplicate",
    "output_names",
    "similarity_join",
]
