"""Merge of several iterations in key order."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.store import Entries


def merged_entries(
    codec: KeyCodec, sources: Sequence[Iterator[Entries]], reverse: bool
) -> Iterator[Entries]:
    """Yield all entries in key order (or reverse), those of one key source after source.

    If a key fills several pieces of a source, the other sources' entries of it come between them.
    Memory: a piece of each source. Cost: each key is encoded and sorted twice.
    """
    waiting = list(sources)
    pieces: list[Entries | None] = [None] * len(waiting)
    while True:
        for i, source in enumerate(waiting):
            if pieces[i] is None:
                pieces[i] = next(source, None)
        left = [i for i, piece in enumerate(pieces) if piece is not None]
        if not left:
            return
        waiting, pieces = [waiting[i] for i in left], [pieces[i] for i in left]
        if len(waiting) == 1:
            assert pieces[0] is not None
            yield pieces[0]
            yield from waiting[0]
            return
        yield _next_piece(codec, pieces, reverse)


def _next_piece(codec: KeyCodec, pieces: list[Entries | None], reverse: bool) -> Entries:
    """Return, and remove from the pieces, what can be given before any source advances."""
    stand = [piece for piece in pieces if piece is not None]
    ends = pa.concat_batches([piece.keys.slice(piece.keys.num_rows - 1) for piece in stand])
    order = codec.encode(ends).order
    bound = ends.slice(int(order[-1] if reverse else order[0]), 1)
    taken = []
    for i, piece in enumerate(stand):
        count = _reached(codec, piece.keys, bound, reverse)
        taken.append(Entries(piece.keys.slice(0, count), piece.rows.slice(0, count)))
        rest = Entries(piece.keys.slice(count), piece.rows.slice(count))
        pieces[i] = rest if rest.keys.num_rows else None
    keys = pa.concat_batches([piece.keys for piece in taken])
    rows = pa.concat_batches([piece.rows for piece in taken])
    places = pa.array(_order(codec, keys, reverse))
    return Entries(keys.take(places), rows.take(places))


def _reached(codec: KeyCodec, keys: pa.RecordBatch, bound: pa.RecordBatch, reverse: bool) -> int:
    """Return how many of the ordered keys do not come after the bound."""
    batch = pa.concat_batches([bound, keys] if reverse else [keys, bound])
    order = codec.encode(batch).order
    # Ties are in the order of positions: the bound stands before or after its equals.
    place = int(np.flatnonzero(order == (0 if reverse else keys.num_rows))[0])
    return keys.num_rows - place if reverse else place


def _order(codec: KeyCodec, keys: pa.RecordBatch, reverse: bool) -> npt.NDArray[np.int64]:
    """Return the positions in key order; those of one key ascend in both directions."""
    encoded = codec.encode(keys)
    order = encoded.order.astype(np.int64)
    if not reverse:
        return order
    _, starts = encoded.distinct()
    groups = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return np.asarray(order[np.argsort(-groups, kind="stable")])
