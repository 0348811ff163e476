"""A stopped query as a rescale reads it: its checkpoint, the place of its state, its settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.lsm.manifest import parse_pointer
from lsmstate.lsm.obsolete_files import AttemptFiles, LocalFiles
from lsmstate.remote.directory import remove_if_there
from lsmstate.remote.retries import retried
from lsmstate.spark_integration.checkpoint.json_records import read_record_in
from lsmstate.spark_integration.checkpoint.location import SparkCheckpoint, below
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    FILE_NAME,
    STATE_NAME,
    Pinned,
    file_name,
    newest_settings,
)
from lsmstate.spark_integration.rescale.plan import check_can_move
from lsmstate.spark_integration.rescale.work import RescaleWork
from lsmstate.spark_integration.state_reader.query_state import QueryState
from lsmstate.state_location import DEFAULT_CACHE, StatePlace


@dataclass(frozen=True, slots=True)
class QueryHome:
    """Where a query's checkpoint and state lie."""

    spark: SparkCheckpoint
    place: StatePlace
    storage_options: Mapping[str, Any] | None = field(repr=False)

    @classmethod
    def of(
        cls,
        checkpoint: str,
        state_dir: str | None,
        storage_options: Mapping[str, Any] | None,
        cache_dir: str | None = None,
        cache: int | str = DEFAULT_CACHE,
    ) -> "QueryHome":
        """InvalidArgumentError unless the two are those of one query, which can be rescaled."""
        spark = SparkCheckpoint(checkpoint, storage_options)
        place = StatePlace(
            state_dir or below(checkpoint, STATE_NAME),
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache=cache,
        )
        first = read_record_in(place, FILE_NAME)
        if first is None:
            raise InvalidArgumentError(
                f"{place.where} does not hold the state of a query; name the checkpoint location, "
                "and also the state_dir (--state-dir) if the query was started with one"
            )
        owner = spark.query_id()
        if first["query_id"] != owner:
            raise InvalidArgumentError(
                f"the state in {place.where} belongs to query {first['query_id']}, the "
                f"checkpoint {checkpoint} to query {owner}; name both of the same query"
            )
        check_can_move(place.where, first)
        return cls(spark, place, storage_options)

    def newest_version(self) -> int:
        """The newest version of the settings, whatever it holds. Cost: one listing."""
        names = retried(self.place.files.sizes, f"listing {self.place.where}")
        version = 1
        while file_name(version + 1) in names:
            version += 1
        return version

    def settings(self, version: int) -> dict[str, Any] | None:
        """The settings of a version; None if they are damaged or missing."""
        try:
            return read_record_in(self.place, file_name(version))
        except CorruptionError:
            return None

    def withdraw(self, version: int) -> None:
        """Remove a version of the settings."""
        remove_if_there(self.place.files, file_name(version))
        self.place.files.force()

    def work(self, version: int) -> RescaleWork:
        """The rescale to a version of the settings."""
        return RescaleWork(self.place, version)

    def newest(self) -> "StoppedQuery":
        """The query with its newest settings. Errors are those of ``newest_settings``."""
        version, settings = newest_settings(self.place)
        assert settings is not None
        return StoppedQuery(self, settings, Pinned.of(settings, version))

    def named_buckets(self, newest: int) -> set[int]:
        """All bucket ids of the versions up to this one, for which Spark may keep state.
        CorruptionError if a version is damaged."""
        named: set[int] = set()
        for version in range(1, newest + 1):
            settings = read_record_in(self.place, file_name(version))
            named |= set(settings["bucket_ids"]) if settings else set()
        return named

    def unnamed_buckets(self) -> list[int]:
        """The buckets that no version of the settings names: those of a rescale under way."""
        found = set(self.place.buckets())  # first: a version may be added meanwhile
        return sorted(found - self.named_buckets(self.newest_version()))


@dataclass(frozen=True, slots=True)
class StoppedQuery:
    """A query with the settings that count."""

    home: QueryHome
    settings: Mapping[str, Any]
    pinned: Pinned

    @property
    def place(self) -> StatePlace:
        """Of its state."""
        return self.home.place

    def pointers(self, batch_id: int) -> Mapping[int, str]:
        """The pointer of each bucket after the last micro-batch."""
        if batch_id < self.pinned.first_batch:
            return self.pinned.pointers
        location, options = self.home.spark.location, self.home.storage_options
        return QueryState.open(location, batch_id, self.place.url, options).pointers

    def last_batch(self) -> int:
        """The last micro-batch. InvalidArgumentError unless it is committed."""
        spark, pinned = self.home.spark, self.pinned
        begun = spark.begun()
        if begun[-1:] != spark.committed()[-1:]:
            raise InvalidArgumentError(
                f"micro-batch {begun[-1]} of {spark.location} is running or was interrupted; "
                "let the query finish it (start it with trigger(availableNow=True)), then stop it "
                "and try again"
            )
        batch_id = begun[-1]
        if batch_id < pinned.first_batch - 1:
            raise InvalidArgumentError(
                f"the query is at micro-batch {batch_id}, before its rescale to {pinned.buckets} "
                "buckets; first undo that by lsmstate rescale CHECKPOINT --undo"
            )
        return batch_id


def lacks_files(place: StatePlace, bucket: int, pointer: str) -> bool:
    """Whether files that a commit needs are gone. Cost: a listing, and one or two small reads."""
    where = place.bucket(bucket)
    files: AttemptFiles = LocalFiles(where) if isinstance(where, str) else where
    try:
        there = set(files.names())
        return not files.named_by(parse_pointer(pointer).name).files <= there
    except (FileNotFoundError, CorruptionError):
        return True
