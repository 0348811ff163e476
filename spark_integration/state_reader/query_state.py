"""The state of a query as of one committed micro-batch, read with or without Spark.

Spark's checkpoint says which files make up the state. A query that runs meanwhile is not disturbed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.expiry.readers import expiring_reads
from lsmstate.joins.picture import PlanPicture, picture_of
from lsmstate.spark_integration.checkpoint.location import SparkCheckpoint, below
from lsmstate.spark_integration.checkpoint.pinned_settings import STATE_NAME, settings_as_of
from lsmstate.spark_integration.metrics.history import NO_HISTORY, read_history
from lsmstate.spark_integration.plan.stateful_plan import KEEP, NULL_KEYS
from lsmstate.state_location import StatePlace, local_path, open_bucket
from lsmstate.store import StoreReader, StreamSchema
from lsmstate.store_base.checks import nearest
from lsmstate.store_base.null_safe import NullSafeReads, plain_schema

#: Columns that may be asked for beside a stream's own.
BUCKET_COLUMN = "_bucket"
KEY_PREFIX = "_key_"


@dataclass(frozen=True)
class QueryState:
    """The state that a query's checkpoint has as of a micro-batch; made by ``QueryState.open``.

    Example:
        ```python
        state = QueryState.open("/data/checkpoint")
        stream = state.stream("o")
        for bucket in state.pointers:
            for rows in state.rows(bucket, stream):
                print(rows.num_rows)
        ```
    """

    checkpoint: SparkCheckpoint
    root: str
    """The directory of the state: ``lsmstate`` in the checkpoint location, or the state_dir."""
    settings: Mapping[str, Any]
    """As the first start of the query pinned them."""
    batch: int
    pointers: Mapping[int, str]
    """Of each bucket that had rows by then."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def open(
        cls,
        location: str,
        batch: int | None = None,
        state_dir: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> "QueryState":
        """Open the state of a query as of a committed micro-batch.

        Args:
            location: Checkpoint location of the query: a local path, or an address on a supported
                file system.
            batch: The micro-batch; None: the newest.
            state_dir: The ``state_dir`` of the query, if it was started with one.
            storage_options: Options of the file systems of ``location`` and ``state_dir``.

        Returns:
            The state.

        Raises:
            InvalidArgumentError: There is no such micro-batch (the message names those there are),
                no state, or no such checkpoint.
            CorruptionError: A file of Spark is damaged.

        Cost:
            A few small files per state partition. No row is read.
        """
        checkpoint = SparkCheckpoint(location, storage_options)
        batch = checkpoint.check_batch(batch)
        root = state_dir or below(location, STATE_NAME)
        found = settings_as_of(StatePlace(root, storage_options=storage_options), batch)
        if found is None:
            raise InvalidArgumentError(
                f"there is no state in {root}; name the state_dir that the query was started with"
            )
        pinned, settings = found
        kept = checkpoint.pointers(batch)
        pointers = {
            bucket: pointer
            for bucket in sorted(pinned.bucket_ids)
            if (pointer := kept.get(bucket, pinned.pointers.get(bucket))) is not None
        }
        # Of the buckets before a rescale Spark goes on keeping pointers, which count no more.
        unknown = sorted(set(kept) - set(pinned.bucket_ids))
        if unknown and (pinned.version == 1 or not pointers):
            raise InvalidArgumentError(
                f"the checkpoint {location} has bucket {unknown[0]}, which the state in {root} "
                "lacks; name the state_dir of this query"
            )
        return cls(checkpoint, root, settings, batch, pointers, storage_options or {})

    @property
    def streams(self) -> dict[str, StreamSchema]:
        """The streams by name, as they were written: all buckets have the same, so a damaged one
        hides none. CorruptionError if no bucket can be read."""
        first: CorruptionError | None = None
        for bucket in self.pointers:
            try:
                with self.bucket(bucket) as store:
                    return dict(store.streams)
            except CorruptionError as error:
                first = first or error
        if first is not None:
            raise first
        return {}

    @contextmanager
    def bucket(self, bucket: int) -> Iterator[StoreReader]:
        """Open the store of one bucket for reading.

        Raises:
            InvalidArgumentError: The bucket has no state, or its files are gone.

        Cost:
            Two small reads.
        """
        self._check_readable(bucket)
        try:
            place = StatePlace(self.root, storage_options=self.storage_options)
            store = open_bucket(place, bucket, self.pointers[bucket])
        except (CorruptionError, FileNotFoundError) as error:
            missing = error if isinstance(error, FileNotFoundError) else error.__cause__
            if not isinstance(missing, FileNotFoundError):
                raise
            batches = self.checkpoint.committed()
            raise InvalidArgumentError(
                f"bucket {bucket} as of batch {self.batch}: a file is gone ({error}); the "
                f"checkpoint has the batches {batches[0]} to {batches[-1]}, read a newer one"
            ) from error
        with store:
            reads = expiring_reads(store)
            if self.settings.get(NULL_KEYS) != KEEP:
                yield reads
            else:
                plain = {n: replace(s, key=plain_schema(s.key)) for n, s in reads.streams.items()}
                yield NullSafeReads(plain, reads)

    def _check_readable(self, bucket: int) -> None:
        if bucket not in self.pointers:
            known = ", ".join(map(str, self.pointers)) or "none"
            raise InvalidArgumentError(
                f"bucket {bucket} has no state as of batch {self.batch}; buckets: {known}"
            )
        backend = self.settings["backend"]
        if backend != "lsm":
            raise InvalidArgumentError(
                f"the state of backend {backend!r} cannot be read outside its query; only the "
                "state of backend 'lsm' can"
            )

    def describe(self) -> dict[str, Any]:
        """Describe the query and its streams as JSON values, without its buckets."""
        return {
            "checkpoint": self.checkpoint.location,
            "batch": self.batch,
            "batches": self.checkpoint.committed(),
            "settings": dict(self.settings),
            "streams": [
                {"name": stream.name, "key": _columns(stream.key), "columns": _columns(stream.rows)}
                for stream in self.streams.values()
            ],
        }

    def picture(self) -> PlanPicture:
        """How the query works, as far as its settings and its last start say."""
        start = self.history()["start"]
        streams = self.settings.get("streams") or self.settings.get("inputs") or ()
        return picture_of(
            start.get("operator", "query"),
            streams,
            start.get("explanation", ""),
            self.settings.get("buckets"),
        )

    def describe_bucket(self, bucket: int) -> dict[str, Any]:
        """Describe a bucket as JSON values; sizes are in bytes. Cost: two small reads.

        Raises:
            InvalidArgumentError: The bucket has no state, or its files are gone.
            CorruptionError: A file is damaged.
        """
        with self.bucket(bucket) as store:
            stats = store.stats()
        return {
            "bucket": bucket,
            "pointer": self.pointers[bucket],
            "rows": stats.counters["rows"],
            "bytes": stats.disk_bytes,
            "runs": stats.counters["runs"],
        }

    def history(self) -> dict[str, Any]:
        """The metrics of the last micro-batches, kept beside a local state; see
        ``metrics.history.read_history``."""
        return self.history_of(self.checkpoint.location, self.root)

    @staticmethod
    def history_of(location: str, state_dir: str | None = None) -> dict[str, Any]:
        """The same of a query that may have no committed micro-batch yet."""
        directory = local_path(state_dir or below(location, STATE_NAME))
        return read_history(directory) if directory is not None else dict(NO_HISTORY)

    def stream(self, name: str | None) -> StreamSchema:
        """Find a stream.

        Args:
            name: Name of the stream; None: the only one.

        Raises:
            InvalidArgumentError: There is no such stream; the message names those there are.
        """
        streams = self.streams
        if not streams:
            raise InvalidArgumentError(f"there are no rows as of batch {self.batch}")
        if name is None and len(streams) == 1:
            return next(iter(streams.values()))
        if name is None:
            raise InvalidArgumentError(
                f"name one of the streams: {', '.join(streams)} (option 'stream')"
            )
        if name not in streams:
            raise InvalidArgumentError(f"there is no stream {name!r}{nearest(name, streams)}")
        return streams[name]

    def schema(self, stream: StreamSchema, with_keys: bool = False) -> pa.Schema:
        """The columns that ``rows`` yields."""
        if not with_keys:
            return stream.rows
        keys = [field.with_name(KEY_PREFIX + field.name) for field in stream.key]
        return pa.schema([pa.field(BUCKET_COLUMN, pa.int64()), *keys, *stream.rows])

    def rows(
        self, bucket: int, stream: StreamSchema, with_keys: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of a stream in one bucket, grouped by key, in pieces of about 1 MiB.

        Args:
            bucket: Number of the bucket.
            stream: The stream.
            with_keys: Whether the bucket and the key columns come first.

        Returns:
            The rows. In a join by several keys some of them are copies of rows in other buckets.
        """
        with self.bucket(bucket) as store:
            if not with_keys:
                yield from store.scan(stream.name)
                return
            schema = self.schema(stream, with_keys)
            for keys, rows in store.iterate(stream.name):
                buckets = pa.repeat(pa.scalar(bucket, pa.int64()), rows.num_rows)
                yield pa.record_batch([buckets, *keys.columns, *rows.columns], schema=schema)


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{field.name}: {field.type}" for field in schema]
