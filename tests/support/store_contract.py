"""The contract of ``lsmstate/store.py`` as tests. Every backend subclasses StateStoreTests and
runs the state machine of ``store_machine.py``."""

from support.contract_lifetime import LifetimeTests
from support.contract_ranges import RangeTests
from support.contract_reads import ReadTests
from support.contract_writes import WriteTests
from support.contract_zones import ZoneTests


class StateStoreTests(ReadTests, RangeTests, ZoneTests, WriteTests, LifetimeTests):
    """Subclasses name their ``backend``."""
