"""A tree of two-way joins with stored intermediate results: what UMJoin is measured against.

Each node is a UMJoin of two inputs, a stream or the result of the node below, and keeps both in
the one store of the tree: store, keys, probing and products are the same code on both sides of the
comparison. (Streaming SQL engines join several streams this way; section 4.2 of the UMJoin paper
calls it a BJT.)

While the rows of one stream climb to the root, what is written lies on their path and what is read
lies beside it. Intermediate results are therefore kept back and stored when a slice has reached the
root: no write comes between a probe and its rows.
"""

import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import IO

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.specs.binary_tree import SIDES, BinaryTree, Leaf, Node, NodeSpec
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes
from lsmstate.store import Positions, Probe, StateStore, StreamSchema

#: Intermediate results kept back in memory at each node; more lie in a temporary file.
KEPT_BYTES = 4 << 20


class TreeJoin:
    """The operator over one store, whose streams are ``tree.stream_schemas``.

    Not thread-safe. The store belongs to the caller, who commits it (with no results unread: what
    is not worked out yet is not stored either) and closes it.
    """

    def __init__(self, tree: BinaryTree, store: StateStore, piece_bytes: int = 1 << 20) -> None:
        wanted = [schema.name for schema in tree.stream_schemas]
        if list(store.streams) != wanted:
            raise InvalidArgumentError(
                f"the store holds the streams {', '.join(store.streams)}, the join needs "
                f"{', '.join(wanted)}; open the store with tree.stream_schemas"
            )
        self._tree = tree
        self._piece_bytes = piece_bytes
        self._paths = {name: tree.path_of(name) for name in tree.join.streams}
        nodes = {node.name: node for path in self._paths.values() for node, _ in path}
        self._inputs = {name: NodeInputs(node, store) for name, node in nodes.items()}
        self._joins = {
            name: UMJoin(node.spec, self._inputs[name], piece_bytes) for name, node in nodes.items()
        }
        self._columns = _output_columns(tree)
        self._unfinished: Results | None = None

    def process(self, stream: str, batch: pa.RecordBatch) -> Results:
        """Store the batch and its intermediate results as the results are asked for.

        Results come in pieces of at most ``piece_bytes`` of Arrow data or one row, with the columns
        of the join's ``output_schema``; consume or close them before the next call
        (InvalidArgumentError): closing works out the rest without handing it out. If storing fails
        midway, give the store up uncommitted. Memory: per node a piece, what UMJoin takes, and
        KEPT_BYTES; more intermediate results lie in temporary files.
        """
        self._tree.join.check_stream(stream)
        check_finished(f"process({stream!r})", self._unfinished)
        self._unfinished = _StoredResults(self._results(stream, batch))
        return self._unfinished

    def _results(self, stream: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        path = self._paths[stream]
        node, side = path[0]
        named = pa.RecordBatch.from_arrays(batch.columns, schema=node.spec.streams[side])
        for part in pieces_of(row_sizes(named), self._piece_bytes):
            rows = named.slice(part.start, part.stop - part.start)
            for found in self._climb(path, rows):
                columns = [found.column(place) for place in self._columns]
                schema = self._tree.join.output_schema
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            for above, _ in path[1:]:
                self._inputs[above.name].store_kept()

    def _climb(
        self, path: list[tuple[Node, str]], rows: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """What rows become at the root."""
        levels: list[Iterator[pa.RecordBatch]] = [iter([rows])]
        while levels:
            piece = next(levels[-1], None)
            if piece is None:
                levels.pop()
            elif len(levels) > len(path):
                yield piece
            else:
                node, side = path[len(levels) - 1]
                levels.append(self._joins[node.name].process(side, piece))


class NodeInputs:
    """The two inputs of a node as a store for its join; see store.StateStore.

    Rows of streams are stored at once, intermediate results are kept back.
    """

    def __init__(self, node: Node, store: StateStore) -> None:
        self._store = store
        self._names = {side: node.input_of(side).name for side in SIDES}
        self.streams = {
            side: StreamSchema(side, node.spec.key_schema, node.spec.streams[side])
            for side in SIDES
        }
        self._kept = {
            side: KeptBack(node.spec, side)
            for side in SIDES
            if not isinstance(node.input_of(side), Leaf)
        }

    def append(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """Store rows, or keep them back; see store.StateStore.append. Returns how many it was
        given: rows that are kept back are counted when they are stored."""
        if stream in self._kept:
            self._kept[stream].add(rows, keys)
        else:
            self._store.append(self._names[stream], rows, keys)
        return int(rows.num_rows)

    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """See store.StateStore.probe."""
        return self._store.probe(self._names[stream], keys, positions)

    def store_kept(self) -> None:
        """Store what was kept back."""
        for side, kept in self._kept.items():
            for rows, keys in kept.taken():
                self._store.append(self._names[side], rows, keys)


class KeptBack:
    """Rows in arrival order with their keys: some in memory, those after them in a file."""

    def __init__(self, spec: NodeSpec, side: str) -> None:
        self._spec = spec
        self._side = side
        self._rows: list[tuple[pa.RecordBatch, pa.RecordBatch | KeyBatch]] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> None:
        """Keep one batch more."""
        self._bytes += rows.nbytes
        if self._bytes <= KEPT_BYTES:
            self._rows.append((rows, keys))
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open until taken()
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        self._writer.write_batch(rows)

    def taken(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | KeyBatch]]:
        """Everything that was added, which is gone from here then."""
        yield from self._rows
        if self._writer is not None and self._file is not None:
            self._writer.close()
            self._file.seek(0)
            with closing(self._file), pa.ipc.open_stream(self._file) as reader:
                for rows in reader:
                    yield rows, self._spec.key_batch(self._side, rows)
        self._rows, self._bytes, self._file, self._writer = [], 0, None, None


class _StoredResults(Results):
    """Results on whose being worked out the state depends."""

    def close(self) -> None:
        """Work out the rest, which nobody reads."""
        while not self.is_finished and next(self, None) is not None:
            pass


def _output_columns(tree: BinaryTree) -> list[int]:
    """Which columns of the root's result are the join's, in its order."""
    first: dict[str, int] = {}
    width = 0
    for leaf in tree.root.leaves:
        first[leaf.name] = width
        width += len(tree.join.streams[leaf.name])
    return [
        first[name] + column
        for name in tree.join.streams
        for column in range(tree.join.shown[name])
    ]
