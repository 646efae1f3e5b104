"""The model learner: training, champion, challenger and experiment of one model.

Everything here is a function of its settled queries, in order, and of where intervals end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from evaluator.core.features import FEATURE_NAMES, History, shortened
from evaluator.core.learning.groups import Group
from evaluator.core.learning.learner import LearnerState
from evaluator.core.learning.optimisers import Numbers
from evaluator.core.measures import MISSING
from evaluator.core.online.examples import (
    UnusableExampleError,
    example_of,
    has_weight,
    no_example,
)
from evaluator.core.online.experiment import (
    PairedResult,
    add_units,
    evidence_of,
    observations_of,
    paired_results_of,
    units_in_force,
)
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.releases import (
    CHALLENGER,
    CHAMPION,
    Command,
    Release,
    Rules,
    Status,
    Version,
)
from evaluator.core.online.success_rates import MOST_TABLES, SuccessRates, featured, seen_with
from evaluator.core.promotion.gate import Gate, decided, ended, started
from evaluator.core.promotion.source_weights import window_weights

LEAST_UPDATES: Final = 50
"""Updates between two challengers."""
MOST_IN_AN_INTERVAL: Final = 200_000
"""Queries of an interval that are bet on; later ones are not."""


@dataclass(slots=True)
class ModelLearner:
    """The state of one model, and of its open interval."""

    model: str
    feature_names: tuple[str, ...] = ()
    learner: LearnerState | None = None
    learned_at_snapshot: int = 0
    epoch: int = 0
    version: int = 0
    champions: list[Version] = field(default_factory=list)  # the newest last
    challenger: Version | None = None
    gate: Gate = field(default_factory=Gate)
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)  # of n, by task
    sums: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    success_rates: SuccessRates = field(default_factory=SuccessRates)
    frozen_published: bool = False
    last_command: int = 0  # number of the last operator command that was executed
    loss: float | None = None  # mean over the groups of the last interval that had any
    # Of the open interval alone:
    groups: list[Group] = field(default_factory=list)
    paired_results: dict[str, list[PairedResult]] = field(default_factory=dict)
    source_groups: dict[str, int] = field(default_factory=dict)
    n_paired_results: int = 0
    losses: tuple[int, float] = (0, 0.0)  # of groups that counted: how many, and their sum
    command: Command | None = None

    # Queries

    def learn_from(self, queries: Sequence[SettledQuery], rules: Rules) -> None:
        """Measures the weights in force, and then learns."""
        queries = [featured(query, rules.embedder) for query in queries]
        self._compare(queries, rules)
        for query in queries:
            first, _ = self.ranges.get(query.task, (query.n, 0))
            self.ranges[query.task] = (first, query.n + 1)
            for source, n in query.sources.items():
                group_name = rules.group_of(source)
                self.source_groups[group_name] = self.source_groups.get(group_name, 0) + n
            group = self._group(query, rules)  # the first one begins a new list
            self.groups.append(group)
        self._step(rules, whole=True)
        described = [query for query in queries if query.described is not None]
        taught = [query for query in described if has_weight(query, rules.source_weights)]
        self.success_rates.learn(taught, max_grade=rules.max_grade)
        self.success_rates.pass_by(max(query.event_time_ms for query in queries))

    def _compare(self, queries: Sequence[SettledQuery], rules: Rules) -> None:
        judged = [query for query in queries if query.grades]
        champion, challenger = units_in_force(judged, self.champions, self.challenger, rules)
        if self.champions:
            add_units(champion, rules, self.sums.setdefault(CHAMPION, {}))
        else:
            canonical = rules.offline_ranking.measures.canonical
            for row, query in enumerate(judged):
                champion[row] = [query.served_units.get(name, MISSING) for name in canonical]
        while len(self.champions) > 1 and judged:
            if judged[-1].event_time_ms < self.champions[1].from_ms:
                break
            self.champions.pop(0)
        if self.challenger is not None:
            add_units(challenger, rules, self.sums.setdefault(CHALLENGER, {}))
            rows = np.flatnonzero((challenger != MISSING).any(axis=1))
            rows = rows[: MOST_IN_AN_INTERVAL - self.n_paired_results]
            paired = [judged[row] for row in rows.tolist()]
            results = paired_results_of(paired, champion[rows], challenger[rows], rules)
            self.n_paired_results += len(results)
            for query, result in zip(paired, results, strict=True):
                self.paired_results.setdefault(query.trace_id, []).append(result)

    def _group(self, query: SettledQuery, rules: Rules) -> Group:
        """The training group of a query; empty without features, or if a source has weight 0."""
        if not query.feature_names:
            return no_example(len(self.feature_names))
        if self.learner is None:
            self._begin(query.feature_names, rules)
        seen = seen_with(query, self.success_rates.at(query.event_time_ms))
        try:
            return example_of(
                seen,
                self.feature_names,
                label_mode=rules.learner.label_mode,
                source_weights=rules.source_weights,
            )
        except UnusableExampleError as error:
            self._freeze(str(error), rules)
            return no_example(len(self.feature_names))

    def _begin(self, names: tuple[str, ...], rules: Rules) -> None:
        """The learner begins with the champion's weights, if they are for these features."""
        self.feature_names = names
        self.groups = [no_example(len(names)) for _ in self.groups]
        weights: Numbers = (0.0,) * len(names)
        if self.champions and self.champions[-1].feature_names == names:
            weights = self.champions[-1].weights
        elif len(rules.initial_weights) == len(names):
            weights = rules.initial_weights
        self.learner = rules.learner.start(weights)
        if rules.initial_weights and len(rules.initial_weights) != len(names):
            n = len(rules.initial_weights)
            self._freeze(f"initial_weights are {n}, features {len(names)}", rules)

    def _freeze(self, reason: str, rules: Rules) -> None:
        """Learns from the batches before this moment only."""
        self._step(rules, whole=True)
        if self.learner is not None and not self.learner.frozen:
            self.learner = replace(self.learner, frozen=reason)

    def _step(self, rules: Rules, *, whole: bool) -> None:
        """Learns from the groups so far, batch by batch; from *whole* batches alone, or all."""
        n = len(self.groups)
        if whole:
            n -= n % rules.batch_queries
        if not n:
            return
        groups, self.groups = self.groups[:n], self.groups[n:]
        if self.learner is None or self.learner.frozen:
            return
        for batches in rules.learner.batches(groups, rules.batch_queries):
            self.learner, losses = rules.learner.learn(self.learner, batches)
            for loss in losses:  # the built-in sum rounds otherwise from one Python to the next
                self.losses = (self.losses[0] + 1, self.losses[1] + loss)

    # The end of an interval

    def end_interval(self, now_ms: int, rules: Rules, *, max_table_bytes: int) -> list[Release]:
        """Updates the experiment from the interval; the releases that follow, in order."""
        self._step(rules, whole=False)
        n_losses, losses = self.losses
        self.loss = losses / n_losses if n_losses else self.loss
        self._shorten_tables(now_ms, max_table_bytes)
        releases = [
            *self._first(rules),
            *self._command_releases(now_ms, rules),
            *self._decided(now_ms, rules),
            *self._new_challenger(now_ms, rules),
            *self._frozen(rules),
        ]
        self.paired_results, self.source_groups, self.n_paired_results, self.losses = (
            {},
            {},
            0,
            (0, 0.0),
        )
        return releases

    @property
    def n_tables(self) -> int:
        """Tables of success rates that the end of this interval may leave, at most."""
        if self.success_rates.now is None and all(each.history is None for each in self.champions):
            return 0
        return MOST_TABLES + len(self.champions) + 3  # now, a champion more, a challenger

    def _shorten_tables(self, now_ms: int, max_bytes: int) -> None:
        if self.command is not None and self.command.history is not None:
            self.command = self.command._replace(history=shortened(self.command.history, max_bytes))
        self.success_rates.end_interval(now_ms, max_bytes=max_bytes)
        self.champions = [version.with_table_of(max_bytes) for version in self.champions]
        if self.challenger is not None:
            self.challenger = self.challenger.with_table_of(max_bytes)

    def _history(self) -> History | None:
        """The table for the weights learned so far; None if no features are computed."""
        return self.success_rates.now if self.feature_names == FEATURE_NAMES else None

    def _first(self, rules: Rules) -> list[Release]:
        """Initial weights are the first champion."""
        if self.version or self.learner is None or not rules.initial_weights:
            return []
        if len(rules.initial_weights) != len(self.feature_names):
            return []
        release = self._release("initial", rules.initial_weights, 0)
        self.champions = [Version(release.version, 0, rules.initial_weights, self.feature_names)]
        return [release]

    def _command_releases(self, now_ms: int, rules: Rules) -> list[Release]:
        """Executes an operator command once."""
        command = self.command
        if command is None or (command.action == "freeze" and self.learner is None):
            return []
        self.command = None
        if command.number <= self.last_command:
            return []
        self.last_command = command.number
        if command.action == "roll_back":
            return [self._rolled_back(now_ms, command, rules)]
        if self.learner is not None:
            self.learner, self.frozen_published = (
                replace(self.learner, frozen=command.reason),
                False,
            )
        self.challenger, self.gate = None, Gate(None, now_ms)
        return []

    def _rolled_back(self, now_ms: int, command: Command, rules: Rules) -> Release:
        """A new epoch, with older weights as the champion and as the learner's beginning."""
        weights, names, history = command.weights, command.feature_names, command.history
        self.epoch += 1
        self.feature_names, self.challenger = names, None
        self.learner, self.learned_at_snapshot = rules.learner.start(weights), 0
        self.frozen_published = False
        self.gate = Gate(None, now_ms + rules.gate.cool_down_ms)
        release = self._release(
            "rolled_back", weights, now_ms, reason=command.reason, history=history
        )
        self.champions.append(Version(release.version, now_ms, weights, names, history))
        return release

    def _decided(self, now_ms: int, rules: Rules) -> list[Release]:
        """Updates the experiment with the paired results of the interval, trace by trace."""
        experiment, challenger = self.gate.experiment, self.challenger
        if experiment is None or challenger is None:
            return []
        worth = (
            None
            if rules.source_weights is None
            else window_weights(self.source_groups, rules.source_weights)
        )
        traces = observations_of(now_ms, self.paired_results, worth, rules)
        if not traces:
            return []
        experiment, verdict = decided(experiment, traces, rules.gate)
        if verdict.status == "undecided":
            self.gate = replace(self.gate, experiment=experiment)
            return []
        evidence = evidence_of(experiment, verdict, rules)
        self.gate = ended(replace(self.gate, experiment=experiment), rules.gate, now_ms=now_ms)
        self.challenger = None
        status: Status = "rejected"
        if verdict.status == "promoted":
            status = "promoted" if rules.mode == "auto" else "proposed"
        release = self._release(
            status,
            challenger.weights,
            now_ms,
            of=challenger.number,
            evidence=evidence,
            history=challenger.history,
        )
        if status == "promoted":
            self.champions.append(challenger._replace(number=release.version, from_ms=now_ms))
        return [release._replace(feature_names=challenger.feature_names)]

    def _new_challenger(self, now_ms: int, rules: Rules) -> list[Release]:
        """Freezes the learned weights as the challenger, if an experiment may start now."""
        learner = self.learner
        if learner is None or learner.frozen or learner.scale is None:
            return []
        if learner.updates < self.learned_at_snapshot + LEAST_UPDATES:
            return []
        if not self.gate.may_start(now_ms):
            return []
        weights = rules.learner.snapshot(learner)
        self.learner = rules.learner.published(learner)
        self.learned_at_snapshot = learner.updates
        history = self._history()
        release = self._release("challenger", weights, now_ms, history=history)
        self.challenger = Version(release.version, now_ms, weights, self.feature_names, history)
        self.gate = started(self.gate, now_ms=now_ms)
        return [release]

    def _frozen(self, rules: Rules) -> list[Release]:
        learner = self.learner
        if learner is None or not learner.frozen or self.frozen_published:
            return []
        self.frozen_published = True
        weights, history = rules.learner.snapshot(learner), self._history()
        return [self._release("frozen", weights, 0, reason=learner.frozen, history=history)]

    def _release(
        self,
        status: Status,
        weights: Numbers,
        from_ms: int,
        *,
        of: int = 0,
        evidence: Mapping[str, Any] | None = None,
        reason: str = "",
        history: History | None = None,
    ) -> Release:
        self.version += 1
        scale = None if self.learner is None else self.learner.scale
        return Release(
            status=status,
            model=self.model,
            epoch=self.epoch,
            version=self.version,
            of_version=of or self.version,
            weights=weights,
            feature_names=self.feature_names,
            scale=scale,
            updates=0 if self.learner is None else self.learner.updates,
            from_ms=from_ms,
            ranges=dict(self.ranges),
            evidence=evidence,
            reason=reason,
            history=history,
        )

    # As JSON keeps it

    def state(self) -> dict[str, Any]:
        """Everything at the end of an interval."""
        return {
            "model": self.model,
            "feature_names": list(self.feature_names),
            "learner": None if self.learner is None else asdict(self.learner),
            "learned_at_snapshot": self.learned_at_snapshot,
            "epoch": self.epoch,
            "version": self.version,
            "champions": [version.state() for version in self.champions],
            "challenger": None if self.challenger is None else self.challenger.state(),
            "gate": self.gate.state(),
            "ranges": {str(task): list(of) for task, of in sorted(self.ranges.items())},
            "sums": {
                ranker: {measure: list(of) for measure, of in sorted(sums.items())}
                for ranker, sums in sorted(self.sums.items())
            },
            "success_rates": self.success_rates.state(),
            "frozen_published": self.frozen_published,
            "last_command": self.last_command,
            "loss": self.loss,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "ModelLearner":
        """The same model learner, at the beginning of an interval."""
        learner, challenger = state["learner"], state["challenger"]
        return cls(
            model=state["model"],
            feature_names=tuple(state["feature_names"]),
            learner=None if learner is None else LearnerState.of(learner),
            learned_at_snapshot=state["learned_at_snapshot"],
            epoch=state["epoch"],
            version=state["version"],
            champions=[Version.of(version) for version in state["champions"]],
            challenger=None if challenger is None else Version.of(challenger),
            gate=Gate.from_state(state["gate"]),
            ranges={int(task): (first, end) for task, (first, end) in state["ranges"].items()},
            sums={
                ranker: {measure: (n, units) for measure, (n, units) in sums.items()}
                for ranker, sums in state["sums"].items()
            },
            success_rates=SuccessRates.from_state(state["success_rates"]),
            frozen_published=state["frozen_published"],
            last_command=state["last_command"],
            loss=state["loss"],
        )

    def in_new_epoch(self) -> "ModelLearner":
        """Under other rules: live weights stay live, and the rest starts from the beginning."""
        return ModelLearner(
            model=self.model,
            epoch=self.epoch + 1,
            version=self.version,
            champions=self.champions[-1:],
            ranges=self.ranges,
            sums=self.sums,
            last_command=self.last_command,
        )
