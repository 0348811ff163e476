"""Merging sources: keys ascending, rows from the oldest source on, resets hide what is older."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from lsmstate.cython_ext.iterators.backward_iter import BackwardMemtableSource, BackwardSstSource
from lsmstate.cython_ext.iterators.merging_iter import ChainSource, MergingSource
from lsmstate.cython_ext.sstable.sst_source import SstSource
from lsmstate.errors import CorruptionError
from support.examples import examples
from support.faults import encoded, filled, memory, opened, write_sst

#: Stored with two bytes of the stream in front: around 8 and 16 bytes the comparison changes.
KEYS = st.sampled_from(
    [
        *(b"a", b"b", b"bb", b"bb\0", b"c" * 6, b"c" * 6 + b"\0", b"c" * 14, b"c" * 14 + b"\0"),
        *(b"c" * 15, b"c" * 16, b"c" * 30, b"c" * 31, b"d"),
    ]
)
RANGES = st.tuples(KEYS, KEYS).map(sorted).filter(lambda bounds: bounds[0] < bounds[1])
SOURCE = st.tuples(
    st.dictionaries(KEYS, st.lists(st.binary(max_size=4), min_size=1, max_size=3), max_size=5),
    st.sets(KEYS, max_size=2),
    st.lists(RANGES, max_size=1).map(tuple),
)


def model_of(sources):
    """What merging gives: (key, flags, rows); a key that only was deleted keeps its mark."""
    merged = {}
    for entries, deleted, ranges in sources:
        merged = {k: v for k, v in merged.items() if not any(a <= k < b for a, b in ranges)}
        for key in deleted:
            merged[key] = (1, [])
        for key, rows in entries.items():
            flags, found = merged.get(key, (0, []))
            merged[key] = (flags, found + rows)
    return [(b"\0\0" + k, f, [encoded(r) for r in rows]) for k, (f, rows) in sorted(merged.items())]


@settings(
    max_examples=examples(80),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    sources=st.lists(SOURCE, max_size=11),
    on_disk=st.integers(0, 11),
    start=KEYS,
    inner=st.integers(0, 11),
)
def test_random_sources_equal_the_model(tmp_path, sources, on_disk, start, inner):
    budget, cache = memory()

    def made():
        found = []
        for number, (entries, deleted, ranges) in enumerate(sources):
            table = filled(budget, entries, deleted=tuple(sorted(deleted)), ranges=ranges)
            if number >= on_disk:
                found.append(table.source())
                continue
            path = str(tmp_path / f"{number}-{len(list(tmp_path.iterdir()))}")
            write_sst(path, budget, table.source())
            found.append(
                ChainSource([lambda path=path: SstSource(opened(path, cache))], table.deleted)
            )
        return found

    def nested():
        return MergingSource([MergingSource(made()[:inner]), MergingSource(made()[inner:])])

    def shown(entries):
        """Without keys of which everything lies in a range that was deleted."""
        return [(key, flags, rows) for key, flags, rows in entries if flags or rows]

    expected = model_of(sources)
    assert shown(MergingSource(made()).entries()) == expected
    assert shown(nested().entries()) == expected
    # A writer takes rows straight from the sources that have them.
    path = str(tmp_path / f"merged-{len(list(tmp_path.iterdir()))}")
    write_sst(path, budget, nested())
    assert SstSource(opened(path, cache)).entries() == expected
    first = b"\0\0" + start
    assert shown(MergingSource(made()).entries(first)) == [e for e in expected if e[0] >= first]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_keys_that_begin_alike_for_a_while(tmp_path, seed, backward):
    """Hundreds begin with the same bytes, which are left out of comparisons, until some come
    that have fewer of these, end within them or go on behind them."""
    budget, cache = memory()
    chance = random.Random(seed)
    long = b"customer-0000"
    like = [b"e" * 12 + digit + b"z" * 8 for digit in (b"0", b"1")]  # but for the middle
    huge = [b"f" * 300, b"f" * 250 + b"g" * 70]
    families = [b"", b"cust", long, long + b"0" * 20, long + b"1", *like, *huge, long + b"1" * 8]
    keys = {
        family + chance.randbytes(chance.choice((1, 2, 7, 8, 9, 16, 17, 30)))
        for family in families
        for _ in range(400)
    }
    ends = families[-1]
    keys |= {ends[:size] for size in range(1, len(ends))} | {ends + b"\0" * n for n in range(20)}
    shares = [set(chance.sample(sorted(keys), len(keys) // 3)) for _ in range(5)]
    tables = [
        filled(budget, {key: [b"%d" % number] for key in share})
        for number, share in enumerate(shares)
    ]
    made = [BackwardMemtableSource(t) if backward else t.source() for t in tables[:2]]
    for number, table in enumerate(tables[2:]):
        path = str(tmp_path / str(number))
        write_sst(path, budget, table.source(), block_bytes=256)
        made.append((BackwardSstSource if backward else SstSource)(opened(path, cache)))
    merged = MergingSource(made, reverse=backward)
    expected = [
        (b"\0\0" + key, 0, [encoded(b"%d" % n) for n, share in enumerate(shares) if key in share])
        for key in sorted(set().union(*shares), reverse=backward)
    ]
    assert merged.entries(b"\xff" * 3 if backward else b"") == expected
    # It is sought in again: in front, where keys begin alike, between such families, and behind.
    for bound in (b"", families[3] + b"\x80", long + b"1" * 8 + b"\0", b"e" * 13, huge[0], b"\xff"):
        first = b"\0\0" + bound
        found = merged.entries(first)
        assert found == [e for e in expected if (e[0] < first if backward else e[0] >= first)]


def test_a_merge_to_the_bottom_drops_the_marks(tmp_path):
    budget, cache = memory()
    sources = [({b"a": [b"1"], b"b": [b"2"]}, set()), ({b"b": [b"3"]}, {b"a", b"b", b"z"})]
    made = MergingSource([filled(budget, e, deleted=tuple(sorted(d))).source() for e, d in sources])
    path = str(tmp_path / "bottom")
    write_sst(path, budget, made, bottom=True)
    assert SstSource(opened(path, cache)).entries() == [(b"\0\0b", 0, [encoded(b"3")])]


@pytest.fixture
def chained(tmp_path):
    budget, cache = memory()
    parts = [{b"a": [b"1"], b"c": [b"2"]}, {b"e": [b"3"]}, {b"g": [b"4"], b"i": [b"5"]}]
    for number, entries in enumerate(parts):
        write_sst(str(tmp_path / str(number)), budget, filled(budget, entries).source())

    def chain(*numbers):
        return ChainSource(
            [lambda n=n: SstSource(opened(str(tmp_path / str(n)), cache)) for n in numbers]
        )

    return tmp_path, chain


@pytest.mark.parametrize("start", [b"", b"a", b"b", b"d", b"e", b"f", b"h", b"i", b"j"])
def test_a_chain_of_files_is_one_source(chained, start):
    _, chain = chained
    everything = [
        (b"\0\0" + k, 0, [encoded(v)])
        for k, v in [(b"a", b"1"), (b"c", b"2"), (b"e", b"3"), (b"g", b"4"), (b"i", b"5")]
    ]
    expected = [e for e in everything if e[0][2:] >= start]
    assert chain(0, 1, 2).entries(b"\0\0" + start) == expected
    assert MergingSource([chain(), chain(0, 1, 2), chain()]).entries(b"\0\0" + start) == expected


def test_errors_raise_and_never_look_like_the_end(chained):
    directory, chain = chained
    data = bytearray((directory / "1").read_bytes())
    data[20] ^= 1
    (directory / "1").write_bytes(data)
    with pytest.raises(CorruptionError):
        MergingSource([chain(0, 1, 2)]).entries()
    (directory / "1").unlink()
    with pytest.raises(FileNotFoundError):
        MergingSource([chain(0, 1, 2)]).entries()


def test_a_merge_is_not_gone_on_with_after_an_error(tmp_path):
    """The older source stands at "b" already: another step would take it on, and "b" were lost."""
    budget, _ = memory()
    tables = [filled(budget, dict.fromkeys(keys, (b"row",))) for keys in ((b"a", b"b"), (b"a",))]

    def missing():
        raise FileNotFoundError("gone")

    chain = ChainSource([tables[1].source, missing])
    merged = MergingSource([tables[0].source(), chain])
    with pytest.raises(FileNotFoundError):
        write_sst(str(tmp_path / "1"), budget, merged)
    with pytest.raises(ValueError, match="in which an error was met"):
        write_sst(str(tmp_path / "2"), budget, merged)
    with pytest.raises(FileNotFoundError):
        write_sst(str(tmp_path / "3"), budget, chain)


def test_a_chain_is_sought_in_once(chained):
    _, chain = chained
    source = chain(0, 1)
    source.entries()
    source.entries()  # at its end there is nothing left, which is no error
    begun = MergingSource([chain(0, 1)])
    begun.entries(b"\0\0c")
