"""The reports of a running query, micro-batch by micro-batch, and their live display."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import psutil
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table

from lsmstate.spark_integration.metrics.reports import OBSERVATION, by_name

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

MIB = 1 << 20

#: Rows of the table the live display keeps in sight.
ROWS_IN_SIGHT = 15


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The operator's metrics of one micro-batch. Memory is that of the worst worker, disk that of
    all."""

    batch: int
    finished: datetime
    seconds: float
    rows_in: int
    rows_out: int
    state_memory_bytes: int
    peak_state_bytes: int
    state_disk_bytes: int
    spilled_bytes: int
    worker_rss_bytes: int
    worker_peak_rss_bytes: int
    worker_idle_rss_bytes: int
    worker_growth_bytes: int
    commit_ms: int


def report_of(progress: "StreamingQueryProgress") -> BatchReport | None:
    """The operator's metrics of a micro-batch; None if it ran no operator."""
    observed = progress.observedMetrics.get(OBSERVATION)
    if observed is None:
        return None
    metrics = by_name(observed)

    def number(name: str) -> int:
        return int(metrics[name])

    seconds = float(progress.durationMs.get("triggerExecution", 0)) / 1000
    started = datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00"))
    return BatchReport(
        batch=int(progress.batchId),
        finished=datetime.fromtimestamp(started.timestamp() + seconds),
        seconds=seconds,
        rows_in=int(progress.numInputRows),  # the operator never sees rows with a null key
        rows_out=number("rows_out"),
        state_memory_bytes=number("state_memory_bytes"),
        peak_state_bytes=number("peak_state_bytes"),
        state_disk_bytes=number("state_disk_bytes"),
        spilled_bytes=number("spilled_bytes"),
        worker_rss_bytes=number("worker_rss_bytes"),
        worker_peak_rss_bytes=number("worker_peak_rss_bytes"),
        worker_idle_rss_bytes=number("worker_idle_rss_bytes"),
        worker_growth_bytes=number("worker_growth_bytes"),
        commit_ms=number("commit_ms"),
    )


class WorkerMemory:
    """Resident memory of the largest Python worker, sampled from outside as a second
    measurement."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self._driver = psutil.Process(os.getpid())

    def sample(self) -> None:
        """Add one sample. Cost: reads /proc once per descendant of this process."""
        largest = 0
        for process in self._driver.children(recursive=True):
            try:
                if "pyspark.daemon" in " ".join(process.cmdline()):
                    largest = max(largest, int(process.memory_info().rss))
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue  # it ended between the listing and the question
        self.samples.append((time.time(), largest))


class Display:
    """A live display on a terminal, and one line per micro-batch elsewhere."""

    def __init__(self, console: Console, batches: int, cap_bytes: int) -> None:
        self._console = console
        self._cap_bytes = cap_bytes
        self._reports: list[BatchReport] = []
        self._bar = Progress(
            TextColumn("micro-batch"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("", total=batches)
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def add(self, report: BatchReport) -> None:
        self._reports.append(report)
        self._bar.update(self._task, completed=len(self._reports))
        if not self._console.is_terminal:
            cells = zip(HEADINGS, self._cells(report), strict=True)
            self._console.print(", ".join(f"{name} {cell}" for name, cell in cells), soft_wrap=True)

    def _render(self) -> RenderableType:
        table = Table(*HEADINGS, box=None, pad_edge=False)
        for column in table.columns:
            column.justify = "right"
        for report in self._reports[-ROWS_IN_SIGHT:]:
            table.add_row(*self._cells(report))
        return Group(self._bar, *self._gauges(), table)

    def _gauges(self) -> Sequence[RenderableType]:
        if not self._reports:
            return ["starting Spark's query ..."]
        last = self._reports[-1]
        gauge = Table.grid(padding=(0, 1))
        gauge.add_row(
            "state in memory",
            ProgressBar(total=self._cap_bytes, completed=last.state_memory_bytes, width=40),
            f"{megabytes(last.state_memory_bytes)} of {megabytes(self._cap_bytes)} (worst worker)",
        )
        gauge.add_row("state on disk", "", megabytes(last.state_disk_bytes))
        gauge.add_row("rows in", "", f"{sum(report.rows_in for report in self._reports):,}")
        gauge.add_row("rows out", "", f"{sum(report.rows_out for report in self._reports):,}")
        return [gauge]

    def _cells(self, report: BatchReport) -> tuple[str, ...]:
        return (
            str(report.batch),
            f"{report.seconds:.1f}",
            f"{report.rows_in:,}",
            f"{report.rows_out:,}",
            f"{megabytes(report.state_memory_bytes)} / {megabytes(self._cap_bytes)}",
            megabytes(report.state_disk_bytes),
        )


HEADINGS = ("micro-batch", "seconds", "rows in", "rows out", "state in memory / cap", "on disk")


def megabytes(count: int) -> str:
    return f"{count / MIB:.1f} MiB"
