"""The times at which free memory is returned to the system."""

import asyncio
import ctypes

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemorySink, MemorySource, MemoryStateDirectory
from evaluator.cli import live
from evaluator.config import Settings
from evaluator.worker.monitoring import (
    MIN_TRIM_BYTES,
    MIN_TRIM_SECONDS,
    HeapTrimmer,
    trim_heap,
)
from tests.faulty_broker import FaultyBroker
from tests.replay.running import ranking
from tests.waiting import finished

MB = 1 << 20


class Heap:
    """Counts how often memory is trimmed, with a stopped clock."""

    def __init__(self):
        self.trims = 0
        self.now = 1_000.0
        self.trimming = HeapTrimmer(self.trim, lambda: self.now)

    def trim(self):
        self.trims += 1
        return True

    def look(self, *held_mb):
        """How often it was trimmed while so much was held, commit after commit."""
        before = self.trims
        for held in held_mb:
            self.trimming.update(held * MB)
        return self.trims - before


def test_memory_is_trimmed_when_held_bytes_have_fallen_to_half_of_their_peak():
    assert Heap().look(500, 1_000, 501) == 0
    assert Heap().look(500, 1_000, 500) == 1
    assert Heap().look(1_000, 800, 600, 400, 399, 398) == 1


def test_small_amounts_are_not_trimmed():
    most = MIN_TRIM_BYTES // MB
    assert Heap().look(most - 1, 0) == 0
    assert Heap().look(most, 0) == 1


def test_memory_is_trimmed_again_after_a_new_peak_and_at_least_a_minute():
    heap = Heap()
    assert heap.look(1_000, 400, 800, 300) == 1
    heap.now += MIN_TRIM_SECONDS
    assert heap.look(300) == 1, "the fall from 800 to 300 is trimmed after the minute"
    heap.now += MIN_TRIM_SECONDS
    assert heap.look(300, 200) == 0
    assert heap.look(149) == 1


def test_each_trim_is_logged_in_one_line():
    with capture_logs() as logged:
        Heap().look(1_000, 400)
    (line,) = logged
    assert line == {
        "event": "heap_trimmed", "log_level": "info", "released": True, "seconds": 0.0,
        "from_bytes": 1_000 * MB, "to_bytes": 400 * MB,
    }  # fmt: skip


def test_a_c_library_without_the_call_is_not_called(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert trim_heap() is False


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library")
def test_memory_is_trimmed_with_glibc():
    assert trim_heap() in {True, False}


def test_a_worker_checks_its_held_bytes_at_each_commit(monkeypatch):
    seen = []
    monkeypatch.setattr(
        HeapTrimmer, "update", lambda _, memory_tier_bytes: seen.append(memory_tier_bytes)
    )
    broker = FaultyBroker()
    broker.append("rankings", 0, b"t", ranking("t", 1_000), 1_000)
    worker = live.new_worker(
        MemorySource(broker), MemorySink(broker), MemoryStateDirectory(), Settings(heartbeats=False)
    )
    asyncio.run(finished(worker.run(until_end=True)))
    assert max(seen) > 0
