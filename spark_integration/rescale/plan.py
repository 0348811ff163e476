"""What pinned settings say to a rescale: whether it can be done, and which grid the new buckets
get."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.kinds import from_pinned, is_rescaled
from lsmstate.joins.routing.shares import JoinGraph, Shares, choose
from lsmstate.joins.routing.shares_router import SHARES
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.remote.bucket import DurableBucket
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    JOIN_CONDITIONS,
    KEPT,
    SKEW,
    Pinned,
)
from lsmstate.spark_integration.plan.stateful_plan import JOIN
from lsmstate.spark_integration.rescale.fill import Contents
from lsmstate.spark_integration.rescale.places import GridPlaces, HashPlaces, Places, owner_of
from lsmstate.state_location import StatePlace

FORCED: Final = "forced shares"
_ANEW: Final = "start the query anew with another number of buckets"


def check_can_move(root: str, settings: Mapping[str, Any]) -> None:
    """InvalidArgumentError unless the settings say in which bucket each row belongs."""
    if settings["backend"] != "lsm":
        raise InvalidArgumentError(
            f"{root} is the state of backend {settings['backend']!r}; only that of 'lsm' can be "
            f"rescaled: {_ANEW}"
        )
    adopted = settings.get("adopted", {})
    if JOIN in adopted and not is_rescaled(adopted[JOIN]):
        raise InvalidArgumentError(
            f"{root} is the state of a join of the kind {adopted[JOIN]['kind']!r}, which cannot be "
            f"rescaled; {_ANEW}"
        )
    shares = adopted.get(SHARES)
    if isinstance(shares, list):
        raise InvalidArgumentError(
            f"{root} is the state of several joins in one operator, which cannot be rescaled; "
            f"{_ANEW}"
        )
    if settings.get(JOIN_CONDITIONS):
        raise InvalidArgumentError(
            f"{root} is the state of a join other than inner with the condition "
            f"{settings[JOIN_CONDITIONS][0]}, which cannot be rescaled; {_ANEW}"
        )
    # By several keys, which of them may be split is not kept.
    if settings.get("joins other than inner") and (settings.get(KEPT) or shares):
        raise InvalidArgumentError(
            f"{root} is the state of a join other than inner that forgets rows or has several "
            f"keys, which cannot be rescaled; {_ANEW}"
        )
    if settings.get(SKEW):
        # Its sketches are a bucket's, and rows of spread keys lie in others than their hash says.
        raise InvalidArgumentError(
            f"{root} is the state of a join with skew={settings[SKEW]!r}, which cannot be "
            f"rescaled; {_ANEW}"
        )


def check_rules(settings: Mapping[str, Any], contents: Contents) -> None:
    """InvalidArgumentError for an expiry that is not a join's. The function advances the watermark
    of each bucket by itself, so buckets may differ."""
    expiring = [stream.name for stream in contents.streams if stream.expiry is not None]
    if expiring and "condition" not in settings:
        raise InvalidArgumentError(
            f"stream {expiring[0]!r} forgets rows at watermarks that its function sets bucket by "
            f"bucket, so the state cannot be rescaled; {_ANEW}"
        )


def check_wanted(root: str, settings: Mapping[str, Any], shares: Mapping[str, int] | None) -> None:
    """InvalidArgumentError unless the buckets of rows can be checked, and ``shares`` are given
    exactly if the query has them."""
    if "condition" not in settings and settings["buckets"] == 1:
        raise InvalidArgumentError(
            f"{root} is the state of a stateful_batches with one bucket, where it is unknown "
            f"whether the function stores rows under the keys of its inputs; {_ANEW}"
        )
    forced = settings.get(FORCED)
    if forced and not shares:
        raise InvalidArgumentError(
            f"the query was started with shares={forced}; give shares for the new buckets "
            "(shares=, --shares), and then start the query with the same ones"
        )
    if shares and not forced:
        raise InvalidArgumentError(
            f"shares={dict(shares)}: the query was started without any; leave them out"
        )


def new_places(
    state: StatePlace,
    settings: Mapping[str, Any],
    pinned: Pinned,
    original: Mapping[int, str],
    buckets: int,
    forced: Mapping[str, int] | None,
) -> Places:
    """Where rows lie now, and where they are to lie. Cost, in a join by several keys: the rows are
    counted, which reads an index of each stream."""
    contents = Contents.of(state, original)
    check_rules(settings, contents)
    if SHARES not in pinned.adopted:
        return HashPlaces(pinned.buckets, buckets)
    same = _grid(pinned, contents, None)
    counts = dict.fromkeys(same.before.graph.rows, 0)
    for place, bucket in enumerate(pinned.bucket_ids):
        if bucket in original:
            found = _owned(state.bucket(bucket), original[bucket], contents, same, place)
            for owner, rows in found:
                counts[owner] += rows
    graph = JoinGraph(rows=counts, classes=same.before.graph.classes)
    return GridPlaces(same.before, choose(graph, buckets, forced), same.columns)


def planned_places(
    settings: Mapping[str, Any], pinned: Pinned, contents: Contents, plan: Mapping[str, Any]
) -> Places:
    """Where rows lie and are to lie, as the plan says."""
    if plan["shares"] is None:
        return HashPlaces(pinned.buckets, plan["buckets"])
    return _grid(pinned, contents, plan["shares"])


def new_shares(settings: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that change in a join by several keys."""
    if plan["shares"] is None:
        return {}
    adopted = {**settings["adopted"], SHARES: plan["shares"]}
    return {"adopted": adopted, FORCED: plan["forced"]}


def _owned(
    bucket: str | DurableBucket, pointer: str, contents: Contents, same: GridPlaces, place: int
) -> Iterator[tuple[str, int]]:
    """The number of rows of each stream in a bucket, without copies. One index of a stream
    suffices, since each of them has all its rows."""
    indexes = {owner_of(s.name, same.before.graph.rows): s for s in contents.keyed}
    store = open_attempt(
        bucket,
        contents.streams,
        pointer=pointer,
        batch_id=0,
        attempt_id="count",
        options=Options(),
    )
    with closing(store):
        for owner, index in indexes.items():
            for found in store.iterate(index.name):
                yield owner, same.taken(index, found, place, place).owned


def _grid(pinned: Pinned, contents: Contents, after: str | None) -> GridPlaces:
    """From the pinned shares to others; None: the same."""
    text = pinned.adopted[SHARES]
    shape = json.loads(text)
    graph = JoinGraph(
        rows=dict.fromkeys(shape["streams"], 1),
        classes={name: tuple(holders) for name, holders in shape["key classes"]},
    )
    columns = _stored_keys(pinned) if contents.keyed else ()
    return GridPlaces(
        Shares.from_json(text, graph), Shares.from_json(after or text, graph), columns
    )


def _stored_keys(pinned: Pinned) -> tuple[Mapping[str, str], ...]:
    """Per key class, by stream, the column of the stored rows that holds it."""
    spec = from_pinned(pinned.adopted[JOIN])
    return tuple(found.columns for found in spec.graph.classes)
