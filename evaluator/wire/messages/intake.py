"""Common columns of decoded batches: offsets, timestamps, heartbeats, and malformed records."""

from typing import Any

import numpy as np
import xxhash
from msgspec import Struct, field
from numpy.typing import NDArray

from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.types.records import DeadLetter, IntArray
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.messages.parts import NO_TIMESTAMP
from evaluator.wire.records import KEPT_BYTES, Records


def refusal_of_time(own_ms: int, record_ms: int, max_future_skew_ms: int) -> Malformed | None:
    """The refusal of a message by its timestamp and that of its record; negative ones are none."""
    if own_ms < 0 and record_ms < 0:
        detail = "neither the message (timestamp_ms) nor its record has a timestamp"
        return Malformed("schema", detail)
    if record_ms < 0 or own_ms - record_ms <= max_future_skew_ms:
        return None
    return Malformed(
        "future",
        f"timestamp_ms {own_ms} is {own_ms - record_ms} ms after the record's timestamp "
        f"{record_ms}; max_future_skew_ms allows {max_future_skew_ms}. "
        "Check the producer's clock and unit",
    )


class Intake(Struct):
    """One batch of records while it is decoded; lists grow in offset order."""

    records: Records
    max_future_skew_ms: int
    record_ms: IntArray  # timestamps of the records; negative: none
    positions: list[IntArray] = field(default_factory=list)  # of the rows
    timestamps_ms: list[IntArray] = field(default_factory=list)
    heartbeat_offsets: list[int] = field(default_factory=list)
    heartbeat_timestamps_ms: list[int] = field(default_factory=list)
    malformed: list[DeadLetter] = field(default_factory=list)

    @classmethod
    def of(cls, records: Records, max_future_skew_ms: int) -> "Intake":
        """The intake of these records, of which none is admitted yet."""
        record_ms = records.timestamps_ms
        if record_ms is None:
            record_ms = np.full(len(records), NO_TIMESTAMP)
        return cls(records, max_future_skew_ms, record_ms)

    def admit(self, position: int, own_ms: IntArray) -> NDArray[np.bool_] | None:
        """Adds the rows from *position* on, unless a timestamp is refused.

        *own_ms* are the timestamps in the messages. Returns which rows are refused, or None.
        """
        rows = slice(position, position + len(own_ms))
        record_ms = self.record_ms[rows]
        times_ms = np.where(own_ms == NO_TIMESTAMP, record_ms, own_ms)
        skew_ms = min(self.max_future_skew_ms, MAX_TIMESTAMP_MS)
        is_future = (record_ms >= 0) & (own_ms - record_ms > skew_ms)
        is_refused: NDArray[np.bool_] = is_future | (times_ms < 0)
        if is_refused.any():
            return is_refused
        self.positions.append(np.arange(rows.start, rows.stop))
        self.timestamps_ms.append(times_ms)
        return None

    def take_heartbeat(self, position: int) -> None:
        """Adds a record without a value."""
        timestamp_ms = int(self.record_ms[position])
        if timestamp_ms < 0:
            detail = "a record without a value is a heartbeat, and this one has no timestamp"
            self.refuse(position, Malformed("schema", detail))
            return
        self.heartbeat_offsets.append(int(self.records.offsets[position]))
        self.heartbeat_timestamps_ms.append(timestamp_ms)

    def refuse_time(self, position: int, own_ms: int) -> None:
        """Creates the dead letter of a row with a timestamp that `admit` has refused."""
        refusal = refusal_of_time(own_ms, int(self.record_ms[position]), self.max_future_skew_ms)
        if refusal is not None:
            self.refuse(position, refusal)

    def refuse(self, position: int, malformed: Malformed) -> None:
        """Creates the dead letter of a record; an oversize value is truncated."""
        records, is_cut = self.records, malformed.reason == "oversize"
        offset, value = int(records.offsets[position]), records.values[position] or b""
        self.malformed.append(
            DeadLetter(
                records.log,
                offset,
                malformed.reason,
                malformed.detail,
                records.keys[position],
                value[:KEPT_BYTES] if is_cut else value,
                records.oversize.get(offset, len(value)) if is_cut else None,
            )
        )

    def columns(self) -> dict[str, Any]:
        """The members of `Columns`, after all records were added."""
        records = self.records
        of_rows = np.concatenate([np.zeros(0, np.int64), *self.positions])
        positions = slice(None) if len(of_rows) == len(records) else of_rows
        values = records.values[positions]
        text, ends = memoryview(values.buffer), values.starts + values.sizes
        spans = zip(values.starts.tolist(), ends.tolist(), strict=True)
        digests = [xxhash.xxh3_128_digest(text[first:end]) for first, end in spans]
        return {
            "offsets": records.offsets[positions],
            "timestamps_ms": np.concatenate([np.zeros(0, np.int64), *self.timestamps_ms]),
            "hashes": np.frombuffer(b"".join(digests), "V16"),
            "keys": records.keys[positions],
            "values": values,
            "heartbeat_offsets": np.array(self.heartbeat_offsets, dtype=np.int64),
            "heartbeat_timestamps_ms": np.array(self.heartbeat_timestamps_ms, dtype=np.int64),
            "malformed": sorted(self.malformed, key=lambda letter: letter.offset),
            "next_offset": self.records.next_offset,
        }
