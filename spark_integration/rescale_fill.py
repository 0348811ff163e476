"""One new bucket of a rescale, from the old ones whose keys it takes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from cython_ext.file import sync_directory
from cython_ext.key_codec import KeyCodec
from joins.routing.hash import bucket_of, overlapping
from lsmstate.backends import open_attempt
from lsmstate.options import Options
from lsmstate.recovery import Recovered
from lsmstate.store import Entries, MultimapStore, StreamSchema
from spark_integration.buckets import bucket_directory_name

_ATTEMPT: Final = "rescale"


def fill(
    root: str,
    plan: Mapping[str, Any],
    sources: Mapping[int, Recovered],
    number: int,
    options: Options,
) -> dict[str, Any]:
    """Write the new bucket with this number; returns its record: the pointer it begins with (None
    if it has no row) and its rows. ``sources`` are the old buckets that have rows, by id.

    Rows come in key order, those of a key in the order they had. Memory: that of two stores.
    """
    places = overlapping(number, plan["buckets"], len(plan["original buckets"]))
    old = [plan["original buckets"][place] for place in places]
    old = [bucket for bucket in old if bucket in sources]
    if not old:
        return {"pointer": None, "rows": 0}
    streams = list(sources[old[0]].streams.values())
    directory = os.path.join(root, bucket_directory_name(plan["bucket_ids"][number]))
    os.makedirs(directory)
    rows = 0
    with closing(_opened(directory, streams, None, plan["batch"], options)) as target:
        for bucket in old:
            source = os.path.join(root, bucket_directory_name(bucket))
            pointer = plan["original"][str(bucket)]
            with closing(_opened(source, streams, pointer, plan["batch"], options)) as store:
                for stream, found in _entries(store, streams, number, plan["buckets"]):
                    rows += target.append(stream, found.rows, found.keys)
        pointer = target.commit()
    sync_directory(root)
    return {"pointer": pointer, "rows": rows}


def _entries(
    store: MultimapStore, streams: Sequence[StreamSchema], number: int, buckets: int
) -> Iterator[tuple[str, Entries]]:
    """The rows of an old bucket that belong to a new one."""
    for stream in streams:
        codec = KeyCodec(stream.key)
        for found in store.iterate(stream.name):
            mine = (bucket_of(codec.encode(found.keys), buckets) == number).nonzero()[0]
            yield stream.name, Entries(found.keys.take(mine), found.rows.take(mine))


def _opened(
    directory: str,
    streams: Sequence[StreamSchema],
    pointer: str | None,
    batch_id: int,
    options: Options,
) -> MultimapStore:
    return open_attempt(
        directory,
        streams,
        pointer=pointer,
        batch_id=batch_id,
        attempt_id=_ATTEMPT,
        options=options,
    )
