"""PySpark's log of analysis errors is silent for the thread that expects one, and for no other."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("pyspark")

from pyspark.logger import PySparkLogger

from lsmstate.spark_integration.columns.key_types import quiet_query_log


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.msg)


@pytest.fixture
def kept() -> Iterator[list[str]]:
    handler = Kept()
    _log().addHandler(handler)
    yield handler.messages
    _log().removeHandler(handler)


def _log() -> logging.Logger:
    return PySparkLogger.getLogger("SQLQueryContextLogger")


def test_threads_that_are_quiet_by_turns(kept: list[str]) -> None:
    """The first to begin ends first: nothing of it stays behind."""
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        quiet = {thread: quiet_query_log() for thread in (first, second)}
        for thread in (first, second):
            thread.submit(quiet[thread].__enter__).result()
        first.submit(_log().error, "of a quiet thread").result()
        _log().error("of another thread")
        first.submit(quiet[first].__exit__, None, None, None).result()
        first.submit(_log().error, "of one that was quiet").result()
        second.submit(_log().error, "of one that still is").result()
        second.submit(quiet[second].__exit__, None, None, None).result()
    _log().error("after all")
    assert kept == ["of another thread", "of one that was quiet", "after all"]


def test_it_stays_quiet_around_a_part_that_is(kept: list[str]) -> None:
    with quiet_query_log():
        with quiet_query_log():
            _log().error("inner")
        _log().error("outer")
    assert kept == []
