"""Retries of requests that failed for a temporary reason."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

_log = logging.getLogger(__name__)

#: Seconds between tries; there is one try more than there are pauses.
PAUSES = (0.1, 0.4, 1.6, 6.4)

#: Errors that another try would only get again.
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

_Result = TypeVar("_Result")


def retried(action: Callable[[], _Result], what: str) -> _Result:
    """Return the result of ``action``, which is tried several times. The OSError after the last try
    says ``what`` failed and why; lasting errors pass through at once."""
    for pause in (*PAUSES, None):
        try:
            return action()
        except _LASTING:
            raise
        except OSError as error:
            if pause is None:
                tries = len(PAUSES) + 1
                raise os_error(error, f"{what} failed {tries} times: {error}") from error
            _log.warning("%s failed and is tried again in %.1f s: %s", what, pause, str(error))
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def os_error(cause: OSError, message: str) -> OSError:
    """Return an error of the same kind; object stores have no error numbers."""
    return OSError(message) if cause.errno is None else OSError(cause.errno, message)
