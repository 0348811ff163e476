"""The commit pointer of a bucket, as Spark's GroupState keeps it.

Spark keeps one pointer per bucket and micro-batch. It decides which files make up the bucket. It is
updated last, after the last frame has been handed over.
"""

from typing import TYPE_CHECKING, Final

from lsmstate.errors import FormatVersionError

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import StructType

_VERSION: Final = 1


def state_type() -> "StructType":
    """The type of what Spark keeps. It needs no parser, where DDL starts that of SQL."""
    from pyspark.sql import types as T  # a state is read without PySpark

    return T.StructType().add("version", T.IntegerType()).add("pointer", T.StringType())


def read_pointer(state: "GroupState", initial: str | None = None) -> str | None:
    """The pointer of the bucket's previous micro-batch; at its first one, ``initial``."""
    kept = state.getOption
    if kept is None:
        return initial
    version, pointer = kept
    check_version(version)
    return str(pointer)


def check_version(version: int) -> None:
    """FormatVersionError unless this release can read such a pointer."""
    if version != _VERSION:
        raise FormatVersionError(
            f"the checkpoint keeps commit pointers of version {version}, this release reads "
            f"version {_VERSION}; run it with the release that wrote it"
        )


def write_pointer(state: "GroupState", pointer: str) -> None:
    """Give the new pointer to Spark, which stores it with the micro-batch."""
    state.update((_VERSION, pointer))
