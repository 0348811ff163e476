"""The LSM engine: memtables, WAL, versions, compaction, garbage collection."""
