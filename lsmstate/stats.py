"""Counters of a store, and the two recorders that feed them.

- Counters are added up once per batch or block, never per row.
- Counters of the block cache and of memory belong to the process, like the memory cap. All others
  belong to the store and count since it was opened.
- A counter that a backend cannot know keeps its default."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lsmstate.errors import StoreClosedError
from lsmstate.shown import Shown, ShownTable, fields_shown

#: A shorter wait does not count as a pause.
PAUSE_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counters of the block cache, which all stores of the process share."""

    hits: int = 0
    misses: int = 0
    evicted_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of requested blocks that were in the cache; 0.0 without requests."""
        return _ratio(self.hits, self.hits + self.misses)


@dataclass(frozen=True, slots=True)
class FilterStats:
    """Counters of the Bloom filters.

    Attributes:
        checks: Lookups that a filter was asked about.
        negatives: Lookups in a run that a filter made unnecessary.
        false_positives: Lookups that a filter let pass although the key was absent.
    """

    checks: int = 0
    negatives: int = 0
    false_positives: int = 0

    @property
    def usefulness(self) -> float:
        """Share of lookups of absent keys that a filter stopped."""
        return _ratio(self.negatives, self.negatives + self.false_positives)


@dataclass(frozen=True, slots=True)
class ProbeStats:
    """Counters of key lookups. A lookup visits each run whose key range holds the key."""

    keys: int = 0
    runs_visited: int = 0
    """Pairs of a key and a run whose filter or blocks were asked."""
    runs_searched: int = 0
    """Those pairs that searched a key block, because no filter stopped them."""
    blocks_spared: int = 0
    """Row blocks that reads of ranges left out because of their zones."""

    @property
    def runs_per_key(self) -> float:
        """Average number of runs searched per key."""
        return _ratio(self.runs_searched, self.keys)


@dataclass(frozen=True, slots=True)
class WriteStats:
    """Counters of appends, and of the file writes they caused. The write-ahead log is left out."""

    appended_rows: int = 0
    appended_bytes: int = 0
    """Bytes of encoded rows and keys, before compression."""
    flushed_bytes: int = 0
    """Bytes of files written from memtables, by flushes and commits."""
    merged_bytes: int = 0
    """Bytes of files written by compactions."""
    flushes: int = 0
    merges: int = 0

    @property
    def amplification(self) -> float:
        """Write amplification: bytes written to files per byte flushed; 1.0 without compactions."""
        return _ratio(self.flushed_bytes + self.merged_bytes, self.flushed_bytes)


@dataclass(frozen=True, slots=True)
class PauseStats:
    """Counters of waits of one millisecond or more."""

    count: int = 0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreStats(Shown):
    """Counters of one store; see ``MultimapStore.stats``.

    Attributes:
        memory: Bytes of memory by component.
        peak_memory_bytes: Most memory that was in use at one time.
        disk_bytes: Bytes of files.
        spilled_bytes: Bytes of files written by flushes, commits and compactions.
        counters: Further counters of the backend, by name.
        memory_limit_bytes: The memory cap.
        cache: Counters of the block cache.
        filters: Counters of the Bloom filters.
        probes: Counters of key lookups.
        writes: Counters of appends and file writes.
    """

    memory: Mapping[str, int]
    peak_memory_bytes: int
    disk_bytes: int
    spilled_bytes: int
    counters: Mapping[str, int] = field(default_factory=dict)
    memory_limit_bytes: int = 0
    cache: CacheStats = CacheStats()
    filters: FilterStats = FilterStats()
    probes: ProbeStats = ProbeStats()
    writes: WriteStats = WriteStats()
    append_pauses: PauseStats = PauseStats()
    """Waits of appends and deletes for flushes, compactions or memory."""
    commit_pauses: PauseStats = PauseStats()
    """Durations of whole commits."""

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())

    def as_dict(self) -> dict[str, Any]:
        """Return all counters and the ratios derived from them as JSON values."""
        return {
            **asdict(self),
            "memory_bytes": self.memory_bytes,
            "cache_hit_rate": self.cache.hit_rate,
            "filter_usefulness": self.filters.usefulness,
            "runs_per_key": self.probes.runs_per_key,
            "write_amplification": self.writes.amplification,
        }

    def _as_tables(self) -> Iterable[ShownTable]:
        """All counters and ratios."""
        yield fields_shown("StoreStats", self.as_dict())


def state_shown(stats: Callable[[], StoreStats]) -> ShownTable:
    """What a state takes, as its store's ``stats`` says; that it is closed, if it is."""
    try:
        found = stats()
    except StoreClosedError:
        return fields_shown("state", {"is_closed": True})
    own = {
        "disk_bytes": found.disk_bytes,
        "memory_bytes": found.memory_bytes,
        "memory_limit_bytes": found.memory_limit_bytes,
    }
    return fields_shown("state", {**own, **found.counters})


class PauseRecorder:
    """Adds up pauses. The waiting thread writes; any thread reads."""

    def __init__(self) -> None:
        self._stats = PauseStats()

    def measured(self) -> "_Pause":
        """Return a context manager that counts its duration if it is a pause."""
        return _Pause(self)

    def add(self, seconds: float) -> None:
        """Count a wait, if it is long enough to be a pause."""
        if seconds >= PAUSE_SECONDS:
            before = self._stats
            self._stats = PauseStats(
                before.count + 1,
                before.total_seconds + seconds,
                max(before.longest_seconds, seconds),
            )

    def stats(self) -> PauseStats:
        return self._stats


class _Pause:
    """A class, not a generator: an interrupt may leave a generator suspended, which would count
    until it is collected."""

    def __init__(self, recorder: PauseRecorder) -> None:
        self._recorder = recorder
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._recorder.add(time.perf_counter() - self._start)


class ProbeRecorder:
    """Adds up the counters of the probes of a store, one batch at a time."""

    def __init__(self) -> None:
        self.keys = 0
        #: Row blocks that zones spared.
        self.blocks_spared = 0
        self._visited = self._checks = self._negatives = self._false_positives = 0

    def add(self, keys: int, visited: int, checks: int, negatives: int, misled: int) -> None:
        """Add one batch; the last four are those of ``Lookup.counters``."""
        self.keys += keys
        self._visited += visited
        self._checks += checks
        self._negatives += negatives
        self._false_positives += misled

    def probes(self) -> ProbeStats:
        searched = self._visited - self._negatives
        return ProbeStats(self.keys, self._visited, searched, self.blocks_spared)

    def filters(self) -> FilterStats:
        return FilterStats(self._checks, self._negatives, self._false_positives)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
