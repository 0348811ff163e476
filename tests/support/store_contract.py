"""The contract of ``lsmstate/store.py`` as tests. Every backend subclasses StateStoreTests and
runs the state machine of ``store_machine.py``."""

from support.contract_lifetime import LifetimeTests
from support.contract_ranges import RangeTests
from support.contract_reads import ReadTests
from support.contract_writes import WriteTests


class StateStoreTests(ReadTests, RangeTests, WriteTests, LifetimeTests):
    """Subclasses name their ``backend``."""
