"""A rolling restart and a takeover, with the rules of `deploy/` on the series of the workers."""

import json
from dataclasses import replace
from functools import partial
from itertools import chain

import pytest

from evaluator.core.types.records import LOGS
from tests.kafka.recording import Recording
from tests.kafka.test_fleet import named, remove
from tests.kafka.test_worker_again import until_shared
from tests.oracle.messages import Raw
from tests.worker.traffic import LONG_AGO_MS, SETTINGS
from tests.worker.truth import merged

pytestmark = [pytest.mark.kafka, pytest.mark.promtool]

MEANING = replace(
    SETTINGS, maturity_ms=120_000, retention_ms=300_000, measures=("ndcg@10", "mrr"), empty="zero"
)
NAMES = ("pod-0", "pod-1", "pod-2")
PER_MINUTE = 10
"""Queries of each task, and as many judgments."""


def minute_of(task, number):
    """The records of one minute: most queries have the best one on top; a judgment is an orphan."""
    made = {("rankings", task): [], ("judgments", task): []}
    for n in range(PER_MINUTE):
        at_ms = LONG_AGO_MS + 60_000 * number + 5_900 * n
        key = {"schema_version": 1, "trace_id": f"{task}-{number}-{n}", "node_id": "n"}
        ranking = {"model": "ranker", "variant": "prod", "candidate_ids": ["a", "b", "c"]}
        judgment = {"grades": {"ab"[n % 4 == 0]: 1}}
        for (log, _), body in zip(made, ({**ranking, "scores": [3, 2, 1]}, judgment), strict=True):
            if (task, n, log) == (0, 0, "judgments"):
                key = {**key, "trace_id": f"orphan-{number}"}
            value = json.dumps({**key, "timestamp_ms": at_ms, **body}).encode()
            made[log, task].append(Raw(0, at_ms, value, key["trace_id"].encode()))
    return made


POSITION = "evaluator_input_position{"


class Fleet:
    """Three workers with names, which are scraped every minute of event time."""

    def __init__(self, world, start):
        self.world = world
        self.recording = Recording(LONG_AGO_MS)
        more = {"alarms": "on", "histogram_measures": "ndcg@10", "checkpoint_interval_ms": 1}
        self._start = partial(named, start, world, **more)
        self.workers = {name: self._start(name) for name in NAMES}
        until_shared(world, *self.workers.values())
        for each in self.workers.values():
            each.until_ready()

    def start_again(self, name):
        """With so few checkpoints that the next owner of its tasks has to catch up."""
        before = self.workers[name]
        again = {"port": before.port, "state_dir": before.settings["state_dir"]}
        self.workers[name] = self._start(name, checkpoint_interval_ms=3_600_000, **again)

    def others(self, name):
        return [each for other, each in self.workers.items() if other != name]

    def minute(self, *, tasks, without=None):
        """Appends a minute, and scrapes when workers have read that of *tasks*.

        The worker *without* which they have read it is scraped as it is. All others are ready.
        """
        number = len(self.recording)
        parts = (minute_of(task, number) for task in range(self.world.n_tasks))
        self.world.produce(dict(chain.from_iterable(part.items() for part in parts)))

        def is_read(pages):
            near = [page for name, page in pages.items() if name != without]
            read = [pair for page in near for pair in page.items() if pair[0].startswith(POSITION)]
            assert len(dict(read)) == len(read), "a task has two owners"
            leaders = sum(page.get("evaluator_leader_active", 0) for page in near)
            goals = {f'{POSITION}partition="{n}",topic="{log}"}}' for log in LOGS for n in tasks}
            return leaders == 1 and dict(read) == dict.fromkeys(goals, (number + 1) * PER_MINUTE)

        self.recording.scrape(self.workers, is_read)
        for name, worker in self.workers.items():
            if worker.running and name != without:
                worker.until_ready()


def test_a_rolling_restart_moves_no_task_reads_nothing_twice_and_fires_no_alert(
    make_world, start, tmp_path
):
    """A takeover fires no alert either, except that of the worker that stays down."""
    world = make_world(3, settings=MEANING)
    fleet = Fleet(world, start)
    everything = range(world.n_tasks)
    for _ in range(16):  # rules compare with the quarter of an hour before
        fleet.minute(tasks=everything)
    for name in NAMES:
        check_restart(fleet, name)
        fleet.minute(tasks=everything)
    killed_at = len(fleet.recording)
    check_take_over(fleet)
    truth = world.truth()
    left = [each for each in fleet.workers.values() if each.running]
    assert merged([each.totals for each in left]) == truth.totals
    require_counted_once(fleet.recording, truth.totals)
    assert not any(worker.stop() for worker in left)
    truth.check_outputs(world.outputs(), once=True)
    firing = {killed_at: set(), len(fleet.recording) - 1: {"EvaluatorTargetDown"}}
    code, text = fleet.recording.check(tmp_path / "test.yml", firing=firing)
    assert code == 0, text


def check_restart(fleet, name):
    """Its tasks wait for it, and no other worker notices."""
    worker, others = fleet.workers[name], fleet.others(name)
    before = [len(each.events("tasks_assigned")) for each in others]
    had = worker.tasks
    theirs = sorted(task for each in others for task in each.tasks)
    read = sum(worker.positions.values())
    assert worker.stop() == 0
    assert worker.events("worker_stopped")[0]["records"] == read  # 1.00 times
    fleet.minute(tasks=theirs, without=name)
    fleet.start_again(name)
    worker = fleet.workers[name]
    worker.eventually(lambda: worker.get("/metrics"))
    fleet.minute(tasks=theirs, without=name)  # regardless of its initial tasks
    worker.until_ready()
    assert worker.tasks == had
    assert not worker.events("task_restored")
    assert [len(each.events("tasks_assigned")) for each in others] == before


def check_take_over(fleet):
    """`kill -9`: the others continue, and own all tasks once the member is removed."""
    name = next(n for n in NAMES if not fleet.workers[n].samples()["evaluator_leader_active"])
    worker, others = fleet.workers[name], fleet.others(name)
    theirs = sorted(task for each in others for task in each.tasks)
    worker.end()
    for _ in range(2):
        fleet.minute(tasks=theirs)
    assert remove(fleet.world, worker, name) == 0
    until_shared(fleet.world, *others)
    for _ in range(6):
        fleet.minute(tasks=range(fleet.world.n_tasks))


def require_counted_once(recording, totals):
    """Counters of all processes add up to the totals, as Prometheus adds them."""
    queries = totals["queries"]["settled"]
    assert recording.increase("evaluator_queries_settled_total{") == queries > 0
    values = sum(n for (kind, *_), (n, _) in totals["totals"].items() if kind == "settled")
    assert recording.increase("evaluator_quality_queries_total{") == values > 0
