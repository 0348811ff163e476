"""Size limits of rows and batches: huge rows are refused, huge batches are split into parts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.errors import InvalidArgumentError, MemoryLimitError
from lsmstate.options import KIB, Options
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes, sizes_of
from lsmstate.schema.entry_sizes import EntrySizes
from lsmstate.schema.python_values import shown
from lsmstate.store import KeyBounds, Mutation, StreamSchema
from lsmstate.store_base.checks import checked_entries, checked_keys, stream_of
from lsmstate.store_base.key_range import key_range

_KINDS = ("append", "put", "delete", "retract", "delete_range")


def check_row_sizes(rows: pa.RecordBatch, options: Options) -> None:
    """Refuse a batch with a row over a quarter of the memory cap, before anything is stored."""
    if sizes_of(rows.schema).total(rows) > options.memory_bytes // 4:
        check_largest_row(int(row_sizes(rows).max(initial=0)), options)


def check_largest_row(size: int, options: Options) -> None:
    """Raise MemoryLimitError if a row of this size is larger than a quarter of the memory cap."""
    limit = options.memory_bytes // 4
    if size > limit:
        raise MemoryLimitError(
            f"a row of {size} bytes is larger than a quarter of the memory cap ({limit} "
            f"bytes); raise {options.cap_name} to {4 * size} or more"
        )


def no_room(
    budget: Budget, size: int, kept: str, elsewhere: int, options: Options
) -> MemoryLimitError:
    """Make the error for a write of ``size`` bytes that finds no memory.

    ``kept`` names snapshots that hold memory. ``elsewhere`` is the size of other stores' memtables.
    """
    read = budget.usage()["probe"]
    readers = f"; probes and iterators hold {read} bytes: close or drop some" if read else ""
    others = (
        f"; memtables of other stores hold {elsewhere} bytes, which their probes, iterators or "
        "writes are using: finish these"
        if elsewhere
        else ""
    )
    return MemoryLimitError(
        f"no room for one more write, {size} bytes: {budget.usage()} of the cap of {budget.limit} "
        f"bytes are in use, and {budget.reserve} are reserved for flushes and merges; write less "
        f"at a time, or raise {options.cap_name}{readers}{kept}{others}"
    )


def part_bytes(options: Options) -> int:
    """Return how many bytes of keys and rows are encoded at a time."""
    return max(256 * KIB, options.memory_bytes // 16)


def parts_of(
    rows: pa.RecordBatch,
    keys: pa.RecordBatch | KeyBatch,
    options: Options,
    sizes: EntrySizes,
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | KeyBatch]]:
    """Split a batch into parts that take a bounded number of encoded bytes each, or one row. A
    small batch stays whole."""
    most = part_bytes(options)
    if sizes.total(rows, keys) <= most:
        if rows.num_rows:
            yield rows, keys
        return
    for piece in pieces_of(sizes(rows, keys), most):
        yield rows.slice(piece.start, piece.stop - piece.start), _keys_at(keys, piece)


def key_parts_of(
    keys: pa.RecordBatch | KeyBatch, most: int, sizes: EntrySizes
) -> Iterator[pa.RecordBatch | KeyBatch]:
    """Split keys without rows into parts that take a bounded number of bytes each, or one key."""
    if sizes.total(None, keys) <= most:
        yield keys
        return
    for piece in pieces_of(sizes(None, keys), most):
        yield _keys_at(keys, piece)


def _keys_at(keys: pa.RecordBatch | KeyBatch, piece: slice) -> pa.RecordBatch | KeyBatch:
    if isinstance(keys, KeyBatch):
        return keys.take(np.arange(piece.start, piece.stop))
    return keys.slice(piece.start, piece.stop - piece.start)


def check_mutation(mutation: object) -> None:
    """Raise InvalidArgumentError for what is no Mutation, or has rows or keys of another kind."""
    if not isinstance(mutation, Mutation):
        raise InvalidArgumentError(
            f"a write is {shown(mutation)}, a {type(mutation).__name__}; give a Mutation(kind, "
            "stream, keys, rows)"
        )
    kind, name, keys, rows = mutation
    if kind not in _KINDS:
        raise InvalidArgumentError(
            f"{kind!r} in stream {name!r} is no kind of write; give {', '.join(_KINDS)}"
        )
    if (rows is None) != (kind in ("delete", "delete_range")):
        raise InvalidArgumentError(
            f"{kind!r} in stream {name!r}: give rows to 'append', 'put' and 'retract', none to "
            "'delete' and 'delete_range'"
        )
    if isinstance(keys, KeyBounds) != (kind == "delete_range"):
        raise InvalidArgumentError(
            f"{kind!r} in stream {name!r}: give KeyBounds to 'delete_range', keys to all others"
        )


def check_list(mutations: object) -> None:
    """Raise InvalidArgumentError for what cannot be several writes."""
    if not isinstance(mutations, Iterable):
        raise InvalidArgumentError(
            f"mutations={shown(mutations)} is a {type(mutations).__name__}; give a list of Mutation"
        )


def checked_mutations(
    streams: Mapping[str, StreamSchema], mutations: Sequence[Mutation], options: Options
) -> list[Mutation]:
    """Return several atomic writes with rows and keys as their streams have them.

    What ``MultimapStore.write`` refuses is refused here, before anything is written.
    """
    check_list(mutations)
    checked: list[Mutation] = []
    batches: list[pa.RecordBatch] = []
    for mutation in mutations:
        check_mutation(mutation)
        kind, name, keys, rows = mutation
        stream = stream_of(streams, name)
        if isinstance(keys, KeyBounds):
            key_range(stream, *keys)
        elif rows is not None:
            rows, keys = checked_entries(stream, rows, keys)
            check_row_sizes(rows, options)
            batches.append(rows)
        else:
            keys = checked_keys(stream, keys)
        checked.append(Mutation(kind, name, keys, rows))
    sizes = [sizes_of(rows.schema).total(rows) for rows in batches]
    size = sum(sizes)
    # One row cannot be split; its size has been checked before.
    alone = max(
        (size for size, rows in zip(sizes, batches, strict=True) if rows.num_rows == 1), default=0
    )
    if size - alone > options.memory_bytes // 8:
        raise MemoryLimitError(
            f"{size} bytes of rows in one write; a put, or several writes made as one, may take an "
            f"eighth of the memory cap ({options.memory_bytes // 8} bytes): split it, or raise "
            f"{options.cap_name}"
        )
    return checked
