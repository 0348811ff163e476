"""A plugin that shows at the end which test files took most CPU, in all processes they started.

`make test` has a limit, and on a machine with other work wall times say little.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

try:
    import psutil
except ImportError:  # tests of the store run without it
    psutil = None

#: How many files are shown.
SHOWN = 15
TIMES = pytest.StashKey[Counter[str]]()


def cpu_seconds() -> float:
    """Of this process, of those it has waited for, and, with psutil, of those below it."""
    spent = sum(os.times()[:4])
    if psutil is None:
        return spent
    for child in psutil.Process().children(recursive=True):
        try:
            spent += sum(child.cpu_times()[:4])
        except psutil.Error:
            continue  # it has ended
    return spent


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TIMES] = Counter()


@pytest.fixture(scope="module", autouse=True)
def counted(request: pytest.FixtureRequest) -> Iterator[None]:
    """The CPU time of a file's tests, with the fixtures that are first asked for there."""
    before = cpu_seconds()
    yield
    name = request.node.nodeid
    request.config.stash[TIMES][name] += cpu_seconds() - before


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu"] = dict(session.config.stash[TIMES])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Of one of xdist's processes, in the one that started it."""
    node.config.stash[TIMES].update(getattr(node, "workeroutput", {}).get("cpu", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    times = config.stash[TIMES]
    if len(times) > SHOWN:
        terminalreporter.section(f"{times.total():.0f} s of CPU, most of it for")
        for name, seconds in times.most_common(SHOWN):
            terminalreporter.line(f"{seconds:6.1f} {name}")
