"""Clicks with the user as they were at the click: a stream beside a table that changes.

python examples/enrich_clicks.py

The table comes as its changes: a new row of a user counts from its time on. A click gets the newest
row that is not later, whatever arrives first. Clicks of users that are not known keep nulls.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lsmstate.join import State, asof_join

AT = ("at", pa.timestamp("us"))
CLICKS = pa.schema([("user", pa.int64()), AT, ("page", pa.string())])
USERS = pa.schema([("user", pa.int64()), AT, ("plan", pa.string())])
NOON = datetime(2026, 1, 1, 12)


def enriched(
    clicks: list[dict[str, Any]], users: list[dict[str, Any]], until: datetime
) -> Iterator[dict[str, Any]]:
    """Each click with the plan of its user at that time."""
    streams = {"c": CLICKS, "u": USERS}
    state = State(memory="16m")
    with asof_join(streams, "c.at >= u.at", by="user", how="left", state=state) as join:
        join.process("c", clicks).close()
        join.process("u", users).close()  # a change that comes late still counts
        for row in join.advance(until).rows():
            yield {"user": row["c_user"], "page": row["page"], "plan": row["plan"]}


def main() -> None:
    def minute(number: int) -> datetime:
        return NOON + timedelta(minutes=number)

    users = [
        {"user": 1, "at": minute(0), "plan": "free"},
        {"user": 1, "at": minute(10), "plan": "paid"},
    ]
    clicks = [
        {"user": 1, "at": minute(5), "page": "/prices"},
        {"user": 1, "at": minute(15), "page": "/help"},
        {"user": 2, "at": minute(15), "page": "/"},
    ]
    for row in enriched(clicks, users, minute(60)):
        print(row["user"], row["page"], row["plan"])


if __name__ == "__main__":
    main()
