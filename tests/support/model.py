"""The model a store is held to: a dict of lists, too simple to be wrong."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

Key = tuple[Hashable, ...]
Row = dict[str, Any]


class ModelStore:
    """Streams -> keys -> rows in arrival order. Keys that hold a None are left out."""

    def __init__(self, streams: Iterable[str]) -> None:
        self.streams: dict[str, dict[Key, list[Row]]] = {name: {} for name in streams}
        #: Retractions that found no row yet.
        self.pending: dict[str, dict[Key, list[Row]]] = {name: {} for name in self.streams}

    def append(self, stream: str, rows: Sequence[Row], keys: Sequence[Key]) -> int:
        stored = 0
        for row, key in zip(rows, keys, strict=True):
            if None not in key:
                pending = self.pending[stream].get(key, [])
                if row in pending:
                    pending.remove(row)
                else:
                    self.streams[stream].setdefault(key, []).append(row)
                stored += 1
        return stored

    def retract(self, stream: str, rows: Sequence[Row], keys: Sequence[Key]) -> int:
        taken = 0
        for row, key in zip(rows, keys, strict=True):
            if None not in key:
                live = self.streams[stream].get(key, [])
                if row in live:
                    live.remove(row)
                else:
                    self.pending[stream].setdefault(key, []).append(row)
                taken += 1
        return taken

    def probe(self, stream: str, keys: Sequence[Key]) -> list[list[Row]]:
        return [self.streams[stream].get(key, []) for key in keys]

    def delete(self, stream: str, keys: Sequence[Key]) -> None:
        for key in keys:
            self.streams[stream].pop(key, None)
            self.pending[stream].pop(key, None)

    def put(self, stream: str, rows: Sequence[Row], keys: Sequence[Key]) -> int:
        self.delete(stream, keys)
        return self.append(stream, rows, keys)

    def delete_range(
        self,
        stream: str,
        low: Key | None = None,
        high: Key | None = None,
        prefix: Key | None = None,
    ) -> None:
        for key in self.streams[stream].keys() | self.pending[stream].keys():
            if (
                (low is None or key >= low)
                and (high is None or key < high)
                and (prefix is None or key[: len(prefix)] == prefix)
            ):
                self.delete(stream, [key])

    def scan(self, stream: str) -> list[Row]:
        return [row for rows in self.streams[stream].values() for row in rows]

    def iterate(
        self,
        stream: str,
        low: Key | None = None,
        high: Key | None = None,
        prefix: Key = (),
        *,
        reverse: bool = False,
    ) -> list[tuple[Key, Row]]:
        """(key, row) of a range, in key order: Python's own order of tuples."""
        kept = self.streams[stream]
        keys = [
            key
            for key in sorted(kept, reverse=reverse)
            if (low is None or key >= low)
            and (high is None or key < high)
            and key[: len(prefix)] == prefix
        ]
        return [(key, row) for key in keys for row in kept[key]]

    def copy(self) -> "ModelStore":
        other = ModelStore(self.streams)
        for name, kept in self.pending.items():
            other.pending[name] = {key: list(rows) for key, rows in kept.items()}
        for name, kept in self.streams.items():
            other.streams[name] = {key: list(rows) for key, rows in kept.items()}
        return other
