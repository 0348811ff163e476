"""Documents for benchmarks: like those of NoBench, and like log records.

- NoBench-like: five attributes that all documents have, and ten of a thousand that few have.
- Log-like: eight attributes that a part of the documents has, users by a Zipf distribution.
"""

from typing import Any

import numpy as np

Document = dict[str, Any]


def nobench(count: int, seed: int = 7) -> list[Document]:
    """Documents like those of NoBench."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        document: Document = {
            "bool": bool(rng.integers(2)),
            "thousandth": int(rng.integers(1000)),
            "str1": f"text {rng.integers(20)}",
            "nested_obj": {"num": int(rng.integers(10))},
            "dyn1": int(rng.integers(5)),
        }
        group = int(rng.integers(100))
        for number in range(10):
            document[f"sparse_{group * 10 + number:03d}"] = int(rng.integers(10))
        found.append(document)
    return found


def log(count: int, seed: int = 7) -> list[Document]:
    """Documents like log records."""
    rng = np.random.default_rng(seed)
    odds = 1 / np.arange(1, 3001)
    users = rng.choice(3000, count, p=odds / odds.sum())
    coverage = {
        "User": 0.85, "MsgId": 0.80, "Severity": 0.9, "IP": 0.6,
        "File": 0.4, "Server": 0.7, "Action": 0.5, "Session": 0.3,
    }  # fmt: skip
    has = {name: rng.random(count) < odd for name, odd in coverage.items()}
    values = {
        "User": users,
        "MsgId": rng.integers(0, 500, count),
        "Severity": rng.choice(4, count, p=[0.7, 0.2, 0.08, 0.02]),
        "IP": users * 7 + rng.integers(0, 3, count),
        "File": rng.integers(0, 5000, count),
        "Server": rng.integers(0, 5, count),
        "Action": rng.integers(0, 12, count),
        "Session": users * 100 + rng.integers(0, 20, count),
    }
    return [
        {name: int(values[name][at]) for name in coverage if has[name][at]} or {"Severity": 0}
        for at in range(count)
    ]


DATA = {"nobench": nobench, "log": log}
