"""A task with a store: queries are evicted at every commit, and loaded when needed."""

import json

from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records
from evaluator.worker.task_state import TaskState
from tests.oracle.oracle import Settings
from tests.oracle.run import new_engine

SETTINGS = Settings(
    retention_ms=10,
    maturity_ms=5,
    early_ms=0,
    remember_ms=0,
    out_of_orderness_ms=0,
    window_ms=10,
    measures=("top1",),
)


class Stored:
    """A task that keeps no query in memory."""

    def __init__(self):
        self.store = MemoryStateStore()
        self.state = TaskState(self.store, task=0)
        self.engine = new_engine(SETTINGS, disk_tier=self.state, max_bytes=0)

    def rank(self, *messages):
        records = self._records("rankings", messages)
        self.engine.receive(decode_rankings(records, max_future_skew_ms=0), None)

    def judge(self, *messages):
        records = self._records("judgments", messages)
        self.engine.receive(None, decode_judgments(records, max_future_skew_ms=0))

    def _records(self, log, messages):
        first = self.engine.positions[log]
        offsets = list(range(first, first + len(messages)))
        values = [json.dumps({"schema_version": 1, "node_id": "n"} | m).encode() for m in messages]
        nothing = [None] * len(offsets)
        stamps = [message["timestamp_ms"] for message in messages]
        return Records.of(log, 0, offsets, nothing, values, stamps, first + len(messages))

    def commit(self):
        self.state.commit(self.engine)

    def restart(self):
        """A warm start: every query is in the disk tier."""
        self.state = TaskState(self.store, task=0)
        self.engine = new_engine(SETTINGS, disk_tier=self.state, max_bytes=0)
        self.engine.load(self.state.load())

    def count(self, *path):
        return self.engine.tally().get(path, 0)


def ranking(trace, at, **more):
    content = {"candidate_ids": ["a", "b"], "scores": [2, 1]} | more
    return {"trace_id": trace, "timestamp_ms": at} | content


def judgment(trace, at, **grades):
    return {"trace_id": trace, "timestamp_ms": at, "grades": grades or {"a": 1}}
