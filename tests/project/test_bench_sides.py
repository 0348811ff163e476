"""The sides of the benchmark find the same rows, whatever their layout."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rocksdict", reason="the optional peer of the benchmark")

from bench.common.measures import Tally, measure_join
from bench.common.workloads import Workload
from bench.store.engines import RocksEngine, RocksSetup
from bench.store.layouts import LAYOUTS
from bench.store.sides import OurSide, PeerSide, Side
from lsmstate.options import Options

MEMORY_BYTES = 8 << 20


def open_side(name: str, work: Workload, directory: str, streams: int) -> Side:
    if name == "ours":
        return OurSide.process(directory, work, streams, Options(memory_bytes=MEMORY_BYTES))
    setup = RocksSetup(layout=name, write_buffer_mib=1)
    engine = RocksEngine(directory, setup, MEMORY_BYTES, work.key_bytes + (streams > 1))
    return PeerSide(work, streams, engine, LAYOUTS[name]())


@pytest.mark.parametrize("skew", ["uniform", "zipf"])
@pytest.mark.parametrize("key", ["int", "string"])
@pytest.mark.parametrize("side_name", ["ours", *LAYOUTS])
def test_probes_find_every_row(tmp_path: Path, side_name: str, key: str, skew: str) -> None:
    work = Workload(4000, key, skew, batch_rows=500)
    side = open_side(side_name, work, str(tmp_path), 1)
    numbers = []
    for (rows, batch_numbers), (_, keys) in zip(
        work.numbered_batches(), work.batches(), strict=True
    ):
        side.append(0, rows, keys)
        numbers.append(batch_numbers)
    side.settle()
    tally = Tally(work)
    asked = np.unique(np.concatenate(numbers))
    for match in side.probe(0, work.key_batch(asked)):
        tally.add(match, work.key_batch(asked))
    assert tally.rows == work.rows
    assert not any(list(side.probe(0, batch)) for batch in work.misses(2))
    side.close()


def test_join_loops_agree(tmp_path: Path) -> None:
    work = Workload(6000, "int", "zipf", batch_rows=500)
    found = set()
    for name in ("ours", *LAYOUTS):
        (tmp_path / name).mkdir()
        figures = measure_join(
            lambda directory, streams, name=name: open_side(name, work, directory, streams),
            work,
            str(tmp_path / name),
        )
        found.add((figures["rows_found"], figures["digest"]))
    assert len(found) == 1
    assert found.pop()[0] > work.rows
