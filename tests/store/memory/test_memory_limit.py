"""Resident memory under a cap, scenario by scenario of bench/store/memory_limit.py: small ones
here, full size in `make stress`."""

import json
import subprocess
import sys

import pytest

from lsmstate.options import MIB, parse_bytes
from support.paths import ROOT

#: In small, nothing but what a process takes by itself comes to the cap.
SMALL_ALLOWANCE = 24 * MIB


def grown(scenario, cap, scale):
    """Peak growth in bytes over the idle process, and what came out."""
    command = [
        sys.executable,
        "-m",
        "bench.store.memory_limit",
        "--child",
        scenario,
        cap,
        "--scale",
        str(scale),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return found["growth"], found["outcome"]


@pytest.mark.parametrize(
    "scenario",
    [
        "random_keys",
        *(
            pytest.param(scenario, marks=pytest.mark.stress)
            for scenario in ("one_hot_key", "many_streams", "many_stores", "long_readers")
        ),
    ],
)
def test_a_state_of_twice_the_cap(scenario):
    growth, outcome = grown(scenario, "16m", 0.08)
    assert outcome == "right"
    assert growth < 16 * MIB + SMALL_ALLOWANCE


@pytest.mark.stress
def test_huge_rows_fit():
    growth, outcome = grown("huge_rows", "64m", 0.08)
    assert outcome == "right"
    assert growth < 128 * MIB


def test_huge_rows_are_refused():
    growth, outcome = grown("huge_rows", "16m", 0.08)
    assert outcome.startswith("refused: a row of 100000")
    assert growth < 16 * MIB + SMALL_ALLOWANCE


@pytest.mark.stress
@pytest.mark.parametrize("cap", ["16m", "64m", "256m"])
@pytest.mark.parametrize(
    "scenario",
    [
        *("one_hot_key", "huge_rows", "random_keys", "many_streams", "many_stores"),
        *("long_readers", "huge_ranges", "huge_results"),
    ],
)
def test_full_size(scenario, cap):
    growth, outcome = grown(scenario, cap, 1)
    is_refused = scenario == "huge_rows" and cap == "16m"
    assert outcome.startswith("refused: a row" if is_refused else "right")
    assert growth < parse_bytes(cap) + 64 * MIB
