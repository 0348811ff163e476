"""A plugin that runs the files with tests of Spark in one of xdist's processes.

Each process with such tests starts a Java of its own, which takes half a minute of CPU until it has
loaded and compiled what queries need.
"""

from typing import Any

import pytest

try:
    from xdist.scheduler import LoadFileScheduling
except ImportError:  # one process runs all tests

    class LoadFileScheduling:  # type: ignore[no-redef]
        pass


class SparkFilesFirst(LoadFileScheduling):
    """One process takes files from the front, where conftest puts those with tests of Spark; the
    others take files from the end."""

    def _assign_work_unit(self, node: Any) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return SparkFilesFirst(config, log) if config.getvalue("dist") == "loadfile" else None
