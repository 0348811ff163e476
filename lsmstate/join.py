"""Joins without Spark: the public face of ``joins``."""

from lsmstate.joins.local.results import Results
from lsmstate.joins.local.umjoin import UMJoin
from lsmstate.joins.multiway import MultiwayJoin
from lsmstate.joins.spec import JoinSpec, output_names

__all__ = ["JoinSpec", "MultiwayJoin", "Results", "UMJoin", "output_names"]
