"""Free ports for servers that are told their port some seconds before they use it."""

import random
import socket
from contextlib import ExitStack
from typing import Final

from lsmstate.errors import LsmStateError

HOST: Final = "127.0.0.1"
#: Below those that Linux (from 32768) and others (from 49152) give to outgoing connections.
_PORTS: Final = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Find ports of loopback that are free and that the system gives only to programs that ask for
    them by number. LsmStateError if there are fewer than ``count``."""
    found: list[int] = []
    with ExitStack() as held:  # all are held until all are known
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            trial = held.enter_context(socket.socket())
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    last = _PORTS.stop - 1
    raise LsmStateError(
        f"fewer than {count} of the ports {_PORTS.start} to {last} are free on {HOST}; stop a "
        "program that uses some of them"
    )
