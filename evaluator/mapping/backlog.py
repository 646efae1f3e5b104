"""The mapped records of one partition that are not written yet, in the order of their offsets."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.types.records import (
    DeadLetter,
    IntArray,
    JudgmentColumns,
    Log,
    RankingColumns,
)
from evaluator.mapping.stage import Stage
from evaluator.ports import Partition
from evaluator.wire.records import Records

NO_CLOCK: Final = -1
"""Before the first timestamp: further behind than any clock."""

Decode = Callable[[Records], RankingColumns | JudgmentColumns]
Message = tuple[int, Log, str, bytes]
"""Offset of the record, the topic to write to, the trace_id, and the bytes."""


class Portion(NamedTuple):
    """Consecutive records, and the offset and clock after them; lists are in offset order."""

    messages: Sequence[Message]
    letters: Sequence[tuple[int, DeadLetter]]
    outcomes: Mapping[str, int]
    next_offset: int
    clock_ms: int


class Backlog:
    """The records of one batch.

    Args:
        records: of one partition.
        stages: the stage and the decoder of each kind of record in it.
        clock_ms: of the partition before the batch.
    """

    def __init__(
        self, records: Records, stages: Mapping[Log, tuple[Stage, Decode]], clock_ms: int
    ) -> None:
        self.next_offset = records.next_offset
        self.ends: Mapping[Partition, int] | None = None
        """Ends of the partitions, requested after these records were read."""
        self._clock_ms = clock_ms
        self._offsets = records.offsets
        self._messages: list[Message] = []
        letters: dict[int, DeadLetter] = {}
        places, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for log, (stage, decode) in stages.items():
            columns = stage.decoded(records, decode)
            offsets = columns.offsets >> columns.index_bits
            texts = zip(columns.trace_ids, columns.values, strict=True)
            self._messages += [
                (offset, log, trace_id, value or b"")
                for offset, (trace_id, value) in zip(offsets.tolist(), texts, strict=True)
            ]
            for letter in columns.malformed:
                letters.setdefault(letter.offset >> columns.index_bits, stage.restored(letter))
            places += [offsets, columns.heartbeat_offsets >> columns.index_bits]
            times += [columns.timestamps_ms, columns.heartbeat_timestamps_ms]
        self._messages.sort(key=_offset)
        self._letters = sorted(letters.items(), key=_offset)
        self._timed, self._clocks = _running(np.concatenate(places), np.concatenate(times))
        self._clocks = np.maximum(self._clocks, clock_ms)
        self._heartbeats = set(records.offsets[records.values.sizes < 0].tolist())

    @property
    def head_ms(self) -> int:
        """The clock after the next record with a timestamp; without one, the current clock."""
        return int(self._clocks[0]) if len(self._clocks) else self._clock_ms

    @property
    def has_times(self) -> bool:
        """Whether a record has a timestamp; without any, all are taken at once."""
        return len(self._clocks) > 0

    def leads(self, limit_ms: float) -> bool:
        """Whether a record moves the clock beyond *limit_ms*."""
        return len(self._clocks) > 0 and self._clocks[-1] > limit_ms

    def take(self, limit_ms: float) -> Portion | None:
        """Removes the records up to the first one that moves the clock beyond *limit_ms*."""
        n_timed = int(np.searchsorted(self._clocks, limit_ms, side="right"))
        whole = n_timed == len(self._clocks)
        end = self.next_offset if whole else int(self._timed[n_timed])
        n_records = int(np.searchsorted(self._offsets, end))
        if not n_records and not whole:
            return None
        taken = self._offsets[:n_records].tolist()
        n_messages = bisect_left(self._messages, end, key=_offset)
        n_letters = bisect_left(self._letters, end, key=_offset)
        messages, letters = self._messages[:n_messages], self._letters[:n_letters]
        mapped = {message[0] for message in messages}
        refused = {letter[0] for letter in letters} - mapped
        beats = self._heartbeats.intersection(taken) - mapped - refused
        left_out = len(taken) - len(mapped) - len(refused) - len(beats)
        outcomes = {
            "mapped": len(mapped),
            "refused": len(refused),
            "heartbeat": len(beats),
            "left_out": left_out,
        }
        if n_timed:
            self._clock_ms = int(self._clocks[n_timed - 1])
        self._messages, self._letters = self._messages[n_messages:], self._letters[n_letters:]
        self._timed, self._clocks = self._timed[n_timed:], self._clocks[n_timed:]
        self._offsets = self._offsets[n_records:]
        return Portion(messages, letters, outcomes, end, self._clock_ms)

    @property
    def is_empty(self) -> bool:
        """Whether all records are taken."""
        return not len(self._offsets)


def _offset(item: Message | tuple[int, DeadLetter]) -> int:
    return item[0]


def _running(offsets: IntArray, times: IntArray) -> tuple[IntArray, IntArray]:
    """The records with timestamps, and the largest timestamp up to each."""
    order = np.argsort(offsets, kind="stable")
    ordered, clocks = offsets[order], np.maximum.accumulate(times[order])
    is_last = np.ones(len(ordered), bool)  # of the messages of a record
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return ordered[is_last], clocks[is_last]
