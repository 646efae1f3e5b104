"""One task with a store: queries leave memory at every commit and come back when they are named."""

import json

import pytest

from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.core.calendar import Calendar
from evaluator.wire.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records
from evaluator.worker.state import TaskState
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
    """A task of which nothing stays in memory."""

    def __init__(self):
        self.state = TaskState(MemoryStateStore(), task=0)
        self.engine = new_engine(SETTINGS, aside=self.state, max_bytes=0)

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
        return Records(log, 0, offsets, nothing, values, stamps, first + len(messages))

    def commit(self):
        self.state.commit(self.engine)

    def restart(self):
        """A warm start: everything is aside."""
        self.engine = new_engine(SETTINGS, aside=self.state, max_bytes=0)
        self.engine.load(self.state.load())

    def count(self, *path):
        return self.engine.tally().get(path, 0)


def ranking(trace, at, **more):
    content = {"candidate_ids": ["a", "b"], "scores": [2, 1]} | more
    return {"trace_id": trace, "timestamp_ms": at} | content


def judgment(trace, at, **grades):
    return {"trace_id": trace, "timestamp_ms": at, "grades": grades or {"a": 1}}


@pytest.fixture
def stored(monkeypatch):
    monkeypatch.setattr(Calendar, "RUN", 1)
    return Stored()


def test_a_key_that_came_free_in_memory_is_not_found_in_the_store_again(stored):
    stored.rank(ranking("free", 0), ranking("other", 12))
    stored.commit()
    stored.judge(judgment("free", 1))  # back in memory, where its key comes free
    stored.judge(judgment("later", 11))
    stored.rank(ranking("free", 13))  # before the store knows
    stored.judge(judgment("other", 14))
    assert stored.count("judgments", "applied") == 2
    assert stored.engine.head.n_keys == 2, "free, named anew, and other"


def test_a_query_that_comes_back_to_settle_and_goes_again_is_still_named(stored):
    """Its key has lost an older query since the last commit."""
    stored.rank(ranking("named", 0), ranking("named", 11), ranking("other", 40))
    stored.judge(judgment("later", 8))  # the first query of the key settles
    stored.commit()
    stored.restart()
    stored.judge(judgment("later", 12))  # and is let go, in the store
    stored.judge(judgment("later", 18))  # the second one settles, and is put aside at once
    assert stored.count("queries", "settled") == 2
    stored.commit()
    stored.judge(judgment("named", 20))
    assert stored.count("judgments", "applied") == 1
