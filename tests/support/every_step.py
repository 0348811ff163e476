"""An interrupt at any one step of a call, step by step; a signal comes at some of them only."""

import sys

import pytest


class Interrupter:
    """Raises KeyboardInterrupt at the n-th step of Python in a call: where a function begins or
    ends, and where one in C has been called. There the interpreter looks for signals, too."""

    def __init__(self, step):
        self.is_through = False
        self.interrupt = None
        self._left = step

    def _count(self, frame, event, argument):
        del frame, argument  # what a call returns is not to be held by the interrupt
        if event == "c_call":  # there signals are not looked for: a lock's release always begins
            return
        self._left -= 1
        if self._left == 0:
            self.is_through = True
            raise KeyboardInterrupt  # with which the interpreter takes the profile away

    def call(self, function, *arguments):
        """Whether it was interrupted; the interrupt, and with it the call's frames, is kept."""
        before, count = sys.getprofile(), self._count
        try:
            sys.setprofile(count)
            function(*arguments)
        except KeyboardInterrupt as interrupt:
            self.interrupt = interrupt
            return True
        finally:
            self._left = 0  # what is called here is no step
            sys.setprofile(before)
        return False


def each_step(every=1):
    """An interrupter for each step of the call that is made with it, until there are no more."""
    step = 1
    while True:
        interrupter = Interrupter(step)
        yield interrupter
        if not interrupter.is_through:
            return
        step += every


@pytest.fixture
def lost_interrupts(monkeypatch):
    """In a destructor, or a callback of the collector, an interrupt is lost: pytest would keep it,
    and with it the frames of the call."""
    report = sys.unraisablehook

    def report_others(unraisable):
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            report(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", report_others)
