"""The live worker: poll, decode, receive, emit, commit."""

from evaluator.worker.loop import Worker
from evaluator.worker.settings import Wire, WorkerSettings
from evaluator.worker.store_snapshots import StoreSnapshots

__all__ = ["StoreSnapshots", "Wire", "Worker", "WorkerSettings"]
