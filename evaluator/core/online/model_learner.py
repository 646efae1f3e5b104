"""The model learner: training, champion, challenger and experiment of one model.

All state is a function of the model's settled queries, in order, and of the ends of intervals.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from evaluator.core.features import FEATURE_NAMES, shortened
from evaluator.core.learning.learner import LearnerState
from evaluator.core.learning.transforms import of_features
from evaluator.core.online.events import Command, Release, Status, Version
from evaluator.core.online.experiment import Experiments
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.progress import REFRESH
from evaluator.core.online.rules import Rules
from evaluator.core.online.states import IS_FROZEN, Event, ModelState, state_after
from evaluator.core.online.success_rates import MOST_TABLES, SuccessRates, featured, with_rates
from evaluator.core.online.training import Training, has_weight
from evaluator.core.promotion.gate import Gate

_MEMBERS: Final = (
    "model", "feature_names", "learner", "epoch", "version", "champions",
    "challenger", "gate", "ranges", "sums", "success_rates", "frozen_published", "last_command",
    "loss", "unusable", "progress", "last_experiment",
)  # fmt: skip
"""Members of a state, in their order."""


class ModelLearner(Struct):
    """The state of one model, and of its open interval."""

    model: str
    epoch: int = 0
    version: int = 0
    last_command: int = 0  # number of the last operator command that was executed
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)  # of n, by task
    training: Training = field(default_factory=Training)
    experiments: Experiments = field(default_factory=Experiments)
    success_rates: SuccessRates = field(default_factory=SuccessRates)
    frozen_published: bool = False
    learned: Version | None = None  # is validated on the next queries of the interval
    n_in_interval: int = 0
    command: Command | None = None  # is executed at the end of the interval
    current: ModelState = ModelState.WITHOUT_FEATURES

    def _on(self, event: Event) -> None:
        self.current = state_after(self.current, event)

    # Queries

    def learn_from(self, queries: Sequence[SettledQuery], rules: Rules) -> None:
        """Measures the weights in force, and then learns.

        The learned weights are taken for their validation at fixed numbers of queries, so that no
        size of a batch of queries changes anything.
        """
        while queries:
            left = REFRESH - self.n_in_interval % REFRESH
            if left == REFRESH:
                self._take_learned(rules)
            self._learn_from(queries[:left], rules)
            self.n_in_interval += len(queries[:left])
            queries = queries[left:]

    def _take_learned(self, rules: Rules) -> None:
        """Takes the weights learned so far, once they have a scale."""
        learner, self.learned = self.training.learner, None
        if learner is not None and learner.scale is not None and not learner.frozen:
            self.learned = self._snapshot(learner, rules)

    def _snapshot(self, learner: LearnerState, rules: Rules) -> Version:
        """The learned weights, as a version that has no number yet."""
        names = self.training.feature_names
        weights, transforms = rules.learner.snapshot(learner), of_features(rules.transforms, names)
        history = self.success_rates.now if names == FEATURE_NAMES else None  # of computed features
        return Version(0, 0, weights, names, history, transforms)

    def _learn_from(self, queries: Sequence[SettledQuery], rules: Rules) -> None:
        queries = [featured(query, rules.embedder) for query in queries]
        self.experiments.measure(queries, rules, self.learned)
        champion, is_untried = self.experiments.champion, self.experiments.gate == Gate()
        for query in queries:
            first, _ = self.ranges.get(query.task, (query.n, 0))
            self.ranges[query.task] = (first, query.n + 1)
            names = query.feature_names or ()
            may_begin = rules.may_have(names) or self.training.unusable.would_be_most()
            if names and may_begin and self.current is ModelState.WITHOUT_FEATURES:
                self.training.begin(names, champion, rules)
                self._on(Event.FEATURES)
            table = self.success_rates.at(query.event_time_ms)
            example = with_rates(query, table)
            self.training.add(example, rules, champion, may_begin_anew=is_untried)
        self.training.learn(rules, whole=True)
        self._note_frozen()
        described = [query for query in queries if query.described is not None]
        with_weight = [query for query in described if has_weight(query, rules.source_weights)]
        self.success_rates.learn(with_weight, max_grade=rules.max_grade)
        self.success_rates.drop_before(max(query.event_time_ms for query in queries))

    def _note_frozen(self) -> None:
        if self.training.frozen and self.current not in IS_FROZEN:
            self._on(Event.LEARNING_ENDED)

    # The end of an interval

    def end_interval(
        self, now_ms: int, rules: Rules, *, until_ms: int, max_table_bytes: int
    ) -> list[Release]:
        """Updates the experiment from the interval, which ends at the event time *until_ms*.

        Returns the resulting releases, in order.
        """
        self.training.end_interval(rules)
        self._note_frozen()
        self._shorten_tables(now_ms, max_table_bytes)
        releases = [
            *self._initial(rules),
            *self._execute_command(now_ms, rules),
            *self._end_experiment(now_ms, rules, until_ms),
            *self._start_experiment(now_ms, rules),
            *self._publish_frozen(rules),
        ]
        self.experiments.end_interval()
        self.learned, self.n_in_interval = None, 0
        return releases

    @property
    def n_tables(self) -> int:
        """Maximum number of tables of success rates after this interval."""
        champions = self.experiments.champions
        if self.success_rates.now is None and all(each.history is None for each in champions):
            return 0
        return MOST_TABLES + len(champions) + 3  # now, a champion more, a challenger

    def _shorten_tables(self, now_ms: int, max_bytes: int) -> None:
        if self.command is not None and self.command.history is not None:
            self.command = self.command._replace(history=shortened(self.command.history, max_bytes))
        self.success_rates.end_interval(now_ms, max_bytes=max_bytes)
        self.experiments.shorten_tables(max_bytes)

    def _initial(self, rules: Rules) -> list[Release]:
        """Makes initial weights the first champion, also in place of one for a first query."""
        names, weights = self.training.feature_names, rules.initial_weights
        if not weights or self.current is ModelState.WITHOUT_FEATURES or not rules.may_have(names):
            return []
        live = self.experiments.champion
        if self.version and (live is None or live.from_ms or live.feature_names == names):
            return []
        if live is not None and not self.training.unusable.most_were_usable:
            return []
        transforms = of_features(rules.transforms, names)
        champion = self._numbered(Version(0, 0, weights, names, None, transforms), 0)
        self.experiments.champions = [champion]
        return [self._release("initial", champion)]

    def _execute_command(self, now_ms: int, rules: Rules) -> list[Release]:
        """Executes an operator command once; a freeze waits for the first features."""
        command, learner = self.command, self.training.learner
        if command is None or (command.action == "freeze" and learner is None):
            return []
        self.command = None
        if command.number <= self.last_command:
            return []
        self.last_command, self.frozen_published = command.number, False
        if command.action == "roll_back":
            return [self._roll_back(now_ms, command, rules)]
        if learner is not None:
            self.training.learner = replace(learner, frozen=command.reason)
        self.experiments.end(now_ms)
        self._on(Event.FREEZE)
        return []

    def _roll_back(self, now_ms: int, command: Command, rules: Rules) -> Release:
        """Begins a new epoch, with older weights as champion and as the learner's start.

        The learner starts from 0 if these weights are for other transforms.
        """
        weights, names = command.weights, command.feature_names
        self.epoch += 1
        same = command.transforms == of_features(rules.transforms, names)
        start = rules.learner.start(weights if same else (0.0,) * len(weights))
        self.training = Training(names, start, loss=self.training.loss)
        self.experiments.end(now_ms + rules.gate.cool_down_ms)
        self._on(Event.ROLL_BACK)
        of_command = command.history, command.transforms
        champion = self._numbered(Version(0, 0, weights, names, *of_command), now_ms)
        self.experiments.champions.append(champion)
        return self._release("rolled_back", champion, reason=command.reason)

    def _end_experiment(self, now_ms: int, rules: Rules, until_ms: int) -> list[Release]:
        """Ends the experiment if its paired results decide it."""
        decision = self.experiments.decide(now_ms, rules, until_ms=until_ms)
        if decision is None:
            return []
        self._on(Event.EXPERIMENT_ENDED)
        challenger, verdict, evidence = decision
        version = self._numbered(challenger, now_ms)
        status: Status = "rejected"
        if verdict.status == "promoted":
            status = "promoted" if rules.mode == "auto" else "proposed"
        if status == "promoted":
            self.experiments.champions.append(version)
        of, reason = challenger.number, verdict.reason
        self.experiments.last = (of, status, reason)
        return [self._release(status, version, of=of, evidence=evidence, reason=reason)]

    def _start_experiment(self, now_ms: int, rules: Rules) -> list[Release]:
        """Makes a snapshot of the weights the challenger, if an experiment may start now."""
        learner = self.training.learner
        cooled_down = now_ms >= self.experiments.gate.rests_until_ms
        if self.current is ModelState.COOLING_DOWN and cooled_down:
            self._on(Event.COOLED_DOWN)
        if learner is None or self.current is not ModelState.LEARNING:
            return []
        if learner.scale is None or not self.experiments.progress.beats():
            return []
        self.training.learner = rules.learner.published(learner)
        challenger = self._numbered(self._snapshot(learner, rules), now_ms)
        self.experiments.start(challenger, now_ms)
        self._on(Event.EXPERIMENT_STARTED)
        return [self._release("challenger", challenger)]

    def _publish_frozen(self, rules: Rules) -> list[Release]:
        """Publishes the weights once when learning has ended."""
        learner = self.training.learner
        if learner is None or self.current not in IS_FROZEN or self.frozen_published:
            return []
        self.frozen_published = True
        version = self._numbered(self._snapshot(learner, rules), 0)
        return [self._release("frozen", version, reason=learner.frozen)]

    def _numbered(self, version: Version, from_ms: int) -> Version:
        """The next version of the model: the same weights, in force from *from_ms* on."""
        self.version += 1
        return version._replace(number=self.version, from_ms=from_ms)

    def _release(
        self,
        status: Status,
        version: Version,
        *,
        of: int | None = None,
        evidence: Mapping[str, Any] | None = None,
        reason: str = "",
    ) -> Release:
        learner = self.training.learner
        return Release(
            status=status,
            model=self.model,
            epoch=self.epoch,
            version=version.number,
            of_version=version.number if of is None else of,
            weights=version.weights,
            feature_names=version.feature_names,
            scale=None if learner is None else learner.scale,
            updates=self.training.updates,
            from_ms=version.from_ms,
            ranges=dict(self.ranges),
            evidence=evidence,
            reason=reason,
            history=version.history,
            transforms=version.transforms,
        )

    # State

    def state(self) -> dict[str, Any]:
        """Everything at the end of an interval, as JSON stores it exactly."""
        members = {
            "model": self.model,
            "epoch": self.epoch,
            "version": self.version,
            "ranges": {str(task): list(of) for task, of in sorted(self.ranges.items())},
            "success_rates": self.success_rates.state(),
            "frozen_published": self.frozen_published,
            "last_command": self.last_command,
            **self.training.state(),
            **self.experiments.state(),
        }
        return {name: members[name] for name in _MEMBERS}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "ModelLearner":
        """The same model learner, at the beginning of an interval."""
        model_learner = cls(
            model=state["model"],
            epoch=state["epoch"],
            version=state["version"],
            last_command=state["last_command"],
            ranges={int(task): (first, end) for task, (first, end) in state["ranges"].items()},
            training=Training.load(state),
            experiments=Experiments.load(state),
            success_rates=SuccessRates.load(state["success_rates"]),
            frozen_published=state["frozen_published"],
        )
        model_learner.current = _state_of(model_learner.training, model_learner.experiments)
        return model_learner

    def in_new_epoch(self) -> "ModelLearner":
        """The model learner under other rules: keeps the live weights, and resets the rest."""
        before = self.experiments
        live = Experiments(before.champions[-1:], sums=before.sums, last=before.last)
        return ModelLearner(
            self.model, self.epoch + 1, self.version, self.last_command, self.ranges,
            experiments=live,
        )  # fmt: skip


def _state_of(training: Training, experiments: Experiments) -> ModelState:
    """The state derived from stored members; COOLING_DOWN until the next interval ends."""
    runs = experiments.gate.experiment is not None
    if training.learner is None:
        return ModelState.WITHOUT_FEATURES
    if training.frozen:
        return ModelState.FROZEN_EXPERIMENT if runs else ModelState.FROZEN
    return ModelState.EXPERIMENT if runs else ModelState.COOLING_DOWN
