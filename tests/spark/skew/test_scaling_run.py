"""A windowed join on Spark whose units follow the load: they grow by 4 and shrink by 6."""

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.joins.routing.biclique import BicliqueRouting
from lsmstate.joins.routing.scaling.scaled_biclique import ScaledBiclique
from lsmstate.joins.routing.scaling.two_phase import TwoPhaseScaling
from lsmstate.joins.specs.event_time import create_timed
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.spark import State
from lsmstate.spark_integration.checkpoint.json_records import read_record
from lsmstate.spark_integration.joins.spec_operator import spec_operator
from lsmstate.spark_integration.plan.inputs import Inputs
from lsmstate.spark_integration.plan.options import OperatorOptions
from support.spark_streams import FileStream, assert_same_rows, committed, run_to_end

pytestmark = [
    pytest.mark.spark,
    pytest.mark.stress,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("few_partitions"),
]

#: Rows of each stream in a micro-batch, which is a minute, and for how many of them.
RATES = ((110, 4), (200, 18), (84, 24))
WINDOW_MINUTES = 5
#: Minutes that a unit holds: the window, one of the watermark, and what is left of a period.
HELD_MINUTES = 6.5
ON = "a.k = b.k AND a.at BETWEEN b.at - INTERVAL 5 MINUTES AND b.at + INTERVAL 5 MINUTES"


def minutes(name: str) -> list[pa.Table]:
    rng = np.random.default_rng(len(name) + ord(name[0]))
    rates = [rate for rate, count in RATES for _ in range(count)]
    tables = []
    for minute, rate in enumerate(rates):
        at = (np.sort(rng.random(rate)) + minute) * 60e6
        columns = {
            "k": rng.integers(0, 400, rate),
            "at": pa.array(at.astype(np.int64), pa.timestamp("us", "UTC")),
            f"n{name}": np.arange(rate, dtype=np.int64) + 1000 * minute,
        }
        tables.append(pa.table(columns))
    return tables


def test_units_grow_by_4_and_shrink_by_6_and_results_are_exact(spark: Any, tmp_path: Path) -> None:
    arriving = {name: minutes(name) for name in "ab"}
    files = {
        name: FileStream(tmp_path / name, f"k BIGINT, at TIMESTAMP, n{name} BIGINT").add(*tables)
        for name, tables in arriving.items()
    }
    streams = {n: f.read(spark).withWatermark("at", "0 seconds") for n, f in files.items()}
    inputs = Inputs.of(spark, streams, {"a": ["k"], "b": ["k"]})
    spec = create_timed(
        {plan.name: plan.rows for plan in inputs.plans}, ON, {"a": "at", "b": "at"}, {}, "drop"
    )
    assert spec.event_time is not None
    kept = {name: us for name, us in spec.event_time.kept_us.items() if us is not None}
    assert set(kept.values()) == {WINDOW_MINUTES * 60_000_000}
    sample = arriving["a"][0].to_batches()[0]
    held = HELD_MINUTES * RATES[1][0] * float(row_sizes(sample).mean())
    routing = ScaledBiclique(
        BicliqueRouting.of({"a": 1, "b": 1}, 12),
        TwoPhaseScaling(capacity_bytes=held / (4 * 0.86)),
        times={"a": "at", "b": "at"},
        kept_us=kept,
        active=4,
    )
    options = OperatorOptions.of(spark, State(buckets=12, memory="32m"))
    joined = spec_operator(spec, inputs, routing, options, operator="multiway_join")
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    sql = f"SELECT * FROM {files['a'].sql} a JOIN {files['b'].sql} b ON {ON}"
    assert_same_rows(sql, committed(tmp_path / "out"), at_least=1000)
    found = []
    for path in sorted((tmp_path / "checkpoint" / "lsmstate" / "routes").glob("table-*.json")):
        record = read_record(str(path))
        assert record is not None
        sides = record["sides"]
        found.append((sides["a"][0] + sides["b"][0], sides["a"][3] + sides["b"][3]))
    print(found)
    active = [units for units, _ in groupby(found, key=lambda pair: pair[0])]
    assert active == [8, 12, 6]
    assert found[-1] == (6, 6), "units that were given up are probed no more"
    assert (6, 12) in found, "and until then they are"
