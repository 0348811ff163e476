"""The benchmark's profile: which samples count, and what they are told by."""

import pytest

pytest.importorskip("rocksdict", reason="the optional peer of the benchmark")

from bench.store.cpu_profile import OTHER, Clock, Sample, part_of, samples_of
from support.paths import ROOT

MAIN, WORKER = 70, 71


@pytest.mark.parametrize(
    ("at", "main", "worker"),
    [
        (0.9, False, False),
        (1.5, True, True),
        (2.5, False, True),
        (3.5, True, True),
        (4.1, False, False),
    ],
)
def test_a_sample_counts_where_the_clock_was_on(at, main, worker):
    """The worker's also while the benchmark's own thread makes data."""
    clock = Clock("append", [(1.0, 2.0), (3.0, 4.0)])
    assert clock.counts(Sample(MAIN, at, ""), MAIN) == main
    assert clock.counts(Sample(WORKER, at, ""), MAIN) == worker


def test_samples_of_what_perf_prints():
    text = """\
70/70     12.500000:
\tffffffff81 _copy_to_iter ([kernel.kallsyms])
\tffffffff82 vfs_read ([kernel.kallsyms])
\tffffffff83 __x64_sys_pread64 ([kernel.kallsyms])
\t    7f0001 __libc_pread (/usr/lib/libc.so.6)

70/71     12.600000:
\t    7f0002 __pyx_f_10cython_ext_8btree_find_group (/x/btree.cpython-311-x86_64-linux-gnu.so)

70/71     12.700000:

70/70     12.800000:
\t    7f0003 void arrow::Sum(int, char const*) (/x/libarrow.so.2600)
"""
    found = list(samples_of(iter(text.splitlines(keepends=True))))
    assert [process for process, _ in found] == [MAIN] * 4
    assert [(s.thread, s.at) for _, s in found] == [(70, 12.5), (71, 12.6), (71, 12.7), (70, 12.8)]
    parts = [part_of(sample.place) for _, sample in found]
    assert parts == ["kernel: reading files", "memtable", OTHER, "Arrow"]


def test_every_library_of_ours_is_part_of_something():
    names = {path.stem for path in (ROOT / "cython_ext").rglob("*.pyx")}
    assert names
    rare = {"salvage", "scanner", "sst_check", "msgpack_check", "backward_iter", "interval"}
    missing = {name for name in names if part_of(f"{name} __pyx_f") == OTHER}
    assert missing <= rare, "say which part of the store they are"
