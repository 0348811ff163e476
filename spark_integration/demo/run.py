"""The demo: four TPC-DS streams, one operator, the result checked against DuckDB."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.console import Console

from lsmstate.errors import LsmStateError
from lsmstate.opening import check_backend
from lsmstate.options import Options, parse_bytes
from lsmstate.spark_integration.demo.check import compare
from lsmstate.spark_integration.demo.kafka_broker import running_broker
from lsmstate.spark_integration.demo.progress import BatchReport, Display, WorkerMemory, report_of
from lsmstate.spark_integration.demo.query import CONDITION, batch_sql, read_streams, written_files
from lsmstate.spark_integration.demo.report import Summary, draw_plot, print_summary, summarize
from lsmstate.spark_integration.demo.settings import DemoSettings
from lsmstate.spark_integration.demo.tpcds import StreamFiles, stream_files
from lsmstate.spark_integration.demo.workdir import fresh_directory
from lsmstate.spark_integration.session.local_session import LOG_NAME, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 0.2

#: How a traceback names an error of this package, such as ``lsmstate.MemoryLimitError``.
_OWN_ERROR = re.compile(r"\blsmstate(\.\w+)*\.\w+Error$")


class QueryFailedError(LsmStateError):
    """The streaming query failed. The message has its cause, Spark's log the details."""


def run(settings: DemoSettings, console: Console) -> Summary:
    """Make or find the data, run the query to its end, check the result and report. ``run_demo``
    says more."""
    cap_bytes = Options(memory_bytes=parse_bytes(settings.memory)).memory_bytes
    check_backend(settings.backend)
    with fresh_directory(settings.run_directory.resolve()) as directory:
        console.print(f"data: TPC-DS, scale {settings.scale:g} (made once, then kept)")
        files = stream_files(settings.data_directory.resolve(), settings.scale, settings.batches)
        with _sources(files, settings, directory, console) as (spark, streams):
            display = Display(console, settings.batches, cap_bytes)
            worker_memory = WorkerMemory()
            query = _start(streams, settings, directory)
            started = time.monotonic()
            with display:
                reports = _follow(query, display, worker_memory.sample)
                _raise_failure(query, directory / LOG_NAME)
            seconds = time.monotonic() - started
            output = written_files(spark, directory / "output")
        console.print("comparing with DuckDB ...")
        comparison = compare(batch_sql(files), output)
        plot = directory / "plot.png"
        draw_plot(plot, reports, worker_memory.samples, cap_bytes)
        summary = summarize(
            reports,
            comparison,
            scale=settings.scale,
            backend=settings.backend,
            cap_bytes=cap_bytes,
            seconds=seconds,
            plot=plot,
            output=directory / "output",
        )
        (directory / "summary.json").write_text(summary.as_json() + "\n")
        print_summary(console, summary)
        return summary


def core_count() -> int:
    """Cores this process may use; a container often has fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _sources(
    files: StreamFiles, settings: DemoSettings, directory: Path, console: Console
) -> "Iterator[tuple[SparkSession, dict[str, DataFrame]]]":
    """A session and the four streams in it; with a broker of our own if they come from one."""
    with ExitStack() as stack:
        address = None
        if settings.kafka:
            console.print("starting Kafka ...")
            address = stack.enter_context(running_broker(directory / "kafka"))
        console.print("starting Spark ...")
        spark = start_session(directory, settings.cores or core_count(), settings.batches)
        stack.callback(spark.stop)
        if address is None:
            yield spark, read_streams(spark, files)
            return
        from lsmstate.spark_integration.demo.kafka_streams import add_connector, kafka_streams

        add_connector(spark)
        console.print(f"writing the streams to Kafka at {address} ...")
        yield spark, kafka_streams(spark, files, address)


def _start(
    streams: "Mapping[str, DataFrame]", settings: DemoSettings, directory: Path
) -> "StreamingQuery":
    from lsmstate.joins.options import Backend, State
    from lsmstate.spark_integration.joins.multiway_join import multiway_join

    joined = multiway_join(
        streams,
        on=CONDITION,
        state=State(memory=settings.memory, backend=cast(Backend, settings.backend)),
    )
    return (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "output"))
    )


def _follow(
    query: "StreamingQuery", display: Display, sample: Callable[[], None]
) -> list[BatchReport]:
    """Show every micro-batch once, until the query has ended; stop it if we are interrupted."""
    reports: list[BatchReport] = []
    seen = -1
    try:
        active = True
        while active:
            time.sleep(POLL_SECONDS)
            active = query.isActive
            sample()
            for progress in query.recentProgress:
                if progress.batchId <= seen:
                    continue
                seen = progress.batchId
                report = report_of(progress)
                if report is not None:
                    reports.append(report)
                    display.add(report)
    except BaseException:
        query.stop()
        raise
    return reports


def _raise_failure(query: "StreamingQuery", log: Path) -> None:
    """Raise one sentence instead of a page of stack trace, which goes to Spark's log."""
    error = query.exception()
    if error is None:
        return
    text = str(error)
    with log.open("a") as file:
        file.write(text + "\n")
    cause = cause_of(text)
    raise QueryFailedError(f"the query failed: {cause} (Spark's log: {log})")


def cause_of(text: str) -> str:
    """Return the line of Spark's error text that tells users most.

    That is the last error of lsmstate in a Python worker's traceback, or else the first line.
    """
    lines = [line.strip() for line in text.splitlines()]
    own = [line for line in lines if _OWN_ERROR.search(line.partition(":")[0])]
    return own[-1] if own else lines[0]
