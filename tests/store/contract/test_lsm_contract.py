"""The contract suite on our own store."""

from support.examples import examples
from support.store_contract import StateStoreTests
from support.store_machine import store_machine


class TestLsmStore(StateStoreTests):
    backend = "lsm"


TestLsmMachine = store_machine("lsm", examples(100))
