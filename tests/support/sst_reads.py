"""What lookups and scans read of table files and memtables."""

import numpy as np

from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.iterators.row_fetch import Cursor
from lsmstate.cython_ext.iterators.scanner import Scanner
from support.faults import CODEC, encoded, key_batch


def probed(budget, tables, keys, memtable=None, max_bytes=1 << 20):
    """rows per position, after checking the counts; ``tables`` is a list of runs."""
    batch = key_batch(*keys)
    lookup = Lookup(batch, 0, None, CODEC, budget, len(tables))
    for run in tables:
        lookup.search_run(list(run))
    if memtable is not None:
        lookup.search_memtable(memtable)
    counts, sizes = lookup.count()
    cursor = Cursor(lookup, np.arange(len(keys)))
    found = [[] for _ in keys]
    while (piece := cursor.next_piece(max_bytes)) is not None:
        for position, row in zip(piece[0].tolist(), piece[1].to_pylist(), strict=True):
            found[position].append(row["v"])
    assert counts.tolist() == [len(rows) for rows in found]
    assert sizes.tolist() == [sum(len(encoded(r)) for r in rows) for rows in found]
    return found


def scanned(budget, source, stream=0, max_bytes=4096):
    low, high = stream.to_bytes(2, "big"), (stream + 1).to_bytes(2, "big")
    scanner = Scanner(source, low, high, CODEC, budget)
    rows = []
    while (piece := scanner.next_piece(max_bytes)) is not None:
        rows += [row["v"] for row in piece.to_pylist()]
    return rows
