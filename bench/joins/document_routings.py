"""Routings of documents, counted: copies, loads and new tables, over live windows.

    python -m bench.joins.document_routings [--window 5000] [--windows 4] [--partitions 5 8 10 20]
    python -m bench.joins.document_routings --ideal .02 --data log
    python -m bench.joins.document_routings --theta .6 --windows 9

Each routing is made from the first window, and routes the next ones. Windows of log-like data have
new values. Figures are means over the windows: copies of a document, Gini coefficient of the loads,
largest load as a part of the window; and how many tables were made after the first.

With ``--ideal`` the first window comes again and again, with so large a part of new documents, as
in the paper's section on ideal execution. ``--theta`` is by which part a window may be worse than
its table before another one is made.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from bench.baselines.document_partitions import Table, disjoint_sets, partitions_of, set_cover
from bench.joins.document_data import DATA
from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.joins.document_reading import READING
from lsmstate.joins.routing.documents.association_groups import SAMPLE, values_of
from lsmstate.joins.routing.documents.group_assigner import GroupAssigner
from lsmstate.joins.routing.documents.hypercube import HypercubeRouting
from lsmstate.joins.routing.documents.quality import Quality

Counted = tuple[list[Quality], int]


def hypercube(windows: Sequence[list[str]], partitions: int, theta: float) -> Counted:
    """The grid of the first window."""
    routing = HypercubeRouting.chosen(windows[0], partitions)
    found = []
    for texts in windows[1:]:
        cells = routing.cells(READING.read(pa.array(texts)))
        found.append(Quality.of_cells(cells, partitions))
    return found, 0


def groups(order: str, unknown: str, expands: bool) -> Callable[..., Counted]:
    """Association groups, with the delta rule where unknown values go everywhere."""

    def counted(windows: Sequence[list[str]], partitions: int, theta: float) -> Counted:
        delta = 3 if unknown == "broadcast" else 0
        assigner = GroupAssigner(
            partitions, order=order, unknown=unknown, delta=delta, expands=expands, theta=theta
        )
        found = []
        read = [READING.read(pa.array(texts)) for texts in windows]
        for sample, documents in pairwise(read):
            assigner.begin_window(sample)
            assigner.assign(documents)
            found.append(assigner.end_window())
        return found, assigner.repartitions

    return counted


def baseline(make: Callable[..., Table]) -> Callable[..., Counted]:
    """A table of the first window."""

    def counted(windows: Sequence[list[str]], partitions: int, theta: float) -> Counted:
        read: list[Documents] = [READING.read(pa.array(texts)) for texts in windows]
        table = make(values_of(read[0], None)[0][:SAMPLE], partitions)
        found = []
        for documents in read[1:]:
            loads = np.zeros(partitions, np.int64)
            values, _ = values_of(documents, None)
            for each in values:
                loads[list(partitions_of(table, each, partitions))] += 1
            found.append(Quality.of(loads, len(values)))
        return found, 0

    return counted


ROUTINGS: dict[str, Callable[..., Counted]] = {
    "hypercube": hypercube,
    "groups, desc, hash": groups("desc", "hash", False),
    "groups, desc, broadcast": groups("desc", "broadcast", False),
    "groups, asc, broadcast": groups("asc", "broadcast", False),
    "groups, desc, broadcast, expanded": groups("desc", "broadcast", True),
    "disjoint sets": baseline(disjoint_sets),
    "set cover": baseline(set_cover),
}


def repeated(windows: Sequence[list[str]], part: float) -> list[list[str]]:
    """The first window again and again, with a part of the documents from the others."""
    rng = np.random.default_rng(0)
    found = [windows[0]]
    for window in windows[1:]:
        is_new = rng.random(len(window)) < part
        pairs = zip(windows[0], window, is_new, strict=True)
        found.append([new if taken else old for old, new, taken in pairs])
    return found


def main() -> None:
    """Print a table of Markdown for each data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=int, default=5000)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--partitions", type=int, nargs="+", default=[5, 8, 10, 20])
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--theta", type=float, default=0.2)
    parser.add_argument("--ideal", type=float, help="part of new documents in repeated windows")
    asked = parser.parse_args()
    for data in asked.data:
        texts = [json.dumps(each) for each in DATA[data](asked.window * asked.windows)]
        windows = [texts[at : at + asked.window] for at in range(0, len(texts), asked.window)]
        if asked.ideal is not None:
            windows = repeated(windows, asked.ideal)
        print(f"\n{data}: copies / Gini / largest load / new tables\n")
        print("| Routing | " + " | ".join(f"m = {m}" for m in asked.partitions) + " |")
        print("|---|" + "---|" * len(asked.partitions))
        for name, counted in ROUTINGS.items():
            row = []
            for partitions in asked.partitions:
                found, tables = counted(windows, partitions, asked.theta)
                means = [
                    float(np.mean([getattr(each, field) for each in found]))
                    for field in ("replication", "gini", "largest_load")
                ]
                row.append("{:.2f} / {:.2f} / {:.2f} / {}".format(*means, tables))
            print(f"| {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
