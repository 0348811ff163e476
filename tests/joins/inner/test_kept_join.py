"""A join that is kept in a directory goes on as the join that it was, on the same kind of store."""

import itertools
from datetime import datetime

import pyarrow as pa
import pytest

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.join import MultiwayJoin
from lsmstate.joins.recorded_join import FILE_NAME
from support.grouped import grouped

BACKENDS = ["lsm", "memory", "rocksdb"]
ROWS = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("at", pa.timestamp("us"))])
ROW = pa.record_batch([[1], [2], [datetime(2026, 1, 1)]], schema=ROWS)
CHANGES = {"emit": "changes"}
LEFT = "a LEFT JOIN b ON a.k = b.k"
TIMED = {"event_time": {"a": "at", "b": "at"}}
NEAR = "a.k = b.k AND b.at <= a.at + INTERVAL 1 HOUR AND b.at >= a.at"


def join(path, on, backend="lsm", **options):
    return MultiwayJoin(
        dict.fromkeys("ab", ROWS), on, **grouped(state_dir=str(path), backend=backend, **options)
    )


def kept(path, on, backend="lsm", **options):
    """A state with a row of the first stream."""
    with join(path, on, backend, **options) as made:
        list(made.process("a", ROW))
        made.commit()
    return files_in(path)


def files_in(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("on", "options", "other", "other_options", "words"),
    [
        (
            "a.k = b.k",
            {},
            "a.j = b.j",
            {},
            r"keys: \['a.k = b.k'\], and this join has .*'a.j = b.j'",
        ),
        (
            "a.k = b.k",
            {},
            LEFT,
            CHANGES,
            "joins: inner, emit: append, and this join has joins: a LEFT JOIN",
        ),
        (LEFT, CHANGES, LEFT.replace("LEFT", "FULL"), CHANGES, "joins: a LEFT JOIN b ON"),
        (
            LEFT,
            CHANGES,
            LEFT,
            CHANGES | {"changes": {"b": "op"}},
            r"changelogs: \[\], and this join",
        ),
        (
            f"{LEFT} AND a.j <= b.j",
            CHANGES,
            f"{LEFT} AND a.j >= b.j",
            CHANGES,
            "joins: .*a.j <= b.j, and this join",
        ),
        (
            NEAR,
            TIMED,
            NEAR.replace(">= a.at", "> a.at"),
            TIMED,
            r"intervals: \['a.at <= b.at'.*, and this join has",
        ),
        (
            f"a LEFT JOIN b ON {NEAR}",
            TIMED | {"emit": "final"},
            f"a LEFT JOIN b ON {NEAR} AND a.j = 2",
            TIMED | {"emit": "final"},
            "joins: .*this join has joins: .* AND a.j = 2",
        ),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_another_join_is_refused_before_anything_is_changed(
    tmp_path, backend, on, options, other, other_options, words
):
    """On a state by other keys, or of other partners, results would be missed in silence."""
    files = kept(tmp_path, on, backend, **options)
    streams = dict.fromkeys("ab", ROWS)
    if "changes" in other_options:
        streams["b"] = ROWS.append(pa.field("op", pa.string()))
    with pytest.raises(InvalidArgumentError, match=f"{FILE_NAME}: .*{words}.*another directory"):
        MultiwayJoin(
            streams, other, **grouped(state_dir=str(tmp_path), backend=backend, **other_options)
        )
    assert files == files_in(tmp_path)
    with join(tmp_path, on, backend, **options) as same:
        assert sum(piece.num_rows for piece in same.process("b", ROW)) in (1, 2)


def test_the_same_join_in_other_words_goes_on(tmp_path):
    kept(tmp_path, "a.k = b.k AND b.j = a.j")
    with join(tmp_path, {"b": ["j", "k"], "a": ["j", "k"]}) as same:
        assert sum(piece.num_rows for piece in same.process("b", ROW)) == 1


def test_a_directory_without_a_state_takes_any_join(tmp_path):
    """One of hash tables has a state when it is committed."""
    join(tmp_path, "a.k = b.k", "memory").close()
    kept(tmp_path, "a.j = b.j", "memory")
    with pytest.raises(InvalidArgumentError, match="and this join has"):
        join(tmp_path, "a.k = b.k", "memory")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_does_not_say_of_which_join_it_is_becomes_that_of_the_first(tmp_path, backend):
    """Older releases wrote no such file."""
    kept(tmp_path, "a.k = b.k", backend)
    (tmp_path / FILE_NAME).unlink()
    kept(tmp_path, "a.k = b.k", backend)
    with pytest.raises(InvalidArgumentError, match="and this join has"):
        join(tmp_path, "a.j = b.j", backend)


def test_a_torn_file_counts_for_none_and_a_damaged_one_is_an_error(tmp_path):
    kept(tmp_path, "a.k = b.k")
    file = tmp_path / FILE_NAME
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    kept(tmp_path, "a.k = b.k")
    assert file.read_bytes() == whole
    file.write_bytes(whole.replace(b"a.k", b"a.j"))
    with pytest.raises(CorruptionError, match=r"join\.json.*checksum is wrong"):
        join(tmp_path, "a.k = b.k")


@pytest.mark.parametrize(("made", "asked"), list(itertools.permutations(BACKENDS, 2)))
def test_another_backend_is_refused_before_anything_is_changed(tmp_path, made, asked):
    """It would begin with nothing beside what is there."""
    files = kept(tmp_path, "a.k = b.k", made, algorithm="tree")
    words = f"backend={asked!r}: {tmp_path} holds a state of backend={made!r}"
    for options in ({}, {"algorithm": "tree"}, {"algorithm": "tree", "order": "best"}):
        with pytest.raises(InvalidArgumentError, match=words):
            join(tmp_path, "a.k = b.k", asked, **options)
    assert files == files_in(tmp_path)
