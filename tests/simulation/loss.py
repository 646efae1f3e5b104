"""Tasks whose inputs expired too early: the loss is reported, and later results are exact."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evaluator.core.join.changes import Checkpoint, Digest, StoredTask
from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.tally import Tally
from evaluator.ports import SourceUnusable, StateUnusable
from evaluator.wire.records import OUTPUTS
from evaluator.wire.state.checkpoint import decode_checkpoint
from tests.oracle.messages import Raw
from tests.oracle.oracle import Task
from tests.oracle.run import counted, new_engine
from tests.oracle.totals import LEDGER, judge_raws
from tests.simulation.expiry import FROM_THE_BEGINNING
from tests.simulation.verdict import check_early, check_open_windows, check_same
from tests.worker.truth import Truth

if TYPE_CHECKING:
    from tests.simulation.process import Life
    from tests.simulation.world import Simulation

LACKS = "lacks what expired"
OVERTAKEN = "overtaken"
REFUSAL = re.compile(r"rebuild task (\d+): (?:([1-9]\d*) open queries are|no open query is) lost")


class Loss:
    """Checks processes on inputs that lack records.

    A process whose position has expired ends. So does one that cannot rebuild the state of its
    checkpoint record, with the number of lost open queries; the next one continues without them. A
    process that begins behind expired records reports it. Without a report all results have to
    be those of a world without expiry, which `verdict` checks.

    Of a task with a reported loss:

    - earlier outputs are right;
    - a last process that began with a checkpoint record has its totals, plus the results of the
      remaining inputs; its open queries are those of the remaining inputs;
    - one that continued with a store has the results of the inputs without the expired records,
      if none had expired before;
    - its ledger adds up.

    Later outputs have no other guarantee: `n` of `settled` may name other queries.
    """

    def __init__(self, world: "Simulation") -> None:
        self._world = world
        self._warm: dict[tuple[str, int], Mapping[Log, int]] = {}
        self._reported_counts: dict[tuple[str, str, Log, int], int] = {}

    def on_log_event(self, life: "Life", event: Mapping[str, Any]) -> None:
        """Receives a log event of a process."""
        if event["event"] == "state_loaded":
            self._warm[life.name, event["task"]] = event["positions"]
        if event["event"] == "store_quarantined":
            self._warm.pop((life.name, event["task"]), None)
        if event["event"] in ("input_expired", "input_lost"):
            of = event["log"], event["partition"]
            self._reported_counts[life.name, event["event"], *of] = event["records"]

    def ended(self, life: "Life", error: BaseException | None) -> str | None:
        """How a process ended because of expired records; None if it did not."""
        expiry = self._world.expiry
        if isinstance(error, SourceUnusable):
            for log, task in life.source.outside():
                if task in expiry.cut and f"of {log}-{task} is not in its log" in str(error):
                    expiry.report_loss(task)
                    self._world.count(OVERTAKEN)
                    return OVERTAKEN
        refused = REFUSAL.search(str(error)) if isinstance(error, StateUnusable) else None
        if refused is None or life.accept_loss:
            return None
        task, n_lost = int(refused[1]), int(refused[2] or 0)
        assert task in expiry.cut
        rebuilt = Rebuilt(self._world, life, task)
        assert n_lost == rebuilt.lost
        expiry.report_loss(task)
        if life is self._world.last:  # which had the task before, and left no records of it
            expiry.behind[task].discard(life.name)
        self._world.count(LACKS)
        return LACKS

    def check_end(self) -> None:
        """Checks the state of the last process, and the outputs before the loss."""
        expiry, last = self._world.expiry, self._world.last
        assert last is not None
        assert self._world.plan.retention.startswith("short") or not self._world.counts.keys() & {
            *("log input_lost", "log queries_lost", OVERTAKEN, LACKS)
        }
        for task in expiry.reported:
            self._check_outputs_before(task)
            self._check_lost(last, task)
            self._check_ledger(last, task)
            warm = self._warm.get((last.name, task))
            if warm is None:
                self._world.count("judged: made again")
                self._check_rebuilt(last, task)
            elif expiry.behind[task] <= {last.name}:
                self._world.count("judged: went on with a store")
                self._check_gap(last, task, warm)

    def _check_outputs_before(self, task: int) -> None:
        world = self._world
        counts = world.expiry.reported[task]
        truth = Truth(
            {task: (world.raws("rankings", task), world.raws("judgments", task))},
            world.plan.settings,
        )
        outputs = {(out, task): world.broker.output(out, task)[: counts[out]] for out in OUTPUTS}
        truth.check_evaluations(outputs, whole=False)
        truth.check_settled(outputs, whole=False)
        truth.check_windows(outputs, whole=False)
        truth.check_dead_letters(outputs, once=False, whole=False)

    def _check_lost(self, last: "Life", task: int) -> None:
        """The records behind the commits of the group, if it has any."""
        for log in LOGS:
            began = last.source.began[log, task]
            n_lost = began - last.source.had.get((log, task), began)
            assert self._reported_counts.get((last.name, "input_lost", log, task), 0) == max(
                0, n_lost
            )

    def _check_expired(self, last: "Life", task: int, wanted: Mapping[Log, int]) -> None:
        """The number of deleted records that it would have read."""
        for log in LOGS:
            n_gone = last.source.began[log, task] - wanted[log]
            assert self._reported_counts.get((last.name, "input_expired", log, task), 0) == max(
                0, n_gone
            )

    def _check_rebuilt(self, last: "Life", task: int) -> None:
        rebuilt = Rebuilt(self._world, last, task)
        self._check_expired(last, task, rebuilt.restore_offsets)
        self._check(last, task, rebuilt.end, rebuilt.expected())

    def _check_gap(self, last: "Life", task: int, warm: Mapping[Log, int]) -> None:
        """A store that continues behind a gap, because no checkpoint record is further."""
        self._check_expired(last, task, warm)
        began = {log: last.source.began[log, task] for log in LOGS}
        behind = [log for log in LOGS if warm[log] < began[log]]
        value, _ = last.source.given.get(task, (None, {}))
        if behind and value is not None:
            positions = decode_checkpoint(value).head.positions
            assert any(positions[log] <= warm[log] for log in behind)
        read = {
            log: [
                raw
                for raw in self._world.raws(log, task)
                if raw.offset < warm[log] or raw.offset >= began[log]
            ]
            for log in LOGS
        }
        end = judge_raws((read["rankings"], read["judgments"]), self._world.plan.settings)
        self._check(last, task, end, counted(end.tally()))

    def _check_ledger(self, last: "Life", task: int) -> None:
        """Every read record has an outcome."""
        (view,) = (view for view in last.worker.snapshot if view.task == task)
        for log, names in LEDGER.items():
            ledger = {name: view.tally.get((log, name), 0) for name in names}
            assert ledger.pop("read") == sum(ledger.values())

    def _check(self, last: "Life", task: int, end: Task, expected: Tally) -> None:
        (view,) = (view for view in last.worker.snapshot if view.task == task)
        check_same(counted(view.tally), expected, f"task {task}, which lacks what expired")
        check_open_windows(last.engines[task], end)
        check_early(last.engines[task], end)


class Rebuilt:
    """A task that a process rebuilt from the remaining inputs, with a checkpoint record or
    without."""

    def __init__(self, world: "Simulation", life: "Life", task: int) -> None:
        value, began = life.source.given[task]
        self._settings = world.plan.settings
        self.record: Checkpoint | None = None if value is None else decode_checkpoint(value)
        self.restore_offsets = (
            FROM_THE_BEGINNING if self.record is None else self.record.restore_offsets
        )
        self._read: dict[Log, list[Raw]] = {
            log: [
                raw
                for raw in world.raws(log, task)
                if raw.offset >= max(began[log], self.restore_offsets[log])
            ]
            for log in LOGS
        }
        self.end = self._judged(dict.fromkeys(LOGS, 2**63))

    def _judged(self, ends: Mapping[Log, int]) -> Task:
        read = [[raw for raw in self._read[log] if raw.offset < ends[log]] for log in LOGS]
        return judge_raws((read[0], read[1]), self._settings)

    @property
    def lost(self) -> int | None:
        """The number of open queries that cannot be rebuilt; None if the digest is that of the
        record."""
        if self.record is None:
            return None
        before = self.record.digest
        return None if self.there == before else max(0, before.n_open - self.there.n_open)

    @cached_property
    def there(self) -> Digest:
        """The remaining state at the positions of the record."""
        assert self.record is not None
        return digest(self._judged(self.record.head.positions))

    def expected(self) -> Tally:
        """The totals of the record, plus later results."""
        end = self.end.tally()
        if self.record is None:
            return counted(end)
        head = self.record.head
        engine = new_engine(self._settings)
        engine.load(StoredTask(head, self.record.totals, {}, [], []))
        base = engine.tally()
        at = self._judged(head.positions).tally()
        tally = {
            path: base.get(path, 0) + end.get(path, 0) - at.get(path, 0)
            for path in base.keys() | end.keys()
        }
        open_path = "rankings", "open"
        tally["rankings", "expired"] += base[open_path] - at[open_path]
        tally[open_path] = end[open_path]
        tally["judgments", "orphan"] += self.record.digest.n_early - self.there.n_early
        tally["judgments", "early"] = end["judgments", "early"]
        tally["extra", "lost"] = base.get(("extra", "lost"), 0) + (self.lost or 0)
        return counted(tally)


def digest(task: Task) -> Digest:
    """The state of a task in a checkpoint record, by the oracle."""
    still_open = [window for window in task.windows if not window.final]
    units = {w.start_ms: sum(sums[1] for sums in w.sums.values()) for w in still_open}
    once = "served", task.settings.columns[0]
    return Digest(
        n_open=len(task.open),
        n_early=sum(outcome == "early" for outcome in task.judgment_outcomes.values()),
        queries=sum(n for w in still_open for row, (n, _) in w.sums.items() if row[2:] == once),
        sum_units=sum(units.values()),
        weighted_units=sum(start_ms * n for start_ms, n in units.items()),
    )
