"""Typed counters of a store: what a caller may ask, and the two recorders that feed them.

Counters are added up once per batch or block, never per row. Those of the block cache and of
memory are the process's, which the cap is on; all others are the store's, since it was opened.
A backend that cannot know a number leaves it at its default.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: What takes no longer is work, not a pause.
PAUSE_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The block cache of the process."""

    hits: int = 0
    misses: int = 0
    evicted_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """Blocks found in the cache, of those asked for; 0.0 if none was."""
        return _ratio(self.hits, self.hits + self.misses)


@dataclass(frozen=True, slots=True)
class FilterStats:
    """What the Bloom filters said: *negatives* spared a look into a run, *false positives* did
    not although the key was absent."""

    checks: int = 0
    negatives: int = 0
    false_positives: int = 0

    @property
    def usefulness(self) -> float:
        """Absent keys that a filter turned away, of all absent keys it was asked for."""
        return _ratio(self.negatives, self.negatives + self.false_positives)


@dataclass(frozen=True, slots=True)
class ProbeStats:
    """Looking keys up. A key visits each run whose key range it falls in."""

    keys: int = 0
    runs_visited: int = 0
    """Pairs of a key and a run whose filter or blocks were asked."""
    runs_searched: int = 0
    """Those of them in which a key block was searched, because no filter said no."""

    @property
    def runs_per_key(self) -> float:
        """Runs in which a key block was searched, for each key."""
        return _ratio(self.runs_searched, self.keys)


@dataclass(frozen=True, slots=True)
class WriteStats:
    """What was appended, and what that cost in writing. The changelog is left out."""

    appended_rows: int = 0
    appended_bytes: int = 0
    """Encoded rows and keys, before compression."""
    flushed_bytes: int = 0
    """Files written from memtables, at flushes and commits."""
    merged_bytes: int = 0
    """Files written by merges."""
    flushes: int = 0
    merges: int = 0

    @property
    def amplification(self) -> float:
        """Bytes of files written for each byte flushed; 1.0 is without merges."""
        return _ratio(self.flushed_bytes + self.merged_bytes, self.flushed_bytes)


@dataclass(frozen=True, slots=True)
class PauseStats:
    """Times at which a caller waited a millisecond or more."""

    count: int = 0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters of one store. Sizes in bytes; ``memory`` by component."""

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
    """What appends and deletes waited for beside their own work: flush, merge, memory."""
    commit_pauses: PauseStats = PauseStats()
    """Whole commits."""

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())

    def as_dict(self) -> dict[str, Any]:
        """Everything, derived ratios too, as JSON values."""
        return {
            **asdict(self),
            "memory_bytes": self.memory_bytes,
            "cache_hit_rate": self.cache.hit_rate,
            "filter_usefulness": self.filters.usefulness,
            "runs_per_key": self.probes.runs_per_key,
            "write_amplification": self.writes.amplification,
        }


class PauseRecorder:
    """Adds pauses up. Written by the thread whose caller waits, read by any."""

    def __init__(self) -> None:
        self._stats = PauseStats()

    def measured(self) -> "_Pause":
        """Around what a caller waits for; counted if it took PAUSE_SECONDS or more."""
        return _Pause(self)

    def add(self, seconds: float) -> None:
        """Count a pause, if it is one."""
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
    """No generator: one that an interrupt left suspended would count until somebody lets it go."""

    def __init__(self, recorder: PauseRecorder) -> None:
        self._recorder = recorder
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._recorder.add(time.perf_counter() - self._start)


class ProbeRecorder:
    """Adds up what the probes of a store did, a batch at a time."""

    def __init__(self) -> None:
        self.keys = 0
        self._visited = self._checks = self._negatives = self._false_positives = 0

    def add(self, keys: int, visited: int, checks: int, negatives: int, misled: int) -> None:
        """One batch; the last four as ``Lookup.counters`` gives them."""
        self.keys += keys
        self._visited += visited
        self._checks += checks
        self._negatives += negatives
        self._false_positives += misled

    def probes(self) -> ProbeStats:
        return ProbeStats(self.keys, self._visited, self._visited - self._negatives)

    def filters(self) -> FilterStats:
        return FilterStats(self._checks, self._negatives, self._false_positives)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
