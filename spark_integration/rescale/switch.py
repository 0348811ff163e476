"""The switch of a rescale, its undo, and the deletion of the original state.

    switch   create the new settings -> check that the query has not gone on -> end the work
    undo     note it in a plan -> check that the query has not gone on -> remove the settings
    drop     note it -> check that there is no plan -> delete the original buckets

Invariant: a plan for the newest settings keeps the query from starting and from going on. Between
the check and the end, no micro-batch can therefore begin with settings that do not count.

- The query records a micro-batch first; its tasks then read the settings and look for a plan. The
  rescale does both in the other order. So one of the two always notices the other.
- After an interruption in between, the query is refused until the rescale is run again or undone.
- A drop and an undo notice each other in the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.remote.directory import remove_if_there
from lsmstate.spark_integration.checkpoint.json_records import create_record_in
from lsmstate.spark_integration.checkpoint.location import SparkCheckpoint
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    Pinned,
    file_name,
    is_switching,
    is_there,
)
from lsmstate.spark_integration.rescale.stopped_query import QueryHome, StoppedQuery, lacks_files
from lsmstate.spark_integration.rescale.work import RescaleWork
from lsmstate.state_location import StatePlace

#: In the plan of a rescale that is being taken back: the version of its settings.
_TAKEN_BACK: Final = "taken back"


def settle(home: QueryHome) -> None:
    """Finish what was interrupted at the newest settings. A switch stands unless the query has gone
    on without it. An undo that has not begun to remove anything is forgotten."""
    version = home.newest_version()
    work = home.work(version)
    if version == 1 or not work.exists():
        return
    with work.owned():
        check_newest(home, version)
        plan = work.plan()
        if plan is None or _TAKEN_BACK in plan or _may_stand(home, version, plan):
            work.end()
        else:
            home.withdraw(version)


def _may_stand(home: QueryHome, version: int, plan: Mapping[str, Any]) -> bool:
    if home.spark.begun()[-1] == plan["batch"]:
        return home.settings(version) is not None
    return _has_run(home, plan)


def _has_run(home: QueryHome, plan: Mapping[str, Any]) -> bool:
    """Whether the query has committed a micro-batch with the new buckets. Earlier releases let it
    run on a switch that was cut."""
    batch = home.spark.check_batch(None)
    if batch <= plan["batch"]:
        return False
    return not home.spark.pointers(batch).keys().isdisjoint(plan["bucket_ids"])


def switch(state: StoppedQuery, work: RescaleWork, batch_id: int, settings: dict[str, Any]) -> None:
    """Make these settings the ones that count. InvalidArgumentError, and nothing has changed, if
    the query has gone on after that micro-batch."""
    home, version = state.home, state.pinned.version + 1
    _check_unmoved(home, batch_id)
    check_newest(home, state.pinned.version)
    work.check_owned()
    if not create_record_in(state.place, file_name(version), settings, sync=True):
        raise _done_meanwhile(home)
    try:
        work.check_owned()
    except InvalidArgumentError:
        # It is the other's, who settles it. Unless that one is a taking back which has not seen it.
        if _lacks_buckets(home, version, settings):
            home.withdraw(version)
        raise
    try:
        _check_unmoved(home, batch_id)
        check_newest(home, version)
    except InvalidArgumentError:
        home.withdraw(version)
        raise
    work.end()


def _lacks_buckets(home: QueryHome, version: int, settings: Mapping[str, Any]) -> bool:
    """Whether these are the newest settings, although buckets they name were deleted."""
    named = {int(bucket) for bucket in settings["rescaled"]["pointers"]}
    return home.newest_version() == version and not named <= set(home.place.buckets())


def give_up(home: QueryHome, version: int) -> None:
    """Delete what was begun on top of that version of the settings."""
    work = home.work(version + 1)
    with work.owned():
        check_newest(home, version)
        work.give_up(home.unnamed_buckets())
        home.withdraw(version + 1)  # of one that was about to switch when this one took over
        work.end()


def take_back(home: QueryHome, version: int) -> None:
    """Remove the newest settings and their buckets. Nothing has changed after an error:
    InvalidArgumentError if a micro-batch began with them or the original state is incomplete,
    CorruptionError if earlier settings are damaged."""
    home.named_buckets(version - 1)  # which is needed when there is no way back from here
    work = home.work(version)
    with work.owned():
        check_newest(home, version)
        plan = work.plan()
        if plan is None or _TAKEN_BACK in plan or _has_run(home, plan):
            _stop(home, version, work, is_stopped=plan is not None)
        work.check_owned()
        home.withdraw(version)
        work.give_up(home.unnamed_buckets())
        work.end()


def drop(home: QueryHome) -> int:
    """Delete the buckets that the newest settings have replaced; returns how many bytes
    that freed."""
    pinned = home.newest().pinned
    version, noted = pinned.version, _drop_name(pinned.version)
    if home.work(version + 1).exists():
        raise unfinished(home)
    replaced = home.named_buckets(version - 1) - set(pinned.bucket_ids)
    create_record_in(home.place, noted, {}, sync=True)
    try:
        check_newest(home, version)
        home.newest()
    except InvalidArgumentError:
        remove_if_there(home.place.files, noted)
        raise
    freed = sum(map(home.place.remove_bucket, sorted(replaced & set(home.place.buckets()))))
    remove_if_there(home.place.files, noted)
    return freed


def _drop_name(version: int) -> str:
    """The file that exists while the buckets that these settings replaced are deleted."""
    return f"drop-{version:04d}.json"


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A rescale that is to be undone: what its settings say."""

    first_batch: int
    """The first micro-batch that would have the new buckets."""
    buckets: int | None
    """How many they are."""
    original: Mapping[int, str]
    """The pointers of those before, by bucket."""

    @classmethod
    def by(cls, home: QueryHome, version: int) -> "_Replaced":
        """The rescale of that version of the settings. Damaged settings never counted if Spark
        keeps nothing of their buckets; otherwise CorruptionError."""
        settings = home.settings(version)
        if settings is not None:
            origin = settings["rescaled"]
            original = {int(bucket): pointer for bucket, pointer in origin["original"].items()}
            return cls(origin["first batch"], settings["buckets"], original)
        batch = home.spark.check_batch(None)
        kept = home.spark.pointers(batch)
        if not set(kept) <= home.named_buckets(version - 1):
            raise CorruptionError(
                "damaged, and micro-batches were committed since then with the buckets it names; "
                "restore the file from a copy of the checkpoint",
                f"{home.place.where}/{file_name(version)}",
            )
        settings = home.settings(version - 1)
        assert settings is not None
        before = Pinned.of(settings, version - 1)
        found = ((b, kept.get(b, before.pointers.get(b))) for b in before.bucket_ids)
        return cls(batch + 1, None, {b: pointer for b, pointer in found if pointer is not None})

    def check_not_begun(self, spark: SparkCheckpoint) -> None:
        """InvalidArgumentError if a micro-batch has run, or runs, with the new buckets."""
        committed = spark.check_batch(None)
        if committed >= self.first_batch:
            raise InvalidArgumentError(
                f"micro-batch {committed} was committed with {self.buckets or 'new'} buckets, so "
                "the original state lacks it; rescale to the former number instead"
            )
        begun = spark.begun()[-1]
        if begun >= self.first_batch:
            raise InvalidArgumentError(
                f"micro-batch {begun} of {spark.location} is running with {self.buckets or 'new'} "
                "buckets, or was interrupted; let the query finish it (start it with "
                "trigger(availableNow=True)), stop it, and rescale to the former number instead"
            )

    def check_is_there(self, place: StatePlace) -> None:
        """InvalidArgumentError if something of the original state is gone."""
        there = set(place.buckets())
        for bucket, pointer in self.original.items():
            if bucket not in there or lacks_files(place, bucket, pointer):
                raise InvalidArgumentError(
                    f"the original state was deleted: bucket {bucket} of {place.where}, or some "
                    "of its files, are gone; rescale to the former number instead"
                )


def _stop(home: QueryHome, version: int, work: RescaleWork, is_stopped: bool) -> None:
    """Keep the query from beginning a micro-batch with these settings. The first check does not
    disturb a running query; the second one counts."""
    try:
        replaced = _Replaced.by(home, version)
        _check_original(home, version, replaced)
        if not is_stopped:
            work.begin({_TAKEN_BACK: version})
        _check_original(home, version, replaced)
        check_newest(home, version)
        if home.work(version + 1).exists():
            raise unfinished(home)
    except (InvalidArgumentError, CorruptionError):
        work.end()
        raise


def _check_original(home: QueryHome, version: int, replaced: _Replaced) -> None:
    """InvalidArgumentError if there is no way back to the original state. A finished drop has
    removed buckets, so its note is looked for before them."""
    replaced.check_not_begun(home.spark)
    if is_there(home.place, _drop_name(version)):
        raise InvalidArgumentError(
            f"the original state in {home.place.where} is being deleted; finish that by lsmstate "
            "rescale CHECKPOINT --drop-original"
        )
    replaced.check_is_there(home.place)


def _check_unmoved(home: QueryHome, batch_id: int) -> None:
    begun = home.spark.begun()[-1]
    if begun != batch_id:
        raise InvalidArgumentError(
            f"the query is running: it began micro-batch {begun} while its state after micro-batch "
            f"{batch_id} was rewritten; stop it and try again"
        )


def check_newest(home: QueryHome, version: int) -> None:
    """InvalidArgumentError if another call has changed which settings count, or is about to. It is
    checked once this call owns the work, because its buckets may be those of a rescale that has
    just ended."""
    if home.newest_version() != version:
        raise _done_meanwhile(home)


def check_base(home: QueryHome, version: int) -> None:
    """The check before a rescale builds upon these settings: they are the newest, and are not being
    undone."""
    check_newest(home, version)
    if version > 1 and is_switching(home.place, version):
        raise unfinished(home)


def unfinished(home: QueryHome) -> InvalidArgumentError:
    """The error for what cannot be done while a rescale is not finished."""
    return InvalidArgumentError(
        f"a rescale of {home.place.where} is not finished; first finish it, or give it up by "
        "lsmstate rescale CHECKPOINT --undo"
    )


def _done_meanwhile(home: QueryHome) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"another rescale of {home.place.where} ended meanwhile; look at its result by lsmstate "
        "state, and try again"
    )
