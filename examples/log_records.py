"""Log records of many shapes that belong together: they agree on all attributes that they share.

python examples/log_records.py

No schema says what a record has. A request, an error and a payment meet by whatever they have in
common: a user, a session, a host. Two shared attributes are asked for here.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from lsmstate.join import NaturalJoin, State

RECORDS = pa.schema([("id", pa.int64()), ("record", pa.string())])
#: What says nothing of what belongs together.
LEFT_OUT = ["time", "level", "kind", "message"]


def related(records: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """The numbers of the records that belong together, as they arrive."""
    with NaturalJoin(
        RECORDS,
        "record",
        id="id",
        output="ids",
        exclude=LEFT_OUT,
        at_least=2,
        state=State(memory="16m"),
    ) as join:
        for number, record in enumerate(records):
            row = {"id": number, "record": json.dumps(record)}
            for pair in join.process("documents", [row]).rows():
                yield pair["first_id"], pair["second_id"]


def main() -> None:
    records: list[dict[str, Any]] = [
        {"kind": "request", "user": 7, "session": "a", "path": "/pay"},
        {"kind": "payment", "user": 7, "session": "a", "euros": 20},
        {"kind": "error", "session": "a", "host": "web-1", "message": "time-out"},
        {"kind": "request", "user": 7, "session": "b", "host": "web-1"},
        {"kind": "error", "user": 7, "session": "a", "host": "web-1"},
    ]
    for first, second in related(records):
        print(records[first]["kind"], first, "-", records[second]["kind"], second)


if __name__ == "__main__":
    main()
