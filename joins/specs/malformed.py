"""What becomes of rows whose compared value is none of its kind: no document, or no vector."""

from typing import Literal

#: "refuse" refuses the batch; "skip" leaves such rows out and counts them; "side" keeps them too.
Malformed = Literal["refuse", "skip", "side"]
