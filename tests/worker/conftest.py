"""What tests of one task share."""

import pytest

from evaluator.core.event_time.timers import Timers
from tests.worker.stored import Stored


@pytest.fixture
def stored(monkeypatch):
    """A task with a store, each of its queries in a run of its own."""
    monkeypatch.setattr(Timers, "RUN", 1)
    return Stored()
