"""Write path: the active memtable, sealed memtables, and the current flush.

Full memtables are flushed at once, or by the background worker while the next one takes writes. The
store's own thread installs the result here.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from lsmstate.cython_ext.locks.reservations import Reservation, Reservations
from lsmstate.cython_ext.memory.budget import Holding
from lsmstate.cython_ext.wal.wal_record import largest_entry
from lsmstate.errors import MemoryLimitError
from lsmstate.lsm.jobs import Flush
from lsmstate.lsm.memtable_writes import STEPS, places_of
from lsmstate.lsm.memtables import MOST_SEALED, Memtables
from lsmstate.lsm.version_set import LEAST_MERGE_BYTES, RunSet
from lsmstate.lsm.wal import Write, numbered
from lsmstate.options import Options
from lsmstate.process.background_worker import worker
from lsmstate.process.memory_budget import LARGE_PART, Flushable, ProcessMemory
from lsmstate.stats import PauseRecorder
from lsmstate.store_base.batch_limits import no_room
from lsmstate.store_base.guard import StoreGuard

#: Longest wait of a write for room, while other threads are inside calls of their stores.
PATIENCE_SECONDS = 30.0
#: Copies of a row in a flush beside the memtable: in its block, and compressed.
FLUSHED_COPIES = 2


class WritePath:
    """The write path of ``store``, which calls it inside its guard's ``whole_or_nothing``. ``kept``
    names the snapshots that hold memory, if there is none left."""

    def __init__(
        self,
        store: Flushable,
        runs: RunSet,
        memory: ProcessMemory,
        options: Options,
        guard: StoreGuard,
        kept: Callable[[], str],
        *,
        single_commit: bool,
    ) -> None:
        self.memtables = Memtables(
            memory, options.memtable_limit_bytes, in_background=bool(options.background)
        )
        #: The first write that is not completely in memtables and runs, and the place in its steps.
        self.replay_from = (1, 0)
        #: Bytes of rows and keys, encoded, since the store was opened.
        self.written_bytes = 0
        #: Time that writes waited.
        self.pauses = PauseRecorder()
        self._store = store
        self._runs = runs
        self._memory = memory
        self._options = options
        self._in_background = bool(options.background)
        self._guard = guard
        self._kept = kept
        self._single_commit = single_commit
        #: As of the last commit.
        self._committed = (1, 0)
        self._has_flushed = False
        self._largest_write_bytes = 0
        self._has_large_rows = False
        #: Bytes of large rows that were written and not paid for.
        self._unpaid_bytes = 0
        #: The flush of sealed memtables that is not installed yet.
        self._flush: Flush | None = None
        self._reservations = Reservations(memory.budget, guard.lock)

    def start_at(self, replay_from: tuple[int, int]) -> None:
        """Continue from a commit."""
        self.replay_from = self._committed = replay_from

    @property
    def is_committed(self) -> bool:
        """Whether the last commit holds every write."""
        return self._committed == self.replay_from

    def catch_up(self) -> None:
        """Before a write: install what the worker has done, or raise its error."""
        if self._flush is not None and self._flush.is_over:
            with self.pauses.measured():
                self.end_flush()

    def announce(self, entry_bytes: int) -> None:
        """Before a write, and before the store is locked: if its largest entry of a key and a row
        is large, threads take turns from now on."""
        self._has_large_rows |= self._memory.budget.note_row(entry_bytes)

    def settling(self) -> AbstractContextManager[None]:
        """Return the context of a whole write: from before its rows are encoded to when they are
        released."""
        return self._memory.turns.turn(then=self.settle)

    def settle(self) -> None:
        """While nothing is encoded: flush large rows beyond their share of the memtables.

        Otherwise those of several stores would fill the cap, and flushes and merges need room. The
        merge is therefore paid for here, too.
        """
        if not self._has_large_rows:
            return
        with self._guard.whole_or_nothing():
            # Of an enclosing write, which continues and has them again below.
            around = [
                held for each in self._reservations.all() for held in (each.memtable, each.frames)
            ]
            sizes = [holding.nbytes for holding in around]
            for holding in around:
                holding.release()
            try:
                if self.memtables.nbytes > self.memtables.limit_bytes:
                    self.flush()
                unpaid, self._unpaid_bytes = self._unpaid_bytes, 0
                if unpaid:
                    self._pay(unpaid)
            finally:
                for holding, size in zip(around, sizes, strict=True):
                    holding.grow(size)

    def reserving(
        self, entry_bytes: int, frame_bytes: int, *, is_promised: bool = False
    ) -> AbstractContextManager[None]:
        """Return a context that reserves the memory of a write, before it is logged and with the
        store's lock.

        It reserves the encoded keys and rows, and what the largest entry may need in a memtable. No
        write is therefore refused once it is in the log. After a MemoryLimitError nothing has
        changed, except that memtables may have been flushed. A write that ``is_promised`` (it is in
        a log), or is inside another such context, is never refused: the cap is then exceeded by
        what is missing.
        """
        admit = partial(self._admit, entry_bytes, frame_bytes)
        return self._reservations.reserve(admit, is_promised=is_promised)

    def _admit(self, entry_bytes: int, frame_bytes: int, reservation: Reservation) -> None:
        """Reserve the memory; see ``reserving``."""
        until = 0.0 if reservation.is_promised else time.monotonic() + PATIENCE_SECONDS
        if self._memory.budget.note_row(entry_bytes) and not reservation.is_promised:
            self._flush_before(entry_bytes)
            flushed = FLUSHED_COPIES * entry_bytes
            lacking = self.memtables.lacking_bytes(entry_bytes) + max(frame_bytes, flushed)
            # As far as there is any: the memory of a flush is not requested.
            self._try_until_there(lambda: self._memory.budget.has_room(lacking), until)
        reserved = self._reservations
        self._hold(reservation.frames, lambda: frame_bytes - reserved.frame_bytes, until)
        self._hold(
            reservation.memtable,
            lambda: self.memtables.lacking_bytes(entry_bytes) - reserved.memtable_bytes,
            until,
        )

    def _flush_before(self, entry_bytes: int) -> None:
        """Flush so that large rows in a flush's buffers do not add to the next one."""
        with self._guard.whole_or_nothing():
            if self.memtables.active.nbytes + entry_bytes > self.memtables.limit_bytes:
                self.flush()
            else:
                self.end_flush()

    def _hold(self, holding: Holding, missing: Callable[[], int], until: float = 0.0) -> None:
        """Hold the missing bytes, too. Flushing own memtables makes room, then those of another
        store. It is tried again, since others may take the freed memory."""

        def is_held() -> bool:
            size = missing()
            return size <= 0 or holding.try_grow(size)

        if self._try_until_there(is_held, until):
            return
        size = max(0, missing())
        if not holding.try_grow_last(size):
            reservation = self._reservations.inmost
            if reservation is None or not reservation.is_promised:
                raise self._no_room(size)
            holding.grow(size)

    def _try_until_there(self, is_there: Callable[[], bool], until: float) -> bool:
        """Make room step by step until there is enough; return False if no more can be made. Other
        threads inside a call are then waited for ``until`` that time."""
        try:
            while not is_there():
                if self.memtables:
                    with self._guard.whole_or_nothing():
                        self.flush()
                elif not self._memory.relieve(self._store) and not self._memory.await_others(
                    self._store, until
                ):
                    return False
        finally:
            self._memory.end_waiting(self._store)
        return True

    def insert(self, write: Write, start: int = 0) -> None:
        """Apply one write to the active memtable; flush whenever it is full. Places count the keys
        of its steps, one step after another."""
        write = numbered(write)
        steps = STEPS[write.kind]
        place, count = start, places_of(write)
        # The reservation for this write belongs to the active memtable while it is filled;
        # otherwise a large row would be charged twice.
        reserved = self._made().memtable
        outmost = self._reservations.outmost
        assert outmost is not None
        granted_at = -1
        if self.memtables.sealed_count > MOST_SEALED:
            self._flush_soon()
        while place < count * len(steps):
            number, key = divmod(place, count)
            active = self.memtables.active
            was_empty = len(active) == 0
            active.grant(reserved)
            reached = number * count + steps[number](active, write, key)
            # The rest of the grant must not be released with the first of several parts.
            active.give_back(outmost.memtable if granted_at == place else reserved)
            if reached == (number + 1) * count:
                place = reached
                continue
            is_stuck = reached == place and was_empty
            place = reached
            self.replay_from = (write.sequence, place)
            with self.pauses.measured():
                if not is_stuck:
                    self._flush_soon()
                elif granted_at == place:
                    raise MemoryError("the system has no memory for one more row of a logged write")
                else:
                    active.clear()  # the key may be in it, without the row
                    self._grant(write)
                    granted_at = place
        self.replay_from = (write.sequence + 1, 0)

    def _made(self) -> Reservation:
        """Return the reservation of the current write in ``reserving``."""
        reservation = self._reservations.inmost
        assert reservation is not None
        assert reservation.is_promised
        return reservation

    def _grant(self, write: Write) -> None:
        """Provide what an entry of a logged write needs in the active memtable, which is empty. It
        was reserved, unless other threads were quicker since. The reservation of the enclosing
        write serves too."""
        wanted = self.memtables.least_bytes(largest_entry(write.keys, write.rows))
        self._hold(self._made().memtable, lambda: wanted - self._reservations.memtable_bytes)
        for reservation in self._reservations.all():
            self.memtables.active.grant(reservation.memtable)

    def _no_room(self, size: int) -> MemoryLimitError:
        elsewhere = self._memory.bytes_beside(self._store)
        return no_room(self._memory.budget, size, self._kept(), elsewhere, self._options)

    def pace(self, written_bytes: int) -> None:
        """After a write of this size: work on the current merge, if it is behind. The rows are in
        the memtable: their reservation would count twice beside the merge's memory."""
        self._made().memtable.release()
        self.written_bytes += written_bytes
        self._largest_write_bytes = max(self._largest_write_bytes, written_bytes)
        if self._has_large_rows:
            self._unpaid_bytes += written_bytes
        else:
            self._pay(written_bytes)

    def _pay(self, written_bytes: int) -> None:
        with self.pauses.measured():
            if not self._single_commit:
                self._runs.pace(written_bytes)
            elif self._has_flushed and self._merges_beside_memtables:
                self._runs.pay_ahead(written_bytes, self.written_bytes)

    @property
    def _merges_beside_memtables(self) -> bool:
        """Whether a memtable of large writes and what flushes and merges hold fit in memory
        together."""
        return self._largest_write_bytes <= self._memory.budget.limit // LARGE_PART

    def flush(self) -> None:
        """Flush all memtables into one run now."""
        self.end_flush()
        if self.memtables and not self._single_commit:
            self.commit()
        elif self.memtables:
            self._install(self._begin_flush("run"))
            if not self._merges_beside_memtables:
                self._runs.compact_for(self.written_bytes)

    def commit(self) -> None:
        """Write all memtables and the manifest into one file.

        The first commit of a standalone store pays for due merges, as an attempt's does: the store
        may be closed after it. Later commits leave that to the appends and the worker.
        """
        self.end_flush()
        is_owed = not self._single_commit and not self._has_flushed
        if is_owed and self._merges_beside_memtables:
            self._runs.compact_for(self.written_bytes)
            self._runs.merge_tiny_runs()
            is_owed = False
        self._install(self._begin_flush("commit"))
        if is_owed:
            self._runs.compact_for(self.written_bytes)
        if not self._single_commit and self._runs.has_changed:
            # Merged only now: there was no memory before the memtables were released.
            self._install(self._begin_flush("commit"))

    def close(self) -> None:
        """Abandon the current flush and release the memtables."""
        if self._flush is None or self._flush.abandon():
            self.memtables.close()

    def _flush_soon(self) -> None:
        """Have full memtables flushed by the worker, which may still be flushing earlier ones."""
        if not self._in_background or self._has_large_rows:
            self.flush()
            return
        self.end_flush()
        if self.memtables:
            self._flush = self._begin_flush("run" if self._single_commit else "commit")
            worker().submit(self._flush)

    def _begin_flush(self, kind: str) -> Flush:
        return self._runs.begin_flush(self.memtables.seal(), self.replay_from, kind)

    def end_flush(self) -> None:
        """Install the current flush, if there is one; finish it first."""
        if self._flush is not None:
            # If interrupted here it stays ours, or the worker would go on reading memtables that
            # ``close`` has released.
            self._install(self._flush)
            self._flush = None

    def _install(self, flush: Flush) -> None:
        """Install a flush. Probes hold places in its memtables, so they end here."""
        if flush.kind == "run":
            self._runs.add(flush)
        else:
            if not self._single_commit and self._merges_beside_memtables:
                self._runs.keep_up(arriving=1)  # before the commit, which records it
            self._runs.commit(flush)
            self._committed = flush.replay_from
        self.memtables.release(flush.memtables)
        self._guard.writes += 1
        self._has_flushed = True
        if flush.kind == "run" or not self._single_commit:
            self._runs.keep_up()
        if self._single_commit and self._in_background:
            self._runs.begin_merge(LEAST_MERGE_BYTES)
