"""Small text files that count only when they are whole: text, newline, XXH3 of it, newline.

Written once from front to back, so what a crash leaves of one lacks its last newline, or has zeros
instead of its end (no text has a zero in it): some file systems know a file's length before they
have its bytes.
"""

from lsmstate.cython_ext.base.compression import checksum
from lsmstate.errors import CorruptionError

#: The checksum and its newline.
_SEAL_BYTES = 17


def seal_text(text: bytes) -> bytes:
    """The bytes of the file. The text holds no newline."""
    assert b"\n" not in text
    return text + b"\n" + _seal(text)


def unseal_text(data: bytes, path: str, remedy: str) -> bytes | None:
    """The text, or None if the file was torn: it ends too early, or in zeros. CorruptionError,
    which ends with the remedy, if it is complete and its checksum is wrong."""
    data = data.rstrip(b"\0")
    text, _, rest = data.partition(b"\n")
    if rest == _seal(text):
        return text
    is_complete = len(rest) >= _SEAL_BYTES
    first_newline_is_damaged = data.endswith(_seal(data[: -_SEAL_BYTES - 1]))
    if not is_complete and not first_newline_is_damaged:
        return None
    raise CorruptionError(f"the checksum is wrong; {remedy}", path, 0)


def _seal(text: bytes) -> bytes:
    return f"{checksum(text):016x}\n".encode()
