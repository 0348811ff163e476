"""Ad impressions with the clicks that followed within an hour: an interval join that forgets.

python examples/ad_impressions.py

The interval says how long rows are needed. What no row to come can match is forgotten as time goes
on, so the state has the last hour in it, however long the program runs.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lsmstate.join import MultiwayJoin, State, Time

AT = pa.timestamp("us")
STREAMS = {
    "i": pa.schema([("ad", pa.int64()), ("seen", AT), ("site", pa.string())]),
    "c": pa.schema([("clicked_ad", pa.int64()), ("clicked", AT)]),
}
ON = "i.ad = c.clicked_ad AND c.clicked BETWEEN i.seen AND i.seen + INTERVAL 1 HOUR"
#: How much later than others a row may come.
DELAY = timedelta(minutes=5)

Rows = list[dict[str, Any]]


def matched(batches: Iterable[tuple[str, Rows]]) -> tuple[pa.Table, int, int]:
    """The clicks with their impressions, how many rows came too late, and bytes left on disk."""
    time = Time(event_time={"i": "seen", "c": "clicked"})
    with MultiwayJoin(STREAMS, ON, time=time, state=State(memory="16m")) as join:
        found = [join.output_schema.empty_table()]
        newest = dict.fromkeys(STREAMS, datetime.min)
        for name, rows in batches:
            found.append(join.process(name, rows).to_table())
            column = time.event_time[name] if time.event_time else ""
            newest[name] = max([newest[name], *(row[column] for row in rows)])
            if min(newest.values()) > datetime.min:
                join.advance(min(newest.values()) - DELAY).close()
        return pa.concat_tables(found), join.late_count, join.stats().disk_bytes


def main() -> None:
    noon = datetime(2026, 1, 1, 12)
    batches: list[tuple[str, Rows]] = []
    for hour in range(24):
        start = noon + timedelta(hours=hour)
        seen = [{"ad": n, "seen": start + timedelta(minutes=n), "site": f"s{n}"} for n in range(9)]
        clicks = [{"clicked_ad": n, "clicked": start + timedelta(minutes=n + 2)} for n in (3, 5)]
        batches += [("i", seen), ("c", clicks)]
    found, late, _ = matched(batches)
    print(found.num_rows, "clicks of", 24 * 9, "impressions;", late, "rows came too late")


if __name__ == "__main__":
    main()
