"""Orders with their payments and shipments: outer joins whose results come once, when final.

python examples/orders_payments_shipments.py

An order waits for a payment for a day, and for a shipment for a week. What has not come by then is
null, and no result is taken back.
"""

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lsmstate.join import MultiwayJoin, State, Time

AT = pa.timestamp("us")
STREAMS = {
    "o": pa.schema([("id", pa.int64()), ("ordered", AT)]),
    "p": pa.schema([("paid_order", pa.int64()), ("paid", AT), ("euros", pa.int64())]),
    "s": pa.schema([("sent_order", pa.int64()), ("sent", AT)]),
}
TIMES = {"o": "ordered", "p": "paid", "s": "sent"}
JOINS = """
o LEFT JOIN p ON o.id = p.paid_order
             AND p.paid BETWEEN o.ordered AND o.ordered + INTERVAL 1 DAY
  LEFT JOIN s ON o.id = s.sent_order
             AND s.sent BETWEEN o.ordered AND o.ordered + INTERVAL 7 DAYS
"""


def joined(rows: dict[str, list[dict[str, Any]]], until: datetime) -> pa.Table:
    """The final results of all rows, when time has come as far as ``until``."""
    time, state = Time(event_time=TIMES), State(memory="16m")
    with MultiwayJoin(STREAMS, JOINS, emit="final", time=time, state=state) as join:
        at_once = [join.process(name, some).to_table() for name, some in rows.items()]
        return pa.concat_tables([*at_once, join.advance(until).to_table()])


def main() -> None:
    noon = datetime(2026, 1, 1, 12)
    rows: dict[str, list[dict[str, Any]]] = {
        "o": [{"id": n, "ordered": noon + timedelta(minutes=n)} for n in (1, 2, 3)],
        "p": [
            {"paid_order": 1, "paid": noon + timedelta(hours=1), "euros": 20},
            {"paid_order": 2, "paid": noon + timedelta(days=2), "euros": 30},
        ],
        "s": [{"sent_order": 1, "sent": noon + timedelta(days=3)}],
    }
    found = joined(rows, noon + timedelta(days=8)).sort_by("id")
    for row in found.to_pylist():
        print(row["id"], row["euros"], row["sent"])


if __name__ == "__main__":
    main()
