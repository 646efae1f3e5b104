"""A task that is stored, loaded, and taken over from a checkpoint: the states of its parts."""

from evaluator.core.engine.inputs import Inputs
from evaluator.core.join.changes import Checkpoint, Digest, Head, Ledger, StoredTask
from evaluator.core.join.join import Join
from evaluator.core.join.rules import JoinRules
from evaluator.core.settle.running import Running
from evaluator.core.store.tiering import Tiering


class Checkpointing:
    """Collects the states of all parts of a task, and loads them."""

    def __init__(
        self,
        rules: JoinRules,
        inputs: Inputs,
        ledger: Ledger,
        join: Join,
        running: Running,
        tiering: Tiering,
    ) -> None:
        self._rules = rules
        self._inputs = inputs
        self._ledger = ledger
        self._join = join
        self._running = running
        self._tiering = tiering

    def head(self) -> Head:
        """The current counts, clocks and positions."""
        parts = (self._inputs, self._ledger, self._running, self._tiering)
        return Head(**{name: value for part in parts for name, value in part.state().items()})

    def load(self, stored: StoredTask) -> None:
        """Continues a stored task, whose queries are all on disk."""
        self._inputs.load(stored.head)
        self.load_sums(stored)
        self._running.windows.restore(stored.windows)
        for judgment in stored.early:
            self._join.early.add(judgment)
        watermark = self._inputs.watermark_ms
        limits = {} if watermark is None else self._rules.timer_limits(watermark)
        self._tiering.load(stored.head, stored.runs, limits)

    def load_sums(self, stored: StoredTask | Checkpoint) -> None:
        """Loads the counts and totals; enough for a task that reads nothing."""
        self._inputs.load_skipped(stored.head)
        self._ledger.load(stored.head)
        self._running.delays.restore(stored.head.delays)
        self._running.totals.restore(stored.totals)

    def checkpoint(self) -> Checkpoint:
        """What another engine needs to rebuild this state from the restore offsets."""
        return Checkpoint(
            head=self.head(),
            restore_offsets=self._inputs.restore_offsets(),
            watermark_ms=self._inputs.watermark_ms,
            totals=self._running.totals.everything(),
            digest=self._digest(),
        )

    def _digest(self) -> Digest:
        counts = self._ledger.counts
        sums = self._running.windows.sums_of_open()
        return Digest(counts["started"] - counts["expired"], len(self._join.early), *sums)

    def take_over(self, checkpoint: Checkpoint) -> int | None:
        """Continues the task of *checkpoint*, read from its restore offsets to its positions.

        Returns how many of its open queries are missing, as their input has expired; None if the
        state is equal. Rankings that have expired may have reserved keys, so there may be more
        open queries than before: then 0. To keep the ledger complete, missing queries count as
        expired, and missing early judgments as orphans.
        """
        before, now = checkpoint.digest, self._digest()
        self.load_sums(checkpoint)
        if now == before:
            return None
        counts, missing = self._ledger.counts, before.n_open - now.n_open
        counts["expired"] += missing
        self._ledger.outcomes["orphan"] += before.n_early - now.n_early
        counts["lost"] += max(0, missing)
        return max(0, missing)
