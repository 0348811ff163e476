"""The standalone store against the model, through random ends of its process and of the power."""

import pytest

from support.examples import examples
from support.standalone_machine import Machine, configured

TestStandaloneMachine = configured(Machine, examples(20), steps=40)


class LongMachine(Machine):
    """The same, for hours if need be."""


TestLongMachine = pytest.mark.stress(
    pytest.mark.timeout(3600)(configured(LongMachine, examples=1000, steps=80))
)
