"""Reads of a whole closed RocksDB database that lsmstate did not make."""

import rocksdict

from lsmstate.errors import CorruptionError
from lsmstate.rocksdb_backend.database import rocks_errors


def read_entries(directory: str, max_bytes: int) -> dict[bytes, bytes]:
    """Return all keys of the default column family with their values; the database is not changed.

    CorruptionError: a file is damaged, or the entries have more than ``max_bytes``. OSError: a file
    is missing.
    """
    found: dict[bytes, bytes] = {}
    total = 0
    with rocks_errors(directory):
        options = rocksdict.Options(raw_mode=True)
        options.set_paranoid_checks(True)
        mode = rocksdict.AccessType.read_only()
        database = rocksdict.Rdict(directory, options=options, access_type=mode)
        try:
            entries = database.iter()
            entries.seek_to_first()
            while entries.valid():
                key, value = entries.key(), entries.value()
                total += len(key) + len(value)
                if total > max_bytes:
                    raise CorruptionError(f"holds more than {max_bytes} bytes", directory, 0)
                found[key] = value
                entries.next()
            # An iterator ends at a damaged block in the same way as at the last key.
            entries.status()
        finally:
            database.close()
    return found
