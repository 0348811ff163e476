"""Which API calls are about the same things: requests of hundreds of shapes, real JSON.

python examples/api_calls.py [SERVICE ...]

Two calls belong together if their requests share an attribute, and agree on all that they share: an
instance is started and its volume is attached, a bucket is made and an object is put into it. The
requests are the documented ones in the package botocore (``pip install botocore``).
"""

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lsmstate.join import NaturalJoin, State

CALLS = pa.schema([("call", pa.string()), ("request", pa.string())])
#: What says nothing of what a call is about: pages, tests, and texts for people.
LEFT_OUT = [
    *("Limit", "limit", "Marker", "MaxRecords", "MaxResults", "maxResults", "NextToken"),
    *("nextToken", "DryRun", "Description", "description", "ClientToken", "ChangeToken"),
]


def packaged() -> Path:
    """Where the package botocore has its documents."""
    spec = importlib.util.find_spec("botocore")
    if spec is None or spec.origin is None:
        sys.exit("the requests are in the package botocore; run: pip install botocore")
    return Path(spec.origin).parent / "data"


def documented(services: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of calls, and their requests, of some services; of none: of all."""
    for directory in sorted(packaged().iterdir()):
        versions = sorted(directory.glob("*/examples-1.json"))
        if not versions or (services and directory.name not in services):
            continue
        found = json.loads(versions[-1].read_text(encoding="utf-8"))
        for operation, calls in found.get("examples", {}).items():
            for number, call in enumerate(calls):
                if call.get("input"):
                    yield f"{directory.name} {operation} {number}", call["input"]


def related(calls: Sequence[tuple[str, dict[str, Any]]]) -> pa.Table:
    """The pairs of calls that are about the same things."""
    rows = [{"call": name, "request": json.dumps(request)} for name, request in calls]
    with NaturalJoin(
        CALLS,
        "request",
        id="call",
        output="ids",
        exclude=LEFT_OUT,
        state=State(memory="16m"),
    ) as join:
        found = [
            join.process("documents", rows[first : first + 100]).to_table()
            for first in range(0, len(rows), 100)
        ]
    return pa.concat_tables(found)


if __name__ == "__main__":
    every = list(documented(sys.argv[1:]))
    pairs = related(every)
    for pair in pairs.slice(0, 10).to_pylist():
        print(f"{pair['first_call']} - {pair['second_call']}")
    shapes = {tuple(sorted(request)) for _, request in every}
    print(f"{pairs.num_rows} pairs of {len(every)} calls of {len(shapes)} shapes")
