"""The logs, groups and outputs of a broker in memory."""

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Protocol, TypeVar

from msgspec import Struct, field

from evaluator.core.types.records import LOGS, Log
from evaluator.ports import Committed, Lane, Partition, SourceUnavailable
from evaluator.waiting import is_set_within
from evaluator.wire.records import LEADER_OUTPUTS, LeaderOutput, Output, OutputRecord

MAX_OUTPUTS = 1_000_000
"""Records kept of each output partition; older ones are dropped, as by retention."""
RELEASE_TIMEOUT_SECONDS = 20.0

T = TypeVar("T")


class PartitionLog(Struct):
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


class LeaderTopics(Struct):
    """The topics of the leader, the eligible processes in order, and the last leader epoch."""

    written: dict[LeaderOutput, list[OutputRecord]] = field(
        default_factory=lambda: {output: [] for output in LEADER_OUTPUTS}
    )
    candidates: list[object] = field(default_factory=list)
    leader_epoch: int = 0


class MemoryBroker:
    """Input partitions, output partitions and consumer groups.

    Args:
        partitions: of both inputs; a mapping gives them different counts.
        keep_read: False drops records once every group has committed past them, so that memory
            stays bounded. True keeps them for members that start from the beginning.
        identity: distinguishes this broker from others.
        release_timeout_seconds: how long a handover waits for an owner.
    """

    def __init__(
        self,
        partitions: int | Mapping[Log, int] = 1,
        *,
        keep_read: bool = True,
        identity: str = "memory",
        release_timeout_seconds: float = RELEASE_TIMEOUT_SECONDS,
    ) -> None:
        counts = partitions if isinstance(partitions, Mapping) else dict.fromkeys(LOGS, partitions)
        self.partitions: dict[Log, int] = {log: counts[log] for log in LOGS}
        self.release_timeout_seconds = release_timeout_seconds
        self.logs = {(log, p): PartitionLog() for log in LOGS for p in range(self.partitions[log])}
        self._n_created: dict[Log, int] = dict.fromkeys(LOGS, 1)
        self._outputs: dict[Lane, deque[OutputRecord]] = {}
        self._n_written: dict[Lane, int] = {}
        self.max_bytes: dict[Output, int] = {}  # of a record, where an output has a limit
        self.leader = LeaderTopics()
        self._groups: dict[str, Group] = {}
        self._keep_read = keep_read
        self.identity = identity
        self._changed = asyncio.Event()
        self.disconnected = False
        self.ahead_ms: int | None = 0
        """How far its clock is ahead of this process; None if `broker_time_ms` is not supported."""
        self.timestamp_bound_ms: float = inf
        """How far ahead of its clock a heartbeat may be stamped."""

    # Producers, and readers of outputs

    def append(
        self, log: Log, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int
    ) -> int:
        """Appends a record; returns its offset."""
        kept = self.logs[log, partition]
        offset = kept.end
        kept.offsets.append(offset)
        kept.keys.append(key)
        kept.values.append(value)
        kept.timestamps_ms.append(timestamp_ms)
        kept.end = offset + 1
        self.notify()
        return offset

    def topic_id(self, log: Log) -> str:
        """Distinguishes a topic from earlier ones of its name."""
        return f"{self.identity}-{log}-{self._n_created[log]}"

    def output(self, output: Output, partition: int) -> list[OutputRecord]:
        """The visible records of an output partition, oldest first."""
        return list(self._outputs.get((output, partition), ()))

    def output_from(
        self, output: Output, partition: int, offset: int, max_records: int
    ) -> tuple[int, list[OutputRecord]]:
        """Records of an output partition from an offset, and the offset of the first."""
        kept = self._outputs.get((output, partition), deque())
        first = self._n_written.get((output, partition), 0) - len(kept)
        begin = max(offset - first, 0)
        return first + begin, list(islice(kept, begin, begin + max_records))

    # Clients

    def require(self) -> None:
        """Raises SourceUnavailable while the broker is disconnected."""
        if self.disconnected:
            raise SourceUnavailable("The broker in memory is unavailable.")

    async def wait_for_change(self) -> None:
        """Waits for a record, a commit, a change of a group, or a reconnect."""
        await self._changed.wait()

    async def wait_for(
        self, read: Callable[[], list[T]], timeout_ms: int, *, until: Callable[[], bool]
    ) -> list[T]:
        """The result of *read* once it is not empty; [] after the timeout, or if *until* is true.

        Raises SourceUnavailable.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            await asyncio.sleep(0)  # yields, so that other coroutines run
            self.require()
            found = [] if until() else read()
            left_seconds = deadline - time.monotonic()
            if found or until() or left_seconds <= 0:
                return found
            await is_set_within(self._changed, left_seconds)

    def notify(self) -> None:
        """Ends every `wait_for_change`."""
        self._changed.set()
        self._changed = asyncio.Event()

    def group(self, group_id: str) -> "Group":
        """The group of this id, created if needed."""
        if group_id not in self._groups:
            self._groups[group_id] = Group(self)
        return self._groups[group_id]

    def commit(self, group: "Group", commits: Mapping[Partition, Committed]) -> None:
        """Stores the commits of *group*; drops records that every group has read if allowed."""
        for partition, committed in commits.items():
            group.commits[partition] = committed
            if not self._keep_read:
                kept = self.logs[partition]
                others = [each.commits.get(partition) for each in self._groups.values()]
                kept.drop_before(min(kept.first if c is None else c.offset for c in others))
        self.notify()

    def write(self, lane: Lane, records: Sequence[OutputRecord]) -> None:
        """Makes records of an output partition visible."""
        kept = self._outputs.setdefault(lane, deque(maxlen=MAX_OUTPUTS))
        kept.extend(records)
        self._n_written[lane] = self._n_written.get(lane, 0) + len(records)
        self.notify()


class Member(Protocol):
    """A source in a group."""

    revoking: bool

    @property
    def owns_tasks(self) -> bool: ...
    def assign(self, tasks: frozenset[int]) -> None: ...
    def release(self) -> None: ...


class Group:
    """Members in the order of joining; each is assigned a range of the tasks."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.commits: dict[Partition, Committed] = {}
        self.members: list[Member] = []
        self._broker = broker
        self._n_tasks = broker.partitions["rankings"]
        self._timer: asyncio.TimerHandle | None = None

    def join(self, member: Member) -> None:
        self.members.append(member)
        self._rebalance()

    def leave(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)
            self._rebalance()

    def _rebalance(self) -> None:
        """Revokes the tasks of every owner; `advance` assigns them when all are released."""
        owners = [member for member in self.members if member.owns_tasks]
        for member in owners:
            member.revoking = True
        if self._timer is None and owners:
            timeout_seconds = self._broker.release_timeout_seconds
            self._timer = asyncio.get_running_loop().call_later(timeout_seconds, self._force)
        self.advance()

    def _force(self) -> None:
        for member in self.members:
            member.release()

    def advance(self) -> None:
        """Assigns the tasks unless a member has not released its own."""
        self._broker.notify()
        if any(member.revoking for member in self.members):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        n_members = len(self.members)
        for index, member in enumerate(self.members):
            share, extra = divmod(self._n_tasks, n_members)
            first = index * share + min(index, extra)
            member.assign(frozenset(range(first, first + share + (index < extra))))
