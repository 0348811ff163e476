"""Table files whose blocks say something wrong behind right checksums: bad memory, or a mistake of
ours. Reading them gives an error that names the file, or an answer; never a crash, a hang or
memory without bound. A wrong answer is possible, since nothing says what was right, but as far as
blocks contradict each other ``verify`` finds it, and repair goes on behind it."""

import contextlib
import random
import resource

import numpy as np
import pytest

from lsmstate.cython_ext.iterators.backward_iter import BackwardSstSource
from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.iterators.merging_iter import MergingSource
from lsmstate.cython_ext.iterators.retraction_merge import RetractingSource
from lsmstate.cython_ext.iterators.row_fetch import Cursor
from lsmstate.cython_ext.sstable.salvage import ListedEntries
from lsmstate.cython_ext.sstable.sst_check import layout, verify
from lsmstate.cython_ext.sstable.sst_source import SstSource
from lsmstate.errors import CorruptionError, FormatVersionError
from lsmstate.tools.salvage_table import SalvagedTable
from support.faults import CODEC, filled, key_batch, memory, opened, stored, write_sst
from support.resealing import KINDS, Damage, blocks_of, reseal
from support.sst_reads import probed, scanned

#: What may be changed without a contradiction: the bytes of rows and their numbers, and what is
#: looked at where the manifest names it.
SAYS_WHAT_NOTHING_ELSE_SAYS = ("row", "properties", "edit", "footer")
#: More than reading the files takes.
ROOM_BYTES = 1 << 30


def fixed_rows(chance):
    return {b"%05d" % (3 * i): [chance.randbytes(3) + bytes(21)] * (1 + i % 3) for i in range(90)}


def mixed_rows(chance):
    entries = {
        b"key %03d" % i: [chance.randbytes(i % 40) for _ in range(1 + i % 3)] for i in range(80)
    }
    return entries | {b"large": [b"x" * 3000, b"", b"y" * 10], b"a" * 300: [b"", b""]}


def many_keys(chance):
    """More than one partition."""
    return {b"%06d" % (2 * i): [b"%d" % chance.randrange(9)] for i in range(9000)}


def huge_key(chance):
    """One that spans key blocks."""
    return {b"before": [b"1"], b"hot": [b"%05d" % i * 100 for i in range(2600)], b"later": [b"2"]}


CASES = {
    "fixed-lz4": (fixed_rows, "lz4"),
    "fixed-none": (fixed_rows, "none"),
    "mixed-zstd": (mixed_rows, "zstd"),
    "mixed-none": (mixed_rows, "none"),
}
LARGE_CASES = {"keys-none": (many_keys, "none"), "huge-none": (huge_key, "none")}


def written(path, entries, codec):
    budget, _ = memory()
    write_sst(str(path), budget, filled(budget, entries).source(), codec=codec)
    return path.read_bytes()


@pytest.fixture(autouse=True)
def bounded_memory():
    """An allocation by a wrong length fails."""
    with open("/proc/self/statm") as sizes:
        used = int(sizes.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def answers(path, entries, spared=False):
    """What each way of reading gives: an answer or its error."""
    budget, cache = memory()
    sst = opened(str(path), cache)
    keys = sorted(entries)
    asked = keys if len(keys) < 200 else keys[::100]
    front = b"\0\0" + asked[len(asked) // 2]
    yield "verify", lambda: verify(sst)
    yield "layout", lambda: layout(sst)
    yield "sections", lambda: (sst.section("edit"), sst.section("properties"))
    yield "probe", lambda: looked_up(sst, budget, asked)
    yield "probe of absent keys", lambda: looked_up(sst, budget, [key + b"0" for key in asked])
    yield "forward", lambda: SstSource(sst).entries()
    yield "forward from a key", lambda: SstSource(sst).entries(front)
    yield "backward", lambda: BackwardSstSource(sst).entries(b"\xff\xff")
    yield "backward from a key", lambda: BackwardSstSource(sst).entries(front)
    yield "scan", lambda: scanned(budget, SstSource(sst, True))
    if spared:
        return
    yield "merge", lambda: merged(sst, budget, cache, f"{path}-merged")
    yield (
        "repair",
        lambda: merged(
            ListedEntries(SalvagedTable(str(path)).entries(1)), budget, cache, f"{path}-saved"
        ),
    )


def looked_up(sst, budget, keys):
    """As test_sst.probed, without its assertions: counts, sizes, rows."""
    lookup = Lookup(key_batch(*keys), 0, None, CODEC, budget, 1)
    lookup.search_run([sst])
    counts, sizes = lookup.count()
    cursor = Cursor(lookup, np.arange(len(keys)))
    rows = []
    while (piece := cursor.next_piece(1 << 12)) is not None:
        rows += zip(piece[0].tolist(), piece[1].to_pylist(), strict=True)
    return counts.tolist(), sizes.tolist(), rows


def merged(source, budget, cache, path):
    """The entries of a merge to the bottom, which looks for retractions, after it was written."""
    if not isinstance(source, ListedEntries):
        table = source
        source = RetractingSource(
            MergingSource([SstSource(table)]),
            lambda _: MergingSource([SstSource(table)]),
            1,
            budget,
            1 << 10,
        )
    write_sst(path, budget, source, bottom=True)
    return SstSource(opened(path, cache)).entries()


def read_all(path, entries, right=None, spared=False):
    """(answers, errors) by name. Errors are of the right kind and name the file."""
    found, errors = {}, {}
    try:
        for name, read in answers(path, entries, spared):
            try:
                found[name] = read()
            except (CorruptionError, FormatVersionError) as error:
                errors[name] = error
            for made in ("merged", "saved"):
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(f"{path.name}-{made}").unlink()
    except (CorruptionError, FormatVersionError) as error:
        errors["open"] = error
    for name, error in errors.items():
        if name not in ("merge", "repair") and not str(error).startswith("row "):
            assert str(path) in str(error), (name, error)
            assert not isinstance(error, CorruptionError) or error.offset >= 0
    return found, errors


def check_damages(tmp_path, case, seed, tries):
    make, codec = (CASES | LARGE_CASES)[case]
    entries = make(random.Random(1))
    data = written(tmp_path / "whole", entries, codec)
    spared = case in LARGE_CASES
    right, errors = read_all(tmp_path / "whole", entries, spared=spared)
    assert not errors
    assert right["forward"] == stored(entries)
    damage = Damage(data, f"{case} {seed}")
    path = tmp_path / "sst"
    noticed = 0
    for number in range(tries):
        kind = [*KINDS, "footer"][number % (len(KINDS) + 1)]
        changed, _ = damage.of(kind)
        path.write_bytes(changed)
        found, errors = read_all(path, entries, spared=spared)
        noticed += bool(errors)
        # The manifest, which knows the counts, is held against what verify finds.
        if found.get("verify") == right["verify"] and kind not in SAYS_WHAT_NOTHING_ELSE_SAYS:
            wrong = [name for name in found if name != "verify" and found[name] != right[name]]
            if wrong and not is_another_flag(found["forward"], right["forward"]):
                (tmp_path / "unnoticed").write_bytes(changed)
                pytest.fail(f"{kind} block, try {number}: verify passes, wrong: {wrong}")
    assert noticed > tries // 4


def is_another_flag(found, right):
    """An entry that says that older runs do not count: nothing contradicts it."""
    return [(key, rows) for key, _, rows in found] == [(key, rows) for key, _, rows in right]


@pytest.mark.parametrize("case", CASES)
def test_wrong_content_is_an_error_or_an_answer(tmp_path, case):
    check_damages(tmp_path, case, 0, 160)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("case", CASES)
def test_much_wrong_content(tmp_path, case, seed):
    check_damages(tmp_path, case, seed, 4000)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", LARGE_CASES)
def test_wrong_content_of_larger_files(tmp_path, case):
    check_damages(tmp_path, case, 0, 400)


# By name, what the random ones came upon or might not -----------------------------------------


@pytest.fixture
def small(tmp_path):
    """A file with one block of each kind but the first, uncompressed, and its path."""
    entries = {b"%04d" % (2 * i): [b"%04d" % i] for i in range(40)}
    path = tmp_path / "small"
    return path, bytearray(written(path, entries, "none"))


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_block_does_not_decode_to_more_than_its_codec_can_give(tmp_path, codec):
    """No memory is taken for it."""
    path = tmp_path / "sst"
    entries = {b"%04d" % i: [b"text " * 40] for i in range(40)}
    data = bytearray(written(path, entries, codec))
    for offset, size in blocks_of(data, "row"):
        data[offset + size - 12 : offset + size - 8] = (0x7DFFFFFF).to_bytes(4, "little")
        reseal(data, offset, size)
    path.write_bytes(data)
    budget, cache = memory()
    sst = opened(str(path), cache)
    for read in (SstSource(sst).entries, lambda: probed(budget, [[sst]], sorted(entries))):
        with pytest.raises(CorruptionError, match="row block is damaged") as caught:
            read()
        assert caught.value.offset == 16
    assert budget.peak_bytes < 8 << 20


def replace_key(data, old, new):
    """Write another key of the same size where the first one stands in the key block."""
    (block,) = blocks_of(data, "key")
    place = data.index(old, *(block[0], sum(block)))
    data[place : place + len(old)] = new
    reseal(data, *block)


def test_keys_that_do_not_ascend_are_damage(small):
    path, data = small
    replace_key(data, b"0032", b"9932")  # a restart's, which is whole
    path.write_bytes(data)
    _, cache = memory()
    sst = opened(str(path), cache)
    for read in (
        SstSource(sst).entries,
        lambda: BackwardSstSource(sst).entries(b"\xff\xff"),
        lambda: verify(sst),
    ):
        with pytest.raises(CorruptionError, match=r"(key|filter) block is damaged"):
            read()


def test_a_key_that_does_not_begin_as_those_around_it_is_not_found_as_another(tmp_path):
    """Of keys between two restarts only what is behind their common bytes is compared."""
    path = tmp_path / "sst"
    entries = {b"all of them: %04d" % (2 * i): [b"%d" % i] for i in range(40)}
    data = bytearray(written(path, entries, "none"))
    replace_key(data, b"all of them: 0032", b"All of them: 0032")  # a restart's, which is whole
    path.write_bytes(data)
    budget, cache = memory()
    with pytest.raises(CorruptionError, match="key block is damaged"):
        probed(budget, [[opened(str(path), cache)]], [b"all of them: 0032"])


def test_damage_of_an_index_block_is_named_by_its_offset(small):
    path, data = small
    ((offset, size),) = blocks_of(data, "index")
    place = data.index(b"0078", offset, offset + size)
    data[place : place + 4] = b"0000"  # the last key is not in the only key block then
    reseal(data, offset, size)
    path.write_bytes(data)
    budget, cache = memory()
    with pytest.raises(CorruptionError, match="index block is damaged") as caught:
        probed(budget, [[opened(str(path), cache)]], [b"0000", b"0010"])
    assert caught.value.offset == offset


def test_a_block_that_says_it_is_empty(tmp_path):
    path = tmp_path / "sst"
    entries = {b"%04d" % i: [b"text"] for i in range(400)}
    data = bytearray(written(path, entries, "lz4"))
    for offset, size in blocks_of(data, "row"):
        data[offset + size - 12 : offset + size - 8] = bytes(4)
        reseal(data, offset, size)
    path.write_bytes(data)
    budget, cache = memory()
    sst = opened(str(path), cache)
    for read in (SstSource(sst).entries, lambda: probed(budget, [[sst]], sorted(entries))):
        with pytest.raises(CorruptionError, match="row block is damaged"):
            read()
