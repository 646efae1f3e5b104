"""Records of one task in Arrow batches, with both logs in one order."""

from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from evaluator.adapters.files.archives import add_gap
from evaluator.adapters.files.parquet import StoredRecord
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import UNKNOWN_END, UNKNOWN_START, SourceUnusable
from evaluator.wire.records import MAX_MESSAGE_BYTES, Records

COLUMNS: Final = ("log", "offset", "timestamp_ms", "key", "value")
"""Columns of a batch; null is a missing timestamp, no key, or the value of a heartbeat."""


class SortedRange:
    """The records of a task, as a `RangeSource` that is read in its own order.

    The offsets of each log ascend. A repeated record counts once, an offset that is missing is a
    gap. Of a batch the rankings are read first; memory is that of one batch.

    Args:
        task: number of the partition of both logs.
        batches: Arrow record batches with COLUMNS.
        max_bytes: limit of the records of a log, if it is not that of a message.
    """

    place: None = None  # batches have no cluster and no topics

    def __init__(
        self, task: int, batches: Iterable[Any], max_bytes: Mapping[Log, int] | None = None
    ) -> None:
        self._task = task
        self._batches = iter(batches)
        self._max_bytes = max_bytes or {}
        self._waiting: dict[Log, deque[Records]] = {log: deque() for log in LOGS}
        self._last: dict[Log, StoredRecord] = {}
        self.gaps: dict[str, list[tuple[int, int]]] = {}

    async def open(self) -> int:
        """The number of partitions up to the task."""
        return self._task + 1

    async def bounds(self, log: Log, partition: int) -> tuple[int, int]:  # noqa: ARG002  # of all logs
        """Available after the log has been read."""
        return UNKNOWN_START, UNKNOWN_END

    async def seek_hint(self, log: Log, partition: int, record_timestamp_ms: int) -> int:  # noqa: ARG002  # read from the start
        """Always 0: batches are read from the first one on."""
        return 0

    def next_log(self) -> Log:
        """The log of the next records."""
        while not any(self._waiting.values()) and self._pull():
            pass
        return next((log for log in LOGS if self._waiting[log]), LOGS[0])

    async def read(
        self,
        log: Log,
        partition: int,  # noqa: ARG002  # the task
        start: int,  # noqa: ARG002  # all records
        end: int,  # noqa: ARG002  # the same
        *,
        max_records: int,
    ) -> AsyncIterator[Records]:
        """All records of a log. Raises SourceUnusable."""
        waiting = self._waiting[log]
        while waiting or self._pull():
            if waiting:
                records = waiting.popleft()
                for first in range(0, len(records), max_records):
                    last = min(first + max_records, len(records)) - 1
                    yield records.rows(slice(first, last + 1), int(records.offsets[last]) + 1)

    async def close(self) -> None:
        """Batches belong to the caller."""

    def _pull(self) -> bool:
        """Takes the next batch; returns whether there was one."""
        from pyarrow import compute  # noqa: PLC0415 - an extra

        batch = next(self._batches, None)
        if batch is None:
            return False
        if others := {*batch.column("log").unique().to_pylist()} - {*LOGS}:
            raise SourceUnusable(
                f"partition {self._task} has records of the log {min(map(repr, others)):.100}. "
                f"Name the log of each record {' or '.join(LOGS)}, and leave others out."
            )
        for log in LOGS:
            rows = batch.filter(compute.equal(batch.column("log"), log))
            found = self._checked(log, rows) if len(rows) else []
            if found:
                values, keys, times, offsets = zip(*found, strict=True)
                known = times if max(times) >= 0 else None
                max_bytes = self._max_bytes.get(log, MAX_MESSAGE_BYTES)
                of = (log, self._task, offsets, keys, values, known, offsets[-1] + 1, max_bytes)
                self._waiting[log].append(Records.of(*of))
        return True

    def _checked(self, log: Log, rows: Any) -> list[StoredRecord]:
        """The records of a batch without repeats, in ascending order."""
        if rows.column("offset").null_count:
            raise SourceUnusable(f"{log}, partition {self._task}, has records without an offset.")
        columns = (rows.column(name) for name in ("value", "key", "timestamp_ms", "offset"))
        last, found = self._last.get(log), []
        for value, key, time_ms, offset in zip(*(of.to_pylist() for of in columns), strict=True):
            row = StoredRecord(value, key, -1 if time_ms is None else time_ms, offset)
            before = None if last is None else last.offset
            if before is not None and offset != before + 1:
                if row == last:
                    continue
                self._require_later(log, offset, before)
                add_gap(self.gaps.setdefault(f"{log}-{self._task}", []), before + 1, offset)
            found.append(row)
            last = row
        if last is not None:
            self._last[log] = last
        return found

    def _require_later(self, log: Log, offset: int, last: int) -> None:
        if offset == last:
            raise SourceUnusable(
                f"{log}, partition {self._task}, has two different records with the offset "
                f"{offset}. Leave out the records of one of two topics of that name."
            )
        if offset < last:
            raise SourceUnusable(
                f"{log}, partition {self._task}: the offset {offset} comes after {last}. Sort the "
                "records of each log by offset."
            )
