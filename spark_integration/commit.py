"""GroupState <-> commit pointer: what Spark's checkpoint remembers of a bucket.

Spark keeps one pointer per bucket and micro-batch; that pointer is the truth about which files
make up the bucket. It is updated last of all, after the last frame has been handed over.
"""

from typing import Final

from pyspark.sql.streaming.state import GroupState

from lsmstate.errors import FormatVersionError

STATE_DDL: Final = "version INT, pointer STRING"
_VERSION: Final = 1


def read_pointer(state: GroupState) -> str | None:
    """The pointer the previous micro-batch of this bucket left, or None at its first."""
    kept = state.getOption
    if kept is None:
        return None
    version, pointer = kept
    if version != _VERSION:
        raise FormatVersionError(
            f"the checkpoint keeps commit pointers of version {version}, this release reads "
            f"version {_VERSION}; run it with the release that wrote it"
        )
    return str(pointer)


def write_pointer(state: GroupState, pointer: str) -> None:
    """Hand the new pointer to Spark, which stores it with the micro-batch."""
    state.update((_VERSION, pointer))
