"""Where things lie in the checkout, for tests that read files or start processes."""

from pathlib import Path
from typing import Final

#: The checkout, which a process imports lsmstate from.
ROOT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = ROOT / "tests"
SUPPORT: Final = TESTS / "support"
#: States that earlier releases left.
DATA: Final = TESTS / "data"
