"""How much of their random work tests do: a fifth in `make test`, all of it in `make stress`.

``LSMSTATE_EXAMPLES`` is the share, 0.2 where it is not set; 10 is ten times as much as is usual.
"""

import os

SHARE = float(os.environ.get("LSMSTATE_EXAMPLES", "0.2"))


def examples(every: int) -> int:
    """How many examples a test tries that has ``every`` one of them in `make stress`."""
    return max(1, round(every * SHARE))
