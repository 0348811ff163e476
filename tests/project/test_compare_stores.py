"""The benchmark of stores: a small run of every measure, and its tables."""

from argparse import Namespace

import pytest

pytest.importorskip("rocksdict", reason="the peer of the benchmark")

from bench.store.compare_stores import (
    TABLE,
    by_size,
    check_agreement,
    compare,
    has_figure,
    markdown,
)

SIDES = ["ours", "rocksdict"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    "measure", ["store", *(pytest.param(m, marks=pytest.mark.stress) for m in ("join", "commits"))]
)
def test_a_small_run_of_everything(tmp_path, capsys, measure):
    found = compare(
        Namespace(
            rows=20_000,
            key="int",
            skew="uniform",
            memory="64m",
            on=str(tmp_path),
            timeout=60.0,
            sides=",".join(SIDES),
            measures=measure,
            rounds=1,
            warm_up=0,
        )
    )
    lines = capsys.readouterr().out.splitlines()
    table = {cells(line)[0]: cells(line)[1:] for line in lines if line.startswith("| ")}
    for measured in {measure, "handover"} if measure == "commits" else {measure}:
        for figure, title in TABLE[measured].items():
            if title.startswith("- "):  # there are several of this name
                continue
            if has_figure(found, measured, "ours", figure):
                assert table[title][0], title
            if all(has_figure(found, measured, side, figure) for side in SIDES):
                ratio_of_nothing = found[measured, "ours"][0][figure] == 0
                assert ratio_of_nothing or table[title][2], title
    assert not list(tmp_path.iterdir())


def test_a_figure_that_one_side_lacks():
    runs = {
        ("commits", "ours"): [{"commit_cpu_ms": n, "commit_merged_x": 3} for n in (2.0, 4.0, 3.0)],
        ("commits", "rocksdict"): [{"commit_cpu_ms": n} for n in (12.0, 11.0, 40.0)],
    }
    lines = [cells(line) for line in markdown(runs, SIDES)]
    assert lines[2][1:] == ["3 (2-4)", "12 (11-40)", "4"]
    assert lines[3][1:] == ["3 (3-3)", "", ""]
    larger = {key: [{name: 2 * n for name, n in run.items()} for run in runs[key]] for key in runs}
    lines = [cells(line) for line in by_size({10: runs, 20: larger}, SIDES)]
    assert [line[1:] for line in lines[2:]] == [
        ["ours", "3", "6", "4.5"],
        ["rocksdict", "12", "24", "18"],
        ["rocksdict / ours", "4", "4", "4"],
        ["ours", "3", "6", "4.5"],
    ]


def test_sides_that_found_different_rows_are_no_comparison():
    runs = {
        ("store", "ours"): [{"rows_found": 3, "digest": 1}],
        ("store", "rocksdict"): [{"rows_found": 4, "digest": 1}],
    }
    with pytest.raises(SystemExit, match="store: the sides found different rows"):
        check_agreement(runs)
