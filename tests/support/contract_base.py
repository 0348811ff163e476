"""How the tests of the stores' contract open a store of the backend that is tested."""

import pytest

from lsmstate.opening import open_attempt, open_store
from lsmstate.options import MIB, Options
from support.sample_streams import STREAMS


class BackendTests:
    """Subclasses name their ``backend``."""

    backend = ""
    memory_bytes = 8 * MIB

    def attempt(self, directory, pointer=None, batch_id=1, attempt_id="a0", streams=STREAMS):
        return open_attempt(
            str(directory),
            streams,
            backend=self.backend,
            pointer=pointer,
            batch_id=batch_id,
            attempt_id=attempt_id,
            options=Options(memory_bytes=self.memory_bytes),
        )

    def owned(self, directory, streams=STREAMS):
        options = Options(memory_bytes=self.memory_bytes)
        return open_store(str(directory), streams, backend=self.backend, options=options)

    @pytest.fixture
    def store(self, tmp_path):
        store = self.attempt(tmp_path)
        yield store
        store.close()
