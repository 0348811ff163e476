"""A query's checkpoint location, as Spark wrote it, read without Spark.

It tells which micro-batches are committed, and which commit pointer Spark keeps of each bucket as
of one of them. Spark keeps the pointers of a state partition as changes, one file per micro-batch,
and as a complete file now and then. The state after batch ``n`` has version ``n + 1``. With
``checkpointFormatVersion=2``, files carry unique ids, which the commit of the batch names.

Nothing is guessed: if a file is missing or damaged, there is no answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyarrow.fs import FileSystem

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.remote.directory import DurableDir, durable_dir
from lsmstate.remote.filesystems import resolve
from lsmstate.remote.retries import retried
from lsmstate.spark_integration.checkpoint.compression import REMEDY
from lsmstate.spark_integration.checkpoint.state_partition import StatePartition, listed, small_file
from lsmstate.spark_integration.plan.bucket_ids import spark_hash_long
from lsmstate.state_location import local_path

#: How Spark names the operator that holds our buckets; a query has one at most.
_OPERATOR: Final = "applyInPandasWithState"


@dataclass(frozen=True, slots=True)
class Operator:
    """Where in the checkpoint our operator keeps its state."""

    number: int
    partitions: int


class SparkCheckpoint:
    """Reads a checkpoint. OSError if a request failed several times. Cost per question: a listing
    and a few small files per state partition."""

    def __init__(self, location: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """``location`` is local or on any file system of ``lsmstate.remote.filesystems``.
        InvalidArgumentError if no query has its checkpoint there."""
        self.location = location.rstrip("/")
        self._filesystem: FileSystem | None = None
        path = local_path(self.location)
        if path is None:
            self._filesystem, path = resolve(self.location, storage_options)
        self._path = path
        if not listed(self._dir("offsets")):
            raise InvalidArgumentError(
                f"{location} is not a checkpoint location of a query: it has no offsets; name the "
                "directory that was given as checkpointLocation"
            )

    def query_id(self) -> str:
        """The id of the query of this checkpoint."""
        try:
            return str(json.loads(self._text(name="metadata") or "")["id"])
        except (ValueError, KeyError, TypeError) as error:
            where = f"{self.location}/metadata"
            raise CorruptionError(f"names no query ({error!r}); {REMEDY}", where, 0) from error

    def begun(self) -> list[int]:
        """The micro-batches that have begun and are still on record, ascending: all committed ones,
        and perhaps one more."""
        return sorted(int(name) for name in listed(self._dir("offsets")) if name.isdigit())

    def committed(self) -> list[int]:
        """The micro-batches that are committed and still on record, ascending."""
        return sorted(int(name) for name in listed(self._dir("commits")) if name.isdigit())

    def check_batch(self, batch: int | None) -> int:
        """The batch itself; for None the newest. InvalidArgumentError names those there are."""
        known = self.committed()
        if not known:
            raise InvalidArgumentError(
                f"no batch of the query in {self.location} is committed yet; wait for its first one"
            )
        if batch is None:
            return known[-1]
        if batch not in known:
            raise InvalidArgumentError(
                f"batch {batch} is not retained: {self.location} has the batches {known[0]} to "
                f"{known[-1]}; name one of those"
            )
        return batch

    def pointers(self, batch: int) -> dict[int, str]:
        """Bucket -> commit pointer, as Spark kept them when ``batch`` was committed."""
        self.check_batch(batch)
        operator = self._operator()
        ids = self._unique_ids(batch, operator)
        found: dict[int, str] = {}
        for partition, unique_id in enumerate(ids):
            where = ("state", str(operator.number), str(partition))
            files = StatePartition(self._dir(*where), self._dir(*where, "SSTs"))
            pointers = files.pointers(batch, unique_id)
            for bucket in pointers:
                if spark_hash_long(bucket) % operator.partitions != partition:
                    raise CorruptionError(
                        f"bucket {bucket} is not of this partition; {REMEDY}",
                        "/".join((self.location, *where)),
                    )
            found |= pointers
        return dict(sorted(found.items()))

    def _operator(self) -> Operator:
        number = 0
        while (text := self._text("state", str(number), "_metadata", name="metadata")) is not None:
            try:
                described = json.loads(text.partition("\n")[2])
                if described["operatorInfo"]["operatorName"] == _OPERATOR:
                    return Operator(number, int(described["stateStoreInfo"][0]["numPartitions"]))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                where = f"{self.location}/state/{number}/_metadata/metadata"
                raise CorruptionError(f"makes no sense ({error!r}); {REMEDY}", where, 0) from error
            number += 1
        raise InvalidArgumentError(
            f"the query in {self.location} has no state of lsmstate: none of its {number} stateful "
            f"operators is {_OPERATOR}; name the checkpoint of a query with an operator of lsmstate"
        )

    def _unique_ids(self, batch: int, operator: Operator) -> list[str | None]:
        """The unique id of each partition's file; None if files are named by their version
        alone."""
        text = self._text("commits", name=str(batch)) or ""
        try:
            commit: dict[str, Any] = json.loads(text.partition("\n")[2])
            ids = (commit.get("stateUniqueIds") or {}).get(str(operator.number))
            if ids is None:
                return [None] * operator.partitions
            return [str(stores[0]) for stores in ids]
        except (ValueError, AttributeError, TypeError, IndexError) as error:
            where = f"{self.location}/commits/{batch}"
            raise CorruptionError(f"makes no sense ({error!r}); {REMEDY}", where, 0) from error

    def _dir(self, *parts: str) -> DurableDir:
        return durable_dir("/".join((self._path, *parts)), self._filesystem)

    def _text(self, *parts: str, name: str) -> str | None:
        place = self._dir(*parts)
        size = retried(partial(place.size, name), f"looking for {place.where}/{name}")
        return None if size is None else small_file(place, name, size).decode(errors="replace")


def below(location: str, name: str) -> str:
    """A directory in a location, which may end in options (``s3://bucket/path?region=...``)."""
    if local_path(location) is not None:
        return f"{location.rstrip('/')}/{name}"
    path, mark, options = location.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{options}"
