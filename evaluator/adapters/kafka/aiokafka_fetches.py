"""Fetches of aiokafka, unpacked to columns; like aiokafka_internals.py, this depends on internals.

aiokafka makes an object of every record. For consumers of the inputs, record batches are read by
the compiled reader instead, and compressed ones are unpacked with a limit. All other batches, and
all consumers without a compiled reader or with another aiokafka, take the reference path: the
classes of aiokafka.
"""

import importlib
from typing import Any, Final

import aiokafka
import numpy as np
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.record.memory_records import MemoryRecords

from evaluator.adapters.kafka.errors import BatchDamaged, skipped
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.types.skips import covered
from evaluator.wire.native import library, record_sets
from evaluator.wire.native.record_sets import MAX_UNPACKED_BYTES, RecordColumns
from evaluator.wire.records import (
    MAX_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
    kept,
    kept_to_map,
    kept_whole,
    packed_headers,
)

_NONE: Final = -1
_KNOWN: Final = aiokafka.__version__.startswith("0.14.")
_FLAGS: Final[dict[Any, int]] = {
    kept: 0,
    kept_to_map: record_sets.IS_FOREIGN,
    kept_whole: record_sets.IS_FOREIGN | record_sets.IS_WHOLE,
}
"""Ways to read records, by the deserializer of their values."""
_LENGTH: Final = slice(8, 12)
_FIRST: Final = slice(8)
_LAST_DELTA: Final = slice(23, 27)
_MAGIC: Final = slice(16, 17)
_OVERHEAD: Final = 12
"""Bytes of a batch up to the end of its length."""
_HEADER: Final = 61
"""Bytes of a batch before its records."""
_LEAST: Final = 26
"""Bytes of the smallest batch of an older format; aiokafka refuses smaller ones."""


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/fetcher.py#L833
def replace_unpacking() -> None:
    """Replaces the classes that unpack a fetch, for the whole process."""
    fetcher: Any = importlib.import_module("aiokafka.consumer.fetcher")
    fetcher.MemoryRecords = _MemoryRecords
    fetcher.PartitionRecords = _records_of_fetch
    fetcher.FetchResult = _FetchResult


def columns_of(
    rows: list[Any], *, is_foreign: bool = False, is_whole: bool = False
) -> RecordColumns:
    """Columns of rows of aiokafka; too large keys are cut, and values unless *is_whole*."""
    max_bytes = MAX_RECORD_BYTES if is_foreign else MAX_MESSAGE_BYTES
    values = [row.value if is_whole else kept(row.value, max_bytes) for row in rows]
    return RecordColumns(
        np.array([row.offset for row in rows], np.int64),
        np.array([_NONE if row.timestamp is None else row.timestamp for row in rows], np.int64),
        ByteStrings.of([kept(row.key) for row in rows]),
        ByteStrings.of(values),
        np.array([row.serialized_value_size for row in rows], np.int64),
        ByteStrings.of([packed_headers(row.headers) for row in rows]) if is_foreign else None,
    )


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/record/memory_records.py#L39
class _MemoryRecords:
    """The batches of a fetch, and their bytes."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data
        self._batches: Any = None  # made for the reference path only, which needs bytes

    def size_in_bytes(self) -> int:
        return len(self.data)

    def has_next(self) -> bool:
        if self._batches is not None:
            return bool(self._batches.has_next())
        size = _OVERHEAD + int.from_bytes(self.data[_LENGTH], "big", signed=True)
        return len(self.data) >= _OVERHEAD and size <= len(self.data)

    def next_batch(self) -> Any:
        if self._batches is None:
            self._batches = MemoryRecords(bytes(self.data))
        return self._batches.next_batch()


# https://github.com/aio-libs/aiokafka/issues/321
# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/fetcher.py#L168
class _PartitionRecords(PartitionRecords):  # type: ignore[misc] # untyped in the library
    """The records of a fetch; raises BatchDamaged for a batch that cannot be unpacked.

    Records before that batch are delivered first, so that the error names its offsets. The object
    iterates over its own batches (`has_next`, `next_batch`) without those that are skipped.
    """

    _records_iterator: Any
    _records: Any
    next_fetch_offset: int

    def __init__(self, tp: TopicPartition, batches: Any, *arguments: Any) -> None:
        self._batches = batches
        self._skipped = skipped(tp)
        self._next_batch: Any = None
        self._last_offset: int | None = None  # of the latest batch
        super().__init__(tp, self, *arguments)
        self._first_offset = self.next_fetch_offset

    def release(self) -> None:
        """Breaks the cycle of references, which would keep the fetch until a garbage collection."""
        self._records_iterator = self._records = self._batches = None

    def has_next(self) -> bool:
        while self._next_batch is None and self._batches.has_next():
            self._last_offset = None
            batch = self._batches.next_batch()
            self._last_offset = batch.next_offset - 1
            at = self.next_fetch_offset
            first = max(getattr(batch, "base_offset", at), at)  # older formats have none
            if self._skipped and covered(self._skipped, first, self._last_offset):
                self.next_fetch_offset = max(first, batch.next_offset)
            else:
                self._next_batch = batch
        return self._next_batch is not None

    def next_batch(self) -> Any:
        batch, self._next_batch = self._next_batch, None
        return batch

    def __next__(self) -> Any:
        if self._records_iterator is None:
            raise StopIteration
        try:
            return next(self._records_iterator)
        except StopIteration:
            self.release()
            raise
        except Exception as error:
            self.release()
            if self.has_read:
                raise StopIteration from None
            raise BatchDamaged(
                self._tp, self.next_fetch_offset, self._last_offset, error
            ) from error

    @property
    def has_aborted(self) -> bool:
        """Whether records of transactions may have to be left out."""
        return bool(self._aborted_transactions or self._aborted_producers)

    @property
    def has_read(self) -> bool:
        """Whether there were records before those to read next."""
        return self.next_fetch_offset > self._first_offset

    def skips(self, batch: Any) -> bool:
        """Moves past a batch if all of its offsets from `next_fetch_offset` on are skipped."""
        if not self._skipped:
            return False
        first, last = self._offsets(batch)
        is_known = batch[_MAGIC].tobytes() == b"\2"  # older formats have other offsets
        if not (is_known and covered(self._skipped, first, last)):
            return False
        self.next_fetch_offset = max(first, last + 1)
        return True

    def refuse(self, batch: Any, error: Exception) -> None:
        """Raises BatchDamaged, unless there were records before the batch: these come first."""
        if not self.has_read:
            raise BatchDamaged(self._tp, *self._offsets(batch), error)

    def _offsets(self, batch: Any) -> tuple[int, int]:
        """The first offset of a batch that is to be read, and its last one."""
        first, delta = (int.from_bytes(batch[at].tobytes(), "big") for at in (_FIRST, _LAST_DELTA))
        return max(first, self.next_fetch_offset), first + delta

    def read_batch(self, batch: bytes) -> tuple[list[Any], bool]:
        """The rows of a batch from `next_fetch_offset` on, and whether it was read to its end."""
        self._records, self._batches = self, MemoryRecords(batch)
        self._records_iterator = self._unpack_records()
        rows = list(self)
        last = self._last_offset
        return rows, last is not None and self.next_fetch_offset > last


class RecordSets:
    """The records of a fetch as columns; a batch is read when its records are taken.

    *reference* has the offset to read next, while that of this object is the one to take next.
    """

    def __init__(self, data: bytes | memoryview, reference: _PartitionRecords, flags: int) -> None:
        reference.release()
        self.next_fetch_offset = reference.next_fetch_offset
        self._data = np.frombuffer(data, np.uint8)
        self._reference = reference
        self._flags = flags  # of `record_sets`
        self._at = 0
        self._all_read = False
        self._rows: RecordColumns | None = None  # read, and not taken yet

    @property
    def ended(self) -> bool:
        """Whether all records are taken."""
        return self._all_read and self._rows is None

    def take(self, limit: int) -> RecordColumns:
        """The next records, up to *limit*. Raises BatchDamaged."""
        parts: list[RecordColumns] = []
        while limit and not self.ended:
            rows = self._read() if self._rows is None else self._rows
            parts.append(rows[:limit])
            self._rows = rows[limit:] if len(rows) > limit else None
            limit -= len(parts[-1])
        if self._rows is None:
            self.next_fetch_offset = self._reference.next_fetch_offset
        else:
            self.next_fetch_offset = int(parts[-1].offsets[-1]) + 1
        return RecordColumns.joined(parts)

    def _read(self) -> RecordColumns:
        """The records of the next batches."""
        reference = self._reference
        flags = self._flags | (record_sets.LEAVE_TRANSACTIONS if reference.has_aborted else 0)
        found = record_sets.read(self._data, self._at, reference.next_fetch_offset, flags=flags)
        self._at, reference.next_fetch_offset = found.at, found.next_offset
        self._all_read = found.stop == record_sets.AT_END
        if self._all_read or len(found.rows):
            return found.rows
        return self._read_left(is_compressed=found.stop == record_sets.AT_COMPRESSED)

    def _read_left(self, *, is_compressed: bool) -> RecordColumns:
        """The records of a batch that the compiled reader has left."""
        reference, at = self._reference, self._at
        size = _OVERHEAD + int.from_bytes(self._data[at:][_LENGTH].tobytes(), "big")
        batch = self._data[at : at + size]
        self._at += size
        is_foreign, is_whole = (
            bool(self._flags & kind) for kind in (record_sets.IS_FOREIGN, record_sets.IS_WHOLE)
        )
        no_rows = columns_of([], is_foreign=is_foreign)
        if reference.skips(batch):
            return no_rows
        self._all_read = True  # if the batch is damaged: then it is fetched again
        is_current = batch[_MAGIC].tobytes() == b"\2"
        if is_current and _LEAST <= len(batch) < _HEADER:  # aiokafka would read beyond its end
            reference.refuse(batch, ValueError("their batch is shorter than its header"))
            return no_rows
        plain = record_sets.unpacked(batch) if is_current else None
        is_large = plain is not None and bool(plain[1]) and not is_whole
        large = MemoryError(f"their batch unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB")
        if is_large and not is_compressed:  # aiokafka would unpack it whole
            reference.refuse(batch, large)
            return no_rows
        if plain is not None and is_compressed and (is_large or not plain[1]):
            kinds = record_sets.IS_FOREIGN | record_sets.IS_WHOLE
            flags = plain[1] | (self._flags & kinds)
            found = record_sets.read(plain[0], 0, reference.next_fetch_offset, flags=flags)
            reference.next_fetch_offset = found.next_offset
            if found.stop == record_sets.AT_CUT:
                reference.refuse(batch, large)
                return found.rows
            if found.stop == record_sets.AT_END:
                self._all_read = False
                return found.rows
        rows, whole = reference.read_batch(batch.tobytes())
        self._all_read = not whole
        return columns_of(rows, is_foreign=is_foreign, is_whole=is_whole)


def _records_of_fetch(
    tp: TopicPartition, records: _MemoryRecords, *arguments: Any
) -> _PartitionRecords | RecordSets:
    """Called as the class that it replaces."""
    reference = _PartitionRecords(tp, records, *arguments)
    *_, deserializer, checks_crc, _ = arguments
    flags = _FLAGS.get(deserializer)
    if flags is None or library.BUILT is None or not _KNOWN:
        return reference
    return RecordSets(records.data, reference, flags | record_sets.CHECK_CRC * bool(checks_crc))


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/consumer/fetcher.py#L126
class _FetchResult(FetchResult):  # type: ignore[misc] # untyped in the library
    """The records of a fetch for `getmany`: columns, if they are of `RecordSets`."""

    _partition_records: Any

    def getall(self, max_records: int | None = None) -> Any:
        records = self._partition_records
        if not isinstance(records, RecordSets):
            return super().getall(max_records)
        if not self.check_assignment(self._topic_partition):
            return []
        rows = records.take(1 << 62 if max_records is None else max_records)
        self._update_position()
        if records.ended:
            self._partition_records = None
        return rows
