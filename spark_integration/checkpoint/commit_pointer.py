"""GroupState <-> commit pointer: what Spark's checkpoint remembers of a bucket.

Spark keeps one pointer per bucket and micro-batch; that pointer is the truth about which files
make up the bucket. It is updated last of all, after the last frame has been handed over.
"""

from typing import TYPE_CHECKING, Final

from lsmstate.errors import FormatVersionError

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState

STATE_DDL: Final = "version INT, pointer STRING"
_VERSION: Final = 1


def read_pointer(state: "GroupState", initial: str | None = None) -> str | None:
    """The pointer the previous micro-batch of this bucket left; at its first, ``initial``."""
    kept = state.getOption
    if kept is None:
        return initial
    version, pointer = kept
    check_version(version)
    return str(pointer)


def check_version(version: int) -> None:
    """FormatVersionError unless this release knows what such a pointer means."""
    if version != _VERSION:
        raise FormatVersionError(
            f"the checkpoint keeps commit pointers of version {version}, this release reads "
            f"version {_VERSION}; run it with the release that wrote it"
        )


def write_pointer(state: "GroupState", pointer: str) -> None:
    """Hand the new pointer to Spark, which stores it with the micro-batch."""
    state.update((_VERSION, pointer))
