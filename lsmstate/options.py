"""Options of a store. Each field has its unit, default and effect; values are checked at once."""

import re
from dataclasses import dataclass, replace
from numbers import Integral
from typing import ClassVar

from lsmstate.errors import InvalidArgumentError
from lsmstate.option_names import fields_checked

KIB = 1024
MIB = 1024 * KIB

#: Smallest memory cap: 4 MiB for the process and 1 MiB for each open store. That 1 MiB serves a
#: flush and a compaction of a dozen runs: each buffers one file, and 32 KiB of each run.
MINIMUM_MEMORY_BYTES = 4 * MIB
STORE_MEMORY_BYTES = 1 * MIB

_NUMBERS = (
    *("memory_bytes", "memtable_bytes", "block_bytes", "file_bytes"),
    *("filter_bits_per_key", "fanout", "max_runs", "retained_batches"),
)
_UNITS = {"": 1, "b": 1, "k": KIB, "kb": KIB, "m": MIB, "mb": MIB, "g": KIB * MIB, "gb": KIB * MIB}


def parse_bytes(value: int | str, name: str = "memory") -> int:
    """Convert a size such as ``"64m"`` to bytes. Units are powers of 1024, as in Spark's settings.

    Args:
        value: A number of bytes, or a number with the unit b, k, m or g.
        name: Name of the setting, for the error message.

    Returns:
        The number of bytes.

    Raises:
        InvalidArgumentError: The value is not a size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*?)(?:ib)?\s*", str(value).lower())
    if found is None or found[2] not in _UNITS:
        raise InvalidArgumentError(
            f"{name}={value!r} is not a size; write bytes or a size such as '64m' or '1g'"
        )
    return int(float(found[1]) * _UNITS[found[2]])


@fields_checked
@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Memory and disk options of a store. Every option may change between two openings."""

    cap_name: ClassVar[str] = "memory_bytes"
    """What the caller wrote for ``memory_bytes``, for messages; subclasses have other names."""

    memory_bytes: int = 64 * MIB
    """Memory cap over everything that the stores of this process hold: memtables, block cache,
    filters, indexes, and buffers of flushes, compactions and probes. At the cap, stores flush or
    evict; they never exceed it. If open stores have different caps, the largest one applies to all
    of them together. A row may take a quarter of the cap. A key may take 128 KiB, or 1/1024 of the
    cap if that is more (1/64 if the cap is below 8 MiB)."""

    memtable_bytes: int | None = None
    """Size at which a memtable is flushed. Default: a quarter of the memory cap."""

    block_bytes: int | None = None
    """Size of a key block before compression; a row block has half of it. Larger blocks make
    smaller files, cheaper compactions and cheaper reads of cached state. Reads of uncached state
    become more expensive. Default: 1/4096 of the memory cap, between 8 and 16 KiB."""

    filter_bits_per_key: int = 10
    """Bits per key of the Bloom filters; 0: no filters. With 10 bits, 1 % of lookups of absent keys
    pass."""

    compression: str = "lz4"
    """Compression of all runs but the bottom one: ``lz4``, ``zstd`` or ``none``. There is no
    setting per level: most data lies in the bottom run, and the runs above it are rewritten too
    soon for a denser codec. With ``lz4``, rows of equal width are instead packed by the bits in
    which they differ, unless LZ4 makes them smaller. That is faster and mostly smaller. Key blocks
    already leave out the prefix shared with the previous key, and are packed only if that makes
    them much smaller."""

    bottom_compression: str = "lz4"
    """Compression of the bottom run, which holds most data and is written least often. A run keeps
    its codec until it is compacted."""

    fanout: int = 4
    """Number of runs of one level that are merged into one run of the next level."""

    merging: str = "lazy"
    """Compaction strategy: which runs are merged.

    - ``lazy``: several runs per level above a single bottom run. If the state does not fit in
      memory and ``background`` is on, runs are merged into the bottom run sooner.
    - ``leveled``: one run per level.
    - ``tiered``: several runs on every level.

    Simulated with flushes of 16 MB and five rows per key (write amplification, and runs that hold
    rows of a key):

    | strategy | up to 1 GB | up to 5.6 GB |
    |---|---|---|
    | ``lazy`` | 5.5, 1.4 | 6.1, 1.5 |
    | ``leveled`` | 4.8, 1.5 | 7.7, 1.5 |
    | ``tiered`` | 4.0, 2.5 | 4.3, 2.3 |

    In all strategies, runs that delete half of the rows are merged with the oldest run as soon as
    they have an eighth of its size. ``compact`` frees the space of deleted rows at once."""

    max_runs: int = 10
    """Most sorted runs that a probe has to visit. While some of them are being merged, there may be
    ``fanout`` more; under Spark with small micro-batches, ``max_runs + 1`` more. The reason is that
    a merge of the bottom run is spread over the appends that cause it."""

    file_bytes: int = 32 * MIB
    """Approximate size of the key-range files that a run is split into."""

    retained_batches: int = 100
    """Number of micro-batches that a restart may go back to; for attempts. Files that none of them
    needs are deleted. Spark's own setting is spark.sql.streaming.minBatchesToRetain."""

    sync: str | None = None
    """What is forced to disk (fsync) before a call returns. A killed process never loses an
    acknowledged write. A power failure may lose:

    - ``always``: nothing. Each append and delete costs one fsync.
    - ``commit``: the writes since the last commit, flush, checkpoint or close. The default of
      a standalone store.
    - ``never``: everything that the system had not written yet. The store may then fail to open
      (CorruptionError) and has to be restored. The default of an attempt, the same as of Spark's
      own local checkpoints. Attempts have no write-ahead log, so ``always`` means ``commit``."""

    background: bool | None = None
    """Whether a background thread, one per process, flushes and compacts. A write waits for it only
    if memory or the number of runs requires that. Default: True for a standalone store, False for
    an attempt. Spark runs one task per core, so a thread would take time from other tasks, and its
    work that is unfinished at a commit would be lost."""

    def __post_init__(self) -> None:
        def refuse(name: str, rule: str) -> None:
            raise InvalidArgumentError(f"{name}={getattr(self, name)!r}: {rule}")

        for name in _NUMBERS:
            value = getattr(self, name)
            is_default = name in ("memtable_bytes", "block_bytes") and value is None
            if not is_default and (isinstance(value, bool) or not isinstance(value, Integral)):
                refuse(
                    name,
                    "give a whole number; options.parse_bytes converts sizes such as '64m'",
                )

        if self.memory_bytes < MINIMUM_MEMORY_BYTES + STORE_MEMORY_BYTES:
            raise InvalidArgumentError(
                f"{self.cap_name}={self.memory_bytes!r}: the memory cap is too small; give at "
                f"least {MINIMUM_MEMORY_BYTES + STORE_MEMORY_BYTES} bytes ('5m')"
            )
        if self.memtable_bytes is not None and not (
            256 * KIB <= self.memtable_bytes <= self.memory_bytes // 2
        ):
            refuse("memtable_bytes", f"must lie between 256 KiB and half of {self.cap_name}")
        block_bytes = self.block_limit_bytes
        if not 1 * KIB <= block_bytes <= 256 * KIB:
            refuse("block_bytes", "must lie between 1 KiB and 256 KiB")
        sources = max(self.fanout, self.max_runs)
        if block_bytes > 1 * KIB and 4 * sources * block_bytes > self.memory_bytes:
            refuse(
                "block_bytes",
                f"{sources} runs of such blocks cannot be merged under {self.cap_name}="
                f"{self.memory_bytes}; give at most "
                f"{max(KIB, self.memory_bytes // (4 * sources))}",
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
            refuse("retained_batches", "must be at least 1")
        if not 64 * KIB <= self.file_bytes <= 1024 * MIB:
            refuse("file_bytes", "must lie between 64 KiB and 1 GiB")

    def of_one_process(self) -> "Options":
        """Return these options with the defaults of a standalone store filled in."""
        background = True if self.background is None else self.background
        return replace(self, sync=self.sync or "commit", background=background)

    @property
    def syncs_commits(self) -> bool:
        """Whether the files of a commit are forced to disk."""
        return self.sync in ("always", "commit")

    @property
    def syncs_writes(self) -> bool:
        """Whether each logged write is forced to disk."""
        return self.sync == "always"

    @property
    def most_runs(self) -> int:
        """Most runs that may exist at a flush while some of them are being merged.

        That is ``fanout`` more than ``max_runs``, as far as memory suffices to merge all of them.
        Commits of attempts without a flush have another bound: ``2 * max_runs + 1``.
        """
        carried = self.memory_bytes // (4 * self.block_limit_bytes)
        return max(self.max_runs, min(self.max_runs + self.fanout, carried))

    @property
    def memtable_limit_bytes(self) -> int:
        """Size at which a memtable is flushed: ``memtable_bytes``, or its default."""
        return self.memtable_bytes or max(256 * KIB, self.memory_bytes // 4)

    @property
    def block_limit_bytes(self) -> int:
        """Size of a key block before compression: ``block_bytes``, or its default."""
        if self.block_bytes is not None:
            return self.block_bytes
        return min(max(8 * KIB, self.memory_bytes // 4096), 16 * KIB)


class JoinOptions(Options):
    """Options of a join's store: the caller wrote ``State(memory=...)``."""

    __slots__ = ()
    cap_name: ClassVar[str] = "memory"


class CommandOptions(Options):
    """Options of a command's store: the caller wrote ``--memory``."""

    __slots__ = ()
    cap_name: ClassVar[str] = "--memory"


#: Options of a store that is opened without any.
DEFAULTS = Options()


def check_options(options: object) -> None:
    """Raise InvalidArgumentError unless ``options`` are Options."""
    if not isinstance(options, Options):
        raise InvalidArgumentError(
            f"options={options!r}: give lsmstate.Options(...), or leave it out for the defaults"
        )
