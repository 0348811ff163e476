"""The metrics of a query's last micro-batches, in a file beside its state, for whoever looks at it.

    <state>/metrics.jsonl          one JSON object a line: a start of the query, or a micro-batch
    <state>/metrics-before.jsonl   what stood there before it was full

The driver appends a line after each micro-batch. Nothing is decided by the file. So it is not
forced to disk, and a line that is cut off is left out.
"""

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from lsmstate.spark_integration.metrics.query import RATIOS, QueryMetrics

FILE_NAME: Final = "metrics.jsonl"
_BEFORE: Final = "metrics-before.jsonl"
#: At which a file is full: a thousand micro-batches and more.
_MOST_BYTES: Final = 2 << 20

#: Where nothing is kept.
NO_HISTORY: Final[Mapping[str, Any]] = {"start": {}, "end": None, "batches": []}

_log: Final = logging.getLogger("lsmstate")


class MetricsHistory:
    """Appends to the file of one query. A file that cannot be written is logged once."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._start: dict[str, Any] = {}
        self._has_failed = False

    def started(self, **known: object) -> None:
        """Note a start of the query, and what is known of it."""
        self._start = {"start": {"time": time.time(), **known}}
        self._append(self._start)

    def ended(self, exception: str | None) -> None:
        """Note the end of the query, and the error that it ended with."""
        self._append({"end": {"time": time.time(), "exception": exception}})

    def add(self, metrics: QueryMetrics, sizes: Mapping[int, tuple[int, int]]) -> None:
        """Note a micro-batch, and rows and bytes of all buckets by then. Cost: one small write."""
        self._append({"batch": as_json(metrics), "sizes": sizes})

    def _append(self, line: Mapping[str, Any]) -> None:
        path = os.path.join(self._directory, FILE_NAME)
        try:
            os.makedirs(self._directory, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                is_full = file.tell() > _MOST_BYTES
            if is_full:
                os.replace(path, os.path.join(self._directory, _BEFORE))
                self._append(self._start)
        except OSError as error:
            if not self._has_failed:
                _log.warning("metrics are not kept in %s: %s", path, error)
            self._has_failed = True


def as_json(metrics: QueryMetrics) -> dict[str, Any]:
    """The metrics of a micro-batch as JSON values, with the time and what is computed from them."""
    derived = {name: getattr(metrics, name) for name in RATIOS}
    return {"time": time.time(), **asdict(metrics), **derived}


def read_sizes(directory: str, version: str | None) -> dict[int, tuple[int, int]]:
    """Read what the buckets of a version of the settings took as its newest micro-batch ended;
    empty if none is noted."""
    newest: dict[str, list[int]] = {}
    for name in (_BEFORE, FILE_NAME):
        for line in _lines(os.path.join(directory, name)):
            if "start" in line and line["start"].get("version") != version:
                newest = {}
            newest = line.get("sizes", newest)
    return {int(bucket): (rows, size) for bucket, (rows, size) in newest.items()}


def read_history(directory: str) -> dict[str, Any]:
    """Read the file.

    Args:
        directory: The directory of the state.

    Returns:
        ``start``: the newest start, empty if none is noted. ``end``: its end; None while it runs,
        or if it was killed. ``batches``: the micro-batches, ascending; of one that was repeated the
        newest. What was set back is left out.

    Cost:
        Both files are read: 4 MiB at most.
    """
    start: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    batches: dict[int, dict[str, Any]] = {}
    for name in (_BEFORE, FILE_NAME):
        for line in _lines(os.path.join(directory, name)):
            if "start" in line:
                start, end = line["start"], None
            end = line.get("end", end)
            found = line.get("batch")
            if found is not None:
                number = found["batch_id"]
                while batches and next(reversed(batches)) >= number:
                    batches.popitem()  # a query that was set back runs it anew
                batches[number] = found
    return {"start": start, "end": end, "batches": list(batches.values())}


def _lines(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # being written, or cut off
        if isinstance(value, dict):
            found.append(value)
    return found
