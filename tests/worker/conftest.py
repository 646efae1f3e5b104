"""Fixtures of the tests of workers."""

import pytest

from evaluator.core.event_time.timers import Timers
from evaluator.worker import task
from tests.worker.stored import Stored


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(task, "IDLE_POLL_MS", 10)


@pytest.fixture
def stored(monkeypatch):
    """A task with a store, with each query in a run of its own."""
    monkeypatch.setattr(Timers, "RUN", 1)
    return Stored()
