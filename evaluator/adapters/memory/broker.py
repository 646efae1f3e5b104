"""The logs of a broker in memory, its groups and its outputs."""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from evaluator.adapters.memory.group import Group
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import Committed, Partition, SourceUnavailable
from evaluator.wire.records import LeaderOutput, Output, OutputRecord

MAX_OUTPUTS = 1_000_000
"""Records kept of each output partition; older ones are dropped, as by retention."""
RELEASE_TIMEOUT_SECONDS = 20.0


@dataclass(slots=True)
class PartitionLog:
    """One partition: parallel columns, without the records before `first`."""

    offsets: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    first: int = 0
    end: int = 0

    def index_of(self, offset: int) -> int:
        """Index of the first record at *offset* or later."""
        if self.offsets and self.end - self.first == len(self.offsets):
            return min(max(offset - self.first, 0), len(self.offsets))
        return bisect_left(self.offsets, offset)

    def drop_before(self, offset: int) -> None:
        index = self.index_of(offset)
        for column in (self.offsets, self.keys, self.values, self.timestamps_ms):
            del column[:index]
        self.first = max(self.first, offset)


@dataclass(slots=True)
class LeaderTopics:
    """What leaders write, who stands for election, in order, and how often one took leadership."""

    written: dict[LeaderOutput, list[OutputRecord]] = field(
        default_factory=lambda: {"weights": [], "weights-log": []}
    )
    candidates: list[object] = field(default_factory=list)
    leader_epoch: int = 0


class MemoryBroker:
    """Input partitions, output partitions and consumer groups.

    Args:
        partitions: of both inputs; a mapping gives them different counts.
        keep_read: False drops records as soon as every group has committed past them, so that
            memory stays bounded however much is appended. True keeps them: a member that
            starts again can read from the beginning.
        max_outputs: how many records of each output partition are kept.
        identity: what tells this broker from others.
        release_timeout_seconds: how long a handover waits for an owner.
    """

    def __init__(
        self,
        partitions: int | Mapping[Log, int] = 1,
        *,
        keep_read: bool = True,
        max_outputs: int = MAX_OUTPUTS,
        identity: str = "memory",
        release_timeout_seconds: float = RELEASE_TIMEOUT_SECONDS,
    ) -> None:
        counts = partitions if isinstance(partitions, Mapping) else dict.fromkeys(LOGS, partitions)
        self.partitions: dict[Log, int] = {log: counts[log] for log in LOGS}
        self.release_timeout_seconds = release_timeout_seconds
        self.logs = {(log, p): PartitionLog() for log in LOGS for p in range(self.partitions[log])}
        self._n_made: dict[Log, int] = dict.fromkeys(LOGS, 1)
        self._outputs: dict[tuple[Output, int], deque[OutputRecord]] = {}
        self._n_written: dict[tuple[Output, int], int] = {}
        self.max_bytes: dict[Output, int] = {}  # of a record, where an output has a limit
        self.leader = LeaderTopics()
        self._groups: dict[str, Group] = {}
        self._keep_read = keep_read
        self._max_outputs = max_outputs
        self.identity = identity
        self._news = asyncio.Event()
        self.away = False
        self.ahead_ms: int | None = 0
        """Of the clock of this process; None where the broker does not show its time."""
        self.timestamp_bound_ms: float = inf
        """How far ahead of the broker's clock a heartbeat may be stamped."""

    # For who fills the inputs and reads the outputs

    def append(
        self, log: Log, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int
    ) -> int:
        """Appends a record; returns its offset. Whoever appends much waits for commits."""
        kept = self.logs[log, partition]
        offset = kept.end
        kept.offsets.append(offset)
        kept.keys.append(key)
        kept.values.append(value)
        kept.timestamps_ms.append(timestamp_ms)
        kept.end = offset + 1
        self.tell()
        return offset

    def skip(self, log: Log, partition: int, count: int = 1) -> None:
        """Leaves a gap of *count* offsets, as an aborted transaction does."""
        self.logs[log, partition].end += count
        self.tell()

    def expire(self, log: Log, partition: int, before: int) -> None:
        """Drops the records before an offset, as retention does."""
        self.logs[log, partition].drop_before(before)

    def make_anew(self, log: Log) -> None:
        """Deletes a topic and makes it again: empty, and another one of that name.

        What groups have committed of it stays, which Kafka would not promise either.
        """
        self._n_made[log] += 1
        for partition in range(self.partitions[log]):
            self.logs[log, partition] = PartitionLog()
        self.tell()

    def lose_end(self, log: Log, partition: int, offset: int) -> None:
        """Drops the records from an offset on, as an unclean election of a leader does."""
        kept = self.logs[log, partition]
        index = kept.index_of(offset)
        for column in (kept.offsets, kept.keys, kept.values, kept.timestamps_ms):
            del column[index:]
        kept.end = offset

    def grow(self, log: Log, partitions: int) -> None:
        """Adds partitions to a topic, for producers to write to."""
        for partition in range(self.partitions[log], partitions):
            self.logs[log, partition] = PartitionLog()
        self.partitions[log] = partitions

    def topic_id(self, log: Log) -> str:
        """What tells a topic from others that had its name."""
        return f"{self.identity}-{log}-{self._n_made[log]}"

    def end_of(self, log: Log, partition: int) -> int:
        """The offset that the next record will get."""
        return self.logs[log, partition].end

    def output(self, output: Output, partition: int) -> list[OutputRecord]:
        """What is visible of an output partition, oldest first."""
        return list(self._outputs.get((output, partition), ()))

    def output_from(
        self, output: Output, partition: int, offset: int, max_records: int
    ) -> tuple[int, list[OutputRecord]]:
        """Records of an output partition from an offset on, and the offset of the first."""
        kept = self._outputs.get((output, partition), deque())
        first = self._n_written.get((output, partition), 0) - len(kept)
        begin = max(offset - first, 0)
        return first + begin, list(islice(kept, begin, begin + max_records))

    def expire_output(self, output: Output, partition: int, before: int) -> None:
        """Drops the records of an output partition before an offset."""
        kept = self._outputs.get((output, partition), deque())
        while kept and self._n_written[output, partition] - len(kept) < before:
            kept.popleft()

    def committed(self, group_id: str, partition: Partition) -> Committed | None:
        """What a group has committed."""
        return self.group(group_id).commits.get(partition)

    def go_away(self) -> None:
        """From now on nobody reaches the broker; sinks wait, sources raise SourceUnavailable."""
        self.away = True
        self.tell()

    def come_back(self) -> None:
        """Ends `go_away`."""
        self.away = False
        self.tell()

    # For the adapters below

    def require(self) -> None:
        """Raises SourceUnavailable while the broker is away."""
        if self.away:
            raise SourceUnavailable("The broker in memory is away.")

    async def wait_for_news(self) -> None:
        """Until anything has changed: a record, a commit, a group, coming back."""
        await self._news.wait()

    def tell(self) -> None:
        """Wakes everybody who waits for news."""
        self._news.set()
        self._news = asyncio.Event()

    def group(self, group_id: str) -> "Group":
        """A group by its id, made when it is first asked for."""
        if group_id not in self._groups:
            self._groups[group_id] = Group(self.partitions["rankings"], self.tell)
        return self._groups[group_id]

    def _read_by_all(self, partition: Partition) -> int:
        """The offset up to which every group has committed *partition*."""
        first = self.logs[partition].first
        marks = [group.commits.get(partition) for group in self._groups.values()]
        return min((first if mark is None else mark.offset for mark in marks), default=first)

    def commit(self, group: "Group", commits: Mapping[Partition, Committed]) -> None:
        """Keeps what *group* has read, and drops what all have read if it may."""
        for partition, mark in commits.items():
            group.commits[partition] = mark
            if not self._keep_read:
                self.logs[partition].drop_before(self._read_by_all(partition))
        self.tell()

    def write(self, lane: tuple[Output, int], records: Sequence[OutputRecord]) -> None:
        """Makes records of an output partition visible."""
        kept = self._outputs.setdefault(lane, deque(maxlen=self._max_outputs))
        kept.extend(records)
        self._n_written[lane] = self._n_written.get(lane, 0) + len(records)
        self.tell()
