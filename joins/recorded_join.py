"""The file ``join.json`` beside a state: which join the state belongs to.

Another join is refused. The rows lie by the join's keys, and waiting or retractable rows follow
from its types and conditions, so another join would miss results without an error.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from lsmstate.cython_ext.base.file import AppendFile, ReadFile, link, remove, sync_directory
from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.joins.kinds import pinned
from lsmstate.joins.protocols import Spec
from lsmstate.lsm.checksummed_text import seal_text, unseal_text
from lsmstate.tools.recorded_streams import kept_streams

FILE_NAME: Final = "join.json"
_VERSION: Final = 1
#: Under which the join's description stands in the file.
_JOIN: Final = "join"
_MOST_BYTES: Final = 16 << 20


class KeptJoin:
    """The join that is asked for, compared with the file in ``directory``. Call ``check`` before
    the state is opened, and ``keep`` after, by its owner."""

    def __init__(
        self,
        directory: str,
        backend: str,
        spec: Spec,
        filters: Sequence[str] = (),
    ) -> None:
        """``filters``: the conditions of an inner join that are neither keys nor intervals."""
        self._path = os.path.join(directory, FILE_NAME)
        described = {**spec.described(), "conditions": sorted(filters)}
        #: As JSON has it, so that what is read back is equal.
        self._asked = json.loads(json.dumps(described))
        self._pinned = pinned(spec)
        #: Whether there is a state at all. A join's file without one says nothing.
        self._has_state = kept_streams(directory, backend=backend) is not None
        self._kept: dict[str, Any] | None = None

    def check(self) -> None:
        """InvalidArgumentError if the state belongs to another join. Nothing is changed."""
        if not self._has_state:
            return
        self._kept = _read(self._path)
        if self._kept is None:
            return
        # A file of a release that had no such conditions.
        kept = {"conditions": [], **self._kept}
        others = [name for name, asked in self._asked.items() if kept.get(name) != asked]
        had_kind, kind = kept.get(_JOIN, self._pinned)["kind"], self._pinned["kind"]
        if others or had_kind != kind:
            told = [{**kept, "kind": had_kind}, {**self._asked, "kind": kind}]
            others = others or ["kind"]
            had, asked = (", ".join(f"{n}: {each.get(n)}" for n in others) for each in told)
            raise InvalidArgumentError(
                f"{self._path}: the state belongs to a join with {had}, and this join has {asked}; "
                "open the state with the join it was made with, or give another directory"
            )

    def keep(self) -> None:
        """Write the file unless there is a valid one. Cost: one forced write, once."""
        if self._kept is not None:
            return
        new = f"{self._path}.new"
        for left in (new, self._path):
            with suppress(FileNotFoundError):
                remove(left)
        file = AppendFile(new)
        try:
            text = json.dumps(
                {**self._asked, "format": _VERSION, _JOIN: self._pinned}, ensure_ascii=True
            )
            file.append(seal_text(text.encode()))
            file.sync()
        finally:
            file.close()
        link(new, self._path)
        remove(new)
        sync_directory(os.path.dirname(self._path))


def _read(path: str) -> dict[str, Any] | None:
    """The content of the file; None if there is none, or if its writing was interrupted."""
    try:
        file = ReadFile(path)
    except FileNotFoundError:
        return None
    remedy = "if you know that the state is of this join, delete the file"
    try:
        text = unseal_text(file.read(0, min(file.size, _MOST_BYTES)), path, remedy)
    finally:
        file.close()
    if text is None:
        return None
    found = json.loads(text)
    if not isinstance(found, dict) or "format" not in found:
        raise CorruptionError(f"is no description of a join; {remedy}", path, 0)
    if found["format"] != _VERSION:
        raise FormatVersionError(
            f"{path} has format version {found['format']}, this release reads version {_VERSION}; "
            "open the join with the release that made it"
        )
    return found
