"""The store contract on RocksDB; only this folder imports rocksdict."""
