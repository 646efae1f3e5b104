"""The live worker: poll, decode, receive, emit, commit."""

from evaluator.worker.loop import Worker as Worker
from evaluator.worker.settings import Wire as Wire
from evaluator.worker.settings import WorkerSettings as WorkerSettings
from evaluator.worker.store_snapshots import StoreSnapshots as StoreSnapshots
