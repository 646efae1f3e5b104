"""The input logs of a MemoryBroker, read as a member of a group."""

import time
from collections.abc import Collection, Mapping, Sequence

from evaluator.adapters.memory.broker import MemoryBroker, PartitionLog
from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.skips import OffsetRange, covered
from evaluator.ports import Assignment, Committed, Partition, Place, RecordAt, SourceUnusable
from evaluator.wire.records import Records, without
from evaluator.wire.state.checkpoint import CheckpointSets


class MemorySource:
    """Implements `evaluator.ports.Source` over a MemoryBroker."""

    def __init__(self, broker: MemoryBroker, *, group_id: str = "evaluator") -> None:
        self._broker = broker
        self._group = broker.group(group_id)
        self._assignment: Assignment | None = None
        self._between = False
        self.revoking = False
        self._joined = False
        self._positions: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._counts: Mapping[Log, int] = {}
        self._skipped: dict[Partition, Sequence[OffsetRange]] = {}

    async def start(self) -> None:
        self._broker.require()
        self._counts = counts = dict(self._broker.partitions)
        if counts["rankings"] != counts["judgments"]:
            raise SourceUnusable(
                f"Log rankings has {counts['rankings']} partitions and log judgments has "
                f"{counts['judgments']}. Give both the same count."
            )
        if not self._joined:
            self._joined = True
            self._group.join(self)

    async def stop(self) -> None:
        if self._joined:
            self._joined = False
            self.revoking = False
            self._group.leave(self)

    # evaluator.adapters.memory.broker.Group

    @property
    def owns_tasks(self) -> bool:
        """Whether this member has tasks to release."""
        return self._assignment is not None and bool(self._assignment.tasks) and not self._between

    def assign(self, tasks: frozenset[int]) -> None:
        generation = 1 if self._assignment is None else self._assignment.generation + 1
        self._assignment = Assignment(generation, tasks)
        self._between = False
        self._ends.clear()

    # evaluator.ports.Source

    @property
    def assignment(self) -> Assignment | None:
        """The tasks of this member; positions of lost tasks are forgotten when it is read."""
        if self._assignment is not None:
            for log, partition in list(self._positions):
                if partition not in self._assignment.tasks:
                    del self._positions[log, partition]
        return self._assignment

    def release(self) -> None:
        if self.revoking:
            self.revoking = False
            self._between = True
            self._group.advance()

    def stay_in_group(self) -> None:
        """Has no effect: this group expels no member."""

    async def place(self) -> Place:
        names: dict[Log, str] = {log: str(log) for log in LOGS}
        return Place(self._broker.identity, names, await self.topic_ids(), self._counts["rankings"])

    async def topic_ids(self) -> Mapping[Log, str]:
        self._broker.require()
        for log, count in self._broker.partitions.items():
            if count != self._counts[log]:
                raise SourceUnusable(
                    f"Log {log} had {self._counts[log]} partitions at the start and has {count} "
                    "now. Give both logs the same count, and restart."
                )
        return {log: self._broker.topic_id(log) for log in LOGS}

    async def records_at(self, places: Collection[RecordAt]) -> Mapping[RecordAt, Records | None]:
        self._broker.require()
        read = {
            (each, offset): _slice(each, self._broker.logs[each], offset, 1)
            for each, offset in places
            if offset >= self._broker.logs[each].first
        }
        return {
            (each, at): None if covered(self._skipped.get(each, ()), at, at) else records
            for (each, at), records in read.items()
            if records is not None and records.offsets.tolist() == [at]
        }

    async def checkpoints(self, tasks: Collection[int]) -> Mapping[int, Mapping[bytes, bytes]]:
        self._broker.require()
        found = {task: CheckpointSets() for task in tasks}
        for task, sets in found.items():
            for record in self._broker.output("checkpoints", task):
                sets.take(record.key, record.value)
        return {task: sets.latest() for task, sets in found.items()}

    async def beginning(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        self._broker.require()
        return {each: self._broker.logs[each].first for each in partitions}

    async def end(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        self._broker.require()
        return {each: self._broker.logs[each].end for each in partitions}

    async def committed(self, partitions: Sequence[Partition]) -> Mapping[Partition, Committed]:
        self._broker.require()
        commits = self._group.commits
        return {each: commits[each] for each in partitions if each in commits}

    def seek(self, partition: Partition, offset: int) -> None:
        self._positions[partition] = offset
        self._broker.notify()

    def skip(self, partition: Partition, ranges: Sequence[OffsetRange]) -> None:
        self._skipped[partition] = ranges

    def known_end(self, partition: Partition) -> int | None:
        return self._ends.get(partition)

    async def poll(
        self, partitions: Sequence[Partition], *, max_records: int, timeout_ms: int
    ) -> list[Records]:
        return await self._broker.wait_for(
            lambda: self._read(partitions, max_records), timeout_ms, until=lambda: self.revoking
        )

    def _read(self, partitions: Sequence[Partition], max_records: int) -> list[Records]:
        batches: list[Records] = []
        left = max_records
        for each in partitions:
            if left == 0 or not self._may_read(each):
                continue
            kept = self._broker.logs[each]
            self._ends[each] = kept.end
            batch = _slice(each, kept, self._positions[each], left)
            if batch is not None:
                self._positions[each] = batch.next_offset
                left -= len(batch)
                batches.append(without(batch, self._skipped.get(each, ())))
        return batches

    def _may_read(self, partition: Partition) -> bool:
        owned = self._assignment is not None and partition[1] in self._assignment.tasks
        return owned and not self._between and partition in self._positions

    async def commit(self, commits: Mapping[Partition, Committed]) -> bool:
        self._broker.require()
        tasks = frozenset() if self._assignment is None else self._assignment.tasks
        if not self._joined or self._between or not tasks.issuperset(p for _, p in commits):
            return False
        self._broker.commit(self._group, commits)
        return True

    async def append_heartbeat(self, partition: Partition, timestamp_ms: int) -> bool:
        self._broker.require()
        ahead_ms = timestamp_ms - time.time_ns() // 1_000_000 - (self._broker.ahead_ms or 0)
        if ahead_ms > self._broker.timestamp_bound_ms:
            return False
        self._broker.append(*partition, None, None, timestamp_ms)
        return True

    async def broker_time_ms(self) -> int | None:
        self._broker.require()
        ahead_ms = self._broker.ahead_ms
        return None if ahead_ms is None else time.time_ns() // 1_000_000 + ahead_ms


def _slice(partition: Partition, there: PartitionLog, position: int, limit: int) -> Records | None:
    """The records from *position*; None if no offset follows it."""
    if position < there.first or position > there.end:
        raise SourceUnusable(
            f"Offset {position} of {partition[0]}-{partition[1]} is not in its log any more, which "
            f"reaches from {there.first} to {there.end}. Read from the beginning that is left."
        )
    start = there.index_of(position)
    stop = min(start + limit, len(there.offsets))
    next_offset = there.end if stop == len(there.offsets) else there.offsets[stop - 1] + 1
    if next_offset <= position:
        return None
    part = slice(start, stop)
    return Records.of(
        *partition,
        there.offsets[part],
        there.keys[part],
        there.values[part],
        there.timestamps_ms[part],
        next_offset,
    )
