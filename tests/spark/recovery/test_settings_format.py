"""The settings of queries that earlier releases pinned must be found and understood for ever.

``PYTHONPATH=.:tests python tests/spark/recovery/test_settings_format.py`` writes the golden files
of the present format, once; what is in the repository is never written anew.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.spark_integration.checkpoint.json_records import create_record
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    adopt_or_pin,
    newest_settings,
    settings_as_of,
)
from lsmstate.spark_integration.plan.stateful_plan import Wanted
from support.paths import DATA

GOLDEN = DATA / "settings-1"
QUERY = "6a4ff4d4-0e55-4b6c-9d3c-b1a4a4f6a001"
JOIN = {
    "streams": ["o", "p"],
    "condition": "o.id = p.id",
    "backend": "lsm",
    "key types": ["int64"],
    "time zone of the keys": None,
    "columns of o": ["id int64", "größe decimal(7,2)"],
    "columns of p": ["id int64", "note string"],
}
BATCHES = {
    "inputs": ["events"],
    "key": ["events.id"],
    "null keys": "keep",
    "backend": "memory",
    "key types": ["string"],
    "time zone of the keys": "Europe/Berlin",
    "columns of events": ["id string", "at timestamp_ltz"],
    "state": ["seen"],
    "state seen": ["key (id string)", "at timestamp[us, tz=UTC]"],
    "release": 7,
}
POINTERS = {"3": "pointer of 3", "5": "pointer of 5", "6": "pointer of 6"}


def wanted(settings: dict[str, Any], **more: Any) -> Wanted:
    return Wanted(settings, None, 4, None, **more)


def write(directory: Path) -> None:
    join, batches = str(directory / "join"), str(directory / "batches")
    adopt_or_pin(join, wanted(JOIN, adopted={"shares": "[]"}), 2, QUERY)
    rescaled = {"first batch": 12, "pointers": POINTERS, "original": {"0": "a", "1": "b"}}
    settings = newest_settings(join)[1]
    assert settings is not None
    settings |= {"buckets": 3, "bucket_ids": [3, 5, 6], "rescaled": rescaled}
    create_record(str(directory / "join" / "query-0002.json"), settings)
    adopt_or_pin(batches, wanted(BATCHES), 3, QUERY)


def test_settings_of_every_version_are_adopted() -> None:
    pinned = adopt_or_pin(str(GOLDEN / "join"), wanted(JOIN), 99, QUERY)
    assert (pinned.buckets, pinned.partitions, pinned.bucket_ids) == (3, 2, (3, 5, 6))
    assert (pinned.version, pinned.first_batch) == (2, 12)
    assert pinned.pointers == {int(bucket): pointer for bucket, pointer in POINTERS.items()}
    assert pinned.adopted == {"shares": "[]"}
    pinned = adopt_or_pin(str(GOLDEN / "batches"), wanted(BATCHES), 99, QUERY)
    assert (pinned.buckets, pinned.partitions, pinned.version) == (4, 3, 1)
    with pytest.raises(InvalidArgumentError, match="streams = nothing"):
        adopt_or_pin(str(GOLDEN / "batches"), wanted(JOIN), 99, QUERY)


def test_the_buckets_of_an_earlier_batch_are_those_before_the_rescale() -> None:
    found = settings_as_of(str(GOLDEN / "join"), 11)
    assert found is not None
    assert (found[0].version, found[0].bucket_ids) == (1, (2, 0, 4, 1))


def test_what_is_written_now_is_what_was_written_then(tmp_path: Path) -> None:
    write(tmp_path)
    for golden in sorted(GOLDEN.rglob("*.json")):
        assert (tmp_path / golden.relative_to(GOLDEN)).read_bytes() == golden.read_bytes()


def test_the_checksum_is_as_the_format_says() -> None:
    record = json.loads((GOLDEN / "join" / "query.json").read_text())
    text = json.dumps(record["settings"], sort_keys=True, ensure_ascii=True)
    assert record["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_damaged_and_newer_settings_are_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "join", tmp_path / "join")
    path = tmp_path / "join" / "query-0002.json"
    text = path.read_text()
    path.write_text(text.replace("pointer of 3", "pointer of 4"))
    with pytest.raises(CorruptionError, match=r"query-0002\.json"):
        newest_settings(str(tmp_path / "join"))
    path.write_text(text.replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(FormatVersionError, match="format version 2"):
        newest_settings(str(tmp_path / "join"))


if __name__ == "__main__":
    write(GOLDEN)
