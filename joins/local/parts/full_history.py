"""What local joins share that keep every row: no watermark, no late rows."""

from collections.abc import Mapping

import pyarrow as pa

from lsmstate.joins.local.parts.results import Results


class KeepsAllRows:
    """The part of ``protocols.LocalJoin`` that a join over the full history need not write."""

    late_rows: pa.RecordBatch | None = None
    watermark_us: int | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """No counters."""
        return {}

    def advance(self, watermark_us: int) -> Results:
        """No results: a watermark changes nothing."""
        return Results(())

    def finish(self) -> None:
        """Nothing to end: what was stored does not depend on results that are read."""

    def close(self) -> None:
        """Nothing to release: all rows are in the store."""
