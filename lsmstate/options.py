"""Settings of a store: unit, default and effect per field, checked on construction."""

import re
from dataclasses import dataclass, replace
from numbers import Integral

from lsmstate.errors import InvalidArgumentError

KIB = 1024
MIB = 1024 * KIB

#: The least cap that works: 4 MiB for a process, and 1 MiB for each open store. That MiB is what a
#: flush and a merge of a dozen runs hold at once: they buffer a file each, and 32 KiB of each run.
MINIMUM_MEMORY_BYTES = 4 * MIB
STORE_MEMORY_BYTES = 1 * MIB

_NUMBERS = (
    *("memory_bytes", "memtable_bytes", "block_bytes", "file_bytes"),
    *("filter_bits_per_key", "fanout", "max_runs", "retained_batches"),
)
_UNITS = {"": 1, "b": 1, "k": KIB, "kb": KIB, "m": MIB, "mb": MIB, "g": KIB * MIB, "gb": KIB * MIB}


def parse_bytes(value: int | str, name: str = "memory") -> int:
    """``"64m"`` -> 67108864. Units are powers of 1024, as in Spark's settings."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*?)(?:ib)?\s*", str(value).lower())
    if found is None or found[2] not in _UNITS:
        raise InvalidArgumentError(
            f"{name}={value!r} is not a size; write bytes or a size such as '64m' or '1g'"
        )
    return int(float(found[1]) * _UNITS[found[2]])


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How a store uses memory and disk. Every field may change between two openings."""

    memory_bytes: int = 64 * MIB
    """The cap over everything the stores of this process hold: memtables, cache, filters,
    indexes, buffers of flush, merge and probe. Reaching it flushes or evicts; never exceeded. Of
    stores that are open with different caps the largest one counts, for all of them together. A row
    may take a quarter of it, a key 128 KiB, or 1/1024 of it if that is more (1/64 below 8 MiB)."""

    memtable_bytes: int | None = None
    """A memtable is flushed when it has grown to this. Default: a quarter of the cap."""

    block_bytes: int | None = None
    """Size of a key block before compression; a row block has half of it. Larger: smaller files,
    cheaper merges and reads of what the cap holds, dearer reads of what it does not. Default:
    1/4096 of the cap, between 8 and 16 KiB."""

    filter_bits_per_key: int = 10
    """Bits per key of the Bloom filters; 10 let one absent key in a hundred through. 0: none."""

    compression: str = "lz4"
    """``lz4``, ``zstd`` or ``none``, for all runs but the bottom one. There are two choices and not
    one a level: most of the data lies in the bottom run, and what lies above it is rewritten before
    a denser codec has paid for itself. With ``lz4``, rows of one width are packed by the bits in
    which they differ instead, faster and mostly smaller, unless LZ4 makes less of them; blocks of
    keys, which leave out what a key shares with the one before it, are packed only where that makes
    them a good deal smaller."""

    bottom_compression: str = "lz4"
    """The same for what is merged into the bottom run, which holds most of the data and is written
    least often. Runs keep the codec they were written with until they are merged."""

    fanout: int = 4
    """Runs of one level that are merged into one run of the next."""

    merging: str = "lazy"
    """Which runs are merged. ``lazy``: several runs a level above one bottom run, which all of them
    go down into sooner where memory does not hold the state and ``background`` is on. ``leveled``:
    one run a level. ``tiered``: several runs on every level. Bytes written for each that arrives,
    and runs that hold rows of a key with five rows, simulated with 16 MB flushes up to 1 GB: 5.5
    and 1.4, 4.8 and 1.5, 4.0 and 2.5. Up to 5.6 GB: 6.1 and 1.5, 7.7 and 1.5, 4.3 and 2.3. With
    each, runs that delete half of what there is are merged with it as soon as they hold an eighth
    of the oldest one; ``compact`` frees what was deleted at once."""

    max_runs: int = 10
    """At most this many sorted runs are left for a probe to visit; while they are being merged,
    ``fanout`` more (under Spark up to ``max_runs`` more and one, where micro-batches are small): a
    merge of the bottom run is spread over the appends that bring them."""

    file_bytes: int = 32 * MIB
    """A run is cut into key-range files of about this size."""

    retained_batches: int = 100
    """Attempts: how many micro-batches a restart may go back to. Files that none of them needs
    are deleted. Spark's own number: spark.sql.streaming.minBatchesToRetain."""

    sync: str | None = None
    """What is forced to the disk (fsync) before a call returns. A killed process loses nothing
    that was acknowledged, whatever this is; they differ in what a power cut may take:

    - ``always``: nothing. Each append and delete is forced, one fsync each.
    - ``commit``: the writes since the last commit, flush or checkpoint. The default of a
      standalone store.
    - ``never``: whatever the system had not written by itself. The store may then not open
      (CorruptionError) and has to be restored. The default of an attempt, as of Spark's own local
      checkpoints; attempts have no log, so ``always`` is ``commit`` for them."""

    background: bool | None = None
    """Whether flushes and merges are done by a background thread, one per process, as far as it
    gets; a write waits only where memory or the number of runs leaves no choice. Default: true
    for a standalone store; false for an attempt: Spark runs a task per core, so a thread would
    take its time from another task, and what it had not done at the commit would be lost."""

    def __post_init__(self) -> None:
        def refuse(name: str, rule: str) -> None:
            raise InvalidArgumentError(f"{name}={getattr(self, name)!r}: {rule}")

        for name in _NUMBERS:
            value = getattr(self, name)
            is_default = name in ("memtable_bytes", "block_bytes") and value is None
            if not is_default and (isinstance(value, bool) or not isinstance(value, Integral)):
                refuse(name, "give a whole number; options.parse_bytes reads sizes like '64m'")

        if self.memory_bytes < MINIMUM_MEMORY_BYTES + STORE_MEMORY_BYTES:
            refuse(
                "memory_bytes",
                "too small a cap to work in; give at least "
                f"{MINIMUM_MEMORY_BYTES + STORE_MEMORY_BYTES} bytes ('5m')",
            )
        if self.memtable_bytes is not None and not (
            256 * KIB <= self.memtable_bytes <= self.memory_bytes // 2
        ):
            refuse("memtable_bytes", "must lie between 256 KiB and half of memory_bytes")
        block_bytes = self.block_limit_bytes
        if not 1 * KIB <= block_bytes <= 256 * KIB:
            refuse("block_bytes", "must lie between 1 KiB and 256 KiB")
        sources = max(self.fanout, self.max_runs)
        if block_bytes > 1 * KIB and 4 * sources * block_bytes > self.memory_bytes:
            refuse(
                "block_bytes",
                f"merging {sources} runs would not fit memory_bytes={self.memory_bytes}; give at "
                f"most {max(KIB, self.memory_bytes // (4 * sources))}",
            )
        if not 0 <= self.filter_bits_per_key <= 32:
            refuse("filter_bits_per_key", "must lie between 0 and 32")
        if self.background is not None and not isinstance(self.background, bool):
            refuse("background", "give True, False, or None for the default")
        if self.sync not in (None, "always", "commit", "never"):
            refuse("sync", "choose 'always', 'commit' or 'never'")
        for name in ("compression", "bottom_compression"):
            if getattr(self, name) not in ("lz4", "zstd", "none"):
                refuse(name, "choose 'lz4', 'zstd' or 'none'")
        if self.merging not in ("lazy", "leveled", "tiered"):
            refuse("merging", "choose 'lazy', 'leveled' or 'tiered'")
        if not 2 <= self.fanout <= 16:
            refuse("fanout", "must lie between 2 and 16")
        if not 2 <= self.max_runs <= 32:
            refuse("max_runs", "must lie between 2 and 32")
        if self.retained_batches < 1:
            refuse("retained_batches", "keep at least one micro-batch")
        if not 64 * KIB <= self.file_bytes <= 1024 * MIB:
            refuse("file_bytes", "must lie between 64 KiB and 1 GiB")

    def of_one_process(self) -> "Options":
        """These options with the defaults of a standalone store filled in."""
        background = True if self.background is None else self.background
        return replace(self, sync=self.sync or "commit", background=background)

    @property
    def syncs_commits(self) -> bool:
        """Whether what a commit names is forced to the disk."""
        return self.sync in ("always", "commit")

    @property
    def syncs_writes(self) -> bool:
        """Whether each logged write is."""
        return self.sync == "always"

    @property
    def most_runs(self) -> int:
        """How many may stand, as a memtable is flushed, while some of them are merged: as far as
        memory would carry a merge of all of them, ``fanout`` more than are left otherwise. The
        commits of attempts that flush none are bounded by ``2 * max_runs + 1``."""
        carried = self.memory_bytes // (4 * self.block_limit_bytes)
        return max(self.max_runs, min(self.max_runs + self.fanout, carried))

    @property
    def memtable_limit_bytes(self) -> int:
        return self.memtable_bytes or max(256 * KIB, self.memory_bytes // 4)

    @property
    def block_limit_bytes(self) -> int:
        if self.block_bytes is not None:
            return self.block_bytes
        return min(max(8 * KIB, self.memory_bytes // 4096), 16 * KIB)


#: Of stores that are opened without any.
DEFAULTS = Options()


def check_options(options: object) -> None:
    """InvalidArgumentError unless they are options."""
    if not isinstance(options, Options):
        raise InvalidArgumentError(
            f"options={options!r}: give lsmstate.Options(...), or none for the defaults"
        )
