"""What to read next, so that batches are large and few judgments arrive before their ranking."""

from collections.abc import Collection
from typing import Final, NamedTuple

from evaluator.ports import Partition
from evaluator.worker.task import Task

PATIENT_MS: Final = 250
HASTY_MS: Final = 20
"""How long to wait for records where there is nothing else to read, and where there is."""


class Read(NamedTuple):
    """The arguments of one poll."""

    partitions: list[Partition]
    max_records: int
    timeout_ms: int


def next_reads(tasks: Collection[Task], *, turn: int, max_records: int) -> list[Read]:
    """The polls of a turn, each for the case that those before it gave nothing; turns go round.

    One poll is for all tasks that read without a bound. A task whose rankings lead reads
    judgments up to about there, in a poll of its own, for a poll fills its first partition first.
    """
    bounds = {task.number: task.judgments_ahead() for task in tasks}
    together = [
        partition for task in tasks if bounds[task.number] is None for partition in task.wanted()
    ]
    reads = [(together, max_records)] if together else []
    for task in tasks:
        bound = bounds[task.number]
        if bound is not None:
            reads.append((task.wanted(), min(bound, max_records)))
    if not reads:
        return [Read([], max_records, PATIENT_MS)]
    if len(reads) == 1:
        return [Read(*reads[0], PATIENT_MS)]
    first = turn % len(reads)
    rotated = reads[first:] + reads[:first]
    return [*(Read(*read, 0) for read in rotated), Read(*rotated[0], HASTY_MS)]
