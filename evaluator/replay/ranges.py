"""The range of records that a replay reads; times are converted to offsets during the read."""

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np
from msgspec import field

from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.types.records import FeatureColumns, JudgmentColumns, Log, RankingColumns
from evaluator.core.types.skips import Skips
from evaluator.ports import UNKNOWN_END, UNKNOWN_START, RangeSource
from evaluator.wire.messages.staged import Decoding
from evaluator.wire.records import Records, without

if TYPE_CHECKING:
    from evaluator.mapping.schemas import Schemas

Batch = RankingColumns | JudgmentColumns
_NOT_DIGITS_OF_MS: Final = range(8, 11)


@runtime_checkable
class FeatureSource(Protocol):
    """A source with features of its rankings outside the messages."""

    def features_of(self, offsets: Sequence[int]) -> FeatureColumns:
        """The features of the rankings at these offsets, in this order."""


def parse_time_ms(text: str) -> int:
    """Epoch milliseconds of ISO 8601 (UTC without a zone) or of a number of milliseconds.

    Numbers of 8 to 10 digits are refused: they are dates or seconds.

    Raises:
        ValueError: if the text is neither, or later than any timestamp.

    >>> parse_time_ms("1970-01-01T00:00:01.5"), parse_time_ms("1500")
    (1500, 1500)
    """
    if text.isascii() and text.isdecimal():
        digits = text.lstrip("0") or "0"
        if len(digits) > len(str(MAX_TIMESTAMP_MS)) or int(digits) > MAX_TIMESTAMP_MS:
            raise ValueError(
                f"{digits[:40]} is later than the latest timestamp of a message, "
                f"{MAX_TIMESTAMP_MS}. Write epoch milliseconds, e.g. 1769846400000."
            )
        if len(digits) in _NOT_DIGITS_OF_MS:
            raise ValueError(
                f"{digits} has {len(digits)} digits and epoch milliseconds have 13: it may be a "
                "date or seconds. Write dates as YYYY-MM-DD, and epoch milliseconds in full, e.g. "
                "1769846400000."
            )
        return int(digits)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text[:80]!r} is not a time. Write ISO 8601, e.g. 2026-01-31T08:00:00Z, or epoch "
            "milliseconds, e.g. 1769846400000."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return -(
        (epoch - moment) // timedelta(milliseconds=1)
    )  # rounded up: clocks have whole milliseconds


class ReadRules(Decoding, frozen=True, kw_only=True):
    """The range of records to read from both logs.

    A log is read from the first record at which its clock reaches `from_ms` to before the one at
    which it reaches `to_ms` (None: the ends of the log). `schemas` are those that records of
    foreign logs name, if any. Only `tasks` are read; None: all.
    """

    max_poll_records: int = 5_000
    from_ms: int | None = None
    to_ms: int | None = None
    skips: Skips = field(default_factory=dict)
    tasks: tuple[int, ...] | None = None
    schemas: "Schemas | None" = None


class LogRange:
    """The part of one partition of one log that a replay evaluates, read in batches.

    `start` and `end` are its offsets, final once `read` has ended. *on_read* is called with all
    records that were read, including those before the range.
    """

    def __init__(
        self,
        source: RangeSource,
        log: Log,
        partition: int,
        rules: ReadRules,
        *,
        on_read: Callable[[Records], None],
    ) -> None:
        self._source = source
        self._log: Log = log
        self._partition = partition
        self._rules = rules
        self._on_read = on_read
        self._with_features = (
            source if rules.features and isinstance(source, FeatureSource) else None
        )
        self.start = 0
        self.end = 0

    async def read(self) -> AsyncGenerator[Batch, None]:
        """The records of the range, decoded. Raises SourceUnavailable or SourceUnusable."""
        first, end = await self._source.bounds(self._log, self._partition)
        rules = self._rules
        if rules.from_ms is not None:
            # A clock may be ahead of the record's own timestamp by max_future_skew_ms.
            record_time_ms = max(0, rules.from_ms - rules.max_future_skew_ms)
            hint = await self._source.seek_hint(self._log, self._partition, record_time_ms)
            first = min(max(first, hint), end)
        self.start = self.end = first
        reading = self._source.read(
            self._log, self._partition, first, end, max_records=rules.max_poll_records
        )
        begun = rules.from_ms is None
        try:
            async for records in reading:
                self._on_read(records)
                if self.start == UNKNOWN_START:
                    self.start = self.end = int(records.offsets[0])
                wanted = without(records, rules.skips.get((self._log, self._partition), ()))
                batch, begun = self._begin(wanted, begun)
                if batch is None:
                    continue
                stop = first_reaching(batch, rules.to_ms)
                if stop is not None:
                    self.end = stop
                    if stop > self.start:
                        yield self._decode(_between(wanted, self.start, stop))
                    return
                self.end = batch.next_offset
                yield batch
            if end != UNKNOWN_END:
                self.start, self.end = (self.start if begun else end), end
            if self.start == UNKNOWN_START:
                self.start = self.end = 0
        finally:
            if isinstance(reading, AsyncGenerator):
                await reading.aclose()

    def _begin(self, records: Records, begun: bool) -> tuple[Batch | None, bool]:
        """The batch without records before the range, and whether the range has begun."""
        batch = self._decode(records)
        if begun:
            return batch, True
        start = first_reaching(batch, self._rules.from_ms)
        if start is None:
            self.start = self.end = batch.next_offset
            return None, False
        self.start = start
        return self._decode(_between(records, start, records.next_offset)), True

    def _decode(self, records: Records) -> Batch:
        batch = batch_of(records, self._rules)
        if self._with_features is not None and isinstance(batch, RankingColumns):
            batch.features = self._with_features.features_of(batch.offsets.tolist())
        return batch


def batch_of(records: Records, rules: ReadRules) -> Batch:
    """The messages of records of one log, of a foreign one through its stage."""
    return rules.judgments(records) if records.log == "judgments" else rules.rankings(records)


def first_reaching(batch: Batch, moment_ms: int | None) -> int | None:
    """Offset of the first record of the batch with a timestamp of *moment_ms* or later."""
    if moment_ms is None:
        return None
    reaching = [
        offsets[np.argmax(late)] >> batch.index_bits
        for offsets, late in (
            (batch.offsets, batch.timestamps_ms >= moment_ms),
            (batch.heartbeat_offsets, batch.heartbeat_timestamps_ms >= moment_ms),
        )
        if late.any()
    ]
    return int(min(reaching)) if reaching else None


def _between(records: Records, start: int, stop: int) -> Records:
    """The records from offset *start* to before *stop*; `next_offset` becomes *stop*."""
    first, end = np.searchsorted(records.offsets, (start, stop)).tolist()
    return records.rows(slice(first, end), stop)
