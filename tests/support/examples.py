"""How much of their random work tests do: a tenth in `make test`, all of it in `make stress`.

``LSMSTATE_EXAMPLES`` is the share, 0.1 where it is not set; 10 is ten times as much as is usual.
"""

import os

SHARE = float(os.environ.get("LSMSTATE_EXAMPLES", "0.1"))


def examples(every: int) -> int:
    """How many examples a test tries that has ``every`` one of them in `make stress`."""
    return max(1, round(every * SHARE))
