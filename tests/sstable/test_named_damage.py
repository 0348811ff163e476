"""Behind right checksums: what makes no sense is an error that names the file; names that are not
those of a store's files are no files of it."""

import dataclasses
import os

import msgpack
import pytest

import lsmstate
from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.lsm.checksummed_text import seal_text
from lsmstate.lsm.file_names import parse_attempt_file, parse_numbered
from lsmstate.lsm.manifest import pack_edit, parse_pointer, unpack_edit
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.wal_records import HEAD, Records, framed
from lsmstate.options import MIB, Options
from lsmstate.tools.inspection import find_states
from lsmstate.tools.repair import repair
from lsmstate.tools.verify import verify
from support.changelog_cases import UNSYNCED, all_ids, killed, logs, manifests, opened
from support.sample_streams import STREAMS, customers, keys_of, returns


def made(directory, *numbers):
    with opened(directory, UNSYNCED) as store:
        for number in numbers:
            store.append("customers", customers(number), keys_of(number))


def as_sealed(record_of, log):
    """Change the payloads of a log, and seal each anew."""
    data = log.read_bytes()
    records = Records(lambda offset, size: data[offset : offset + size], len(data))
    changed, offset = data[:8], 8
    while (found := records.whole(offset)) is not None:
        payload, offset = found
        changed += b"".join(framed([record_of(payload)], len(changed), 0))
    log.write_bytes(changed)


@pytest.mark.parametrize("text", [b"nonsense", b"run-0000000001.sst:5:xyz", b"\xff\xfe:1:"])
def test_a_manifest_that_names_no_commit(tmp_path, text):
    made(tmp_path, 1)
    manifest = manifests(tmp_path)[-1]
    manifest.write_bytes(seal_text(text))
    with pytest.raises(CorruptionError, match=f"{manifest.name} at offset 0: it names no"):
        opened(tmp_path)
    with pytest.raises(CorruptionError, match=f"{manifest.name} at offset 0: the MANIFEST is"):
        find_states(str(tmp_path))


def test_an_edit_whose_numbers_are_none(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        pointer = parse_pointer(store.commit())
    edit = find_states(str(tmp_path))[0].found.edit
    (run,) = edit.version.runs
    for wrong in ({"size": 1 << 63}, {"rows": 1 << 64}, {"uid": -1}):
        file = run.files[0]._replace(name="run-0000000077.sst", **wrong)
        version = dataclasses.replace(edit.version, runs=(dataclasses.replace(run, files=(file,)),))
        try:
            packed = pack_edit(dataclasses.replace(edit, version=version), {})
        except OverflowError:
            continue  # msgpack has no such number
        with pytest.raises(CorruptionError, match="here at offset 0: the manifest does not make"):
            unpack_edit(packed, pointer, {}, "here")


@pytest.mark.parametrize("field", ["base", "parent"])
def test_an_edit_that_builds_upon_no_pointer(tmp_path, field):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        pointer = parse_pointer(store.commit())
    edit = find_states(str(tmp_path))[0].found.edit
    packed = msgpack.packb({**msgpack.unpackb(pack_edit(edit, {})), field: "nonsense"})
    with pytest.raises(CorruptionError, match=r"here at offset 0: .*nonsense"):
        unpack_edit(packed, pointer, {}, "here")


def test_a_logged_row_of_another_schema(tmp_path):
    left = tmp_path / "left"
    with opened(tmp_path / "alive", UNSYNCED) as store:
        store.append("customers", customers(1), keys_of(1))
        start = logs(tmp_path / "alive")[0].stat().st_size
        store.append("returns", returns(2), keys_of(2))
        killed(tmp_path / "alive", left)
    (log,) = logs(left)

    def to_stream(number):
        def changed(payload):
            kind, stream, sequence = HEAD.unpack_from(payload)
            return HEAD.pack(kind, number if stream else 0, sequence) + payload[HEAD.size :]

        return changed

    as_sealed(to_stream(0), log)
    with pytest.raises(CorruptionError, match=f"{log.name} at offset {start}: .*'customers'"):
        opened(left)
    data = log.read_bytes()
    log.write_bytes(data[:start])
    assert all_ids(left, options=UNSYNCED) == [1]


def test_a_logged_write_of_no_stream(tmp_path):
    made(tmp_path, 1)
    (log,) = logs(tmp_path)
    as_sealed(lambda payload: payload[:1] + b"\x09\x00" + payload[3:], log)
    with pytest.raises(CorruptionError, match=f"{log.name} at offset 8: .*stream number 9"):
        opened(tmp_path)


def test_text_that_a_writer_gave_is_given_back(tmp_path):
    """Nobody looks at it when it is stored either: a store must open with what it acknowledged."""
    made(tmp_path, 1)
    (log,) = logs(tmp_path)
    as_sealed(lambda payload: payload.replace(b"n1", b"\xff1"), log)
    with opened(tmp_path) as store:
        (piece,) = store.scan("customers")
        assert piece.column("name").cast("binary").to_pylist() == [b"\xff1"]


def test_a_gap_between_logs_names_the_record_behind_it(tmp_path):
    for number in range(3):
        made(tmp_path, 2 * number, 2 * number + 1)
    _, second, third = logs(tmp_path)
    second.unlink()
    with pytest.raises(CorruptionError, match=f"{third.name} at offset 8: write 3 is in no"):
        opened(tmp_path)


def test_half_a_write_whose_rest_is_in_no_log_names_the_commit(tmp_path):
    small = Options(memory_bytes=5 * MIB, memtable_bytes=256 << 10, background=False, sync="never")
    with opened(tmp_path, small) as store:
        rows = customers(*range(900), name="w" * 1000)
        store.append("customers", rows, keys_of(*range(900)))
    for log in logs(tmp_path):
        log.unlink()
    with pytest.raises(
        CorruptionError, match=r"run-\d{10}.sst at offset 0: .*part of write [0-9]+,"
    ):
        opened(tmp_path, small)


def test_without_a_manifest_a_file_that_is_there_is_named(tmp_path):
    made(tmp_path, 1, 2)
    first, manifest = manifests(tmp_path)
    first.unlink()
    manifest.write_bytes(manifest.read_bytes()[:9])
    with pytest.raises(CorruptionError, match=f"{manifest.name} at offset 9: no complete MANIFEST"):
        opened(tmp_path)
    manifest.unlink()
    with pytest.raises(
        CorruptionError, match=f"{logs(tmp_path)[-1].name} at offset 0: no complete"
    ):
        opened(tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        lambda path: LsmStore.open_attempt(
            path, STREAMS, pointer="x", batch_id=1, attempt_id="a", options=Options()
        ),
        lambda path: LsmStore.open_commit(path, "x", options=Options()),
        lambda path: find_states(path, "x"),
        lambda path: repair(path, path + "-new", "x"),
        lambda path: lsmstate.export(path, path + "-new", pointer="x"),
    ],
)
def test_a_pointer_of_the_callers_that_is_none(tmp_path, call):
    bucket = str(tmp_path / "bucket")
    options = Options(memory_bytes=16 * MIB)
    with LsmStore.open_attempt(
        bucket, STREAMS, batch_id=0, attempt_id="a", options=options
    ) as store:
        store.append("customers", customers(1), keys_of(1))
        store.commit()
    with pytest.raises(InvalidArgumentError, match="'x' is not a commit pointer; give one"):
        call(bucket)


def test_only_the_names_a_store_gives_are_its_files(tmp_path):
    made(tmp_path, 1)
    with opened(tmp_path) as store:
        store.append("customers", customers(2), keys_of(2))
    others = [
        "changelog-0000000099.bak",
        "changelog-abc",
        "changelog-99",
        "MANIFEST-00000000000000000099",
        "MANIFEST-0000000099.bak",
        "MANIFEST-0000000099.sst",
        "CHECKPOINT-000000000000099",
        "run-0000000099",
        "run-00000000000099.sst",
        "commit-0000000001-a-00001.sst",
    ]
    for name in others:
        assert parse_numbered(name) is None
        assert parse_attempt_file(name) is None
        (tmp_path / name).write_bytes(b"mine")
    assert all_ids(tmp_path) == [1, 2]
    assert set(others) <= set(os.listdir(tmp_path))
    assert parse_numbered("MANIFEST-10000000000") == ("MANIFEST", 10**10)


def test_logs_are_replayed_by_number(tmp_path):
    """Names of more than ten digits sort before those of ten."""
    made(tmp_path, 1)
    made(tmp_path, 2)
    first, second = logs(tmp_path)
    second.rename(tmp_path / "changelog-10000000000")
    assert first.name > "changelog-10000000000" or first.name < "changelog-1"
    first.rename(tmp_path / "changelog-9999999999")
    assert all_ids(tmp_path, options=UNSYNCED) == [1, 2]


def test_a_damaged_header_is_found_by_verify_and_made_anew_by_repair(tmp_path):
    """No read looks at it, so a store goes on with it."""
    with opened(tmp_path / "store") as store:
        store.append("customers", customers(1, 2), keys_of(1, 2))
        pointer = parse_pointer(store.commit())
    path = tmp_path / "store" / pointer.name
    data = path.read_bytes()
    (state,) = find_states(str(tmp_path / "store"))
    assert _damage(state) == {}
    for place in range(16):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert f"{path.name} at offset 0: the header is damaged" in _damage(state)[path.name]
    report = repair(str(tmp_path / "store"), str(tmp_path / "new"))
    assert (report.losses, report.rebuilt_files, report.rows) == ((), 1, 2)
    (state,) = find_states(str(tmp_path / "new"))
    assert _damage(state) == {}
    assert all_ids(tmp_path / "store") == [1, 2]


def _damage(state):
    return {found.file: found.damage for found in verify(state) if found.damage}
