"""Locks that are given in order, turns, and the lock of a store, which is taken after a turn."""

import signal
import threading
import time
from contextlib import suppress

import pytest

from lsmstate.cython_ext.locks.locks import FairLock, StoreLock, Turns
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.options import MIB


def test_a_lock_that_is_taken_again_and_again_is_given_to_who_waits():
    lock, ended = FairLock(), threading.Event()
    slices = 0

    def work():
        nonlocal slices
        while not ended.is_set():
            with lock:
                slices += 1
                time.sleep(0.002)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(50):
            before = slices
            assert lock.acquire(60.0)
            waited = slices - before
            lock.release()
            assert waited <= 2, "the one that was under way, and one begun before it was asked for"
    finally:
        ended.set()
        thread.join()


def test_a_lock_is_waited_for_so_long():
    lock, started = FairLock(), threading.Event()

    def wait():
        started.set()
        lock.acquire()
        lock.release()

    lock.acquire()
    assert not lock.acquire(0.0), "it is held"
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        assert started.wait(60)
        before = time.monotonic()
        assert not lock.acquire(0.05), "another waits before this one"
        assert time.monotonic() - before >= 0.05
    finally:
        lock.release()
        thread.join()
    assert lock.acquire(0.0)


def in_a_thread(work):
    """What ``work`` gives, done by a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(60)
    assert found, "it ended, and without an error"
    return found[0]


class Holding:
    """A thread that holds something until it is told to let go."""

    def __init__(self, taken):
        self._has_it, self._ended = threading.Event(), threading.Event()

        def hold():
            with taken():
                self._has_it.set()
                assert self._ended.wait(60)

        self._thread = threading.Thread(target=hold)

    def __enter__(self):
        self._thread.start()
        assert self._has_it.wait(60)
        return self

    def __exit__(self, *_):
        self.let_go()

    def let_go(self):
        self._ended.set()
        self._thread.join()


def turns(*, has_large_rows=True):
    budget = Budget(16 * MIB)
    budget.large_bytes = MIB
    assert not budget.note_row(MIB)
    assert budget.note_row(MIB + 1)
    assert budget.has_large_rows
    budget.has_large_rows = has_large_rows
    return Turns(budget)


def is_free(taken):
    """Whether another thread can have its turn at once."""

    def tried():
        with StoreLock(taken).tried() as has_it:
            return has_it

    return in_a_thread(tried)


def can_be_had(lock):
    """Whether another thread can have a store's lock at once."""

    def tried():
        with lock.tried() as has_it:
            return has_it

    return in_a_thread(tried)


def test_turns_are_taken_once_there_are_large_rows():
    without, taken = turns(has_large_rows=False), turns()
    with Holding(without.turn):
        assert not without.are_taken
        assert is_free(without)
    with taken.turn():
        with taken.turn():
            assert not is_free(taken)
        assert not is_free(taken), "still its turn"
    assert is_free(taken)


def test_a_turn_is_given_back_after_an_error():
    taken = turns()
    with pytest.raises(KeyError), taken.turn():
        raise KeyError
    assert is_free(taken)


def test_a_turn_is_passed_on_to_who_waits_and_comes_back():
    taken, done = turns(), []

    def work():
        with taken.turn():
            done.append(1)

    taken.pass_on()  # nothing, without a turn
    with taken.turn(), taken.turn():
        assert not taken.are_waited_for
        thread = threading.Thread(target=work)
        thread.start()
        while not taken.are_waited_for:
            time.sleep(0.001)
        assert not done
        while not done:
            taken.pass_on(0.001)
        assert not is_free(taken), "it is its turn again"
    thread.join()
    assert is_free(taken)


def test_who_only_works_off_jobs_is_not_waited_for():
    taken, started = turns(), threading.Event()

    def work():
        started.set()
        with taken.turn(counted=False):
            pass

    thread = threading.Thread(target=work)
    with taken.turn():
        thread.start()
        assert started.wait(60)
        time.sleep(0.05)
        assert not taken.are_waited_for
    thread.join()


def test_a_turn_that_was_given_up_is_had_again_after_an_error():
    taken = turns()
    with taken.turn():
        with suppress(KeyError), taken.given_up():
            assert is_free(taken)
            raise KeyError
        assert not is_free(taken)
    assert is_free(taken)


def test_a_stores_lock_is_reentrant_and_others_see_that_it_is_held():
    lock = StoreLock(turns())
    with lock, lock:
        assert not lock.is_held_elsewhere
        assert in_a_thread(lambda: lock.is_held_elsewhere)
        assert not can_be_had(lock)
    assert not in_a_thread(lambda: lock.is_held_elsewhere)
    assert can_be_had(lock)


def test_a_store_may_be_locked_by_another_thread_while_its_own_waits_for_its_turn():
    """Which flushes its memtables, say."""
    taken = turns()
    lock, has_locked = StoreLock(taken), threading.Event()

    def own_thread():
        with lock:
            has_locked.set()

    thread = threading.Thread(target=own_thread)
    with taken.turn():
        thread.start()
        while not taken.are_waited_for:
            time.sleep(0.001)
        with lock.tried() as has_it:
            assert has_it, "its turn, so it has the lock at once"
            assert not has_locked.is_set()
    thread.join(60)
    assert has_locked.is_set()
    assert is_free(taken), "the turn was given back with the lock"


def test_a_lock_that_is_only_tried_waits_neither_for_a_turn_nor_for_the_lock():
    taken = turns()
    lock = StoreLock(taken)
    for held in (taken.turn, lambda: lock):
        with Holding(held), lock.tried() as has_it:
            assert not has_it
    assert is_free(taken), "no turn is left behind"
    assert can_be_had(lock)


def test_turns_that_begin_while_a_lock_is_held_are_not_waited_for_under_it():
    budget = Budget(16 * MIB)
    taken = Turns(budget)
    lock = StoreLock(taken)
    with lock:
        budget.has_large_rows = True
        with Holding(taken.turn), lock:
            pass
    assert is_free(taken), "what was not taken was not given back"


def test_a_store_is_closed_out_of_turn():
    taken = turns()
    lock = StoreLock(taken)
    with Holding(taken.turn):
        with lock.out_of_turn():
            assert in_a_thread(lambda: lock.is_held_elsewhere)
            with lock:
                pass
        assert not in_a_thread(lambda: lock.is_held_elsewhere)
    with lock, lock.out_of_turn():
        pass
    assert is_free(taken)


def test_no_lock_is_lost_by_interrupts():
    """A signal's handler raises, all the time, while the turn and locks are taken, given up and
    given back; the main thread goes on."""
    taken = turns()
    lock, job = StoreLock(taken), FairLock()
    ended, interrupts, rounds = threading.Event(), 0, 0

    def work():
        while not ended.is_set():
            with lock, job:
                pass

    is_armed = False

    def interrupt(*_):
        nonlocal interrupts, is_armed
        if is_armed:
            is_armed = False
            interrupts += 1
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    thread = threading.Thread(target=work)
    thread.start()
    end = time.monotonic() + 2
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    while time.monotonic() < end:
        try:
            is_armed = True
            while is_armed and time.monotonic() < end:
                with lock, job.within(1.0):
                    rounds += 1
                with taken.turn():
                    taken.pass_on()
            is_armed = False
        except KeyboardInterrupt:
            assert not is_armed
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    ended.set()
    thread.join(60)
    assert not thread.is_alive()
    assert min(interrupts, rounds) > 100
    assert is_free(taken)
    assert can_be_had(lock)
    assert in_a_thread(lambda: job.acquire(0.0))
