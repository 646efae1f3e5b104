"""The stage before the decoder: foreign records to canonical messages, and back to dead letters."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec
import numpy as np
from msgspec import Struct, field

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.types.records import (
    Columns,
    DeadLetter,
    IntArray,
    Log,
)
from evaluator.mapping.formats import texts_of
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.messages import messages_of
from evaluator.mapping.plan import plan_of
from evaluator.mapping.record import LeftOut, Record
from evaluator.mapping.schemas import Answer
from evaluator.mapping.watch import MessageWatch
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.messages.staged import ColumnsT
from evaluator.wire.records import (
    KEPT_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_RECORD_BYTES,
    Records,
    kept,
    oversize_of,
    unpacked_headers,
)

INDEX_BITS: Final = 10
"""A message of a record that may give several has the offset (offset << INDEX_BITS) + index."""

Original = tuple[bytes | None, int | None, bytes | None, list[tuple[str, bytes | None]], int]
"""Data of a dead letter: value, its size if it was truncated, key, headers, index.

The value is None for one of several messages: its dead letter has the message.
"""
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(Original).decode


class _Batch(Struct):
    """Messages of a batch of records, and the records that gave none; lists are parallel."""

    offsets: list[int] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # of the original records
    refused: list[DeadLetter] = field(default_factory=list)
    left_out: list[tuple[int, int]] = field(default_factory=list)  # offset and timestamp
    n_left_out: int = 0
    whys: list[str] = field(default_factory=list)  # of records that are left out


class Stage:
    """Maps the records of one log.

    Decoded columns have canonical messages as values. Until `restored`, their keys have the data of
    the original records for dead letters.
    """

    def __init__(
        self,
        mapping: LogMapping,
        *,
        max_future_skew_ms: int,
        answers: Mapping[str, Answer] = MappingProxyType({}),
        watch: MessageWatch | None = None,
    ) -> None:
        self._messages_of = messages_of(mapping, answers)
        self._plan = plan_of(mapping)
        self._texts = None if self._plan is None else texts_of(mapping, answers)
        self._log: Log = mapping.log
        self.index_bits = INDEX_BITS if mapping.several else 0
        self._has_tombstones = mapping.envelope == "debezium"
        self._mode = b"ce_specversion" if mapping.envelope == "cloudevents" else None
        self._max_future_skew_ms = max_future_skew_ms
        self._watch = watch

    def decoded(self, records: Records, decode: Callable[[Records], ColumnsT]) -> ColumnsT:
        """The columns of these records; *decode* reads canonical messages."""
        planned = self._planned(records)
        is_left = planned.sizes < 0
        others = records if is_left.all() else records.rows(is_left, records.next_offset)
        batch = self._mapped(others)
        messages = self._records(batch, records, np.flatnonzero(is_left), planned)
        columns = decode(messages)
        if self.index_bits and columns.malformed:
            columns = self._without_refused(records, messages, columns.malformed, decode)
        self._add(batch, columns)
        if self._watch is not None:
            refused = () if len(columns) else columns.malformed
            details = [f"{each.reason}: {each.detail}" for each in refused]
            self._watch.note(len(columns), batch.whys + details)
        return columns

    def _without_refused(
        self,
        records: Records,
        messages: Records,
        malformed: Sequence[DeadLetter],
        decode: Callable[[Records], ColumnsT],
    ) -> ColumnsT:
        """The columns without records of which a message is malformed; each is one dead letter."""
        first = {letter.offset >> self.index_bits: letter for letter in reversed(malformed)}
        whole = ~np.isin(messages.offsets >> self.index_bits, list(first))
        columns = decode(messages.rows(whole, messages.next_offset))
        for offset, letter in first.items():
            record = record_at(records, int(np.searchsorted(records.offsets, offset)))
            columns.malformed.append(letter._replace(key=_original(record, None), value=b""))
        return columns

    def _mapped(self, records: Records) -> _Batch:
        batch = _Batch()
        n = len(records)
        times = [-1] * n if records.timestamps_ms is None else records.timestamps_ms.tolist()
        headers = [None] * n if records.headers is None else records.headers
        rows = zip(
            *(records.offsets.tolist(), records.keys, records.values, headers, times), strict=True
        )
        outcome: Sequence[bytes | None] | LeftOut | Malformed
        for at, (offset, key, value, packed, record_ms) in enumerate(rows):
            place = offset << self.index_bits
            record = Record(
                value or b"",
                key,
                () if packed is None else unpacked_headers(packed),
                record_ms if record_ms >= 0 else None,
            )
            if value is None:
                if self._has_tombstones:  # the record after a delete
                    batch.n_left_out += 1
                    continue
                outcome = [None]  # a heartbeat
            else:
                outcome = refusal_of_size(records, offset) or self._messages_of(record)
            if isinstance(outcome, LeftOut):
                batch.whys.append(outcome.why)
                self._leave_out(batch, place, outcome.timestamp_ms, record_ms)
            elif isinstance(outcome, Malformed):
                original = _original(record, records.oversize.get(offset))
                letter = DeadLetter(self._log, place, *outcome, original, b"")
                batch.refused.append(letter)
            else:
                for index, message in enumerate(outcome):
                    batch.offsets.append(place + index)
                    batch.values.append(message)
                    batch.rows.append(at)
        return batch

    def _leave_out(
        self, batch: _Batch, place: int, timestamp_ms: int | None, record_ms: int
    ) -> None:
        """Counts a record; a valid timestamp moves the clock."""
        batch.n_left_out += 1
        if timestamp_ms is None or not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
            return
        if record_ms < 0 or timestamp_ms - record_ms <= self._max_future_skew_ms:
            batch.left_out.append((place, timestamp_ms))

    def _planned(self, records: Records) -> ByteStrings:
        """The messages that the compiled mapper gives; None where it gives none."""
        n, headers = len(records), records.headers
        if self._plan is None or not n:
            return ByteStrings(b"\0", np.zeros(n, np.int64), np.full(n, -1))
        planned = self._plan.messages(records if self._texts is None else self._texts.of(records))
        if self._mode is not None and headers is not None and self._mode in headers.buffer:
            in_headers = [each is not None and self._mode in each for each in headers]
            planned.sizes[in_headers] = -1
        return planned

    def _records(
        self, batch: _Batch, records: Records, left: IntArray, planned: ByteStrings
    ) -> Records:
        """The canonical messages as records: of *batch*, which has the rows *left*, and planned."""
        done = np.flatnonzero(planned.sizes >= 0)  # a plan gives one message for each record
        rows = np.concatenate((done, left[np.array(batch.rows, np.int64)]))
        offsets = np.concatenate((records.offsets[done], np.array(batch.offsets, np.int64)))
        values = ByteStrings.joined(
            [planned[done], ByteStrings.of(list(map(kept, batch.values)))][not len(done) :]
        )
        if len(done) and batch.rows:
            order = np.argsort(rows, kind="stable")
            rows, offsets, values = rows[order], offsets[order], values[order]
        times = records.timestamps_ms
        indices = (
            offsets & ((1 << self.index_bits) - 1) if self.index_bits else np.full(len(offsets), -1)
        )
        return Records(
            records.log,
            records.partition,
            offsets,
            cast("ByteStrings", _Originals(records, rows, indices)),
            values,
            None if times is None else times[rows],
            records.next_offset,
            oversize_of(batch.offsets, batch.values),
        )

    def _add(self, batch: _Batch, columns: Columns) -> None:
        """Adds to the columns the records that gave no message."""
        columns.malformed = sorted(
            [*columns.malformed, *batch.refused], key=lambda each: each.offset
        )
        columns.n_left_out = batch.n_left_out
        columns.n_left_out_timed = len(batch.left_out)
        columns.index_bits = self.index_bits
        if batch.left_out:
            places, times = np.array(batch.left_out, np.int64).T
            offsets = np.concatenate((columns.heartbeat_offsets, places))
            order = np.argsort(offsets)
            times = np.concatenate((columns.heartbeat_timestamps_ms, times))
            columns.heartbeat_offsets, columns.heartbeat_timestamps_ms = (
                offsets[order],
                times[order],
            )

    def restored(self, letter: DeadLetter) -> DeadLetter:
        """The dead letter of the original record, or of one of its messages."""
        value, cut_from, key, headers, index = _unpack(letter.key or b"")
        if index >= 0:
            headers.append(("index", b"%d" % index))
        return letter._replace(
            offset=letter.offset >> self.index_bits,
            key=key,
            value=letter.value if value is None else value,
            cut_from=cut_from,
            headers=headers,
        )


class _Originals(Struct, frozen=True):
    """The originals of messages where `Columns` has keys, packed when one is read.

    `rows` are those of the records; `indices` are -1 if no record gives several messages.
    """

    records: Records
    rows: IntArray
    indices: IntArray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> "bytes | _Originals":
        if isinstance(at, slice | np.ndarray):
            return _Originals(self.records, self.rows[at], self.indices[at])
        record, index = record_at(self.records, int(self.rows[at])), int(self.indices[at])
        return _original(record, None, None if index < 0 else index)


def refusal_of_size(records: Records, offset: int) -> Malformed | None:
    """The refusal of a record that is too large to be mapped."""
    if offset not in records.oversize:
        return None
    detail = f"{records.oversize[offset]} bytes; a mapped record has at most {MAX_RECORD_BYTES}"
    return Malformed("oversize", detail)


def record_at(records: Records, at: int) -> Record:
    """One of the records; without a value it is b""."""
    headers = None if records.headers is None else records.headers[at]
    times = records.timestamps_ms
    timestamp_ms = -1 if times is None else int(times[at])
    return Record(
        records.values[at] or b"",
        records.keys[at],
        () if headers is None else unpacked_headers(headers),
        timestamp_ms if timestamp_ms >= 0 else None,
    )


def _original(record: Record, cut_from: int | None, index: int | None = None) -> bytes:
    value: bytes | None = record.value
    if index is not None:
        value = None
    elif len(record.value) > MAX_MESSAGE_BYTES or cut_from is not None:
        value, cut_from = record.value[:KEPT_BYTES], cut_from or len(record.value)
    key = record.key if record.key is None else record.key[:MAX_MESSAGE_BYTES]
    return _pack((value, cut_from, key, record.headers, -1 if index is None else index))
