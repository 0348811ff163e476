"""A store that notes how large the pieces are that a join fetches."""

from types import SimpleNamespace

from lsmstate.schema.arrow_sizes import row_sizes


class WatchedStore:
    """A store that notes the largest piece anyone fetched, in bytes of Arrow data."""

    def __init__(self, store):
        self.store = store
        self.largest = self.rows = 0

    def __getattr__(self, name):
        return getattr(self.store, name)

    def probe(self, *arguments):
        probe = self.store.probe(*arguments)
        fetch = probe.fetch

        def watched(positions, max_bytes):
            for piece in fetch(positions, max_bytes):
                self.largest = max(self.largest, int(row_sizes(piece.rows).sum()))
                self.rows += piece.rows.num_rows
                yield piece

        return SimpleNamespace(counts=probe.counts, row_bytes=probe.row_bytes, fetch=watched)
