"""Count the row blocks that zone maps would spare a join by two inequalities.

    python -m bench.joins.zone_maps

A stream is sorted by the column of its range and lies in blocks. A zone map would say the least
value of its second column in each block. A block in reach of ``a.x < b.y`` has to be read if a new
row has also ``a.u`` above that least value.
"""

import argparse

import numpy as np
import pyarrow as pa

from bench.joins.any_condition import apart, apart_and_high, taxed, unequal

#: Rows in a block of 4 KiB.
ROWS_OF_BLOCK = 128


def share_needed(new: pa.RecordBatch, stored: pa.RecordBatch) -> float:
    """Of the blocks in reach by the range, the part that zone maps would not rule out."""
    y, v = (column.to_numpy() for column in stored.columns)
    order = np.argsort(y)
    starts = np.arange(0, len(y), ROWS_OF_BLOCK)
    greatest_y = np.maximum.reduceat(y[order], starts)
    least_v = np.minimum.reduceat(v[order], starts)
    x, u = (column.to_numpy() for column in new.columns)
    by_x = np.argsort(x)
    greatest_u = np.maximum.accumulate(u[by_x])
    below = np.searchsorted(x[by_x], greatest_y)  # new rows with x < y, for each block
    reached = below > 0
    return float((greatest_u[below[reached] - 1] > least_v[reached]).mean())


def main() -> None:
    """Print a line for each kind of columns and number of new rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="stored")
    asked = parser.parse_args()
    for name, new, old in (
        ("taxes of salaries", taxed, taxed),
        ("with ten times the noise", unequal, unequal),
        ("two columns apart", apart, apart_and_high),
    ):
        for count in (10_000, 1_000, 100):
            share = share_needed(new(count, 2), old(asked.rows, 1))
            print(f"{name}, {count:,} new rows: {share:.0%} of the blocks")


if __name__ == "__main__":
    main()
