"""Whether a state on disk is whole: every block, row and logged write of it is read."""

import os
from collections.abc import Iterator

from cython_ext import sst_check
from lsmstate.changelog import changelog_files, replay
from lsmstate.errors import LsmStateError
from lsmstate.inspection import State
from lsmstate.memory_budget import process_memory
from lsmstate.row_check import check_rows
from lsmstate.table_cache import table_cache


def verify(state: State) -> Iterator[tuple[str, dict[str, int] | str]]:
    """(file name, counts or what is wrong with it) for each file, and for the changelogs of a
    standalone store. Cost: all of it is read."""
    tables = table_cache(process_memory())
    streams = list(state.found.streams.values())
    for file in state.found.edit.version.files:
        try:
            table = tables.open(state.directory, file)
            counts = sst_check.verify(table)
            check_rows(table, streams, process_memory().budget)
            if (counts["keys"], counts["rows"]) == (file.keys, file.rows):
                yield file.name, counts
            else:
                yield file.name, f"{counts} were found, expected {file.keys}, {file.rows}"
        except (LsmStateError, OSError) as error:
            yield file.name, str(error)
    for name in changelog_files(state.directory):
        try:
            yield name, {"writes": sum(1 for _ in replay(os.path.join(state.directory, name)))}
        except (LsmStateError, OSError) as error:
            yield name, str(error)
