"""The online learner: learning and promotion from settled queries in one order.

Settled queries are processed in one order, in learning intervals of event time. An interval ends at
the first query of a later one; experiments, weights and published state change only then. The state
is small, and a successor that resumes from it publishes the same bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from evaluator.core.online.events import CHALLENGER, CHAMPION, MOST_MODELS, Command, Release
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.ordered_merge import OrderedMerge, SettledQuery, TaskProgress
from evaluator.core.online.rules import Rules
from evaluator.core.online.views import ModelView
from evaluator.core.promotion.gate import verdict as verdict_of
from evaluator.core.types.records import WatermarkRecord

FORMAT: Final = 1
MAX_TABLES_BYTES: Final = 512 << 10
"""Of all tables of success rates in a state, in JSON, so that the record fits into a topic."""

_CHUNK: Final = 1_024
_CHUNK_BYTES: Final = 16 << 20
"""Queries that are measured and learned from together, and the bytes of their records."""


class IntervalResult(Struct, frozen=True):
    """The end of an interval: the releases, in order, and the state to continue from.

    `now_ms` is the settled time of the last query of the interval; `positions` are the offsets in
    `settled`, by task, from which a successor reads; `sums` are those of `OnlineLearner.sums`.
    """

    now_ms: int
    releases: list[Release]
    positions: Mapping[int, int]
    state: Mapping[str, Any]
    sums: Mapping[tuple[str, ...], int] = field(default_factory=dict)


class OnlineLearner:
    """Runs a model learner for each model.

    Args:
        rules: the rules of learning and promotion.
        n_tasks: how many partitions `settled` has.
        state, positions: of an `IntervalResult`, to continue from; None to begin with the first
            query.
        new_epoch: the state was made under other rules: only live weights are kept.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        n_tasks: int,
        state: Mapping[str, Any] | None = None,
        positions: Mapping[int, int] | None = None,
        new_epoch: bool = False,
    ) -> None:
        self._rules = rules
        self._taken: dict[int, TaskProgress] = {}
        self._positions = dict(positions or {})
        self.model_learners: dict[str, ModelLearner] = {}
        self.n_ignored = 0
        if state is not None:
            self._load(state, new_epoch=new_epoch)
        self.merge = OrderedMerge(n_tasks, self._taken)
        self._interval: int | None = None
        self._now_ms = 0
        self._pending: list[SettledQuery] = []
        self._pending_bytes = 0
        self.views = self._current_views()
        """The models as of the end of the last interval, as a successor sees them."""

    def _load(self, state: Mapping[str, Any], *, new_epoch: bool) -> None:
        self._taken = {int(task): TaskProgress(*of) for task, of in state["taken"].items()}
        for each in map(ModelLearner.load, state["models"]):
            self.model_learners[each.model] = each.in_new_epoch() if new_epoch else each
        self.n_ignored = state["ignored"]

    def state(self) -> dict[str, Any]:
        """Everything, between two intervals, as JSON stores it exactly."""
        return {
            "format": FORMAT,
            "taken": {str(task): list(of) for task, of in sorted(self._taken.items())},
            "ignored": self.n_ignored,
            "models": [self.model_learners[model].state() for model in sorted(self.model_learners)],
        }

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
        return self._process()

    def end(self) -> list[IntervalResult]:
        """Ends the input: processes the rest, and ends the open interval."""
        self.merge.end()
        results = self._process()
        if self._interval is not None:
            results.append(self._end_interval())
        return results

    def accept_command(self, model: str, command: Command) -> None:
        """Executes an operator's command at the end of this interval, if the model is known."""
        if model in self.model_learners:
            self.model_learners[model].command = command

    def _current_views(self) -> tuple[ModelView, ...]:
        learners = [each for _, each in sorted(self.model_learners.items())]
        known = {name for each in learners for name in each.training.feature_names}
        unknown = tuple(sorted(self._rules.transforms.keys() - known)) if known else ()
        return tuple(
            view_of(each, self._rules)._replace(unknown_transforms=unknown) for each in learners
        )

    def sums(self) -> dict[tuple[str, ...], int]:
        """Values of the weights in force so far: their numbers, and their sums in units of 2^-40.

        By (model, ranker, measure, "queries" or "sum_units").
        """
        return {
            (model, ranker, measure, name): figure
            for model, each in self.model_learners.items()
            for ranker in (CHAMPION, CHALLENGER)
            for measure in self._rules.offline_ranking.measures.canonical
            for name, figure in zip(
                ("queries", "sum_units"),
                each.experiments.sums.get(ranker, {}).get(measure, (0, 0)),
                strict=True,
            )
        }

    def _process(self) -> list[IntervalResult]:
        results = []
        for query in self.merge.take():
            interval = query.event_time_ms // self._rules.learning_interval_ms
            if self._interval is not None and interval > self._interval:
                results.append(self._end_interval())
            self._interval = interval if self._interval is None else max(interval, self._interval)
            self._now_ms = query.settled_time_ms
            self._taken[query.task] = TaskProgress(query.n + 1, query.settled_time_ms)
            self._positions[query.task] = query.offset + 1
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
        until_ms = ((self._interval or 0) + 1) * self._rules.learning_interval_ms
        releases = [
            release
            for model in sorted(self.model_learners)
            for release in self.model_learners[model].end_interval(
                self._now_ms, self._rules, until_ms=until_ms, max_table_bytes=share
            )
        ]
        self._interval, self.views = None, self._current_views()
        positions = dict(self._positions)
        return IntervalResult(self._now_ms, releases, positions, self.state(), self.sums())

    def _learn_pending(self) -> None:
        by_model: dict[str, list[SettledQuery]] = {}
        for query in self._pending:
            by_model.setdefault(query.model, []).append(query)
        self._pending, self._pending_bytes = [], 0
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
        loss=training.loss,
        unusable=training.unusable.by_reason(),
        unusable_share=training.unusable.share,
        last_experiment=experiments.last,
    )
