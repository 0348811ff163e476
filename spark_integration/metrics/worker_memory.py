"""Resident memory of a Python worker: measure it, and return freed memory to the system.

The arenas of glibc and Arrow's default pools keep several times the live bytes of a mixed load. The
worker therefore takes Arrow memory from the system allocator, with low thresholds.
"""

import ctypes
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa

#: The variable that says what a worker is for.
WORKER: Final = "LSMSTATE_WORKER"
#: Environment of the workers that hold state; read by glibc and Arrow as the worker starts.
ENVIRONMENT: Final = {
    WORKER: "state",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
#: Environment of the workers that route rows and unpack results. They run no function of a user.
ROWS_ENVIRONMENT: Final = {WORKER: "rows"}
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Resident bytes of this process."""

    now: int
    peak: int
    """The most since the process started."""
    idle: int
    """Just before its first store was opened."""

    @property
    def growth(self) -> int:
        return max(0, self.peak - self.idle)


def settle() -> None:
    """Call it before a store is opened. The first call of a process records its idle memory."""
    _idle_bytes(os.getpid())


def measure() -> WorkerMemory:
    """Cost: two small reads of /proc, some 50 microseconds."""
    return WorkerMemory(now=_resident_bytes(), peak=_peak_bytes(), idle=_idle_bytes(os.getpid()))


def give_back() -> None:
    """Return freed memory at the top of the heaps to the system. Does nothing without glibc."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _idle_bytes(_pid: int) -> int:
    pa.set_memory_pool(pa.system_memory_pool())
    give_back()
    return _resident_bytes()


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except FileNotFoundError:
        return 0  # no /proc on this system: the metric reads zero, nothing depends on it


def _peak_bytes() -> int:
    try:
        with open("/proc/self/status") as file:
            lines = [line for line in file if line.startswith("VmHWM:")]
    except FileNotFoundError:
        return 0
    return int(lines[0].split()[1]) * 1024 if lines else 0
