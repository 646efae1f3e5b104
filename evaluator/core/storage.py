"""A task as something that is stored, loaded, and taken over from a checkpoint."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evaluator.core.accumulators import DelayHistogram, Totals, Windows
from evaluator.core.ageing import Ageing
from evaluator.core.clock import LogClock, watermark_ms
from evaluator.core.durations import Durations
from evaluator.core.join import Join
from evaluator.core.residence import Residence
from evaluator.core.skips import OffsetRange, between, merged
from evaluator.core.stored import Checkpoint, Digest, Head, Origin, StoredTask
from evaluator.core.types import LOGS, Log


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
        residence: Residence,
        ageing: Ageing,
        durations: Durations,
    ) -> None:
        self._clocks = clocks
        self._counts = counts
        self._join = join
        self._totals = totals
        self._windows = windows
        self._delays = delays
        self._residence = residence
        self._calendar = residence.calendar
        self._ageing = ageing
        self._durations = durations

    def head(self) -> Head:
        """The counts, clocks and positions as they stand."""
        counts = self._counts
        return Head(
            positions=dict(counts.positions),
            clocks_ms={log: clock.time_ms for log, clock in self._clocks.items()},
            milestones={log: list(clock.milestones) for log, clock in self._clocks.items()},
            read={log: dict(outcomes) for log, outcomes in counts.read.items()},
            again=dict(self._join.keys.again),
            outcomes=dict(self._join.judgments),
            dead_letters=dict(counts.dead_letters),
            counts={
                "started": self._join.keys.n_started,
                "out_of_order": counts.out_of_order,
                "with_value": counts.with_value,
                "forgotten": self._ageing.n_forgotten,
                "settled": self._ageing.settler.n_settled,
                "nothing_relevant": self._ageing.settler.n_nothing_relevant,
                "lost": counts.lost,
            },
            delays=self._delays.as_list(),
            n_keys=len(self._join.keys) + self._residence.n_keys_aside,
            next_run=self._calendar.young.number + 1,
            origin=replace(counts.origin, logs=dict(counts.origin.logs)),
            skipped={log: list(ranges) for log, ranges in self._counts.skipped.items()},
        )

    def load(self, stored: StoredTask) -> None:
        """Goes on where another engine was, whose queries are all aside."""
        head = stored.head
        self._counts.positions = dict(head.positions)
        self._counts.origin = replace(head.origin, logs=dict(head.origin.logs))
        for log, clock in self._clocks.items():
            clock.time_ms, clock.milestones = head.clocks_ms[log], list(head.milestones[log])
        self._load_counts(head)
        self._totals.restore(stored.totals)
        self._windows.restore(stored.windows)
        for judgment in stored.waiting:
            self._join.waiting.add(judgment)
        self._residence.n_keys_aside = head.n_keys
        self._ageing.restore(stored.runs, head.next_run, self._watermark_ms)
        self._residence.restored(stored.runs)

    @property
    def _watermark_ms(self) -> int | None:
        clocks = [clock.time_ms for clock in self._clocks.values()]
        return watermark_ms(clocks, out_of_orderness_ms=self._durations.out_of_orderness_ms)

    def checkpoint(self) -> Checkpoint:
        """What another engine needs to come here from the low-water offsets."""
        watermark = self._watermark_ms
        back_ms: dict[Log, int] = {
            "rankings": self._durations.state_ms + self._durations.key_taken_ms,
            "judgments": self._durations.state_ms + self._durations.early_ms,
        }
        low_water = {
            log: clock.milestone_before(-1 if watermark is None else watermark - back_ms[log])
            for log, clock in self._clocks.items()
        }
        return Checkpoint(
            head=self.head(),
            low_water={
                log: self._counts.positions[log] if mark is None else mark[1]
                for log, mark in low_water.items()
            },
            watermark_ms=watermark,
            totals=self._totals.everything(),
            digest=self._digest,
        )

    @property
    def _digest(self) -> Digest:
        held = self._join.keys.n_started - self._ageing.n_forgotten
        return Digest(held, len(self._join.waiting), *self._windows.sums_of_open())

    def show(self, checkpoint: Checkpoint) -> None:
        """Counts what *checkpoint* says, in a task that holds nothing and reads nothing."""
        self._load_counts(checkpoint.head)
        self._totals.restore(checkpoint.totals)

    def take_over(self, checkpoint: Checkpoint) -> int | None:
        """Goes on as the task of *checkpoint*, having come to its positions from its low-water.

        Returns how many of its queries are not here, for their input has expired; None where
        everything is as it was. There may be others instead, of keys that were taken by rankings
        which have expired: no fewer than none are lost. So that the ledger stays whole, what is
        not held any more is forgotten, and what does not wait any more an orphan.
        """
        before, now = checkpoint.digest, self._digest
        self.show(checkpoint)
        if now == before:
            return None
        self._ageing.n_forgotten += before.held - now.held
        self._join.judgments["orphan"] += before.waiting - now.waiting
        lost = max(0, before.held - now.held)
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
        self._ageing.n_forgotten = head.counts["forgotten"]
        self._ageing.settler.n_settled = head.counts["settled"]
        self._ageing.settler.n_nothing_relevant = head.counts["nothing_relevant"]
        counts.lost = head.counts["lost"]
        for log, ranges in head.skipped.items():
            counts.skip(log, ranges)
        self._delays.restore(head.delays)
