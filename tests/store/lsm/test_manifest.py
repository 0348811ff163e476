"""Edits and pointers: what is packed comes back; what does not make sense is CorruptionError."""

import random
from contextlib import suppress

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given, settings

from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.errors import CorruptionError, FormatVersionError, LsmStateError
from lsmstate.lsm.file_names import (
    AttemptFile,
    check_attempt_id,
    numbered,
    parse_attempt_file,
    parse_numbered,
)
from lsmstate.lsm.manifest import (
    SMALL_MANIFEST_FILES,
    Edit,
    Pointer,
    base_in,
    changes_base,
    names_in,
    pack_edit,
    parse_pointer,
    unpack_edit,
)
from lsmstate.lsm.version import FileMeta, Run, Version
from support.examples import examples

RELAXED = settings(max_examples=examples(100), deadline=None, derandomize=True)
U64 = st.integers(0, 2**64 - 1)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,20}", fullmatch=True)
FILES = st.builds(
    FileMeta,
    name=NAMES,
    size=st.integers(0, 2**40),
    checksum=U64,
    uid=U64,
    keys=st.integers(0, 2**40),
    rows=st.integers(0, 2**40),
    tombstones=st.integers(0, 2**40),
    raw_bytes=st.integers(0, 2**50),
    min_key=st.binary(max_size=20),
    max_key=st.binary(max_size=20),
    min_sequence=U64,
    max_sequence=U64,
)
RANGES = st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), max_size=2)


def in_order(files):
    """Files of one run: their keys ascend."""
    bounds = sorted(key for file in files for key in (file.min_key, file.max_key))
    return tuple(
        file._replace(min_key=bytes([i]) + bounds[2 * i], max_key=bytes([i]) + bounds[2 * i + 1])
        for i, file in enumerate(files)
    )


VERSIONS = st.lists(
    st.tuples(st.integers(0, 5), st.lists(FILES, min_size=1, max_size=3), RANGES), max_size=6
).map(
    lambda runs: Version(
        tuple(
            Run(i, level, in_order(files), KeyRanges(deleted))
            for i, (level, files, deleted) in enumerate(runs, 1)
        ),
        9,
        99,
    )
)
OWN = Pointer("own.sst", 12345, 0xABCDEF)


def edit_of(version, base=None):
    return Edit(version, base, 77, "[]" if base is None else "", (8, 3))


def unpacked(data, base_runs=None):
    return unpack_edit(data, OWN, base_runs or {}, "/somewhere/own.sst")


@RELAXED
@given(VERSIONS)
def test_a_complete_edit_comes_back(version):
    assert unpacked(pack_edit(edit_of(version), {})) == edit_of(version)


@RELAXED
@given(VERSIONS, st.data())
def test_an_edit_upon_a_base_comes_back(version, data):
    kept = data.draw(st.sets(st.sampled_from([r.number for r in version.runs] or [0])))
    base_runs = {run.number: run for run in version.runs if run.number in kept}
    edit = edit_of(version, "base.sst:1:0000000000000000")
    packed = pack_edit(edit, base_runs)
    assert unpacked(packed, base_runs) == edit
    assert base_in(packed, "/somewhere/own.sst") == edit.base
    if base_runs:
        with pytest.raises(CorruptionError):
            unpacked(packed, {})


@RELAXED
@given(VERSIONS)
def test_the_names_alone_are_those_of_the_edit(version):
    edit = edit_of(version, base=str(OWN))
    names, base, parent = names_in(pack_edit(edit, {}), "/somewhere/own.sst")
    assert names == {file.name for file in edit.files}
    assert (base, parent) == (edit.base, edit.parent)


def test_names_of_what_makes_no_sense_are_errors():
    for find in (names_in, base_in):
        for data in (b"", b"\x93", msgpack.packb({"format": 1, "runs": [[1, 2]]})):
            with pytest.raises(CorruptionError):
                find(data, "/somewhere/own.sst")
        with pytest.raises(FormatVersionError, match="format 99"):
            find(msgpack.packb({"format": 99}), "/somewhere/own.sst")


def test_a_run_that_changed_under_its_number_is_described_again():
    run = Run(1, 0, (example("a"),))
    changed = Run(1, 0, (example("b"),))
    edit = edit_of(Version((changed,), 2, 2), "base.sst:1:0000000000000000")
    assert unpacked(pack_edit(edit, {1: run}), {1: run}) == edit


def example(name):
    return FileMeta(name, 1, 2, 3, 4, 5, 6, 7, b"a", b"b", 8, 9)


def test_the_commit_s_own_file_is_completed_from_the_pointer():
    version = Version((Run(1, 0, (example("own.sst"),)),), 2, 2)
    (file,) = unpacked(pack_edit(edit_of(version), {})).version.files
    assert (file.size, file.checksum) == (OWN.size, OWN.checksum)


def test_when_the_base_changes():
    def version(count, start=0):
        return Version(tuple(Run(i, 0, (example(f"f{i}"),)) for i in range(start, start + count)))

    many = version(SMALL_MANIFEST_FILES + 40)
    runs = {run.number: run for run in many.runs}
    assert changes_base(version(SMALL_MANIFEST_FILES), runs)
    assert changes_base(many, {})
    assert not changes_base(many, runs)
    assert not changes_base(version(SMALL_MANIFEST_FILES + 60), runs)  # 20 of 124 are new
    assert changes_base(version(SMALL_MANIFEST_FILES + 40, start=60), runs)  # 60 of 104 are


def test_every_damaged_byte_is_an_error_or_another_edit():
    """The block's checksum finds damage; what passes it must still not crash."""
    files = in_order((example("a"), example("c")))
    version = Version((Run(1, 2, files), Run(2, 0, (example("d"),))), 5, 6)
    data = pack_edit(edit_of(version), {})
    for place in range(len(data)):
        for value in (0, 0x7F, 0x80, 0xC0, 0xFF, data[place] ^ 1):
            wrong = data[:place] + bytes([value]) + data[place + 1 :]
            with suppress(CorruptionError, FormatVersionError):
                unpacked(wrong)
        with pytest.raises(CorruptionError):
            unpacked(data[:place])


@RELAXED
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-5, 2**64 - 1)
        | st.text(max_size=5)
        | st.binary(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=10,
    ),
    st.sampled_from(
        [
            "format",
            "base",
            "runs",
            "next_sequence",
            "next_run",
            "schema_digest",
            "schemas",
            "replay_from",
        ]
    ),
)
def test_values_of_other_types_are_errors(value, field):
    found = msgpack.unpackb(pack_edit(edit_of(Version((Run(1, 0, (example("a"),)),), 2, 2)), {}))
    found[field] = value
    with suppress(LsmStateError):
        unpacked(msgpack.packb(found))
    with suppress(LsmStateError):
        unpacked(msgpack.packb(value))


def test_names_that_leave_the_directory_are_refused():
    for name in ("../a", "a/b", ".hidden", "/etc/passwd"):
        version = Version((Run(1, 0, (example(name),)),), 2, 2)
        with pytest.raises(CorruptionError):
            unpacked(pack_edit(edit_of(version), {}))


def test_files_that_make_no_run_are_refused():
    first, second = in_order((example("a"), example("b")))
    wrong = first._replace(max_key=second.min_key)
    for file in (
        wrong,
        first._replace(name="a\0b"),
        first._replace(keys=-1),
        first._replace(rows=True),
        first._replace(min_key="text"),
    ):
        version = Version((Run(1, 0, (file, second)),), 2, 2)
        with pytest.raises(CorruptionError, match="does not make sense"):
            unpacked(pack_edit(edit_of(version), {}))
    for wrong in ({"next_sequence": float("inf")}, {"base": 3}, {"parent": b"a:1:0"}):
        found = msgpack.unpackb(pack_edit(edit_of(Version()), {})) | wrong
        with pytest.raises(CorruptionError, match="does not make sense"):
            unpacked(msgpack.packb(found))
        if "next_sequence" not in wrong:
            with pytest.raises(CorruptionError, match="does not make sense"):
                names_in(msgpack.packb(found), "/somewhere/own.sst")


def test_another_format_is_refused():
    found = msgpack.unpackb(pack_edit(edit_of(Version()), {}))
    found["format"] = 3
    with pytest.raises(FormatVersionError, match="format 3"):
        unpacked(msgpack.packb(found))


@RELAXED
@given(NAMES, st.integers(0, 10**17), U64)
def test_pointers_come_back(name, size, footer):
    pointer = Pointer(name, size, footer)
    if name.startswith("."):
        return
    assert parse_pointer(str(pointer)) == pointer


@RELAXED
@given(st.text(max_size=30))
def test_other_texts_are_no_pointers(text):
    with pytest.raises(CorruptionError):
        parse_pointer(text)


def test_file_names():
    chance = random.Random(1)
    for kind in ("run", "commit"):
        for _ in range(20):
            file = AttemptFile(
                kind,
                chance.randrange(10**10),
                "0_3-a.b-" + chance.randbytes(4).hex(),
                chance.randrange(10**6),
            )
            assert parse_attempt_file(file.name) == file
            assert parse_numbered(file.name) is None
    for kind in ("run", "MANIFEST", "changelog"):
        for number in (0, 7, 10**10 - 1, 10**12):
            assert parse_numbered(numbered(kind, number)) == (kind, number)
            assert parse_attempt_file(numbered(kind, number)) is None
    for name in ("", "LOCK", "run-1.sst", "run-0000000001.sst.tmp", "commit-0000000001-a-1.sst"):
        assert parse_attempt_file(name) is None
        assert parse_numbered(name) is None
    assert check_attempt_id("a.b_c-1") == "a.b_c-1"
