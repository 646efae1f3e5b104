"""A store that cannot be read is quarantined, and the task is rebuilt from its inputs."""

import pytest

from evaluator.adapters.memory import MemoryStateDirectory
from tests.worker.harness import WorkerHarness, totals
from tests.worker.traffic import traffic


@pytest.fixture
async def harness():
    made = WorkerHarness(1)
    made.append({0: traffic(0, n_queries=40)})
    return made


@pytest.mark.parametrize(
    "table",
    ["runs", *(pytest.param(t, marks=pytest.mark.slow) for t in ("entries", "totals", "windows"))],
)
async def test_an_unreadable_row_quarantines_the_store(harness, table):
    states = MemoryStateDirectory()
    await harness.until_end(states=states)
    rows = states.stores[0]._tables[table]
    assert rows
    rows |= dict.fromkeys(rows, b"\0")
    again = await harness.until_end(states=states)
    assert list(states.quarantined) == [0]
    assert again._ownership.counts["quarantined_stores", "0"] == 1
    assert totals(harness.settings, again) == harness.truth().totals
    harness.truth().check_outputs(harness.outputs(), once=False)
