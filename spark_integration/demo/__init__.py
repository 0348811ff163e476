"""The command ``lsmstate demo``. It needs the extras ``spark`` and ``demo``."""

from typing import TYPE_CHECKING

from lsmstate.spark_integration.demo.settings import DemoSettings

if TYPE_CHECKING:
    from rich.console import Console

    from lsmstate.spark_integration.demo.report import Summary

__all__ = ["DemoSettings", "run_demo"]


def run_demo(settings: DemoSettings, console: "Console") -> "Summary":
    """Run the demo: join four TPC-DS streams on Spark and compare the result with DuckDB.

    The result, the state, the plot, ``summary.json`` and Spark's log stay in the run directory
    until the next run.

    Args:
        settings: Settings of the run.
        console: Console of rich that progress and summary are printed to.

    Returns:
        The summary of the run.

    Raises:
        QueryFailedError: The query failed; the message has its cause.
        DemoDataError: The data could not be generated.
        InvalidArgumentError: A setting does not fit, or the run directory belongs to something
            else.

    Example:
        ```python
        run_demo(DemoSettings(data_directory=Path("data"), run_directory=Path("run")), Console())
        ```
    """
    from lsmstate.spark_integration.demo.run import run

    return run(settings, console)
