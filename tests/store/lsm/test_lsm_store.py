"""LsmStore: handing over by commits, files left behind, damage, options."""

import dataclasses
import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import (
    CorruptionError,
    InvalidArgumentError,
    LsmStateError,
    MemoryLimitError,
)
from lsmstate.lsm.manifest import parse_pointer
from lsmstate.lsm.recovery import needed_files
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.table_cache import table_cache
from lsmstate.options import KIB, MIB, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import StreamSchema
from support.faults import Faults, faults
from support.resealing import blocks_of
from support.sample_streams import STREAMS, customers, fetched, ids, keys_of, returns, scanned

TINY = Options(memory_bytes=8 * MIB, memtable_bytes=256 * KIB, file_bytes=64 * KIB)


def attempt(directory, pointer=None, number=0, options=TINY):
    return LsmStore.open_attempt(
        str(directory), STREAMS, pointer=pointer, batch_id=number, attempt_id="a", options=options
    )


def wide(start, count=300):
    numbers = range(start, start + count)
    return customers(*numbers, name="w" * 900), keys_of(*[n % 400 for n in numbers])


def needed(store):
    """Names of the files the commit of a store needs, those of a merge under way too."""
    runs, tables = store._runs, table_cache(process_memory())
    return {file.name for file in needed_files(tables, store._directory, runs.pointer)}


def forget_open_files():
    """As another process would find them."""
    memory = process_memory()
    table_cache(memory)._tables.clear()
    memory.cache.clear()


def test_a_thousand_tiny_commits(tmp_path):
    """Each attempt begins where the one before ended; few runs are left at any time."""
    pointer = None
    options = Options(memory_bytes=8 * MIB, fanout=4, max_runs=6)
    for number in range(1000):
        with attempt(tmp_path, pointer, number, options) as store:
            store.append("customers", customers(number), keys_of(number % 50))
            pointer = store.commit()
            assert store.stats().counters["runs"] <= options.max_runs + 1
            if number % 250 == 249:
                store.check()
    with attempt(tmp_path, pointer, 1000, options) as store:
        probe = store.probe("customers", keys_of(*range(50)))
        assert probe.counts.tolist() == [20] * 50
        found = fetched(probe, np.arange(50))
        assert all(ids(found[k]) == list(range(k, 1000, 50)) for k in range(50))


def test_what_an_attempt_merged_away_is_removed_and_nothing_older(tmp_path):
    pointers, files = [None], []
    for number in range(5):
        before = set(os.listdir(tmp_path))
        with attempt(tmp_path, pointers[-1], number) as store:
            for start in range(0, 2400, 300):
                store.append("customers", *wide(10_000 * number + start))
            pointers.append(store.commit())
            assert store.stats().counters["merges"] > 0
            files.append(needed(store))
        after = set(os.listdir(tmp_path))
        assert before <= after
        assert after - before <= files[-1]
    forget_open_files()
    for pointer, each, number in zip(pointers[1:], files, range(5), strict=True):
        assert each <= set(os.listdir(tmp_path))
        with attempt(tmp_path, pointer, 9) as store:
            assert len(scanned(store, "customers")) == 2400 * (number + 1)


def test_an_attempt_closed_without_a_commit_leaves_nothing(tmp_path):
    with attempt(tmp_path) as store:
        for start in range(0, 3000, 300):
            store.append("customers", *wide(start))
        assert os.listdir(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_manifest_of_many_files_builds_upon_a_base(tmp_path):
    """Beyond 64 files an edit names unchanged runs by number; old pointers keep opening."""
    pointer, states, sizes = None, [], []
    chance = random.Random(2)
    for number in range(8):
        with attempt(tmp_path, pointer, number) as store:
            for start in range(0, 9000 if number == 0 else 300, 300):
                rows = customers(
                    *range(10_000 * number + start, 10_000 * number + start + 300),
                    name="".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=900)),
                )
                keys = [chance.randrange(10**9) for _ in range(300)]
                store.append("customers", rows, keys_of(*keys))
            pointer = store.commit()
            edit_of = store._runs
            sizes.append((len(edit_of.version.files), edit_of._base.name))
        states.append((pointer, 9000 + 300 * number))
    assert max(files for files, _ in sizes) > 64
    assert any(
        base != parse_pointer(p).name for (_, base), (p, _) in zip(sizes, states, strict=True)
    )
    forget_open_files()
    for old, count in random.Random(1).sample(states, len(states)):
        with attempt(tmp_path, old, 99) as store:
            assert len(scanned(store, "customers")) == count
            store._runs.version.check()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_base_with_another_text_of_the_schemas_is_built_upon_no_more(
    tmp_path, monkeypatch, number
):
    """The same columns, promised to hold no nulls or not, or written by another release of Arrow:
    the digest of an edit is that of its base's text."""
    monkeypatch.setattr(
        "lsmstate.lsm.version_set.changes_base", lambda version, base_runs: not base_runs
    )
    promised = tuple(
        StreamSchema(s.name, s.key, pa.schema([f.with_nullable(f.name != "id") for f in s.rows]))
        for s in STREAMS
    )
    pointer, built_upon = None, []
    for turn in range(4):
        streams = promised if turn == number else STREAMS
        with LsmStore.open_attempt(
            str(tmp_path), streams, pointer=pointer, batch_id=turn, attempt_id="a", options=TINY
        ) as store:
            rows = customers(turn).cast(streams[0].rows)
            store.append("customers", rows, keys_of(turn))
            pointer = store.commit()
            built_upon.append(store._runs._base.name != parse_pointer(pointer).name)
        forget_open_files()
    with attempt(tmp_path, pointer, 9) as store:
        assert [row["id"] for row in scanned(store, "customers")] == [0, 1, 2, 3]
    # Complete where the text is another one than before.
    assert built_upon == [turn not in (0, number, number + 1) for turn in range(4)]


@pytest.mark.parametrize(
    "lie",
    [
        "",
        ":",
        "::",
        "x:1:0",
        "../x:1:0",
        ".:1:0",
        "a:b:c",
        "a:1",
        "{name}:{size}",
        "a\0b:1:0000000000000000",
        "{name}:99999999999999999999:{footer}",
        "{name}:-1:{footer}",
        "{name}:{size}:-1",
        "{name}:{size}:0000000000000000",
        "{name}:1:{footer}",
        "{other}:{size}:{footer}",
        "nowhere-0.sst:{size}:{footer}",
        "{name}:{size}:{footer}:",
        "{name}:{size}:{footer}ffff",
        "{run}",
        "x" * 5000 + ":1:0000000000000000",
        "/etc/passwd:1:0000000000000000",
    ],
)
def test_pointers_that_lie_are_errors(tmp_path, lie):
    with attempt(tmp_path) as store:
        for start in range(0, 900, 300):
            store.append("customers", *wide(start))
        pointer = store.commit()
        run = store._runs.version.files[0]
    with attempt(tmp_path, pointer, 1) as store:
        store.append("customers", customers(1), keys_of(1))
        other = parse_pointer(store.commit()).name
    name, size, footer = pointer.split(":")
    text = lie.format(
        name=name,
        size=size,
        footer=footer,
        other=other,
        run=f"{run.name}:{run.size}:{run.checksum:016x}",
    )
    # Of another form it is a caller's mistake; a pointer may be right, and the files wrong.
    is_pointer = re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,250}:\d{1,18}:[0-9a-f]{16}", text)
    for _ in range(2):
        with pytest.raises(CorruptionError if is_pointer else InvalidArgumentError):
            attempt(tmp_path, text, 2)
    with attempt(tmp_path, pointer, 3) as store:
        assert len(scanned(store, "customers")) == 900


def test_damage_in_any_file_of_a_store_is_an_error_or_does_not_matter(tmp_path):
    (tmp_path / "good").mkdir()
    with attempt(tmp_path / "good") as store:
        for start in range(0, 900, 300):
            store.append("customers", *wide(start))
        pointer = store.commit()
    chance = random.Random(8)
    wanted = keys_of(*range(0, 500, 7))
    with attempt(tmp_path / "good", pointer, 1) as store:
        right = store.probe("customers", wanted).counts.tolist()
        rows = fetched(store.probe("customers", wanted), np.arange(len(right)))
    errors = []
    for round in range(60):
        directory = tmp_path / str(round)
        shutil.copytree(tmp_path / "good", directory)
        path = directory / chance.choice(sorted(os.listdir(directory)))
        data = bytearray(path.read_bytes())
        if round % 4 == 0:
            data = data[: chance.randrange(len(data))]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        forget_open_files()
        try:
            with attempt(directory, pointer, 1) as store:
                probe = store.probe("customers", wanted)
                assert probe.counts.tolist() == right
                assert fetched(probe, np.arange(len(right))) == rows
                assert len(scanned(store, "customers")) == 900
                store.check()
        except LsmStateError as error:
            errors.append((path.name, str(error)))
    assert all(name in error for name, error in errors)
    assert len(errors) > 50


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with attempt(tmp_path) as store:
        for start in range(0, 900, 300):
            store.append("customers", *wide(start))
        pointer = store.commit()
        gone = store._runs.version.files[0].name
    forget_open_files()
    (tmp_path / gone).unlink()
    with attempt(tmp_path, pointer, 1) as store:
        with pytest.raises(CorruptionError, match=gone):
            store.probe("customers", keys_of(*range(400)))
        with pytest.raises(CorruptionError, match=gone):
            list(store.scan("customers"))


def test_a_hot_key_of_many_segments_through_runs_and_merges(tmp_path):
    """Blocks of 1 KiB: the key spans thousands of row blocks in the merged run."""
    options = Options(
        memory_bytes=8 * MIB,
        block_bytes=1 * KIB,
        fanout=2,
        max_runs=2,
        compression="none",
        bottom_compression="none",
    )
    with attempt(tmp_path, None, 0, options) as store:
        for start in range(0, 6000, 250):
            numbers = range(start, start + 250)
            keys = [5 if n % 10 else 1000 + n for n in numbers]
            store.append("customers", customers(*numbers, name="w" * 900), keys_of(*keys))
        store.flush()
        hot = [n for n in range(6000) if n % 10]
        probe = store.probe("customers", keys_of(5, 4, 5))
        assert probe.counts.tolist() == [5400, 0, 5400]
        found = fetched(probe, np.array([0, 2]), 100_000)
        assert ids(found[0]) == ids(found[2]) == hot
        assert sorted(ids(scanned(store, "customers"))) == list(range(6000))
        store.check()
        store.delete("customers", keys_of(5))
        store.append("customers", customers(7000), keys_of(5))
        store.flush()
        assert ids(fetched(store.probe("customers", keys_of(5)), [0])[0]) == [7000]
        assert sorted(ids(scanned(store, "customers"))) == [*range(0, 6000, 10), 7000]
        store.commit()
        store.check()


def test_an_error_in_the_middle_of_reading_leaves_the_store_usable(tmp_path):
    with attempt(tmp_path) as store:
        for start in range(0, 1800, 300):
            store.append("customers", *wide(start))
        store.flush()
        wanted = keys_of(*range(400))
        for failing in range(0, 40, 3):
            process_memory().cache.clear()
            hook = Faults(failing, operations=("read",))
            with faults(hook):
                try:
                    list(store.probe("customers", wanted).fetch(np.arange(400), 10_000))
                except OSError:
                    assert hook.failed
        assert sum(store.probe("customers", wanted).counts.tolist()) == 1800
        assert len(scanned(store, "customers")) == 1800


def test_options_may_change_between_two_openings(tmp_path):
    pointer = None
    for number, options in enumerate(
        [
            TINY,
            Options(memory_bytes=5 * MIB, block_bytes=1 * KIB, compression="zstd"),
            Options(memory_bytes=16 * MIB, block_bytes=256 * KIB, filter_bits_per_key=0),
            Options(memory_bytes=8 * MIB, fanout=2, max_runs=2, bottom_compression="none"),
        ]
    ):
        with attempt(tmp_path, pointer, number, options) as store:
            store.append("customers", *wide(1000 * number))
            pointer = store.commit()
            assert len(scanned(store, "customers")) == 300 * (number + 1)
            store.check()


def test_an_attempt_id_that_is_no_file_name_is_refused(tmp_path):
    for bad in ("", "a/b", "x" * 200, "ä", "a b"):
        with pytest.raises(InvalidArgumentError, match="attempt_id"):
            LsmStore.open_attempt(str(tmp_path), STREAMS, batch_id=0, attempt_id=bad, options=TINY)


def test_writing_nothing_is_no_write(tmp_path):
    with LsmStore.open(str(tmp_path), STREAMS, options=TINY) as store:
        pointer = store.commit()
        assert store.write([]) == 0
        assert store.commit() == pointer


def test_a_put_is_one_write_of_bounded_size(tmp_path):
    with attempt(tmp_path) as store:
        store.append("customers", *wide(0))
        rows = customers(*range(2000), name="w" * 900)
        with pytest.raises(MemoryLimitError, match="split it"):
            store.put("customers", rows, keys_of(*range(2000)))
        assert len(scanned(store, "customers")) == 300


def test_a_merged_file_of_some_size_ends_with_its_stream(tmp_path):
    plain = dataclasses.replace(TINY, compression="none", bottom_compression="none")
    with LsmStore.open(str(tmp_path), STREAMS, options=plain) as store:
        for start in range(0, 4000, 500):
            numbers = range(start, start + 500)
            store.append("customers", customers(*numbers, name="w" * 50), keys_of(*numbers))
            store.append("returns", returns(*numbers), keys_of(*numbers))
            store.flush()
        store.compact()
        files = [file for run in store._runs.version.runs for file in run.files]
        large = [file for file in files if file.size > 32 * KIB]
        assert len(large) > 2
        assert {file.min_key[:2] for file in large} == {b"\0\0", b"\0\1"}
        assert all(file.min_key[:2] == file.max_key[:2] for file in large)
        assert sorted(ids(scanned(store, "customers"))) == list(range(4000))
        assert sorted(ids(scanned(store, "returns"))) == list(range(4000))


def test_asking_whether_keys_exist_reads_no_row(tmp_path):
    """Of what lies on the disk and in no cache: filters, indexes and key blocks alone."""
    options = Options(memory_bytes=8 << 20, block_bytes=1 << 10)
    with LsmStore.open(str(tmp_path), STREAMS, options=options) as store:
        store.append("customers", customers(*range(3000)), keys_of(*range(3000)))
        store.commit()
        process_memory().cache.clear()
        read = []
        with faults(lambda operation, path, offset, size: read.append((operation, path, offset))):
            found = store.exists("customers", keys_of(*range(0, 6000, 7)))
        assert found.sum() == len(range(0, 3000, 7))
    (path,) = {path for operation, path, _ in read if operation == "read"}
    rows = {offset for offset, _ in blocks_of(Path(path).read_bytes(), "row")}
    assert len(rows) > 50
    assert len(read) > 5
    assert not rows & {offset for _, _, offset in read}
