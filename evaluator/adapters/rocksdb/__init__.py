"""Adapters of RocksDB: durable state."""

from evaluator.adapters.rocksdb.directory import RocksStateDirectory as RocksStateDirectory
