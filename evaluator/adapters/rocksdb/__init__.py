"""Adapters of RocksDB: durable state."""

from evaluator.adapters.rocksdb.directory import RocksStateDirectory
from evaluator.adapters.rocksdb.store import RocksStateStore

__all__ = ["RocksStateDirectory", "RocksStateStore"]
