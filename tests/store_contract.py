"""The contract of ``lsmstate/store.py`` as tests. Every backend subclasses StateStoreTests and
runs the state machine of ``store_machine.py``."""

from contract_lifetime import LifetimeTests
from contract_reads import ReadTests
from contract_writes import WriteTests


class StateStoreTests(ReadTests, WriteTests, LifetimeTests):
    """Subclasses name their ``backend``."""
