"""GraphChangeJoin against DuckDB after every batch: changelogs joined by several keys."""

import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin
from lsmstate.joins.local.changes.multi_key_join import GraphChangeJoin
from support.changing_cases import changing_graphs, check_changes
from support.grouped import grouped
from support.join_cases import on_all_stores
from support.oracle import joined_graph


def check(case, backend, piece_bytes):
    check_changes(
        case,
        GraphChangeJoin,
        lambda spec, tables: joined_graph(spec.graph, tables),
        backend,
        piece_bytes,
    )


test_on_memory, test_on_lsm, test_many_on_every_store = on_all_stores(
    check, changing_graphs(), memory=15, lsm=8, many=500
)


STREAMS = {
    "c": pa.schema([("ck", pa.int64()), ("op", pa.string())]),
    "o": pa.schema([("ok", pa.int64()), ("ck", pa.int64())]),
    "l": pa.schema([("ok", pa.int64()), ("kind", pa.string())]),
}
CHAIN = "c.ck = o.ck AND o.ok = l.ok"


def changed(join, name, *rows):
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(c, f.type) for c, f in zip(columns, STREAMS[name], strict=True)]
    found = join.process(name, pa.RecordBatch.from_arrays(arrays, schema=STREAMS[name]))
    return [tuple(row.values()) for piece in found for row in piece.to_pylist()]


def test_results_come_and_go_with_their_rows():
    options = {"emit": "changes", "changes": {"c": "op", "l": "kind"}, "backend": "memory"}
    with MultiwayJoin(STREAMS, CHAIN, **grouped(**options)) as join:
        assert join.output_schema.names == ["op", "c_ck", "o_ok", "o_ck", "l_ok"]
        assert changed(join, "o", (7, 1)) == []
        assert changed(join, "c", (1, "+I"), (None, "+I"), (2, "-D")) == []
        assert changed(join, "l", (7, "+I"), (7, "+I")) == [("+I", 1, 7, 1, 7)] * 2
        assert changed(join, "l", (7, "-D"), (8, "+I")) == [("-D", 1, 7, 1, 7)]
        assert changed(join, "c", (1, "-U"), (1, "+U"), (1, "+U")) == [("+I", 1, 7, 1, 7)]
        assert (
            changed(join, "c", (1, "-D"), (1, "-D"), (None, "-D"), (1, "-D"))
            == [("-D", 1, 7, 1, 7)] * 2
        )
        assert join.unmatched_retractions == 2


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidArgumentError, match="retracts results; use emit='changes'"):
        MultiwayJoin(STREAMS, CHAIN, changes={"c": "op"})
    streams = {**STREAMS, "l": pa.schema([("ok", pa.string())]), "o": STREAMS["l"]}
    with pytest.raises(InvalidArgumentError, match=r"l\.ok is part of the key"):
        MultiwayJoin(streams, "l.ok = o.kind AND c.ck = o.ok", emit="changes", changes={"l": "ok"})
