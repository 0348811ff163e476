"""Joins by any condition with stored intermediate results: the thesis's left-deep trees.

The rows of a stream climb to the root: at each node they look for partners among what the other
input has stored, and what they find is a row of the node above. What each node is to store is kept
back until they have reached the root, and is written at once: a batch that is refused is not stored
in part. No index of a path is read while its rows climb, so nothing is found twice.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import pyarrow as pa

from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.spilled_rows import KEPT_BYTES, SpilledRows
from lsmstate.joins.local.parts.write_parts import WriteParts, write_all
from lsmstate.joins.local.theta.finder import CANDIDATES
from lsmstate.joins.local.theta.theta_join import ThetaJoin
from lsmstate.joins.protocols import Batch, Context, Role, check_is_stored
from lsmstate.joins.specs.theta_tree import ThetaNode, ThetaTree
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore

Path = tuple[tuple[ThetaNode, str], ...]


class ThetaTreeJoin(KeepsAllRows):
    """The local join of a ThetaTree. Not thread-safe. The store belongs to the caller, who commits
    and closes it."""

    def __init__(self, tree: ThetaTree, store: MultimapStore, context: Context) -> None:
        """InvalidArgumentError if the store lacks a stream, or ``piece_bytes`` is less than 1."""
        self._tree = tree
        self._store = store
        self._piece_bytes = context.piece_bytes
        self._joins = {node.name: ThetaJoin(node.spec, store, context) for node in tree.nodes}
        self._unfinished: Results | None = None
        self._columns = [
            tree.root.spec.output_schema.names.index(tree.column(stream, name))
            for stream, schema in tree.streams.items()
            for name in schema.names
        ]

    @property
    def counts(self) -> Mapping[str, int]:
        """``candidates``: pairs that the indexes of all nodes picked so far."""
        return {CANDIDATES: sum(join.counts[CANDIDATES] for join in self._joins.values())}

    def close(self) -> None:
        """Release the memory of rows that are kept."""
        for join in self._joins.values():
            join.close()

    def process(self, batch: Batch) -> Results:
        """Store a batch and its intermediate results, and return its new results.

        A batch that the store refuses is not stored at all, nor are its intermediate results.

        Args:
            batch: The rows; columns are taken by name.

        Returns:
            The results in pieces of at most ``piece_bytes`` or one row, computed as they are read.
            Read them to the end, or close them, before the next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, earlier results are not
                read, the rows only probe, or a condition fails on a row.

        Cost:
            Per node a piece, what ThetaJoin takes, and KEPT_BYTES of memory. More intermediate
            results lie in temporary files.
        """
        stream = batch.stream
        call = f"process({stream!r})"
        self._tree.check_stream(stream)
        check_finished(call, self._unfinished)
        check_is_stored(batch)
        rows = as_batch(batch.rows, self._tree.streams[stream], call)
        path = self._tree.paths[stream]
        kept = [SpilledRows(None if level == 0 else KEPT_BYTES) for level in range(len(path))]
        node, side = path[0]
        schema = node.spec.streams[side]
        self._climb(path, kept, pa.RecordBatch.from_arrays(rows.columns, schema=schema))
        self._store_all(path, kept)
        schema = self._tree.output_schema
        self._unfinished = Results(self._results(path[-1], kept[-1]), schema=schema)
        return self._unfinished

    def _climb(self, path: Path, kept: list[SpilledRows], rows: pa.RecordBatch) -> None:
        """Keep back what rows become on their way: an input of each node up to the root."""
        levels: list[Iterator[pa.RecordBatch]] = [iter([rows])]
        while levels:
            piece = next(levels[-1], None)
            if piece is None:
                levels.pop()
                continue
            level = len(levels) - 1
            node, side = path[level]
            stored = self._joins[node.name].stored
            passing = stored.passing(side, piece)
            piece = piece if passing.all() else piece.filter(pa.array(passing))
            parts = stored.parts(side, piece, self._piece_bytes) if piece.num_rows else []
            for part in parts:
                kept[level].add(part)
            if level + 1 < len(path):
                levels.append(self._found(node, side, parts))

    def _found(
        self, node: ThetaNode, side: str, parts: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        for part in parts:
            # Closed with this generator: unread results would hold what they read open.
            with self._joins[node.name].process(Batch(side, part, role=Role.PROBE)) as results:
                yield from results

    def _store_all(self, path: Path, kept: list[SpilledRows]) -> None:
        levels = [
            (stored, side, rows, stored.new_lengths(side, rows))
            for (node, side), rows in zip(path, kept, strict=True)
            for stored in [self._joins[node.name].stored]
        ]
        writes = WriteParts(
            lambda: chain.from_iterable(
                stored.all_writes(side, rows, new) for stored, side, rows, new in levels
            )
        )
        write_all(self._store, writes, *(join.stored for join in self._joins.values()))
        for stored, side, rows, new in levels:
            stored.written(side, rows, new)

    def _results(self, top: tuple[ThetaNode, str], kept: SpilledRows) -> Iterator[pa.RecordBatch]:
        """What the root's new input, which has been stored, becomes there."""
        schema = self._tree.output_schema
        for found in self._found(*top, kept):
            columns = [found.column(place) for place in self._columns]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
