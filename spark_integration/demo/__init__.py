"""The main job as a command: ``lsmstate demo``. Needs the extras ``spark`` and ``demo``."""

from typing import TYPE_CHECKING

from lsmstate.spark_integration.demo.settings import DemoSettings

if TYPE_CHECKING:
    from rich.console import Console

    from lsmstate.spark_integration.demo.report import Summary

__all__ = ["DemoSettings", "run_demo"]


def run_demo(settings: DemoSettings, console: "Console") -> "Summary":
    """Run the main job; see ``demo.run``, whose imports wait until here."""
    from lsmstate.spark_integration.demo.run import run

    return run(settings, console)
