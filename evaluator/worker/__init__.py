"""The live worker: poll, decode, receive, emit, commit."""

from evaluator.worker.loop import Worker
from evaluator.worker.task import Wire

__all__ = ["Wire", "Worker"]
