"""The LSM engine: memtables, write-ahead log, versions, compaction, deletion of obsolete files."""
