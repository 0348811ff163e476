"""States written by each released format version must open for ever, with the same rows.

``python tests/test_format.py 1`` writes the golden state of format version 1, once; what is in
the repository is never written anew.
"""

import datetime
import decimal
import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest

DATA = Path(__file__).parent / "data"
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


def expected(offset):
    """Rows by key, in arrival order; the keys of id 3 were deleted half-way."""
    found = {}
    for i in range(offset, offset + ROWS):
        if i == offset + ROWS - 80:
            found = {k: rows for k, rows in found.items() if k[0] != 3}
        found.setdefault(tuple(key(i).values()), []).append(row(i))
    return found


def write(directory):
    """The state: an attempts' directory with several commits, and a standalone store that was
    left with writes in its changelog."""
    from lsmstate.lsm_store import LsmStore
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


def check(store):
    store.check()
    for name, offset in (("left", 0), ("right", 1000)):
        want = expected(offset)
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
    from lsmstate.lsm_store import LsmStore
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
    from lsmstate.lsm_store import LsmStore
    from lsmstate.options import Options

    shutil.copytree(DATA / version / "store", tmp_path / "store")
    for _ in range(2):
        store = LsmStore.open(str(tmp_path / "store"), streams(), options=Options())
        check(store)
        store.commit()
        store.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    target = DATA / f"format-{sys.argv[1]}"
    if target.exists():
        sys.exit(f"{target} exists; a golden state is never written anew")
    write(target)
