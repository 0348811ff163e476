"""Where all rows match all, results come in bounded pieces, and memory stays under the cap."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lsmstate.options import MIB
from support.paths import ROOT

#: Beside the cap: pieces of results, and what Arrow and NumPy keep for later.
ALLOWANCE = 40 * MIB

PROGRAM = """
import json, resource, sys
import numpy as np, pyarrow as pa
from lsmstate.join import MultiwayJoin, State, Time, asof_join

what, home = sys.argv[1:]
state = State(memory="16m", state_dir=home)
rows = 3000 if what != "as of" else 200_000
text = pa.array(["x" * 200] * rows)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def stream(name): return pa.schema([(f"{name}n", pa.int64()), (f"{name}t", pa.string())])
def table(name): return pa.table([np.arange(rows), text], names=[f"{name}n", f"{name}t"])
a, b = table("a"), table("b")
sides = {"a": stream("a"), "b": stream("b")}
warm = MultiwayJoin(sides, "a.an < b.bn", state=State(memory="16m"))
warm.process("a", a.slice(0, 5)).close(); warm.process("b", b.slice(0, 5)).count(); warm.close()
before, found, largest = peak(), 0, 0
def read(results):
    global found, largest
    for piece in results:
        found += piece.num_rows
        largest = max(largest, piece.nbytes)
if what == "as of":
    stamps = lambda t, n: t.append_column(n, pa.array(np.arange(rows) // 1000, pa.timestamp("s")))
    a, b = stamps(a, "aat"), stamps(b, "bat")
    join = asof_join({"a": a.schema, "b": b.schema}, "a.aat >= b.bat", how="left", state=state)
    import datetime
    for name, rest in (("b", b), ("a", a)):
        for at in range(0, rows, 10_000): read(join.process(name, rest.slice(at, 10_000)))
    read(join.advance(datetime.datetime(2100, 1, 1)))
else:
    on = {"product": "TRUE", "range": "a.an >= 0 AND b.bn >= a.an - 100000",
          "outer": "a FULL JOIN b ON b.bn >= a.an - 100000"}[what]
    options = {"emit": "changes"} if what == "outer" else {}
    join = MultiwayJoin(sides, on, state=state, **options)
    read(join.process("a", a)); read(join.process("b", b))
join.close()
print(json.dumps([found, largest, peak() - before]))
"""


@pytest.mark.stress
@pytest.mark.parametrize(
    ("what", "results"),
    [
        ("product", 3000 * 3000),
        ("range", 3000 * 3000),
        ("outer", 3000 * 3000 + 2 * 3000),
        ("as of", 200_000),
    ],
)
def test_results_come_in_bounded_pieces_under_the_cap(
    what: str, results: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", PROGRAM, what, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, largest, growth = json.loads(done.stdout.splitlines()[-1])
    assert found == results
    assert largest <= 2 * MIB
    assert growth < 16 * MIB + ALLOWANCE
