"""The results of the demo: a table, a JSON object, a plot."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lsmstate.spark_integration.demo.check import Comparison
from lsmstate.spark_integration.demo.progress import MIB, BatchReport, megabytes


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole run. Peaks are those of the worst worker; disk is the sum of all buckets at the
    end."""

    scale: float
    backend: str
    cap_bytes: int
    batches: int
    seconds: float
    input_rows: int
    output_rows: int
    expected_rows: int
    equal: bool
    difference: str
    peak_state_bytes: int
    worker_peak_rss_bytes: int
    worker_idle_rss_bytes: int
    worker_growth_bytes: int
    spilled_bytes: int
    state_disk_bytes: int
    plot: str
    output: str

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def summarize(
    reports: Sequence[BatchReport],
    comparison: Comparison,
    *,
    scale: float,
    backend: str,
    cap_bytes: int,
    seconds: float,
    plot: Path,
    output: Path,
) -> Summary:
    """Combine the reports of the micro-batches and the result of the check."""
    return Summary(
        scale=scale,
        backend=backend,
        cap_bytes=cap_bytes,
        batches=len(reports),
        seconds=round(seconds, 3),
        input_rows=sum(report.rows_in for report in reports),
        output_rows=comparison.output_rows,
        expected_rows=comparison.expected_rows,
        equal=comparison.equal,
        difference=comparison.difference,
        peak_state_bytes=max((report.peak_state_bytes for report in reports), default=0),
        worker_peak_rss_bytes=max((report.worker_peak_rss_bytes for report in reports), default=0),
        worker_idle_rss_bytes=max((report.worker_idle_rss_bytes for report in reports), default=0),
        worker_growth_bytes=max((report.worker_growth_bytes for report in reports), default=0),
        spilled_bytes=sum(report.spilled_bytes for report in reports),
        state_disk_bytes=reports[-1].state_disk_bytes if reports else 0,
        plot=str(plot),
        output=str(output),
    )


def print_summary(console: Console, summary: Summary) -> None:
    rate = summary.input_rows / summary.seconds if summary.seconds else 0.0
    peak, cap = summary.peak_state_bytes, summary.cap_bytes
    table = Table(title="four streams, joined over their full history", show_header=False)
    table.add_row("rows in", f"{summary.input_rows:,} in {summary.batches} micro-batches")
    table.add_row("rows out", f"{summary.output_rows:,}")
    table.add_row("time", f"{summary.seconds:.1f} s ({rate:,.0f} rows in per second)")
    table.add_row(
        "peak of the state in memory",
        f"{megabytes(peak)} of a cap of {megabytes(cap)} ({peak / cap:.0%}), worst worker",
    )
    table.add_row(
        "resident memory, worst worker",
        f"{megabytes(summary.worker_peak_rss_bytes)}, "
        f"of it {megabytes(summary.worker_idle_rss_bytes)} before the first row",
    )
    table.add_row("state on disk", megabytes(summary.state_disk_bytes))
    table.add_row("spilled", megabytes(summary.spilled_bytes))
    table.add_row(
        "check against DuckDB",
        f"[green]equal[/green]: the same {summary.expected_rows:,} rows, all columns and types"
        if summary.equal
        else f"[red]NOT equal[/red]: {summary.difference}",
    )
    table.add_row("plot", summary.plot)
    console.print(table)


def draw_plot(
    path: Path,
    reports: Sequence[BatchReport],
    worker_memory: Sequence[tuple[float, int]],
    cap_bytes: int,
) -> None:
    """Draw rows and memory over time as a PNG. Time starts with the first micro-batch."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 9), layout="constrained")
    FigureCanvasAgg(figure)
    rows, state, resident = figure.subplots(3, 1, sharex=True)
    start = min((r.finished.timestamp() - r.seconds for r in reports), default=0.0)
    times = [report.finished.timestamp() - start for report in reports]
    totals = [sum(r.rows_out for r in reports[: i + 1]) for i in range(len(reports))]
    rows.plot([0.0, *times], [0, *totals], marker="o")
    rows.set_ylabel("rows of output, in total")
    rows.set_title("Four TPC-DS streams joined over their full history")
    in_memory = [report.state_memory_bytes / MIB for report in reports]
    on_disk = [report.state_disk_bytes / MIB for report in reports]
    state.plot(times, in_memory, marker="o", label="state in memory, worst worker")
    state.plot(times, on_disk, marker="s", label="state on disk, all buckets")
    state.axhline(cap_bytes / MIB, color="tab:red", linestyle="--", label="cap of one worker")
    state.set_ylabel("MiB")
    sampled = [(at - start, count / MIB) for at, count in worker_memory if at >= start]
    resident.plot(
        [at for at, _ in sampled],
        [count for _, count in sampled],
        color="tab:gray",
        label="resident memory of the largest worker, sampled",
    )
    idle = max((report.worker_idle_rss_bytes for report in reports), default=0) / MIB
    resident.axhline(
        idle + cap_bytes / MIB, color="tab:red", linestyle="--", label="before its first row + cap"
    )
    resident.set_ylabel("MiB")
    resident.set_xlabel("seconds")
    for axes in (state, resident):
        axes.set_ylim(bottom=0)
        axes.legend(loc="best", fontsize="small")
    for axes in (rows, state, resident):
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=110)
