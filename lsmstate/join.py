"""Joins without Spark: the public face of ``joins``."""

from joins.local.umjoin import Results, UMJoin
from joins.multiway import MultiwayJoin
from joins.spec import JoinSpec, output_names

__all__ = ["JoinSpec", "MultiwayJoin", "Results", "UMJoin", "output_names"]
