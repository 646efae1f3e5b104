"""Sums by level of whole workers: after restarts, from checkpoints, and in counters."""

from dataclasses import replace
from itertools import pairwise

import pytest

from evaluator.adapters.memory import MemoryStateDirectory
from evaluator.core.types.records import OTHER
from tests.oracle.test_segment_worlds import levelled
from tests.repeats import sized
from tests.worker.harness import WorkerHarness, totals
from tests.worker.traffic import SETTINGS, Traffic, traffic

LEVELLED = replace(SETTINGS, segments=("locale", "device"), max_levels=2)


def harness():
    made = WorkerHarness(settings=LEVELLED)
    for task in (0, 1):
        logs = traffic(task, n_queries=sized(40, quick=10))
        rankings = tuple(map(levelled, logs.of("rankings")))
        made.append({task: Traffic(rankings, tuple(logs.of("judgments")))})
    return made


@pytest.mark.slow(alone=False)
async def test_totals_of_two_tasks_are_merged_by_level():
    made = harness()
    worker = await made.until_end(max_poll_records=7)
    found = totals(LEVELLED, worker)
    assert found == made.truth().totals
    assert {row["level"] for row in found["segments"]} > {OTHER}


async def test_sums_by_level_continue_from_a_store_and_from_a_checkpoint():
    made, states = harness(), MemoryStateDirectory()
    await made.until_end(states=states)
    for again in (states, MemoryStateDirectory()):
        worker = await made.until_end(states=again)
        assert totals(LEVELLED, worker) == made.truth().totals


@pytest.mark.slow(alone=False)
async def test_counters_of_levels_never_fall_and_count_each_query_once():
    made = harness()
    worker, seen = made.worker(max_poll_records=5), []
    publish = worker._publish

    def publish_and_keep():
        publish()
        seen.append(dict(worker.snapshot.counters))

    worker._publish = publish_and_keep
    await worker.run(until_end=True)
    for before, after in pairwise(seen):
        of_levels = {path: n for path, n in before.items() if path[0] == "segment_settled"}
        assert all(after[path] >= n for path, n in of_levels.items())
    counters, tally = seen[-1], {}
    for view in worker.snapshot:
        for path, n in view.tally.items():
            if path[0] == "segment_settled":
                place = (*path[:4], *path[5:])
                tally[place] = tally.get(place, 0) + n
    counted = {}
    for path, n in counters.items():
        if path[0] == "segment_settled":
            place = (*path[:4], *path[5:])
            counted[place] = counted.get(place, 0) + n
    assert counted == tally
    levels = {path[4] for path in counters if path[0] == "segment_settled"}
    assert len(levels) > 1 + 2, "no level was evicted"
