"""Both logs of a task: positions, clocks, skipped offsets, and counts of the records."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from evaluator.core.event_time.activity import Activity
from evaluator.core.event_time.clock import LogClock, watermark_ms
from evaluator.core.join.changes import Head, Ledger, Origin
from evaluator.core.join.rules import JoinRules
from evaluator.core.types.records import LOGS, Columns, IntArray, Log
from evaluator.core.types.skips import OffsetRange, between, merged

_INDEX_ENTRIES = 64  # of a clock while a key is reserved


class Inputs:
    """The read part of both logs.

    `positions` are the next offsets to read, `origin` the identity of the logs (set and compared by
    the caller), `skips` the offsets to skip, and `skipped` those that were passed. `activity` is
    that of the judgments, if anything depends on it.
    """

    def __init__(self, rules: JoinRules, ledger: Ledger, activity: Activity | None = None) -> None:
        self._rules = rules
        self._ledger = ledger
        every_ms = rules.key_reserved_ms // _INDEX_ENTRIES
        self.clocks = {
            log: LogClock(out_of_orderness_ms=rules.out_of_orderness_ms, index_every_ms=every_ms)
            for log in LOGS
        }
        self.activity = activity
        self.positions: dict[Log, int] = dict.fromkeys(LOGS, 0)
        self.origin = Origin()
        self.skips: dict[Log, Sequence[OffsetRange]] = dict.fromkeys(LOGS, ())
        self.skipped: dict[Log, list[OffsetRange]] = {log: [] for log in LOGS}

    def read(self, log: Log, columns: Columns) -> IntArray:
        """Counts a batch and moves the clock of its log: event times of the rows."""
        counts = self._ledger.read[log]
        counts["read"] += columns.n_read
        counts["malformed"] += len(columns.malformed)
        counts["heartbeat"] += columns.n_heartbeats
        if columns.n_left_out:
            counts["left_out"] = counts.get("left_out", 0) + columns.n_left_out
        passed = between(self.skips[log], self.positions[log], columns.next_offset)
        self.skipped[log] = merged([*self.skipped[log], *passed])
        self.positions[log] = columns.next_offset
        times, offsets, n = columns.timestamps_ms, columns.offsets, len(columns)
        if len(columns.heartbeat_offsets):
            offsets = np.concatenate((offsets, columns.heartbeat_offsets))
            order = np.argsort(offsets)
            all_times = np.concatenate((times, columns.heartbeat_timestamps_ms))
            event_times = np.empty_like(all_times)
            places = offsets[order] >> columns.index_bits
            event_times[order] = self.clocks[log].advance(all_times[order], places)
            event_times = event_times[:n]
        else:
            event_times = self.clocks[log].advance(times, offsets >> columns.index_bits)
        self._ledger.counts["out_of_order"] += int(np.count_nonzero(event_times != times))
        if log == "judgments" and self.activity is not None:
            self.activity.add(event_times)
        return event_times

    @property
    def clocks_ms(self) -> dict[Log, int | None]:
        """Clock of each log; None before its first record."""
        return {log: clock.time_ms for log, clock in self.clocks.items()}

    @property
    def watermark_ms(self) -> int | None:
        """Lower bound of the event times of later records; None before both logs have a record."""
        out_of_orderness_ms = self._rules.out_of_orderness_ms
        return watermark_ms([*self.clocks_ms.values()], out_of_orderness_ms=out_of_orderness_ms)

    def restore_offsets(self) -> dict[Log, int]:
        """Offsets from which a rebuild reads all records that affect the state."""
        watermark, rules = self.watermark_ms, self._rules
        offsets, after_key_ms = dict(self.positions), (rules.key_reserved_ms, rules.early_ms)
        for (log, clock), more_ms in zip(self.clocks.items(), after_key_ms, strict=True):
            first_ms = -1 if watermark is None else watermark - rules.state_ms - more_ms
            entry = clock.index_entry_before(first_ms)
            if entry is not None:
                offsets[log] = entry[1]
        return offsets

    def state(self) -> dict[str, Any]:
        """The members of `Head`."""
        return {
            "positions": dict(self.positions),
            "clocks_ms": self.clocks_ms,
            "time_index": {log: list(clock.time_index) for log, clock in self.clocks.items()},
            "origin": replace(self.origin, logs=dict(self.origin.logs)),
            "skipped": {log: list(ranges) for log, ranges in self.skipped.items()},
            "activity": [] if self.activity is None else self.activity.state(),
        }

    def load(self, head: Head) -> None:
        """Continues from the positions and clocks of *head*."""
        self.positions = dict(head.positions)
        self.origin = replace(head.origin, logs=dict(head.origin.logs))
        for log, clock in self.clocks.items():
            clock.time_ms, clock.time_index = head.clocks_ms[log], list(head.time_index[log])
        if self.activity is not None:
            self.activity.load(head.activity)

    def load_skipped(self, head: Head) -> None:
        """Adds the offsets that the task of *head* had skipped."""
        for log, ranges in head.skipped.items():
            self.skipped[log] = merged([*self.skipped[log], *ranges])
