"""States written by each released format version must open for ever, with the same rows.

``PYTHONPATH=.:tests python tests/sstable/test_format.py 1`` writes the golden state of format
version 1, once; what is in the repository is never written anew. ``... 1 copies`` adds a store with
a checkpoint, and exports, to one that has none; ``... 1 deleted`` states whose edits are of format
2: deleted ranges and retractions, in runs and in the changelog. From version 2 on there are
``packed`` states, whose rows of one width are packed as planes; from version 4 on ``zoned`` ones,
whose row blocks have zones.
"""

import datetime
import decimal
import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from support.model import ModelStore
from support.paths import DATA

VERSIONS = sorted(path.name for path in DATA.glob("format-*"))
ROWS = 400

KEY = pa.schema([("id", pa.int64()), ("name", pa.string())])
COLUMNS = pa.schema(
    [
        ("number", pa.int32()),
        ("amount", pa.decimal128(7, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("text", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64()), ("y", pa.bool_())])),
    ]
)


def streams():
    from lsmstate.store import StreamSchema

    return [StreamSchema("left", KEY, COLUMNS), StreamSchema("right", KEY, COLUMNS)]


def row(i):
    if i % 17 == 0:
        return dict.fromkeys(COLUMNS.names)
    return {
        "number": i,
        "amount": decimal.Decimal(i * 37 % 99999) / 100,
        "day": datetime.date(2020, 1, 1) + datetime.timedelta(days=i),
        "at": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=i),
        "text": f"text \0 of {i} é",
        "tags": [f"t{j}" if j != 1 else None for j in range(i % 4)],
        "place": {"x": i / 3, "y": i % 2 == 0} if i % 5 else None,
    }


def key(i):
    return {"id": i % 50 - 25, "name": f"name-{i % 3}"}


def batches(offset):
    for start in range(0, ROWS, 80):
        numbers = range(start + offset, start + offset + 80)
        yield (
            pa.RecordBatch.from_pylist([row(i) for i in numbers], schema=COLUMNS),
            pa.RecordBatch.from_pylist([key(i) for i in numbers], schema=KEY),
        )


def write_copies(directory):
    """A store with a checkpoint after three of its five parts, and exports: of that checkpoint, and
    of the attempts' state."""
    import lsmstate
    from lsmstate.lsm.store import LsmStore

    options = lsmstate.Options(memory_bytes=8 << 20, block_bytes=1024, compression="zstd")
    source = str(directory / "checkpointed")
    with LsmStore.open(source, streams(), options=options) as store:
        for number, (left, right) in enumerate(zip(batches(0), batches(1000), strict=True)):
            fill(store, number, left, right)
            if number == 2:
                store.checkpoint("three")
        store.commit()
    Path(source, "LOCK").unlink()
    lsmstate.export(source, directory / "exports", checkpoint="three")
    pointer = json.loads((directory / "pointer.json").read_text())["attempts"]
    attempts = str(directory / "attempts")
    lsmstate.export(attempts, directory / "exports", name="attempts", pointer=pointer)


def expected(offset, rows=ROWS):
    """Rows by key, in arrival order; the keys of id 3 were deleted half-way."""
    found = {}
    for i in range(offset, offset + rows):
        if i == offset + ROWS - 80:
            found = {k: rows for k, rows in found.items() if k[0] != 3}
        found.setdefault(tuple(key(i).values()), []).append(row(i))
    return found


def write(directory):
    """The state: an attempts' directory with several commits, and a standalone store that was
    left with writes in its changelog."""
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import Options

    options = Options(memory_bytes=8 << 20, block_bytes=1024, compression="zstd")
    (directory / "attempts").mkdir(parents=True)
    pointer = None
    for number, (left, right) in enumerate(zip(batches(0), batches(1000), strict=True)):
        store = LsmStore.open_attempt(
            str(directory / "attempts"),
            streams(),
            pointer=pointer,
            batch_id=number,
            attempt_id="golden",
            options=options,
        )
        fill(store, number, left, right)
        pointer = store.commit()
        store.close()
    (directory / "pointer.json").write_text(json.dumps({"attempts": pointer}) + "\n")
    store = LsmStore.open(str(directory / "store"), streams(), options=options)
    for number, (left, right) in enumerate(zip(batches(0), batches(1000), strict=True)):
        fill(store, number, left, right)
        if number == 2:
            store.commit()
    store.close()


def fill(store, number, left, right):
    if number == 4:
        gone = [key(i) for i in range(150) if key(i)["id"] == 3]
        for name in ("left", "right"):
            store.delete(name, pa.RecordBatch.from_pylist(gone, schema=KEY))
    store.append("left", *left)
    store.append("right", *right)


def deleting(number, left):
    """Writes of each kind, made as one. Some of the rows that are taken back come later."""
    from lsmstate.store import KeyBounds, Mutation

    rows, keys = left
    later, later_keys = [*batches(0)][(number + 1) % 5]
    return [
        Mutation("append", "left", keys, rows),
        Mutation("retract", "left", keys.slice(3, 30), rows.slice(3, 30)),
        Mutation("retract", "left", later_keys.slice(50, 9), later.slice(50, 9)),
        Mutation("delete_range", "left", KeyBounds((number - 20,), (number - 15, "name-1"))),
        Mutation("put", "right", keys.slice(0, 40), rows.slice(0, 40)),
        Mutation("delete_range", "right", KeyBounds(prefix=(number,))),
        Mutation("delete", "right", keys.slice(60)),
    ]


def write_deleted(directory):
    """As ``write``, with writes of every kind."""
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import Options

    options = Options(memory_bytes=8 << 20, block_bytes=1024, compression="zstd")
    (directory / "deleted" / "attempts").mkdir(parents=True)
    pointer = None
    for number, left in enumerate(batches(0)):
        with LsmStore.open_attempt(
            str(directory / "deleted" / "attempts"),
            streams(),
            pointer=pointer,
            batch_id=number,
            attempt_id="golden",
            options=options,
        ) as store:
            store.write(deleting(number, left))
            pointer = store.commit()
    (directory / "deleted" / "pointer.json").write_text(json.dumps({"attempts": pointer}) + "\n")
    with LsmStore.open(str(directory / "deleted" / "store"), streams(), options=options) as store:
        for number, left in enumerate(batches(0)):
            store.write(deleting(number, left))
            if number == 2:
                store.commit()
    (directory / "deleted" / "store" / "LOCK").unlink()


NUMBERS = pa.schema(list(COLUMNS)[:4])


def packed_streams():
    from lsmstate.store import StreamSchema

    return [StreamSchema("left", KEY, NUMBERS)]


def write_packed(directory):
    """An attempts' state of rows that all have one width, in blocks of few and of many rows."""
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import KIB, Options

    (directory / "packed" / "attempts").mkdir(parents=True)
    pointer = None
    for number, (rows, keys) in enumerate(batches(0)):
        with LsmStore.open_attempt(
            str(directory / "packed" / "attempts"),
            packed_streams(),
            pointer=pointer,
            batch_id=number,
            attempt_id="golden",
            options=Options(memory_bytes=8 << 20, block_bytes=(1 + number) * KIB),
        ) as store:
            store.append("left", rows.select(NUMBERS.names), keys)
            pointer = store.commit()
    (directory / "packed" / "pointer.json").write_text(json.dumps({"attempts": pointer}) + "\n")


def expected_packed():
    found = {}
    for i in range(ROWS):
        numbers = {name: row(i)[name] for name in NUMBERS.names}
        found.setdefault(tuple(key(i).values()), []).append(numbers)
    return {"left": found}


def zoned_streams():
    from lsmstate.store import StreamSchema

    return [StreamSchema(one.name, KEY, COLUMNS, zones=("at", "number")) for one in streams()]


def write_zoned(directory):
    """A standalone store in whose files one stream has zones, and the other has none."""
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import Options

    options = Options(memory_bytes=8 << 20, block_bytes=1024)
    opened = [zoned_streams()[0], streams()[1]]
    with LsmStore.open(str(directory / "zoned"), opened, options=options) as store:
        for number, (left, right) in enumerate(zip(batches(0), batches(1000), strict=True)):
            fill(store, number, left, right)
            store.flush()
        store.commit()
    (directory / "zoned" / "LOCK").unlink()


def in_zone(store, number):
    """The numbers of all rows that are given where one is asked for, and the blocks spared."""
    from lsmstate.store import RangeBounds

    bounds = RangeBounds(low=[-(2**63)], zones={"number": ([number], [number])})
    found = []
    for piece in store.probe_ranges("left", bounds):
        found += piece.rows.column("number").to_pylist()
    return found, store.stats().probes.blocks_spared


def expected_deleted():
    """By stream and key, what those writes left."""
    model = ModelStore(["left", "right"])
    for number, left in enumerate(batches(0)):
        for kind, stream, keys, rows in deleting(number, left):
            if kind == "delete_range":
                model.delete_range(stream, *keys)
                continue
            key_values = [tuple(one.values()) for one in keys.to_pylist()]
            if kind == "delete":
                model.delete(stream, key_values)
            else:
                getattr(model, kind)(stream, rows.to_pylist(), key_values)
    return {
        name: {key: rows for key, rows in found.items() if rows}
        for name, found in model.streams.items()
    }


def check(store, rows=ROWS):
    check_holds(store, {"left": expected(0, rows), "right": expected(1000, rows)})


def check_holds(store, wanted):
    store.check()
    for name, want in wanted.items():
        keys = [{"id": k[0], "name": k[1]} for k in want]
        probe = store.probe(name, pa.RecordBatch.from_pylist(keys, schema=KEY))
        assert probe.counts.tolist() == [len(rows) for rows in want.values()]
        found = {}
        for match in probe.fetch(probe.counts.nonzero()[0], 1 << 16):
            for position, one in zip(match.positions.tolist(), match.rows.to_pylist(), strict=True):
                found.setdefault(tuple(keys[position].values()), []).append(one)
        assert found == want
        assert sum(piece.num_rows for piece in store.scan(name)) == sum(map(len, want.values()))


def test_there_is_a_golden_state_of_the_present_version(tmp_path):
    write(tmp_path)
    for sealed in tmp_path.rglob("*.sst"):
        version = int.from_bytes(sealed.read_bytes()[8:12], "little")
        assert f"format-{version}" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_attempts_of_every_version_open(version):
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import Options

    pointer = json.loads((DATA / version / "pointer.json").read_text())["attempts"]
    store = LsmStore.open_attempt(
        str(DATA / version / "attempts"),
        streams(),
        pointer=pointer,
        batch_id=99,
        attempt_id="reader",
        options=Options(),
    )
    try:
        check(store)
    finally:
        store.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_standalone_stores_of_every_version_open_and_go_on(version, tmp_path):
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import Options

    shutil.copytree(DATA / version / "store", tmp_path / "store")
    for _ in range(2):
        store = LsmStore.open(str(tmp_path / "store"), streams(), options=Options())
        check(store)
        store.commit()
        store.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_checkpoints_of_every_version_open_and_are_kept(version, tmp_path):
    import lsmstate
    from lsmstate.lsm.store import LsmStore

    source = str(tmp_path / "store")
    shutil.copytree(DATA / version / "checkpointed", source)
    with LsmStore.open(source, streams(), options=lsmstate.Options()) as store:
        check(store)
        store.delete("left", next(batches(0))[1])
        store.commit()
        with lsmstate.open_checkpoint(source, "three", options=lsmstate.Options()) as reader:
            check(reader, rows=240)


@pytest.mark.parametrize("version", VERSIONS)
def test_exports_of_every_version_are_restored(version, tmp_path):
    import lsmstate
    from lsmstate.lsm.store import LsmStore

    exports = DATA / version / "exports"
    assert [each.name for each in lsmstate.list_exports(exports)] == ["three", "attempts"]
    lsmstate.restore(exports, str(tmp_path / "store"), name="three")
    with LsmStore.open(str(tmp_path / "store"), streams(), options=lsmstate.Options()) as store:
        check(store, rows=240)
    restored = lsmstate.restore(exports, str(tmp_path / "attempts"))
    with LsmStore.open_attempt(
        str(tmp_path / "attempts"),
        streams(),
        pointer=restored.pointer,
        batch_id=99,
        attempt_id="reader",
        options=lsmstate.Options(),
    ) as store:
        check(store)


@pytest.mark.parametrize("version", VERSIONS)
def test_deleted_ranges_and_retractions_of_every_version(version, tmp_path):
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import Options

    source = DATA / version / "deleted"
    wanted = expected_deleted()
    assert all(len(found) > 30 for found in wanted.values())
    with LsmStore.open_attempt(
        str(source / "attempts"),
        streams(),
        pointer=json.loads((source / "pointer.json").read_text())["attempts"],
        batch_id=99,
        attempt_id="reader",
        options=Options(),
    ) as store:
        assert any(len(run.deleted) for run in store._runs.version.runs)
        check_holds(store, wanted)
    shutil.copytree(source / "store", tmp_path / "store")
    for merged in range(2):
        with LsmStore.open(str(tmp_path / "store"), streams(), options=Options(fanout=2)) as store:
            check_holds(store, wanted)
            store.compact()
            assert merged == 0 or len(store._runs.version.runs) == 1


@pytest.mark.parametrize("version", [each for each in VERSIONS if each != "format-1"])
def test_packed_rows_of_every_version(version):
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import Options
    from support.row_blocks import PLANES, row_codecs

    source = DATA / version / "packed"
    files = [*(source / "attempts").glob("*.sst")]
    assert len(files) > 4
    assert all(row_codecs(file) == {PLANES} for file in files)
    with LsmStore.open_attempt(
        str(source / "attempts"),
        packed_streams(),
        pointer=json.loads((source / "pointer.json").read_text())["attempts"],
        batch_id=99,
        attempt_id="reader",
        options=Options(),
    ) as store:
        check_holds(store, expected_packed())


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_every_version_are_asked_for_zones(version):
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import Options

    pointer = json.loads((DATA / version / "pointer.json").read_text())["attempts"]
    with LsmStore.open_attempt(
        str(DATA / version / "attempts"),
        zoned_streams(),
        pointer=pointer,
        batch_id=99,
        attempt_id="reader",
        options=Options(),
    ) as store:
        found, spared = in_zone(store, 55)
        assert (len(found), spared) == (sum(map(len, expected(0).values())), 0)


@pytest.mark.parametrize("version", [each for each in VERSIONS if each > "format-3"])
def test_zones_of_every_version(version, tmp_path):
    from lsmstate.lsm.store import LsmStore
    from lsmstate.options import Options

    shutil.copytree(DATA / version / "zoned", tmp_path / "store")
    with LsmStore.open(str(tmp_path / "store"), zoned_streams(), options=Options()) as store:
        check(store)
        found, spared = in_zone(store, 55)
        assert 55 in found
        assert len(found) < 100
        assert spared > 30


if __name__ == "__main__":
    target = DATA / f"format-{sys.argv[1]}"
    if sys.argv[2:] == ["copies"]:
        if (target / "checkpointed").exists():
            sys.exit(f"{target} has copies; they are never written anew")
        write_copies(target)
        sys.exit()
    if sys.argv[2:] == ["deleted"]:
        if (target / "deleted").exists():
            sys.exit(f"{target} has deletions; they are never written anew")
        write_deleted(target)
        sys.exit()
    if target.exists():
        sys.exit(f"{target} exists; a golden state is never written anew")
    write(target)
    write_copies(target)
    write_deleted(target)
    write_packed(target)
    write_zoned(target)
