"""Under which keys the store has the posting lists of a window's documents.

A *unit* is a set of attributes that many documents have, such as all that every document has. A
document's *class* is the set of units that it has, all attributes of them. Two documents that match
agree on all units that both have. So a document is listed

- under (its class, some of its units, their values), for each such choice of units;
- under (its class, an attribute, its value), for documents that have no unit in common with it.

A document that looks for partners takes, for each class that is stored, the units that both have:
one list. Where they have none, it takes the lists of all its attributes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.documents.attribute_values import AttributeValues, Documents

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

#: Three units make at most seven lists of a document.
MOST_UNITS: Final = 3
#: Share of the documents that have an attribute of a unit, at least.
_LEAST_COVERAGE: Final = 0.25


@dataclass(frozen=True)
class Units:
    """Sets of attributes, by their paths."""

    paths: tuple[tuple[str, ...], ...]

    @classmethod
    def chosen(cls, documents: Documents) -> "Units":
        """The units of a sample: what all documents have, and the attributes that most have, those
        of many values first."""
        _, numbers, hashes = documents.columns()
        if not len(numbers):
            return cls(())
        attributes, counts = np.unique(numbers, return_counts=True)
        pairs = np.unique(np.stack([numbers.astype(np.uint64), hashes]), axis=1)
        distinct = np.bincount(pairs[0].astype(np.int64))[attributes]
        path = documents.values.path
        everywhere = counts == len(documents)
        units = [tuple(sorted(path(number) for number in attributes[everywhere]))]
        score = counts / len(documents) * np.log2(1 + distinct)
        score[everywhere | (counts < _LEAST_COVERAGE * len(documents))] = 0
        units += [(path(attributes[at]),) for at in np.argsort(-score, kind="stable") if score[at]]
        return cls(tuple(unit for unit in units if unit)[:MOST_UNITS])

    @classmethod
    def from_text(cls, text: str) -> "Units":
        """The inverse of ``text``."""
        return cls(tuple(map(tuple, json.loads(text))))

    def text(self) -> str:
        """As the store has them."""
        return json.dumps(self.paths)

    def of(self, documents: Documents) -> "KeyedDocuments":
        """The documents with what their keys are made of."""
        return KeyedDocuments(self, documents)


class KeyedDocuments:
    """Documents, their classes and the hashes of their units."""

    def __init__(self, units: Units, documents: Documents) -> None:
        count = len(units.paths)
        self._count = count
        self._places, numbers, self._hashes = documents.columns()
        unit_of = _units_of(units, documents.values)
        self.classes = np.zeros(len(documents), np.int64)
        self._units = np.zeros((len(documents), max(1, count)), np.uint64)
        found = unit_of[numbers] if len(numbers) else numbers
        has = found >= 0
        cells = self._places[has] * max(1, count) + found[has]
        np.add.at(self._units.reshape(-1), cells, _mixed(self._hashes[has]))
        held = np.bincount(cells, minlength=self._units.size).reshape(self._units.shape)
        for unit, paths in enumerate(units.paths):
            self.classes |= (held[:, unit] == len(paths)).astype(np.int64) << unit
        self._by_choice: dict[int, Hashes] = {}

    def _values(self, choice: int) -> Hashes:
        """Of each document a hash of its values under some units."""
        if choice not in self._by_choice:
            total = np.zeros(len(self.classes), np.uint64)
            for unit in range(self._count):
                if choice >> unit & 1:
                    total += _mixed(self._units[:, unit] + np.uint64(unit))
            self._by_choice[choice] = total
        return self._by_choice[choice]

    def stored_keys(self) -> tuple[Hashes, Numbers]:
        """The keys under which the documents are listed, and beside each the document's place."""
        keys, places = [], []
        for choice in range(1, 1 << self._count):
            here = np.flatnonzero(self.classes & choice == choice)
            keys.append(_keys(self.classes[here], choice, self._values(choice)[here]))
            places.append(here)
        keys.append(_keys(self.classes[self._places], 0, self._hashes))
        places.append(self._places)
        return np.concatenate(keys), np.concatenate(places)

    def probed_keys(
        self, classes: Sequence[int], wanted: Numbers
    ) -> tuple[Hashes, Numbers, Hashes, Numbers]:
        """Keys of the lists in which partners of the documents at ``wanted`` stand.

        Returns:
            Keys and places of documents whose lists have a partner once; and keys and places of
            those where it may stand several times.
        """
        once: list[tuple[Hashes, Numbers]] = []
        often: list[tuple[Hashes, Numbers]] = []
        is_wanted = np.zeros(len(self.classes), np.bool_)
        is_wanted[wanted] = True
        for stored in classes:
            choices = self.classes[wanted] & stored
            for choice in np.unique(choices):
                here = wanted[choices == choice]
                if choice:
                    of = np.full(len(here), stored, np.int64)
                    once.append((_keys(of, int(choice), self._values(int(choice))[here]), here))
                    continue
                lone = is_wanted.copy()
                lone[wanted[choices != 0]] = False
                pairs = np.flatnonzero(lone[self._places])
                of = np.full(len(pairs), stored, np.int64)
                often.append((_keys(of, 0, self._hashes[pairs]), self._places[pairs]))
        return (*_joined(once), *_joined(often))


def _joined(parts: list[tuple[Hashes, Numbers]]) -> tuple[Hashes, Numbers]:
    if not parts:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    return np.concatenate([keys for keys, _ in parts]), np.concatenate([at for _, at in parts])


def _units_of(units: Units, values: AttributeValues) -> Numbers:
    """By attribute its unit; -1: none."""
    by_number = {values.number(path): at for at, unit in enumerate(units.paths) for path in unit}
    found = np.full(values.attributes, -1, np.int64)
    for number, unit in by_number.items():
        found[number] = unit
    return found


def _keys(classes: Numbers, choice: int, values: Hashes) -> Hashes:
    header = classes.astype(np.uint64) << np.uint64(32) | np.uint64(choice)
    return _mixed(values + _mixed(header + np.uint64(0x9E3779B97F4A7C15)))


def _mixed(x: Hashes) -> Hashes:
    """SplitMix64's finalizer."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
