"""Record batches as the library unpacks them: skipped ones are not, broken ones are named."""

import importlib
from collections.abc import Container, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords

from evaluator.core.types.skips import OffsetRange, covered, partition_missing
from evaluator.ports import SourceUnusable

_SKIPPED: Final[dict[TopicPartition, Sequence[OffsetRange]]] = {}
_INPUTS: Final = ("rankings", "judgments")


class BatchDamaged(SourceUnusable):
    """A record batch of this *partition* cannot be unpacked."""

    def __init__(self, message: str, partition: int) -> None:
        super().__init__(message)
        self.partition = partition


def skip(partition: TopicPartition, ranges: Sequence[OffsetRange]) -> None:
    """Has no consumer of this process unpack a batch whose offsets are all in *ranges*."""
    _SKIPPED[partition] = ranges


def skipped(partition: TopicPartition) -> Sequence[OffsetRange]:
    """What `skip` was asked for last."""
    return _SKIPPED.get(partition, ())


def require_skipped(topics: Container[str], n_partitions: int) -> None:
    """Raises SourceUnusable where `skip` was asked for a partition that is not there."""
    for (topic, number), ranges in _SKIPPED.items():
        if ranges and topic in topics and number >= n_partitions:
            raise SourceUnusable(partition_missing(topic, number, n_partitions))


def name_broken_batches() -> None:
    """Makes the library's consumers unpack batches as this module does.

    Holds for the whole process; tests/adapters/test_kafka_client.py fails where the library looks
    different inside.
    """
    library: Any = importlib.import_module("aiokafka.consumer.fetcher")
    library.PartitionRecords = _Records


class _Batches:
    """What is left of the batches of a fetch: the part of MemoryRecords that the library uses."""

    def __init__(self, batches: Any, ranges: Sequence[OffsetRange], owner: "_Records") -> None:
        self._batches = batches
        self._ranges = ranges
        self._owner = owner
        self._next: Any = None
        self.last: int | None = None  # offset of the batch that was begun last

    def has_next(self) -> bool:
        while self._next is None and self._batches.has_next():
            self.last = None
            batch = self._batches.next_batch()
            self.last = batch.next_offset - 1
            first = max(batch.base_offset, self._owner.next_fetch_offset)
            if self._ranges and covered(self._ranges, first, self.last):
                self._owner.next_fetch_offset = max(first, batch.next_offset)
            else:
                self._next = batch
        return self._next is not None

    def next_batch(self) -> Any:
        batch, self._next = self._next, None
        return batch


class _Records(PartitionRecords):  # type: ignore[misc]  # the library has no types
    """The records of a fetch; raises BatchDamaged for a batch that cannot be unpacked.

    What comes before that batch is delivered first, so that the error names its offsets.
    """

    _records_iterator: Any

    def __init__(self, tp: TopicPartition, batches: Any, *arguments: Any) -> None:
        self._kept = _Batches(batches, skipped(tp), self)
        super().__init__(tp, self._kept, *arguments)
        self._first_offset = self.next_fetch_offset

    def __next__(self) -> Any:
        if self._records_iterator is None:
            raise StopIteration
        try:
            return next(self._records_iterator)
        except StopIteration:
            self._records_iterator = None
            raise
        except Exception as error:
            self._records_iterator = None
            if self.next_fetch_offset > self._first_offset:
                raise StopIteration from None
            raise BatchDamaged(self._refusal(error), self._tp.partition) from error

    def _refusal(self, error: Exception) -> str:
        topic, number = self._tp
        first, last = self.next_fetch_offset, self._kept.last
        where = f"{first}" if last is None or last <= first else f"{first}-{last}"
        text = " ".join((str(error) or type(error).__name__).split())[:200]
        advice = (
            f" To go on without them: `evaluator run --skip {topic}-{number}:{where}`, the same "
            "for replay. A worker that has to make a task again of them needs --accept-loss too."
            if topic.endswith(_INPUTS)
            else ""
        )
        return (
            f"The records {topic}-{number}:{where} cannot be read: {text}. They are damaged on the "
            f"broker; another replica may have them whole.{advice}"
        )
