"""Repair: damage each kind of file and block, repair, compare what is left with a model."""

import hashlib
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.sstable.salvage import find_blocks
from lsmstate.errors import CorruptionError, InvalidArgumentError, StoreLockedError
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.wal_records import FRAME
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import Mutation, StreamSchema
from lsmstate.tools.inspection import find_states
from lsmstate.tools.repair import repair

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("n", pa.int64()), ("text", pa.string())])
STREAMS = [StreamSchema("left", KEY, ROWS), StreamSchema("right", KEY, ROWS)]
#: Which files there are is to be the same every time.
OPTIONS = Options(
    memory_bytes=8 * MIB, block_bytes=2 * KIB, file_bytes=64 * KIB, fanout=3, background=False
)
BLOCK_KINDS = {"rows": 1, "keys": 2, "index": 3, "filter": 4, "top": 5, "properties": 6, "edit": 7}


class Work:
    """Appends rows with numbers of their own and remembers what a store must hold."""

    def __init__(self):
        self.live = {}
        self.number = 0

    def append(self, store, stream, count, spread=997):
        numbers = range(self.number, self.number + count)
        self.number += count
        keys = [n * 31 % spread for n in numbers]
        rows = [{"n": n, "text": f"row {n} " * (n % 9)} for n in numbers]
        store.append(
            stream,
            pa.RecordBatch.from_pylist(rows, schema=ROWS),
            pa.record_batch([pa.array(keys, pa.int64())], schema=KEY),
        )
        for n, key in zip(numbers, keys, strict=True):
            self.live[n] = (stream, key)

    def delete(self, store, stream, keys):
        store.delete(stream, pa.record_batch([pa.array(keys, pa.int64())], schema=KEY))
        gone = {(stream, key) for key in keys}
        self.live = {n: place for n, place in self.live.items() if place not in gone}

    def retract(self, store, numbers):
        """Take back rows of "right"; those that are gone already stay retracted in vain."""
        for n in numbers:
            key = n * 31 % 997
            store.retract(
                "right",
                pa.RecordBatch.from_pylist([{"n": n, "text": f"row {n} " * (n % 9)}], schema=ROWS),
                pa.record_batch([pa.array([key], pa.int64())], schema=KEY),
            )
            self.live.pop(n, None)

    def delete_range(self, store, stream, low, high):
        store.delete_range(stream, low=(low,), high=(high,))
        self.live = {
            n: place
            for n, place in self.live.items()
            if place[0] != stream or not low <= place[1] < high
        }


def numbers_in(store):
    """n -> stream, of all rows; a row twice would be noticed."""
    found = {}
    for stream in ("left", "right"):
        for piece in store.scan(stream):
            for row in piece.to_pylist():
                assert row["n"] not in found
                assert row["text"] == f"row {row['n']} " * (row["n"] % 9)
                found[row["n"]] = stream
    return found


def expected(work):
    return {n: stream for n, (stream, _) in work.live.items()}


def fingerprint(directory):
    return {
        path.relative_to(directory): (
            hashlib.sha256(path.read_bytes()).digest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A standalone store with merged and unmerged runs, deletions and logged writes."""
    directory = tmp_path_factory.mktemp("made") / "store"
    work = Work()
    with LsmStore.open(str(directory), STREAMS, options=OPTIONS) as store:
        for _ in range(5):
            work.append(store, "left", 2000)
            work.append(store, "right", 1000)
            store.commit()
        store.compact()
        work.delete_range(store, "right", 100, 120)
        work.append(store, "right", 200)
        work.retract(store, [2001, 2500, 14_900])
        store.commit()
        work.delete(store, "left", list(range(0, 997, 10)))
        for _ in range(2):  # in two commits, so that the largest file stays a merged one
            work.append(store, "left", 1500)
            store.commit()
        for _ in range(6):
            work.append(store, "right", 50)
        work.delete(store, "right", [31])
        work.delete_range(store, "left", 500, 510)
        work.retract(store, [2002])
    return directory, work


@pytest.fixture
def damaged(made, tmp_path):
    """A copy to be damaged, and the model."""
    directory, work = made
    shutil.copytree(directory, tmp_path / "damaged")
    return tmp_path / "damaged", work


def repaired(directory, target):
    """The report and what the new store holds, after every check it knows."""
    before = fingerprint(directory)
    report = repair(str(directory), str(target))
    assert fingerprint(directory) == before, "the original was touched"
    with LsmStore.open(str(target), STREAMS, options=OPTIONS) as store:
        store.check()
        return report, numbers_in(store)


def runs(directory):
    """Its run files: the largest is a merged one, the newest with rows a commit's."""
    return sorted(directory.glob("run-*.sst"), key=lambda path: path.stat().st_size)


def commit_file(directory):
    return directory / find_states(str(directory))[0].pointer.split(":")[0]


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def blocks(path, kind):
    return [(o, s) for o, s, k in find_blocks(path.read_bytes()) if k == BLOCK_KINDS[kind]]


def test_find_blocks_finds_every_block_of_a_whole_file(made):
    path = runs(made[0])[-1]
    found = find_blocks(path.read_bytes())
    ends = [offset + size for offset, size, _ in found]
    assert [offset for offset, _, _ in found] == [16, *ends[:-1]]
    assert ends[-1] == path.stat().st_size - 80
    assert {kind for _, _, kind in found} == set(BLOCK_KINDS.values())


def test_an_undamaged_store_is_copied_whole(damaged, tmp_path):
    directory, work = damaged
    report, found = repaired(directory, tmp_path / "new")
    assert found == expected(work)
    assert (report.losses, report.problems, report.rebuilt_files) == ((), (), 0)
    assert report.logged_writes == 11  # deletions are made among the retractions too
    assert report.copied_files > 2


@pytest.mark.parametrize("kind", ["rows", "keys"])
@pytest.mark.parametrize("part", ["payload", "trailer"])
def test_a_damaged_block_costs_its_rows_and_no_more(damaged, tmp_path, kind, part):
    directory, work = damaged
    path = runs(directory)[-1]
    found_blocks = blocks(path, kind)
    offset, size = found_blocks[len(found_blocks) // 2]
    flip(path, offset + (size // 2 if part == "payload" else size - 14))
    report, found = repaired(directory, tmp_path / "new")
    (loss,) = report.losses
    missing = expected(work).items() - found.items()
    assert (loss.file, report.rebuilt_files) == (path.name, 1)
    assert 0 < loss.rows == report.lost_rows < 1200  # one block's, of 18,000
    # Of the lost rows some may have been deleted since; deletions are not lost.
    assert 0 < len(missing) <= loss.rows
    assert found.items() <= expected(work).items()
    for n, stream in missing:
        key = bytes([0, STREAMS.index(next(s for s in STREAMS if s.name == stream))])
        key += (work.live[n][1] + (1 << 63)).to_bytes(8, "big")
        assert any(
            (part.low is None or part.low <= key) and (part.high is None or key <= part.high)
            for part in loss.ranges
        )


@pytest.mark.parametrize("kind", ["index", "filter", "top", "properties"])
@pytest.mark.parametrize("which", ["merged", "commit"])
def test_what_can_be_made_anew_is_no_loss(damaged, tmp_path, kind, which):
    directory, work = damaged
    path = runs(directory)[-1] if which == "merged" else commit_file(directory)
    offset, size = blocks(path, kind)[0]
    flip(path, offset + size // 2)
    report, found = repaired(directory, tmp_path / "new")
    assert found == expected(work)
    assert report.losses == ()
    assert report.rebuilt_files == 1


@pytest.mark.parametrize(
    ("which", "bytes_lost"),
    [("merged", 1), ("merged", 80), ("merged", 200), ("commit", 1), ("commit", 80)],
)
def test_a_file_without_its_end(damaged, tmp_path, which, bytes_lost):
    directory, work = damaged
    path = runs(directory)[-1] if which == "merged" else commit_file(directory)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - bytes_lost)
    report, found = repaired(directory, tmp_path / "new")
    assert found == expected(work)
    assert report.losses == ()


def test_half_a_file(damaged, tmp_path):
    directory, work = damaged
    path = runs(directory)[-1]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    report, found = repaired(directory, tmp_path / "new")
    (loss,) = report.losses
    missing = len(expected(work)) - len(found)
    assert found.items() <= expected(work).items()
    assert 100 < missing <= loss.rows
    assert loss.ranges[-1].high is None


def test_a_missing_file(damaged, tmp_path):
    directory, work = damaged
    path = runs(directory)[-1]
    (file,) = [
        f for f in find_states(str(directory))[0].found.edit.version.files if f.name == path.name
    ]
    path.unlink()
    report, found = repaired(directory, tmp_path / "new")
    (loss,) = report.losses
    assert (loss.file, loss.what, loss.rows) == (path.name, "is missing", file.rows)
    assert (loss.ranges[0].low, loss.ranges[0].high) == (file.min_key, file.max_key)
    assert found.items() <= expected(work).items()
    assert 0 < len(expected(work)) - len(found) <= file.rows


@pytest.mark.parametrize("how", ["flipped", "torn", "gone"])
def test_a_damaged_manifest(damaged, tmp_path, how):
    directory, work = damaged
    *before, path = sorted(directory.glob("MANIFEST-*"))
    for older in before:  # that the one which sealed the log replaced
        older.unlink()
    name = commit_file(directory).name
    if how == "flipped":
        flip(path, 3)
    elif how == "torn":
        path.write_bytes(path.read_bytes()[:9])
    else:
        path.unlink()
    report, found = repaired(directory, tmp_path / "new")
    assert found == expected(work)
    assert report.losses == ()
    assert len(report.problems) == 1 + (how != "gone")
    assert f"no MANIFEST names the newest commit, and {name} is" in report.problems[-1]


@pytest.mark.parametrize("how", ["edit", "end", "gone"])
def test_a_commit_that_cannot_be_read(damaged, tmp_path, how):
    """An older commit is taken: the rows that came since are lost, and that is said."""
    directory, work = damaged
    path = commit_file(directory)
    if how == "gone":
        path.unlink()
    elif how == "end":
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 200)
    else:
        (edit,) = blocks(path, "edit")
        flip(path, edit[0] + edit[1] // 2)
    report, found = repaired(directory, tmp_path / "new")
    assert any(path.name in problem for problem in report.problems)
    manifest, changelog = report.losses
    assert manifest.file == path.name
    assert "restore a checkpoint or an export" in manifest.what
    assert "in no write-ahead log" in changelog.what
    missing = expected(work).keys() - found.keys()
    assert 1000 < len(missing) <= 1500
    assert missing <= set(range(16_700, 18_200))
    assert found.items() <= expected(work).items()


@pytest.mark.parametrize("what", ["manifest", "edit"])
def test_files_that_only_a_checkpoint_needs_are_no_part_of_the_state(tmp_path, what):
    """They hold rows that merges have written anew since; taken in, those would be there twice."""
    directory, work = tmp_path / "store", Work()
    with LsmStore.open(str(directory), STREAMS, options=OPTIONS) as store:
        for number in range(7):
            work.append(store, "left", 1500)
            store.checkpoint(f"kept-{number}")
        store.compact()
        work.append(store, "left", 100)
        store.commit()
        kept = {f.name for f in find_states(str(directory))[0].found.edit.version.files}
    assert len(list(directory.glob("run-*.sst"))) > len(kept) + 2
    if what == "manifest":
        flip(max(directory.glob("MANIFEST-*")), 3)
    else:
        path = commit_file(directory)
        (edit,) = blocks(path, "edit")
        flip(path, edit[0] + edit[1] // 2)
    report, found = repaired(directory, tmp_path / "new")
    if what == "manifest":
        assert found == expected(work)
        assert report.losses == ()
    else:  # the newest of those that are left
        assert found == dict.fromkeys(range(7 * 1500), "left")
        assert report.losses[0].file == path.name


def test_a_torn_end_of_the_changelog_is_normal(damaged, tmp_path):
    directory, work = damaged
    path = sorted(directory.glob("changelog-*"))[-1]
    path.write_bytes(path.read_bytes() + b"\x07\x00\x00")
    report, found = repaired(directory, tmp_path / "new")
    assert found == expected(work)
    assert report.losses == ()
    assert "nobody was told of" in report.problems[0]


@pytest.mark.parametrize("place", ["payload", "length", "first"])
def test_a_damaged_changelog_record_costs_its_write(damaged, tmp_path, place):
    directory, work = damaged
    path = sorted(directory.glob("changelog-*"))[-1]
    size = path.stat().st_size
    # Six appends of about one size and a small delete, whose length check would pass if guessed.
    record = int.from_bytes(path.read_bytes()[8:12], "little") + FRAME.size
    flip(path, {"payload": 8 + record + record // 2, "length": 8 + record, "first": 8 + 40}[place])
    assert path.stat().st_size == size
    report, found = repaired(directory, tmp_path / "new")
    gap, missing_writes = report.losses
    assert gap.file == path.name
    assert "damaged" in gap.what
    assert "in no write-ahead log" in missing_writes.what
    assert report.lost_rows is None
    assert report.logged_writes == 10
    lost = expected(work).keys() - found.keys()
    first = 18_200 if place == "first" else 18_250
    assert lost <= set(range(first, first + 50))
    assert 40 < len(lost) <= 50
    assert found.keys() <= expected(work).keys()


def test_writes_that_were_logged_as_one_are_saved_behind_a_gap(damaged, tmp_path):
    directory, work = damaged
    with LsmStore.open(str(directory), STREAMS, options=OPTIONS) as store:
        keys = pa.record_batch([pa.array([-1, -2], pa.int64())], schema=KEY)
        rows = [{"n": n, "text": f"row {n} " * (n % 9)} for n in (90_000, 90_001)]
        batch = pa.RecordBatch.from_pylist(rows, schema=ROWS)
        store.append("right", batch, keys)
        store.write([Mutation("append", "left", keys, batch), Mutation("delete", "right", keys)])
    (path,) = directory.glob("changelog-*")
    flip(path, 8 + 40)  # the append before
    report, found = repaired(directory, tmp_path / "new")
    assert report.logged_writes == 3
    assert "damaged" in report.losses[0].what
    assert found == {**expected(work), 90_000: "left", 90_001: "left"}


def stored_key(stream, key):
    """With the stream's number in front."""
    (encoded,) = KeyCodec(KEY).encode(pa.record_batch([pa.array([key])], schema=KEY)).to_pylist()
    return ["left", "right"].index(stream).to_bytes(2, "big") + encoded


def is_within(key, ranges):
    return any(
        (part.low is None or part.low <= key) and (part.high is None or key <= part.high)
        for part in ranges
    )


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(3, 12))]
)
def test_bytes_flipped_anywhere(damaged, tmp_path, seed):
    """Whatever is hit: nothing false is saved, and what is missing is reported."""
    import random

    directory, work = damaged
    random_ = random.Random(seed)
    files = [p for p in sorted(directory.iterdir()) if p.name != "LOCK"]
    for path in random_.sample(files, min(2, len(files))):
        for _ in range(3):
            flip(path, random_.randrange(path.stat().st_size))
    report, found = repaired(directory, tmp_path / "new")
    missing = expected(work).keys() - found.keys()
    if missing:
        assert report.losses or report.problems
        if report.lost_rows is not None:
            assert len(missing) <= report.lost_rows
        if not report.problems and all(loss.ranges for loss in report.losses):
            ranges = [part for loss in report.losses for part in loss.ranges]
            assert all(is_within(stored_key(*work.live[n]), ranges) for n in missing)
    # A lost deletion lets rows come back; nothing else may be there that should not be.
    surplus = found.keys() - expected(work).keys()
    assert not surplus or any(loss.deletions for loss in report.losses)


@pytest.fixture
def bucket(tmp_path):
    """An attempts' directory with three commits; the rows of each."""
    directory = tmp_path / "bucket"
    directory.mkdir()
    work, pointer, states = Work(), None, []
    for batch in range(3):
        store = LsmStore.open_attempt(
            str(directory),
            STREAMS,
            pointer=pointer,
            batch_id=batch,
            attempt_id="a",
            options=OPTIONS,
        )
        work.append(store, "left", 1500)
        pointer = store.commit()
        store.close()
        states.append((pointer, expected(work)))
    return directory, states


def repaired_bucket(directory, target, pointer=None):
    before = fingerprint(directory)
    report = repair(str(directory), str(target), pointer)
    assert fingerprint(directory) == before
    store = LsmStore.open_attempt(
        str(target), STREAMS, pointer=report.pointer, batch_id=9, attempt_id="b", options=OPTIONS
    )
    found = numbers_in(store)
    store.check()
    store.close()
    return report, found


def test_a_bucket_is_repaired_at_its_newest_commit(bucket, tmp_path):
    directory, states = bucket
    report, found = repaired_bucket(directory, tmp_path / "new")
    assert found == states[2][1]
    path = directory / states[1][0].split(":")[0]
    offset, size = blocks(path, "rows")[3]
    flip(path, offset + size // 2)
    report, found = repaired_bucket(directory, tmp_path / "newer")
    (loss,) = report.losses
    assert found.items() <= states[2][1].items()
    assert len(states[2][1]) - len(found) == loss.rows > 0


def test_a_bucket_whose_newest_commit_is_gone_goes_back_to_the_one_before(bucket, tmp_path):
    directory, states = bucket
    newest = directory / states[2][0].split(":")[0]
    (edit,) = blocks(newest, "edit")
    flip(newest, edit[0] + 20)
    report, found = repaired_bucket(directory, tmp_path / "new")
    assert found == states[1][1]
    assert newest.name in report.problems[0]
    _, found = repaired_bucket(directory, tmp_path / "first", states[0][0])
    assert found == states[0][1]


def test_nothing_readable_is_an_error(damaged, tmp_path):
    directory, _ = damaged
    for path in directory.glob("run-*.sst"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptionError, match="no commit can be read"):
        repair(str(directory), str(tmp_path / "new"))


def test_where_it_may_be_repaired(damaged, tmp_path):
    directory, _ = damaged
    with pytest.raises(InvalidArgumentError, match="not empty"):
        repair(str(directory), str(directory))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgumentError, match="holds no store"):
        repair(str(tmp_path / "empty"), str(tmp_path / "new"))
    with (
        LsmStore.open(str(directory), STREAMS, options=OPTIONS),
        pytest.raises(StoreLockedError, match="close it there first"),
    ):
        repair(str(directory), str(tmp_path / "new"))
