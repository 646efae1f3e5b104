"""Everything that depends on order: learning, promotion, and the measurements for both.

Settled queries are taken in one order and grouped into learning intervals of event time. An
interval ends when a query of a later one is taken; only then are experiments updated, weights
changed and the state published. So the state is small, and a successor that resumes from it
publishes the same bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from evaluator.core.online.events import CHALLENGER, CHAMPION, Command, ModelView, Release
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.ordered_merge import OrderedMerge, SettledQuery, Taken
from evaluator.core.online.rules import Rules
from evaluator.core.promotion.gate import verdict as verdict_of
from evaluator.core.types.records import WatermarkRecord

FORMAT: Final = 1
MOST_MODELS: Final = 16
"""Models that are learned for; queries of further models are counted and ignored."""

MAX_TABLES_BYTES: Final = 512 << 10
"""Of all tables of success rates in a state, in JSON, so that the record fits into a topic."""

_CHUNK: Final = 1_024
_CHUNK_BYTES: Final = 16 << 20
"""Queries that are measured and learned from together, and the bytes of their records."""


@dataclass(frozen=True, slots=True)
class IntervalResult:
    """The end of an interval: the releases, in order, and the state to continue from."""

    now_ms: int
    """Settled time of the last query of the interval."""
    releases: list[Release]
    next_ns: Mapping[int, int]
    """The number of the next query of every task with processed queries."""
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The public view of a leader, as of the end of its last interval; immutable."""

    is_leader: bool = False
    n_tasks: int = 0
    awaited: tuple[int, ...] = ()
    """Tasks without newer records, which hold up the others."""
    n_waiting: int = 0
    """Settled queries that were read and not processed yet."""
    n_ignored: int = 0
    now_ms: int | None = None
    """Settled time of the last query of the last interval."""
    models: tuple[ModelView, ...] = ()
    counts: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """What happened in this process: ("records", outcome), ("releases", model, status) ..."""


class OnlineLearner:
    """Runs a model learner for each model.

    Args:
        rules: the rules of learning and promotion.
        n_tasks: how many partitions `settled` has.
        state: of an `IntervalResult`, to continue from; None to begin with the first query.
        new_epoch: the state was made under other rules: only live weights are kept.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        n_tasks: int,
        state: Mapping[str, Any] | None = None,
        new_epoch: bool = False,
    ) -> None:
        self._rules = rules
        self._taken: dict[int, Taken] = {}
        self.model_learners: dict[str, ModelLearner] = {}
        self.n_ignored = 0
        if state is not None:
            if state["format"] != FORMAT:
                raise ValueError(f"a leader of format {state['format']!r} cannot be read here")
            self._taken = {int(task): Taken(*of) for task, of in state["taken"].items()}
            for each in state["models"]:
                model_learner = ModelLearner.load(each)
                self.model_learners[model_learner.model] = (
                    model_learner.in_new_epoch() if new_epoch else model_learner
                )
            self.n_ignored = state["ignored"]
        self.merge = OrderedMerge(n_tasks, self._taken)
        self._interval: int | None = None
        self._now_ms = 0
        self._pending: list[SettledQuery] = []
        self._pending_bytes = 0
        self._before = {
            model: view_of(model_learner, rules).sums
            for model, model_learner in self.model_learners.items()
        }
        self._views = self._seen()

    def receive(
        self, records: Iterable[SettledQuery | tuple[int, WatermarkRecord]]
    ) -> list[IntervalResult]:
        """Adds the next records of some tasks; returns the intervals that have ended.

        Watermark records come with their task. Raises SettledGap before any model has changed.
        """
        for record in records:
            if isinstance(record, SettledQuery):
                self.merge.add(record)
            else:
                self.merge.watermark(*record)
        return self._go_on()

    def end(self) -> list[IntervalResult]:
        """Ends the input: processes the rest, and ends the open interval."""
        self.merge.end()
        results = self._go_on()
        if self._interval is not None:
            results.append(self._end_interval())
        return results

    def accept_command(self, model: str, command: Command) -> None:
        """Executes an operator's command at the end of this interval, if the model is known."""
        if model in self.model_learners:
            self.model_learners[model].command = command

    def views(self) -> tuple[ModelView, ...]:
        """The models as of the end of the last interval, as a successor sees them."""
        return self._views

    def _seen(self) -> tuple[ModelView, ...]:
        views = (
            view_of(self.model_learners[model], self._rules)
            for model in sorted(self.model_learners)
        )
        return tuple(view._replace(sums_before=self._before.get(view.model, {})) for view in views)

    def state(self) -> dict[str, Any]:
        """Everything, between two intervals, as JSON keeps it exactly."""
        return {
            "format": FORMAT,
            "taken": {str(task): list(of) for task, of in sorted(self._taken.items())},
            "ignored": self.n_ignored,
            "models": [self.model_learners[model].state() for model in sorted(self.model_learners)],
        }

    def _go_on(self) -> list[IntervalResult]:
        results = []
        for query in self.merge.taken():
            interval = query.event_time_ms // self._rules.learning_interval_ms
            if self._interval is not None and interval > self._interval:
                results.append(self._end_interval())
            self._interval = interval if self._interval is None else max(interval, self._interval)
            self._now_ms = query.settled_time_ms
            self._taken[query.task] = Taken(query.n + 1, query.settled_time_ms)
            self._pending.append(query)
            self._pending_bytes += query.n_bytes
            if len(self._pending) == _CHUNK or self._pending_bytes >= _CHUNK_BYTES:
                self._learn_pending()
        self._learn_pending()
        return results

    def _end_interval(self) -> IntervalResult:
        self._learn_pending()
        n_tables = sum(model_learner.n_tables for model_learner in self.model_learners.values())
        share = MAX_TABLES_BYTES // max(1, n_tables)
        releases = [
            release
            for model in sorted(self.model_learners)
            for release in self.model_learners[model].end_interval(
                self._now_ms, self._rules, max_table_bytes=share
            )
        ]
        self._interval, self._views = None, self._seen()
        next_ns = {task: taken.next_n for task, taken in self._taken.items()}
        return IntervalResult(self._now_ms, releases, next_ns, self.state())

    def _learn_pending(self) -> None:
        pending, self._pending = self._pending, []
        self._pending_bytes = 0
        by_model: dict[str, list[SettledQuery]] = {}
        for query in pending:
            by_model.setdefault(query.model, []).append(query)
        for model, queries in by_model.items():
            if model not in self.model_learners:
                if len(self.model_learners) >= MOST_MODELS:
                    self.n_ignored += len(queries)
                    continue
                self.model_learners[model] = ModelLearner(model)
            self.model_learners[model].learn_from(queries, self._rules)


def view_of(model_learner: ModelLearner, rules: Rules) -> ModelView:
    """The public view of a model."""
    training, experiments = model_learner.training, model_learner.experiments
    experiment = experiments.gate.experiment
    verdict = None if experiment is None else verdict_of(experiment, rules.gate)
    return ModelView(
        model=model_learner.model,
        epoch=model_learner.epoch,
        version=model_learner.version,
        champion=experiments.champion,
        challenger=experiments.challenger,
        updates=training.updates,
        frozen=training.frozen,
        evidence_for=1.0 if verdict is None else verdict.evidence_for,
        evidence_against=1.0 if verdict is None else verdict.evidence_against,
        n_traces=0 if experiment is None else experiment.n_traces,
        evidence_needed=1.0 / rules.gate.alpha,
        sums={
            ranker: dict.fromkeys(rules.offline_ranking.measures.canonical, (0, 0))
            | experiments.sums.get(ranker, {})
            for ranker in (CHAMPION, CHALLENGER)
        },
        loss=training.loss,
    )
