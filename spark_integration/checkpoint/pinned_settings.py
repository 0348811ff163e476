"""Pinned settings, ``query.json``: what a query was started with, and later starts must keep.

- The first start writes the file beside the state: bucket count and ids, stream names and order,
  columns, key types, condition, backend. It is never rewritten.
- A later start adopts the buckets, and what the caller left open. Any other difference is refused,
  and the message has both values.
- A rescale writes another file, ``query-0002.json`` and so on. The newest one counts. It has the
  first micro-batch and the pointers of its buckets.
- While the plan of that rescale exists, its switch is not over, and no query starts or goes on.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.joins.routing.chosen import ROUTING
from lsmstate.remote.retries import retried
from lsmstate.spark_integration.checkpoint.json_records import create_record_in, read_record_in
from lsmstate.spark_integration.plan.bucket_ids import bucket_ids
from lsmstate.spark_integration.plan.stateful_plan import Wanted
from lsmstate.state_location import StatePlace

#: Name of the state's directory in the checkpoint location.
STATE_NAME: Final = "lsmstate"
FILE_NAME: Final = "query.json"
#: What a join pins that forgets rows: how long each stream's are kept.
KEPT: Final = "rows kept"
#: What a join of other types than inner pins: its conditions beside keys and time intervals.
JOIN_CONDITIONS: Final = "conditions of the joins"
#: What a join pins that counts hot keys: whether it spreads them too.
SKEW: Final = "skew"
#: What inner joins pin: the conditions beside their keys.
OTHER_CONDITIONS: Final = "other conditions"
#: What all operators pin of each input: names and types of its columns.
COLUMNS_OF: Final = "columns of "
#: The names of the settings that are the user's own.
PINS: Final = "pins"
#: What is pinned beside the operator's settings, or added to those of some joins.
_TAKEN: Final = (
    *("buckets", "partitions", "bucket_ids", "query_id", "adopted", "rescaled"),
    *("forced shares", "late rows kept", OTHER_CONDITIONS, "time zone of the conditions", PINS),
)


@dataclass(frozen=True, slots=True)
class Pinned:
    """The part of the pinned settings that is adopted rather than compared."""

    buckets: int
    partitions: int
    bucket_ids: tuple[int, ...]
    version: int = 1
    """Which file they are from: 1 as started, one more with each rescale."""
    first_batch: int = 0
    """The first micro-batch that has these buckets."""
    pointers: Mapping[int, str] = field(default_factory=dict)
    """By bucket id, where a bucket begins for which Spark keeps no pointer yet."""
    adopted: Mapping[str, Any] = field(default_factory=dict)
    """What the first start chose for itself, such as the shares of a join by several keys."""

    @classmethod
    def of(cls, settings: Mapping[str, Any], version: int) -> "Pinned":
        origin = settings.get("rescaled", {"first batch": 0, "pointers": {}})
        return cls(
            settings["buckets"],
            settings["partitions"],
            tuple(settings["bucket_ids"]),
            version,
            origin["first batch"],
            {int(bucket): pointer for bucket, pointer in origin["pointers"].items()},
            settings.get("adopted", {}) | _named(settings),
        )


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The routing, which has the caller's name for it."""
    return {ROUTING: settings[ROUTING]} if ROUTING in settings else {}


def with_pins(settings: Mapping[str, Any], pins: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the operator and those of the user. InvalidArgumentError for pins that are
    not strings, or have a name that is taken."""
    for name, value in pins.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"pins[{name!r}]={value!r}: names and values must be strings, as in "
                '{"rates": "2026-01"}; convert them by str(...)'
            )
        if name in settings or name in _TAKEN:
            raise InvalidArgumentError(
                f"pins[{name!r}]={value!r}: the checkpoint has a setting of the join under that "
                "name; choose another name"
            )
    return {**settings, **pins, **({PINS: sorted(pins)} if pins else {})}


def file_name(version: int) -> str:
    """The name of a version's file."""
    return FILE_NAME if version == 1 else f"query-{version:04d}.json"


def work_name(version: int) -> str:
    """The directory that exists while a rescale to a version of the settings is under way."""
    return f"rescale-{version:04d}"


def plan_name(version: int) -> str:
    """The plan of that rescale."""
    return f"{work_name(version)}/plan.json"


def is_switching(place: StatePlace, version: int) -> bool:
    """Whether the rescale to that version is not over, or is being undone."""
    return is_there(place, plan_name(version))


def is_there(place: StatePlace, name: str) -> bool:
    """Whether a file is there. OSError after several tries."""
    return retried(partial(place.files.size, name), f"looking for {place.where}/{name}") is not None


def settings_as_of(root: str | StatePlace, batch: int) -> tuple[Pinned, dict[str, Any]] | None:
    """The settings in a micro-batch; None if there is no state in ``root``."""
    version, settings = newest_settings(root)
    while settings is not None:
        pinned = Pinned.of(settings, version)
        if pinned.first_batch <= batch:
            return pinned, settings
        version -= 1
        settings = read_record_in(_place(root), file_name(version))
    return None


def newest_settings(root: str | StatePlace) -> tuple[int, dict[str, Any] | None]:
    """(version, settings) of the state in ``root``; (1, None) if it has none yet.

    InvalidArgumentError if a rescale was interrupted during its switch, since it is open what
    counts then.

    The settings are read first, and its plan is looked for then. A rescale looks last whether the
    query has begun a micro-batch. So one of the two notices the other. A plan that is gone may have
    been one to remove the settings, so they are looked for again.

    Cost:
        A small read per version, one that finds nothing, and after a rescale two more.
    """
    place = _place(root)
    version, settings = 1, read_record_in(place, FILE_NAME)
    while settings is not None:
        try:
            later = read_record_in(place, file_name(version + 1))
        except CorruptionError as error:
            raise _damaged(place, version + 1) from error
        if later is None:
            break
        version, settings = version + 1, later
    if version > 1 and is_switching(place, version):
        raise _switching(place)
    if version > 1 and not is_there(place, file_name(version)):
        return newest_settings(place)
    return version, settings


def _damaged(place: StatePlace, version: int) -> Exception:
    if is_switching(place, version):
        return _switching(place)
    remedy = "restore the file from a copy of the checkpoint"
    if not is_there(place, file_name(version + 1)):
        remedy += (
            ", or, if no micro-batch was begun since, undo the rescale by lsmstate rescale "
            "CHECKPOINT --undo"
        )
    return CorruptionError(
        f"the settings that a rescale made are damaged; {remedy}",
        f"{place.where}/{file_name(version)}",
    )


def _switching(place: StatePlace) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a rescale of {place.where} is not finished: it is about to switch to its new buckets, "
        "or was interrupted there, or while it was undone; run the same lsmstate rescale "
        "CHECKPOINT --buckets N again, or lsmstate rescale CHECKPOINT --undo, before you start the "
        "query"
    )


def adopt_or_pin(
    root: str | StatePlace, wanted: Wanted, partitions: int, query_id: str, *, is_new: bool = True
) -> Pinned:
    """The settings of the state in ``root``; they become those of ``wanted`` if it has none yet.

    ``is_new``: whether the query may still have no state, as in its first micro-batch.
    InvalidArgumentError if ``wanted`` differs from the pinned settings, if there are none although
    the query is not new, or if ``root`` is not writable. Cost: one small read.
    """
    place = _place(root)
    version, settings = newest_settings(place)
    path = f"{place.where}/{file_name(version)}"
    if settings is None and not is_new:
        # To begin with nothing here would miss rows in silence.
        raise InvalidArgumentError(
            f"the query has run before, but its state is not in {place.where}; name the state_dir "
            "it was started with, restore that directory, or start with a new checkpoint location"
        )
    if settings is None:
        buckets = wanted.buckets or wanted.default_buckets
        settings = {
            **wanted.settings,
            "buckets": buckets,
            "partitions": partitions,
            "bucket_ids": list(bucket_ids(buckets, partitions)),
            "query_id": query_id,
            **({"adopted": wanted.adopted} if wanted.adopted else {}),
        }
        create_record_in(place, FILE_NAME, settings)
        # Another task of the same micro-batch may have been first: what stands there counts.
        settings = read_record_in(place, FILE_NAME) or settings
    _compare(path, settings, wanted, query_id)
    return Pinned.of(settings, version)


def check_settings(root: str | StatePlace, wanted: Wanted) -> None:
    """InvalidArgumentError if the state in ``root``, if any, belongs to another join."""
    version, settings = newest_settings(root)
    if settings is not None:
        _compare_settings(f"{_place(root).where}/{file_name(version)}", settings, wanted)


def _place(root: str | StatePlace) -> StatePlace:
    return StatePlace(root) if isinstance(root, str) else root


def _compare(path: str, settings: dict[str, Any], wanted: Wanted, query_id: str) -> None:
    _compare_settings(path, settings, wanted)
    if settings["query_id"] != query_id:
        raise InvalidArgumentError(
            f"the state in {os.path.dirname(path)} belongs to query {settings['query_id']}, "
            f"this is query {query_id}; give each query a state_dir of its own, and an empty one "
            "to a query that starts anew"
        )


def _compare_settings(path: str, settings: dict[str, Any], wanted: Wanted) -> None:
    expected = dict.fromkeys(settings.get(PINS, ())) | wanted.settings
    expected.pop(PINS, None)  # their values are compared, also of those that are left out
    if OTHER_CONDITIONS not in settings:
        expected.pop(OTHER_CONDITIONS, None)  # of a release that did not pin them for all joins
    for name, known in wanted.left_open.items():
        if settings.get(name) in known:
            expected.pop(name)
    if wanted.buckets is not None:
        expected["buckets"] = wanted.buckets
    for name, now in expected.items():
        was = settings.get(name)
        if was != now and name.startswith(COLUMNS_OF):
            raise _other_columns(name.removeprefix(COLUMNS_OF), was or [], now, path)
        if was != now:
            change = f", run lsmstate rescale --buckets {now} first" if name == "buckets" else ""
            raise InvalidArgumentError(
                f"this checkpoint was started with {name} = {_show(was)}, the query now has "
                f"{name} = {_show(now)} ({path}); start the query with the former value{change}, "
                "or use a new checkpoint location"
            )


def _other_columns(stream: str, was: list[str], now: list[str], path: str) -> Exception:
    """Rows of the state have the columns of the first start."""
    added = [column for column in now if column not in was]
    gone = [column for column in was if column not in now]
    said = [f"{', '.join(gone)} is gone"] if gone else []
    said += [f"{', '.join(added)} is new"] if added else []
    names = ", ".join(repr(column.partition(" ")[0]) for column in was)
    if gone:
        remedy = f"give it the former columns, in the types {_show(was)}"
    else:
        remedy = f"select the former ones, {stream}.select({names})"
        remedy += ", and join what is new to the result" if added else ""
    return InvalidArgumentError(
        f"this checkpoint was started with {COLUMNS_OF}{stream} = {_show(was)}, the query now has "
        f"{_show(now)} ({path}): {'; '.join(said) or 'their order differs'}. To go on with this "
        f"state {remedy}; or use a new checkpoint location, which reads all rows again"
    )


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(map(str, value)) + ")"
    return "nothing" if value is None else str(value)
