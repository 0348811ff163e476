"""Which stored rows are taken back by retractions: an identical one, or else the oldest equal one.

So an update of 0.0 to -0.0 is one, and a retraction that lost the sign of a zero, or the bits of a
NaN, on its way finds its row all the same.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.joins.local.parts.changelog import Numbers, ranks, row_codes
from lsmstate.joins.local.parts.row_equality import RowEquality


class TakenRows:
    """Of the rows ``removed``, once all stored rows that may equal one of them were seen. Memory:
    at most as many stored rows as are removed, of these the columns with floats."""

    def __init__(self, removed: pa.RecordBatch, equality: RowEquality) -> None:
        self._removed = removed
        self._equality = equality
        self._codes, self._encoded = row_codes(equality.codes(removed))
        self._bytes, self._identical = self._codes, self._encoded
        if equality.inexact:
            self._bytes, self._identical = row_codes(equality.bytes_of(removed))
        self._wanted = np.bincount(self._codes, minlength=len(self._encoded))
        self._wanted_bytes = np.bincount(self._bytes, minlength=len(self._identical))
        #: By their bytes, and no more than are wanted: stored rows that are identical to one.
        self._held = np.zeros(len(self._identical), dtype=np.int64)
        #: By code: stored rows that are equal only, or more than are wanted.
        self._others = np.zeros(len(self._encoded), dtype=np.int64)
        self._kept: list[tuple[pa.RecordBatch, Numbers]] = []

    def see(self, stored: pa.RecordBatch) -> None:
        """Stored rows under the keys of the removed ones, the oldest first."""
        codes = pc.index_in(self._equality.codes(stored), value_set=self._encoded)
        places = np.flatnonzero(codes.is_valid())
        codes = codes.drop_null().to_numpy().astype(np.int64)
        if not self._equality.inexact:
            self._held += np.bincount(codes, minlength=len(self._held))
            return
        stored = stored.take(pa.array(places))
        found = pc.index_in(self._equality.bytes_of(stored), value_set=self._identical)
        found = pc.fill_null(found, -1).to_numpy().astype(np.int64)
        same = np.flatnonzero(found >= 0)
        in_place = found[same]
        same = same[self._held[in_place] + ranks(in_place) < self._wanted_bytes[in_place]]
        self._held += np.bincount(found[same], minlength=len(self._held))
        rest = np.setdiff1d(np.arange(len(codes)), same)
        code = codes[rest]
        rest = rest[self._others[code] + ranks(code) < self._wanted[code]]
        self._others += np.bincount(codes[rest], minlength=len(self._others))
        kept = stored.select(self._equality.inexact).take(pa.array(rest))
        self._kept.append((kept, codes[rest]))

    def taken(self) -> tuple[pa.RecordBatch, Numbers]:
        """The removed rows with the bits of those that they take, and which of them take none."""
        left = np.flatnonzero(ranks(self._bytes) >= self._held[self._bytes])
        codes = self._codes[left]
        has_other = ranks(codes) < self._others[codes]
        taking, codes = left[has_other], codes[has_other]
        return self._with_other_bits(taking, codes), left[~has_other]

    def _with_other_bits(self, taking: Numbers, codes: Numbers) -> pa.RecordBatch:
        rows = self._removed
        if len(taking) == 0:
            return rows
        stored = np.concatenate([each for _, each in self._kept])
        counts = np.bincount(codes, minlength=len(self._encoded))
        first = np.flatnonzero(ranks(stored) < counts[stored])
        # The n-th of the removed rows with a code takes the n-th stored one of that code.
        by_code, first_by_code = (np.argsort(n, kind="stable") for n in (codes, stored[first]))
        places = np.arange(rows.num_rows)
        places[taking[by_code]] = rows.num_rows + first[first_by_code]
        for n, at in enumerate(self._equality.inexact):
            bits = pa.concat_arrays([rows.column(at), *(each.column(n) for each, _ in self._kept)])
            rows = rows.set_column(at, rows.schema.field(at), bits.take(pa.array(places)))
        return rows
