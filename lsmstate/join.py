"""Joins without Spark: the public face of ``joins``."""

from joins.local.results import Results
from joins.local.umjoin import UMJoin
from joins.multiway import MultiwayJoin
from joins.spec import JoinSpec, output_names

__all__ = ["JoinSpec", "MultiwayJoin", "Results", "UMJoin", "output_names"]
