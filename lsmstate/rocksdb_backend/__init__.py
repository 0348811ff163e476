"""The contract on RocksDB; the only place that imports rocksdict."""
