"""The readable part of one damaged SSTable, entry by entry.

A row can be saved if its own block and the key block that refers to it are undamaged. The manifest
says how many rows there were.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lsmstate.cython_ext.base.file import ReadFile
from lsmstate.cython_ext.sstable.salvage import block_bytes, block_rows, find_blocks, key_entries

#: Kinds of blocks and flags of entries (docs/design/disk-format.md).
_ROWS, _KEYS, _TOP, _EDIT = 1, 2, 5, 7
_RESET, _CONTINUES = 1, 2
_HEADER_BYTES = 16

Entry = tuple[bytes, int, list[tuple[int, int, bytes]]]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from ``low`` to ``high``, as stored; None: from the start, or to the end. The ends
    belong to the range only if they are equal."""

    low: bytes | None
    high: bytes | None


class SalvagedTable:
    """The undamaged blocks of one file. Memory: the file's size, and one key block's rows."""

    def __init__(self, path: str) -> None:
        file = ReadFile(path)
        try:
            self._data = file.read(0, file.size)
        finally:
            file.close()
        self.path = path
        self._blocks = find_blocks(self._data)
        self._row_blocks = {offset: size for offset, size, kind in self._blocks if kind == _ROWS}
        tops = [offset for offset, _, kind in self._blocks if kind == _TOP]
        self._end = tops[-1] if tops else len(self._data)
        self._gaps = self._find_gaps()
        #: Findings of the last pass of ``entries`` through the file.
        self.saved_rows = 0
        self.lost_ranges: list[KeyRange] = []
        self.has_lost_keys = False

    def edit(self) -> bytes | None:
        """Return the edit section; None if its block is damaged."""
        for offset, size, kind in reversed(self._blocks):
            if kind == _EDIT:
                return block_bytes(self._data, offset, size)
        return None

    def base_sequence(self, min_sequence: int) -> int:
        """Return the base of the rows' sequence numbers if the footer with it is lost: it follows
        from the least sequence number that the file is known to have had."""
        counted = (
            sequence
            for offset, size in self._row_blocks.items()
            for sequence, _, _ in block_rows(block_bytes(self._data, offset, size))
        )
        return max(0, min_sequence - min(counted, default=0))

    def entries(self, base_sequence: int) -> Iterator[Entry]:
        """Yield every remaining entry with its remaining rows, in key order."""
        self.saved_rows, self.lost_ranges, self.has_lost_keys = 0, [], False
        pending: Entry | None = None
        for key, flags, rows in self._segments(base_sequence):
            if pending is not None and pending[0] == key:
                pending = (key, pending[1], pending[2] + rows)
            else:
                if pending is not None:
                    yield pending
                pending = (key, flags & ~_CONTINUES, rows)
        if pending is not None:
            yield pending

    def _segments(self, base_sequence: int) -> Iterator[Entry]:
        """Yield the entries of one key block after another; huge keys come in several."""
        last: bytes | None = None
        reached = _HEADER_BYTES
        for offset, size, kind in self._blocks:
            if kind != _KEYS:
                continue
            entries, places = key_entries(block_bytes(self._data, offset, size))
            # Bytes in no undamaged block, nor between the rows of one key block, may have been
            # keys.
            if self._has_gap(reached, places[0] if places else offset):
                self._note_gap(KeyRange(last, entries[0][0]))
            yield from self._entries_of(entries, places, base_sequence)
            last, reached = entries[-1][0], offset + size
        if self._has_gap(reached, self._end):
            self._note_gap(KeyRange(last, None))

    def _note_gap(self, keys: KeyRange) -> None:
        self.lost_ranges.append(keys)
        self.has_lost_keys = True

    def _entries_of(
        self,
        entries: list[tuple[bytes, int, int, int, int]],
        places: list[int],
        base_sequence: int,
    ) -> Iterator[Entry]:
        """The entries of one key block. Rows lie in key order, so those of an entry end where the
        next entry with rows begins: damaged blocks between need not be counted."""
        previous_was_lost = False
        starts = [(block, row) for _, _, count, block, row in entries if count]
        ends = iter([*starts[1:], (len(places), 0)])
        decoded: tuple[int, list[tuple[int, int, bytes]]] = (-1, [])
        for key, flags, count, block, row in entries:
            rows: list[tuple[int, int, bytes]] = []
            if count:
                end_block, end_row = next(ends)
                for number in range(block, min(end_block + 1, len(places))):
                    if decoded[0] != number:
                        decoded = (number, self._rows_at(places[number], base_sequence))
                    first = row if number == block else 0
                    rows += decoded[1][first : end_row if number == end_block else None]
            is_lost = len(rows) != count
            if is_lost:
                low = self.lost_ranges.pop().low if previous_was_lost else key
                self.lost_ranges.append(KeyRange(low, key))
            previous_was_lost = is_lost
            self.saved_rows += len(rows)
            if rows or flags & _RESET:
                yield key, flags, rows

    def _rows_at(self, offset: int, base_sequence: int) -> list[tuple[int, int, bytes]]:
        size = self._row_blocks.get(offset)
        if size is None:
            return []
        return [
            (base_sequence + sequence, ordinal, row)
            for sequence, ordinal, row in block_rows(block_bytes(self._data, offset, size))
        ]

    def _find_gaps(self) -> list[tuple[int, int]]:
        """Return the ranges before the top index that are in no undamaged block."""
        gaps, reached = [], _HEADER_BYTES
        for offset, size, _ in self._blocks:
            if offset != reached:
                gaps.append((reached, offset))
            reached = offset + size
        if reached < self._end:
            gaps.append((reached, self._end))
        return gaps

    def _has_gap(self, start: int, end: int) -> bool:
        return any(first < end and start < last for first, last in self._gaps)
