"""The commands stats, compact and repair."""

import json
import re

import pytest

from lsmstate.cython_ext.sstable.salvage import find_blocks
from lsmstate.errors import InvalidArgumentError
from lsmstate.lsm.store import LsmStore
from support.cli_cases import STREAM, append, run
from support.upkeep_states import OPTIONS
from support.upkeep_states import bucket as bucket
from support.upkeep_states import standalone as standalone


def test_stats_add_up(standalone):
    found = json.loads(run("stats", standalone, "--json").output)
    (level,) = found["levels"]
    assert (level["level"], level["runs"], level["rows"], level["keys"]) == (0, 3, 6000, 6000)
    assert level["bytes"] == found["bytes"]
    on_disk = sum(path.stat().st_size for path in standalone.glob("*.sst"))
    assert found["bytes"] + found["other_bytes"] == on_disk
    assert found["changelog_bytes"] > 100
    assert found["bytes_per_raw_byte"] == found["bytes"] / level["raw_bytes"]
    shown = run("stats", standalone)
    assert shown.exit_code == 0
    assert "6,000 rows" in shown.output


def test_compact_merges_a_standalone_store(standalone):
    with LsmStore.open(str(standalone), [STREAM], options=OPTIONS) as store:
        for start in range(6100, 10_100, 1000):
            append(store, start, 1000)
            store.commit()
    assert json.loads(run("stats", standalone, "--json").output)["levels"][-1]["runs"] >= 2
    found = json.loads(run("compact", standalone, "--json").output)
    assert found["after"]["runs"] < found["before"]["runs"]
    summary = json.loads(run("stats", standalone, "--json").output)
    assert summary["bytes"] == found["after"]["bytes"]
    assert summary["rows"] == 10_100
    assert f"{found['after']['runs']} runs" in run("compact", standalone).output


def test_compact_leaves_a_bucket_to_its_query(bucket):
    before = sorted(bucket.iterdir())
    with pytest.raises(InvalidArgumentError, match="micro-batches"):
        raise run("compact", bucket).exception
    assert sorted(bucket.iterdir()) == before


def test_repair_says_what_is_lost(standalone, tmp_path):
    shown = run("repair", standalone, tmp_path / "same")
    assert shown.exit_code == 0
    assert "nothing is lost" in shown.output
    path = min(standalone.glob("run-*.sst"))
    offset, size = next((o, s) for o, s, kind in find_blocks(path.read_bytes()) if kind == 1)
    data = bytearray(path.read_bytes())
    data[offset + size // 2] ^= 1
    path.write_bytes(data)
    assert run("verify", standalone).exit_code == 1
    shown = run("repair", standalone, tmp_path / "new", "--json")
    assert shown.exit_code == 1
    report = json.loads(shown.output)
    (loss,) = report["losses"]
    assert loss["file"] == path.name
    assert report["rows"] == 6000 - loss["rows"] == 6000 - report["lost_rows"]
    assert loss["ranges"][0]["low"].startswith("0000")
    assert run("verify", tmp_path / "new").exit_code == 0
    with LsmStore.open(str(tmp_path / "new"), [STREAM], options=OPTIONS) as store:
        assert sum(piece.num_rows for piece in store.scan("people")) == report["rows"] + 100
    shown = run("repair", standalone, tmp_path / "table")
    assert f"LOST {path.name}: blocks are damaged; {loss['rows']} rows" in shown.output
    assert re.search(r"between the keys people \(\d+\) and people \(\d+\)\n", shown.output)


def test_repair_of_a_bucket_gives_a_pointer(bucket, tmp_path):
    report = json.loads(run("repair", bucket, tmp_path / "new", "--json").output)
    assert report["pointer"].startswith("commit-0000000000-repaired-")
    assert json.loads(run("inspect", tmp_path / "new", "--json").output)["rows"] == 1000
