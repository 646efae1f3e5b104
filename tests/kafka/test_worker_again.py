"""Workers that stop, restart, join and leave, and their merged totals."""

import signal
from dataclasses import replace

import pytest

from tests.kafka.process import LONG_MS, arguments_of
from tests.oracle.totals import comparable
from tests.worker.traffic import traffic
from tests.worker.truth import merged

pytestmark = pytest.mark.kafka


def append_part(world, begin, end, *, n_queries=100):
    """The same share of the traffic of every task."""
    world.append({
        task: traffic(task, n_queries=n_queries).part(begin, end) for task in range(world.n_tasks)
    })  # fmt: skip


def counted(worker, topic):
    """Messages of one topic that the process has counted, as scraped."""
    samples = worker.samples().items()
    found = [v for name, v in samples if name.startswith("evaluator_messages") and topic in name]
    assert found
    return sum(found)


def test_a_restarted_worker_continues_as_if_it_had_not_stopped(world, start):
    append_part(world, 0, 0.6)
    settings = {"max_poll_records": 60, "session_timeout_ms": LONG_MS}  # no output is repeated
    first = start(world, **settings)
    first.until_read(world.ends())
    before = first.totals["ledger"]
    assert first.stop() == 0
    assert world.committed() == world.ends()
    append_part(world, 0.6, 1)
    second = start(world, **settings)
    second.until_read(world.ends())
    second.until_ready()
    truth = world.truth()
    after = second.totals["ledger"]
    assert comparable(second.totals) == truth.totals
    for topic, open_ in (("rankings", ()), ("judgments", ("early",))):
        new = after[topic]["read"] - before[topic]["read"]
        still_open = sum(after[topic][name] - before[topic][name] for name in open_)
        assert counted(second, topic) == new - still_open
    assert second.stop() == 0
    truth.check_outputs(world.outputs(), once=True)
    check_other_measures(world, start)


def check_other_measures(world, start):
    """Other settings publish everything again, except dead letters."""
    before = world.outputs()
    settings = replace(world.settings, measures=("mrr@2", "ndcg"))
    assert start(world, "--until-end", **arguments_of(settings)).wait() == 0
    again = {lane: records[len(before[lane]) :] for lane, records in world.outputs().items()}
    truth = world.truth(settings=settings)
    assert truth.check_evaluations(again)
    assert truth.check_settled(again)
    assert truth.check_windows(again)
    assert not [lane for lane, records in again.items() if lane[0] == "dead-letters" and records]


def test_workers_may_join_and_leave_at_any_time(make_world, start):
    world = make_world(4)
    append_part(world, 0, 0.4)
    first = start(world, max_poll_records=5)
    first.eventually(lambda: any(first.positions.values()))
    second = start(world, max_poll_records=5)
    until_shared(world, first, second)
    append_part(world, 0.4, 0.7)
    until_shared(world, first, second)
    assert merged([first.totals, second.totals]) == world.truth().totals
    append_part(world, 0.7, 1)
    assert first.stop() == 0
    second.until_read(world.ends())
    assert comparable(second.totals) == world.truth().totals
    assert second.stop() == 0
    assert world.committed() == world.ends()
    world.truth().check_outputs(world.outputs())


def until_shared(world, *workers):
    """Until the workers share all tasks and have read everything."""
    ends = world.ends()

    def shared():
        documents = [worker.totals for worker in workers]
        tasks = [task for each in documents for task in each.get("tasks", ())]
        positions = [pair for each in documents for pair in each.get("positions", {}).items()]
        return sorted(tasks) == list(range(world.n_tasks)) and dict(positions) == ends

    workers[0].eventually(shared)


def test_the_tasks_of_a_killed_worker_are_taken_over(make_world, start):
    """By a new and by an existing member; both wait for its session to end."""
    alone, shared = make_world(2), make_world(4, prefix_end="shared-")
    worlds = alone, shared
    for world in worlds:
        append_part(world, 0, 0.5)
    killed = [start(alone, max_poll_records=3), start(shared, max_poll_records=3)]
    until_shared(alone, killed[0])
    left = [start(shared, max_poll_records=3)]
    until_shared(shared, killed[1], left[0])
    for world, worker in zip(worlds, killed, strict=True):
        before = worker.positions
        append_part(world, 0.5, 1)
        worker.eventually(lambda worker=worker, before=before: worker.positions != before)
        worker.signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
    left.insert(0, start(alone, max_poll_records=100))
    for world, worker in zip(worlds, left, strict=True):
        worker.until_read(world.ends())
        assert comparable(worker.totals) == world.truth().totals
        assert worker.stop() == 0
        assert world.committed() == world.ends()
        world.truth().check_outputs(world.outputs(), once=False)


def test_the_second_signal_ends_a_worker_at_once(world, start):
    append_part(world, 0, 1, n_queries=20)
    worker = start(world)
    worker.until_read(world.ends())
    worker.freeze()  # both signals wait for it
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    worker.signal(signal.SIGCONT)
    assert worker.wait() in {128 + signal.SIGINT, 128 + signal.SIGTERM}
