"""The live worker: poll, decode, receive, emit, commit."""

from evaluator.worker.loop import Worker
from evaluator.worker.settings import Wire, WorkerSettings

__all__ = ["Wire", "Worker", "WorkerSettings"]
