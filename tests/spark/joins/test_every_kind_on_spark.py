"""The contract of every kind of join on Spark: results, restart, refusal, another number of
buckets. Each takes some 20 s of CPU, so they run in ``make stress``; kinds have tests of their own
beside this one."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from lsmstate.errors import InvalidArgumentError
from lsmstate.options import MIB
from lsmstate.spark import rescale
from support.kind_cases import CASES, LAST, KindCase
from support.spark_streams import FileStream, committed, metric, pieces, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.stress, pytest.mark.usefixtures("few_partitions")]

#: Those that run in plain Python only.
PLAIN = {"binary tree", "theta tree"}
#: Their buckets do not say where a row belongs, or rows are copied in ways of their own.
NOT_RESCALED = {
    *("changes of joins of any type", "final", "cross join"),
    *("theta", "theta in time", "theta changes", "theta final"),
    *("similarity", "natural join of documents", "as of"),
}
#: Rows of a stream, and files that they come in.
COUNT, FILES = 40, 4

DDL = {
    "int64": "BIGINT",
    "string": "STRING",
    "double": "DOUBLE",
    "list<item: double>": "ARRAY<DOUBLE>",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
}


def streams_of(case: KindCase, tables: dict[str, pa.Table], home: Path) -> dict[str, FileStream]:
    """Directories in which half of the files have arrived."""
    found = {}
    for name, table in tables.items():
        ddl = ", ".join(f"{field.name} {DDL[str(field.type)]}" for field in table.schema)
        found[name] = FileStream(home / name, ddl).add(*pieces(table, FILES)[: FILES // 2])
    return found


def end_of_time(schema: pa.Schema) -> pa.Table:
    """A row after all others, which matches nothing: the watermark passes what came before."""
    row = {f.name: LAST if pa.types.is_timestamp(f.type) else None for f in schema}
    return pa.Table.from_pylist([row], schema=schema)


def found_in(out: Path, *, is_changing: bool) -> Counter[tuple[Any, ...]]:
    """What the sink has, net of what was retracted."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path in committed(out):
        for row in pq.read_table(path).to_pylist():
            values = tuple(tuple(v) if isinstance(v, list) else v for v in row.values())
            if is_changing:
                found[values[1:]] += 1 if values[0] == "+I" else -1
            else:
                found[values] += 1
    return Counter({row: number for row, number in found.items() if number})


@pytest.mark.parametrize(
    "name",
    [name for name in CASES if name not in PLAIN],
)
def test_results_restart_refusal_and_rescale(spark: Any, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    tables = case.rows(COUNT, seed=3)
    files = streams_of(case, tables, tmp_path)
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"

    def joined(buckets: int, *, is_other: bool = False) -> Any:
        streams = {each: stream.read(spark) for each, stream in files.items()}
        if case.is_timed:
            streams = {each: df.withWatermark("at", "2 hours") for each, df in streams.items()}
        return case.on_spark(streams, is_other=is_other, memory="8m", buckets=buckets)

    first = run_to_end(joined(3), checkpoint, out)
    assert len(first.recentProgress) >= FILES // 2
    for each, stream in files.items():
        stream.add(*pieces(tables[each], FILES)[FILES // 2 :])
        if case.is_timed:
            stream.add(end_of_time(tables[each].schema))
    with pytest.raises(StreamingQueryException, match="this checkpoint was started with"):
        run_to_end(joined(3, is_other=True), checkpoint, out)
    buckets = 3
    if name in NOT_RESCALED:
        with pytest.raises(InvalidArgumentError, match="cannot be rescaled"):
            rescale(str(checkpoint), 4)
    else:
        buckets = 4
        rescale(str(checkpoint), buckets)
    last = run_to_end(joined(buckets), checkpoint, out)
    found = found_in(out, is_changing=case.is_changing)
    # Some joins give a row at once that can match nothing, as the last one.
    found = Counter({row: number for row, number in found.items() if LAST not in row})
    assert found == case.expected(tables)
    assert 0 < max(metric(last, "state_memory_bytes")) <= 8 * MIB
