"""Each trade with the last quote before it, not older than five seconds: an as-of join.

python examples/trades_quotes.py
"""

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lsmstate.join import State, asof_join

AT = ("at", pa.timestamp("us"))
TRADES = pa.schema([("symbol", pa.string()), AT, ("price", pa.float64())])
QUOTES = pa.schema([("symbol", pa.string()), AT, ("bid", pa.float64()), ("ask", pa.float64())])


def priced(trades: list[dict[str, Any]], quotes: list[dict[str, Any]], until: datetime) -> pa.Table:
    """Each trade with its quote; without one the quote's columns are null."""
    with asof_join(
        {"t": TRADES, "q": QUOTES},
        "t.at >= q.at",
        by="symbol",
        how="left",
        tolerance="5 seconds",
        state=State(memory="16m"),
    ) as join:
        join.process("q", quotes).close()
        join.process("t", trades).close()
        return join.advance(until).to_table()


def main() -> None:
    noon = datetime(2026, 1, 1, 12)

    def second(number: float) -> datetime:
        return noon + timedelta(seconds=number)

    quotes = [
        {"symbol": "A", "at": second(0), "bid": 9.9, "ask": 10.1},
        {"symbol": "A", "at": second(3), "bid": 10.0, "ask": 10.2},
    ]
    trades = [
        {"symbol": "A", "at": second(2.5), "price": 10.0},
        {"symbol": "A", "at": second(4), "price": 10.1},
        {"symbol": "A", "at": second(60), "price": 10.3},
    ]
    for row in priced(trades, quotes, second(100)).to_pylist():
        print(row["price"], row["bid"], row["ask"])


if __name__ == "__main__":
    main()
