"""Small text files with a checksum: text, newline, XXH3 of the text, newline.

A file is written once from front to back. A crash leaves a file without its last newline, or with
zeros at its end, since some file systems store a file's length before its bytes. No text holds a
zero.
"""

from lsmstate.cython_ext.base.compression import checksum
from lsmstate.errors import CorruptionError

#: Bytes of the checksum and its newline.
_SEAL_BYTES = 17


def seal_text(text: bytes) -> bytes:
    """Return the bytes of the file. The text holds no newline."""
    assert b"\n" not in text
    return text + b"\n" + _seal(text)


def unseal_text(data: bytes, path: str, remedy: str) -> bytes | None:
    """Return the text; None if the file is torn: it ends too early, or in zeros.

    If the file is complete and its checksum is wrong, raise CorruptionError, which ends with the
    remedy.
    """
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
