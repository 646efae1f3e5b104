"""The broker in memory, with faults of a real one, and access to its logs."""

from collections import deque

from evaluator.adapters.memory import MemoryBroker
from evaluator.adapters.memory.broker import PartitionLog
from evaluator.core.types.records import Log
from evaluator.ports import Committed, Partition
from evaluator.wire.records import Output


class FaultyBroker(MemoryBroker):
    """Loses, adds and hides records that its users have or have not read."""

    def skip(self, log: Log, partition: int, count: int = 1) -> None:
        """Leaves a gap of *count* offsets, as an aborted transaction does."""
        self.logs[log, partition].end += count
        self.notify()

    def expire(self, log: Log, partition: int, before: int) -> None:
        """Drops the records before an offset, as retention does."""
        self.logs[log, partition].drop_before(before)

    def expire_output(self, output: Output, partition: int, before: int) -> None:
        """Drops the records of an output partition before an offset."""
        kept = self._outputs.get((output, partition), deque())
        while kept and self._n_written[output, partition] - len(kept) < before:
            kept.popleft()

    def recreate(self, log: Log) -> None:
        """Deletes and recreates a topic; the commits of groups remain, as they may in Kafka."""
        self._n_created[log] += 1
        for partition in range(self.partitions[log]):
            self.logs[log, partition] = PartitionLog()
        self.notify()

    def lose_end(self, log: Log, partition: int, offset: int) -> None:
        """Drops the records from an offset, as an unclean leader election does."""
        kept = self.logs[log, partition]
        first = kept.index_of(offset)
        for column in (kept.offsets, kept.keys, kept.values, kept.timestamps_ms):
            del column[first:]
        kept.end = offset

    def grow(self, log: Log, partitions: int) -> None:
        """Adds partitions to a topic."""
        for partition in range(self.partitions[log], partitions):
            self.logs[log, partition] = PartitionLog()
        self.partitions[log] = partitions

    def disconnect(self) -> None:
        """Makes the broker unavailable; sinks wait, sources raise SourceUnavailable."""
        self.disconnected = True
        self.notify()

    def reconnect(self) -> None:
        """Ends `disconnect`."""
        self.disconnected = False
        self.notify()

    def end_of(self, log: Log, partition: int) -> int:
        """The offset of the next record."""
        return self.logs[log, partition].end

    def committed(self, group_id: str, partition: Partition) -> Committed | None:
        """The commit of a group."""
        return self.group(group_id).commits.get(partition)
