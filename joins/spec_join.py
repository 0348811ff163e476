"""SpecJoin: a join of any kind for plain Python, from its spec."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from tempfile import TemporaryDirectory

import pyarrow as pa

from lsmstate.joins.kinds import local_join
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.protocols import Batch, Context, LocalJoin, Spec
from lsmstate.joins.recorded_join import KeptJoin
from lsmstate.opening import open_store
from lsmstate.options import Options, parse_bytes
from lsmstate.schema.batches import arrow_batch, as_batch
from lsmstate.stats import StoreStats
from lsmstate.store import BatchLike


class SpecJoin:
    """One local join over one standalone store. Everything is in one bucket."""

    def __init__(
        self,
        spec: Spec,
        *,
        memory: int | str = "64m",
        backend: str = "lsm",
        path: str | None = None,
        piece_bytes: int = 1 << 20,
        unmatched: str = "count",
        known_as: Spec | None = None,
    ) -> None:
        """Open the state, or begin one.

        Args:
            spec: What is joined; its kind is registered in ``kinds``.
            memory: Cap of what the state holds in memory ("64m", or bytes).
            backend: "lsm", "rocksdb" or "memory".
            path: Directory of the state. The same join finds it again; another one is refused.
                Default: a temporary directory, which ``close`` removes.
            piece_bytes: Most bytes of a piece of the results, unless a row is larger.
            unmatched: What becomes of a retraction of a row that is not stored.
            known_as: The spec that ``path`` records and compares. Default: ``spec``.

        Raises:
            InvalidArgumentError: The state in ``path`` belongs to another join, or a value does not
                fit.
        """
        self.spec = spec
        recorded = None if path is None else KeptJoin(path, backend, known_as or spec)
        if recorded is not None:
            recorded.check()
        options = Options(memory_bytes=parse_bytes(memory))
        with ExitStack() as opened:
            directory = path or opened.enter_context(TemporaryDirectory(prefix="lsmstate-"))
            self.store = open_store(
                os.fspath(directory), spec.stream_schemas, backend=backend, options=options
            )
            opened.callback(self.store.close)
            if recorded is not None:
                recorded.keep()
            context = Context(piece_bytes=piece_bytes, unmatched=unmatched)
            self._join = local_join(spec, self.store, context)
            self._opened = opened.pop_all()

    def process(self, stream: str, rows: BatchLike) -> Results:
        """Store a batch of any kind, and return its new results; see ``LocalJoin.process``."""
        self.spec.check_stream(stream)
        call = f"process({stream!r})"
        if stream in getattr(self.spec, "operations", {}):
            batch = arrow_batch(rows, call)  # with the operation column, which is not stored
        else:
            batch = as_batch(rows, self.spec.streams[stream], call)
        return self._shown(self._join.process(Batch(stream, batch)))

    def advance(self, watermark_us: int) -> Results:
        """Set the watermark, in microseconds since 1970, and return the results that are now
        final."""
        return self._shown(self._join.advance(watermark_us))

    def _shown(self, results: Results) -> Results:
        results.schema = self.spec.output_schema
        return results

    @property
    def local_join(self) -> LocalJoin:
        """The local join, for what only its kind has."""
        return self._join

    @property
    def counts(self) -> Mapping[str, int]:
        """The join's counters since it was opened, by name."""
        return self._join.counts

    @property
    def late_rows(self) -> pa.RecordBatch | None:
        """The late rows of the last batch, if the join hands them out."""
        return self._join.late_rows

    def commit(self) -> None:
        """Make everything that was fed durable, so that opening ``path`` again finds it."""
        self._join.finish()
        self.store.commit()

    def stats(self) -> StoreStats:
        """Return memory, disk and counters of the state."""
        return self.store.stats()

    def close(self) -> None:
        """Release memory, locks and the temporary directory. A second call does nothing."""
        self._opened.close()

    def __enter__(self) -> "SpecJoin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
