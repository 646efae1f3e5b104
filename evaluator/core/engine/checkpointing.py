"""A task as something that is stored, loaded, and taken over from a checkpoint."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evaluator.core.engine.expiry import Expiry
from evaluator.core.event_time.clock import LogClock, watermark_ms
from evaluator.core.event_time.durations import Durations
from evaluator.core.join.changes import Checkpoint, Digest, Head, Origin, StoredTask
from evaluator.core.join.join import Join
from evaluator.core.measures.exact_sums import DelayHistogram, Totals, Windows
from evaluator.core.store.tiering import Tiering
from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.skips import OffsetRange, between, merged


def _nothing_read() -> dict[Log, dict[str, int]]:
    return {log: dict.fromkeys(("read", "malformed", "heartbeat"), 0) for log in LOGS}


@dataclass(slots=True)
class Counts:
    """What the engine itself counts, and how far it has read."""

    positions: dict[Log, int] = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    read: dict[Log, dict[str, int]] = field(default_factory=_nothing_read)
    dead_letters: dict[str, int] = field(default_factory=dict)
    out_of_order: int = 0
    with_value: int = 0
    lost: int = 0
    origin: Origin = field(default_factory=Origin)
    skipped: dict[Log, list[OffsetRange]] = field(default_factory=lambda: {log: [] for log in LOGS})

    skips: dict[Log, Sequence[OffsetRange]] = field(default_factory=lambda: dict.fromkeys(LOGS, ()))
    """What is to be skipped, as far as it is not behind the position; `skipped` was."""

    def read_to(self, log: Log, offset: int) -> None:
        """All before *offset* was read or skipped."""
        self.skip(log, between(self.skips[log], self.positions[log], offset))
        self.positions[log] = offset

    def skip(self, log: Log, ranges: Iterable[OffsetRange]) -> None:
        """Notes offsets that were passed without being read."""
        self.skipped[log] = merged([*self.skipped[log], *ranges])


class Storage:
    """Gathers what is small of all parts of a task, and gives it back to them."""

    def __init__(
        self,
        clocks: Mapping[Log, LogClock],
        counts: Counts,
        join: Join,
        totals: Totals,
        windows: Windows,
        delays: DelayHistogram,
        tiering: Tiering,
        expiry: Expiry,
        durations: Durations,
    ) -> None:
        self._clocks = clocks
        self._counts = counts
        self._join = join
        self._totals = totals
        self._windows = windows
        self._delays = delays
        self._tiering = tiering
        self._timers = tiering.timers
        self._expiry = expiry
        self._durations = durations

    def head(self) -> Head:
        """The counts, clocks and positions as they stand."""
        counts = self._counts
        return Head(
            positions=dict(counts.positions),
            clocks_ms={log: clock.time_ms for log, clock in self._clocks.items()},
            time_index={log: list(clock.time_index) for log, clock in self._clocks.items()},
            read={log: dict(outcomes) for log, outcomes in counts.read.items()},
            again=dict(self._join.keys.again),
            outcomes=dict(self._join.judgments),
            dead_letters=dict(counts.dead_letters),
            counts={
                "started": self._join.keys.n_started,
                "out_of_order": counts.out_of_order,
                "with_value": counts.with_value,
                "expired": self._expiry.n_expired,
                "settled": self._expiry.settler.n_settled,
                "nothing_relevant": self._expiry.settler.n_nothing_relevant,
                "lost": counts.lost,
            },
            delays=self._delays.as_list(),
            n_keys=len(self._join.keys) + self._tiering.n_keys_on_disk,
            next_run=self._timers.open_run.number + 1,
            origin=replace(counts.origin, logs=dict(counts.origin.logs)),
            skipped={log: list(ranges) for log, ranges in self._counts.skipped.items()},
        )

    def load(self, stored: StoredTask) -> None:
        """Goes on where another engine was, whose queries are all on disk."""
        head = stored.head
        self._counts.positions = dict(head.positions)
        self._counts.origin = replace(head.origin, logs=dict(head.origin.logs))
        for log, clock in self._clocks.items():
            clock.time_ms, clock.time_index = head.clocks_ms[log], list(head.time_index[log])
        self._load_counts(head)
        self._totals.restore(stored.totals)
        self._windows.restore(stored.windows)
        for judgment in stored.early:
            self._join.early.add(judgment)
        self._tiering.n_keys_on_disk = head.n_keys
        self._expiry.restore(stored.runs, head.next_run, self._watermark_ms)
        self._tiering.restored(stored.runs)

    @property
    def _watermark_ms(self) -> int | None:
        clocks = [clock.time_ms for clock in self._clocks.values()]
        return watermark_ms(clocks, out_of_orderness_ms=self._durations.out_of_orderness_ms)

    def checkpoint(self) -> Checkpoint:
        """What another engine needs to come here from the restore offsets."""
        watermark = self._watermark_ms
        back_ms: dict[Log, int] = {
            "rankings": self._durations.state_ms + self._durations.key_reserved_ms,
            "judgments": self._durations.state_ms + self._durations.early_ms,
        }
        restore_offsets = {
            log: clock.index_entry_before(-1 if watermark is None else watermark - back_ms[log])
            for log, clock in self._clocks.items()
        }
        return Checkpoint(
            head=self.head(),
            restore_offsets={
                log: self._counts.positions[log] if mark is None else mark[1]
                for log, mark in restore_offsets.items()
            },
            watermark_ms=watermark,
            totals=self._totals.everything(),
            digest=self._digest,
        )

    @property
    def _digest(self) -> Digest:
        open_queries = self._join.keys.n_started - self._expiry.n_expired
        return Digest(open_queries, len(self._join.early), *self._windows.sums_of_open())

    def show(self, checkpoint: Checkpoint) -> None:
        """Adds the counts of *checkpoint* to an empty task that reads nothing."""
        self._load_counts(checkpoint.head)
        self._totals.restore(checkpoint.totals)

    def take_over(self, checkpoint: Checkpoint) -> int | None:
        """Goes on as the task of *checkpoint*, read from its restore offsets to its positions.

        Returns how many of its queries are not here, for their input has expired; None where
        everything is as it was. There may be others instead, of keys that were taken by rankings
        which have expired: no fewer than none are lost. So that the ledger stays whole, what is
        not open any more is expired, and what does not wait any more an orphan.
        """
        before, now = checkpoint.digest, self._digest
        self.show(checkpoint)
        if now == before:
            return None
        self._expiry.n_expired += before.n_open - now.n_open
        self._join.judgments["orphan"] += before.n_early - now.n_early
        lost = max(0, before.n_open - now.n_open)
        self._counts.lost += lost
        return lost

    def _load_counts(self, head: Head) -> None:
        counts = self._counts
        counts.read = {log: dict(outcomes) for log, outcomes in head.read.items()}
        self._join.keys.again = dict(head.again)
        self._join.judgments = dict(head.outcomes)
        counts.dead_letters = dict(head.dead_letters)
        self._join.keys.n_started = head.counts["started"]
        counts.out_of_order = head.counts["out_of_order"]
        counts.with_value = head.counts["with_value"]
        self._expiry.n_expired = head.counts["expired"]
        self._expiry.settler.n_settled = head.counts["settled"]
        self._expiry.settler.n_nothing_relevant = head.counts["nothing_relevant"]
        counts.lost = head.counts["lost"]
        for log, ranges in head.skipped.items():
            counts.skip(log, ranges)
        self._delays.restore(head.delays)
