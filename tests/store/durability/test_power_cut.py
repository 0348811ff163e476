"""A power cut at any file operation takes what the sync policy says it may, and no more."""

import shutil
from random import Random

import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.options import Options
from support.crash_cases import OPTIONS, SCRIPT, STATES, do, found, opened
from support.faults import Faults, faults, steps_done
from support.power_cut import Disk
from support.sample_streams import customers, keys_of
from support.sampling import some_or_every

#: After how many steps of the script all that was written is committed.
COMMITTED = [i + 1 for i, (what, _) in enumerate(SCRIPT) if what in ("commit", "flush")]


def work(directory, disk, sync):
    """How many steps of the script were acknowledged before the power went, or the disk failed."""
    return steps_done(disk, lambda: opened(directory, sync), do, SCRIPT)


def allowed(done, sync):
    """Always: all that was acknowledged. Commit: that too, back to the last commit at most."""
    first = done
    if sync == "commit":
        first = max((end for end in COMMITTED if end <= done), default=0)
    return STATES[first : done + 2]


@pytest.mark.parametrize("sync", ["always", "commit"])
@some_or_every
def test_a_power_cut_at_any_operation(memory_path, sync, every):
    count = Disk(memory_path / "count")
    assert work(memory_path / "count", count, sync) == len(SCRIPT)
    chance = Random(7)
    shorter = 0
    # Several times each, as what is left is a matter of chance.
    cuts = [*range(count.seen)] * 4 if every else range(1, count.seen, 5)
    for cut in cuts:
        disk = Disk(memory_path / f"{cut}", cut_at=cut)
        done = work(memory_path / f"{cut}", disk, sync)
        left = memory_path / f"{cut}.left"
        disk.after_the_cut(left, chance)
        # The power goes a second time, while the store recovers.
        again = Disk(left, cut_at=chance.randrange(1, 12))
        with faults(again):
            try:
                opened(left, sync).close()
            except OSError:
                again.after_the_cut(memory_path / f"{cut}.twice", chance)
                left = memory_path / f"{cut}.twice"
        with opened(left, sync) as store:
            state = found(store)
            store.check()
            assert state in allowed(done, sync), (cut, done, len(state))
            shorter += state != STATES[done]
            store.append("customers", customers(10_000), keys_of(999))
        with opened(left, sync) as store:
            assert found(store) == [*state, 10_000]
        for path in memory_path.iterdir():
            if path.name != "count":
                shutil.rmtree(path)
    assert shorter > 0  # the disk does forget


def test_a_sync_that_failed_is_not_trusted_afterwards(memory_path):
    """Linux forgets what it could not write: the store that is opened next must not build on it."""
    count = Disk(memory_path / "count")
    assert work(memory_path / "count", count, "always") == len(SCRIPT)
    assert count.syncs > 25
    chance = Random(3)
    for failing in range(count.syncs):
        directory = memory_path / f"{failing}"
        disk = Disk(directory, fail_sync=failing)
        done = work(directory, disk, "always")
        assert done < len(SCRIPT)
        with faults(disk):
            if not directory.exists():
                continue
            store = opened(directory, "always")
            state = found(store)
            assert state in STATES[done : done + 2]
            store.append("customers", customers(10_000), keys_of(999))
            store.append("customers", customers(10_001), keys_of(999))
        disk.after_the_cut(memory_path / f"{failing}.left", chance)
        store.close()
        with opened(memory_path / f"{failing}.left", "always") as store:
            assert found(store) == [*state, 10_000, 10_001], failing
            store.check()
        shutil.rmtree(directory)


def test_never_forces_nothing_and_commit_no_single_write(tmp_path):
    counts = {}
    for sync in ("never", "commit", "always"):
        hook = Faults()
        with faults(hook), opened(tmp_path / sync, sync) as store:
            for step in SCRIPT[:3]:
                do(store, step)
            before = sum(operation == "sync" for operation, _ in hook.seen)
            store.append("customers", customers(1), keys_of(1))
            store.delete("customers", keys_of(1))
            counts[sync] = (before, sum(op == "sync" for op, _ in hook.seen) - before)
    assert counts["never"] == (0, 0)
    assert counts["commit"][0] > 0
    assert counts["commit"][1] == 0
    assert counts["always"][1] == 2


def test_an_unknown_policy_is_refused():
    with pytest.raises(InvalidArgumentError, match="sync=True: choose"):
        Options(sync=True)
    assert Options().sync is None
    assert Options().of_one_process().sync == "commit"
    assert OPTIONS.of_one_process().syncs_commits
