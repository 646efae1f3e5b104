"""What every decoded batch needs, whatever its messages: order, time, and what was refused."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypedDict, TypeVar, cast

import numpy as np
import xxhash

from evaluator.core.types import DeadLetter, IntArray
from evaluator.wire.fast import NO_TIMESTAMP, JudgmentRow, RankingRow
from evaluator.wire.models import MAX_TIMESTAMP_MS
from evaluator.wire.records import Records
from evaluator.wire.strict import Malformed

RowT = TypeVar("RowT", RankingRow, JudgmentRow)

_NO_INTEGERS: Final = np.zeros(0, dtype=np.int64)


class CommonColumns(TypedDict):
    """The members of `Columns`."""

    offsets: IntArray
    timestamps_ms: IntArray
    trace_ids: list[str]
    node_ids: list[str]
    hashes: list[bytes]
    keys: list[bytes | None]
    values: list[bytes]
    heartbeat_offsets: IntArray
    heartbeat_timestamps_ms: IntArray
    malformed: list[DeadLetter]
    next_offset: int


@dataclass(slots=True)
class Intake:
    """One batch of records on its way into columns; lists grow in offset order."""

    records: Records
    max_future_skew_ms: int
    offsets: list[int] = field(default_factory=list)
    timestamps_ms: list[IntArray] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    heartbeat_offsets: list[int] = field(default_factory=list)
    heartbeat_timestamps_ms: list[int] = field(default_factory=list)
    malformed: list[DeadLetter] = field(default_factory=list)

    record_ms: IntArray = field(init=False)  # the records' own timestamps; negative: none

    def __post_init__(self) -> None:
        timestamps_ms = self.records.timestamps_ms
        if timestamps_ms is None:
            timestamps_ms = [NO_TIMESTAMP] * len(self.records)
        self.record_ms = np.array(timestamps_ms, dtype=np.int64)

    def admit(self, start: int, outcomes: Sequence[RowT | Malformed | None]) -> list[RowT]:
        """Takes what became of each record from *start* on; returns the rows that count.

        None is a record without a value, a heartbeat.
        """
        rows = [each for each in outcomes if each is not None and not isinstance(each, Malformed)]
        if len(rows) == len(outcomes):
            return self.admit_rows(start, rows)
        return self._admit_at(self._set_aside(start, outcomes), rows)

    def admit_rows(self, start: int, rows: list[RowT]) -> list[RowT]:
        """The same where every record from *start* on has become a row."""
        return self._admit_at(range(start, start + len(rows)), rows)

    def _admit_at(self, positions: Sequence[int], rows: list[RowT]) -> list[RowT]:
        own_ms = np.array([row.timestamp_ms for row in rows], dtype=np.int64)
        record_ms = self.record_ms[_index(positions)]
        times_ms = np.where(own_ms == NO_TIMESTAMP, record_ms, own_ms)
        skew_ms = min(self.max_future_skew_ms, MAX_TIMESTAMP_MS)
        is_bad = ((record_ms >= 0) & (own_ms - record_ms > skew_ms)) | (times_ms < 0)
        if is_bad.any():
            for index in np.flatnonzero(is_bad).tolist():
                self._refuse_time(positions[index], int(own_ms[index]), int(record_ms[index]))
            kept = np.flatnonzero(~is_bad).tolist()
            rows, positions = [rows[k] for k in kept], [positions[k] for k in kept]
            times_ms = times_ms[kept]
        self._take(positions)
        self.timestamps_ms.append(times_ms)
        return rows

    def _set_aside(self, start: int, outcomes: Sequence[object]) -> list[int]:
        """Keeps what is no row; returns the positions of the rows."""
        positions = []
        for position, outcome in enumerate(outcomes, start):
            if outcome is None:
                self._take_heartbeat(position)
            elif isinstance(outcome, Malformed):
                self._refuse(position, outcome)
            else:
                positions.append(position)
        return positions

    def _take(self, positions: Sequence[int]) -> None:
        records = self.records
        if isinstance(positions, range):
            those = slice(positions.start, positions.stop)
            self.offsets += records.offsets[those]
            self.keys += records.keys[those]
            values = records.values[those]
        else:
            self.offsets += [records.offsets[p] for p in positions]
            self.keys += [records.keys[p] for p in positions]
            values = [records.values[p] for p in positions]
        there = cast("list[bytes]", values)  # a row has a value
        self.values += there
        self.hashes += map(xxhash.xxh3_128_digest, there)

    def _take_heartbeat(self, position: int) -> None:
        timestamp_ms = int(self.record_ms[position])
        if timestamp_ms < 0:
            detail = "a record without a value is a heartbeat, and this one has no timestamp"
            self._refuse(position, Malformed("schema", detail))
            return
        self.heartbeat_offsets.append(self.records.offsets[position])
        self.heartbeat_timestamps_ms.append(timestamp_ms)

    def _refuse_time(self, position: int, own_ms: int, record_ms: int) -> None:
        if own_ms == NO_TIMESTAMP:
            detail = "neither the message (timestamp_ms) nor its record has a timestamp"
            self._refuse(position, Malformed("schema", detail))
            return
        detail = (
            f"timestamp_ms {own_ms} is {own_ms - record_ms} ms after the record's timestamp "
            f"{record_ms}; max_future_skew_ms allows {self.max_future_skew_ms}. "
            "Check the producer's clock and unit"
        )
        self._refuse(position, Malformed("future", detail))

    def _refuse(self, position: int, why: Malformed) -> None:
        records = self.records
        self.malformed.append(
            DeadLetter(
                records.log,
                records.offsets[position],
                why.reason,
                why.detail,
                records.keys[position],
                records.values[position] or b"",
            )
        )

    def columns(self, trace_ids: list[str], node_ids: list[str]) -> CommonColumns:
        """What all columns have, once every record was admitted."""
        return {
            "offsets": np.array(self.offsets, dtype=np.int64),
            "timestamps_ms": np.concatenate([*self.timestamps_ms, _NO_INTEGERS]),
            "trace_ids": trace_ids,
            "node_ids": node_ids,
            "hashes": self.hashes,
            "keys": self.keys,
            "values": self.values,
            "heartbeat_offsets": np.array(self.heartbeat_offsets, dtype=np.int64),
            "heartbeat_timestamps_ms": np.array(self.heartbeat_timestamps_ms, dtype=np.int64),
            "malformed": sorted(self.malformed, key=lambda letter: letter.offset),
            "next_offset": self.records.next_offset,
        }


def _index(positions: Sequence[int]) -> slice | list[int]:
    """Positions as an index; a slice, which copies at once, where they follow each other."""
    if isinstance(positions, range):
        return slice(positions.start, positions.stop)
    return list(positions)
