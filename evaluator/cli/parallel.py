"""A replay in several processes: each evaluates some tasks, and their results are merged."""

import argparse
import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from evaluator.cli.exits import UsageError
from evaluator.cli.processes import Report, in_processes
from evaluator.cli.ranges import Bounds, read_rules_of, replay_rules_of, source_of
from evaluator.cli.wiring import topic_names
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.ports import RangeSource
from evaluator.replay.alarms import AlarmReplay
from evaluator.replay.feeding import CountsBytes, ProgressBar, n_to_read, opened
from evaluator.replay.merging import MAX_SHARDS, Merge
from evaluator.replay.online_learning import OnlineLearning
from evaluator.replay.ranges import ReadRules
from evaluator.replay.results import ResultDirectory
from evaluator.replay.run import ReplayRules
from evaluator.replay.run import replay as run_replay
from evaluator.replay.shards import Shard
from evaluator.replay.writing import WrittenFiles

MIN_BYTES: Final = 16 << 20
MIN_RECORDS: Final = 50_000
"""Least input of a process by default, because its start takes about a second."""
_ONE_PROCESS_OPTIONS: Final = ("samples", "openmetrics", "weights", "scorer")
"""Options that need all queries in one process."""


class ShardJob(Struct, frozen=True):
    """The work of one process: the tasks of `bounds`, into the directory `out`."""

    options: argparse.Namespace
    settings: Settings
    bounds: Bounds
    out: Path

    @property
    def tasks(self) -> tuple[int, ...]:
        return tuple(sorted({task for _, task in self.bounds}))

    def __str__(self) -> str:
        return f"task {', '.join(map(str, self.tasks))}"


def evaluate_shard(job: ShardJob, report: Report) -> None:
    """Replays the tasks of a job into its directory, which a dead process may have left."""
    shutil.rmtree(job.out, ignore_errors=True)
    settings, learns = job.settings, job.settings.learns
    read = replace(read_rules_of(job.options, settings, features=learns), tasks=job.tasks)
    source = source_of(job.options, settings, read, job.bounds)
    measures = measure_set(settings)
    rules = replay_rules_of(job.options, settings, measures, read, learns=learns)
    results, names = ResultDirectory(job.out, force=False), topic_names(settings)
    asyncio.run(run_replay(source, results, rules, topic_names=names, show_progress=report))


class Plan(Struct, frozen=True):
    """The shards of a replay, those with the most to read first."""

    n_processes: int
    shards: list[Bounds]
    progress: ProgressBar

    def write(
        self,
        results: ResultDirectory,
        options: argparse.Namespace,
        settings: Settings,
        rules: ReplayRules,
        *,
        alarms: AlarmReplay | None,
        online_learning: OnlineLearning | None,
    ) -> WrittenFiles:
        """Evaluates and merges all shards into *results*. Raises the errors of `replay`."""
        with results:
            jobs = [
                ShardJob(options, settings, bounds, results.hidden_place(f"shard-{n}"))
                for n, bounds in enumerate(self.shards)
            ]
            with self.progress as bar:
                in_processes(
                    jobs, evaluate_shard, n_processes=self.n_processes, on_progress=bar.update
                )
            merging = Merge.of([Shard(job.out) for job in jobs])
            return merging.write(
                results, rules.for_files(), alarms=alarms, online_learning=online_learning
            )


def plan_of(
    options: argparse.Namespace,
    settings: Settings,
    read: ReadRules,
    pinned: Bounds | None = None,
    *,
    always: bool = False,
) -> Plan | None:
    """The shards of a replay, with the ends of their logs; None: this process replays all.

    *pinned* replace the bounds of the logs. With *always* there is a plan for one process, too.
    Raises UsageError, and errors of the source.
    """
    wanted: int | None = options.processes
    if wanted is not None and wanted < 1:
        raise UsageError(f"--processes {wanted}: give 1 or more.")
    option = next((name for name in _ONE_PROCESS_OPTIONS if getattr(options, name)), None)
    if option is not None and (wanted or 1) > 1:
        raise UsageError(f"--{option} is evaluated by one process: leave --processes out.")
    if (wanted == 1 and not always) or option is not None:
        return None
    source = source_of(options, settings, read, pinned)
    bounds = asyncio.run(_bounds(source, read))
    sizes: dict[int, int] = {}
    for key, of in bounds.items():
        sizes[key[1]] = sizes.get(key[1], 0) + (n_to_read(source, {key: of}) or 0)
    if wanted is None:
        least = MIN_BYTES if isinstance(source, CountsBytes) else MIN_RECORDS
        wanted = min(len(os.sched_getaffinity(0)), sum(sizes.values()) // least)
    if min(wanted, len(sizes)) <= 1 and not always:
        return None
    tasks = sorted(sizes, key=lambda task: (-sizes[task], task))
    n_shards = min(len(tasks), MAX_SHARDS)
    shards = [_of_tasks(bounds, set(tasks[n::n_shards])) for n in range(n_shards)]
    progress = ProgressBar(n_to_read(source, bounds), source, shown=None)
    return Plan(max(1, min(wanted, n_shards)), shards, progress)


async def _bounds(source: RangeSource, read: ReadRules) -> Bounds:
    try:
        return await opened(source, read)
    finally:
        await source.close()


def _of_tasks(bounds: Bounds, tasks: set[int]) -> Bounds:
    return {key: of for key, of in bounds.items() if key[1] in tasks}
