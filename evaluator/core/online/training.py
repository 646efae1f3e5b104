"""The learner of one model, and the examples of the open interval."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from evaluator.core.learning.groups import Group
from evaluator.core.learning.learner import LearnerState
from evaluator.core.learning.optimisers import Numbers
from evaluator.core.online.events import Version
from evaluator.core.online.examples import UnusableExampleError, example_of, no_example
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.rules import Rules


@dataclass(slots=True)
class Training:
    """The state of the learner.

    `updates_at_snapshot` are the updates before the last challenger; `loss` is the mean over the
    groups of the last interval that had any.
    """

    feature_names: tuple[str, ...] = ()
    learner: LearnerState | None = None
    updates_at_snapshot: int = 0
    loss: float | None = None
    # Of the open interval alone:
    groups: list[Group] = field(default_factory=list)
    losses: tuple[int, float] = (0, 0.0)  # number of counted groups, and the sum of their losses

    @property
    def frozen(self) -> str:
        """The reason why learning has ended; empty while it continues."""
        return "" if self.learner is None else self.learner.frozen

    @property
    def updates(self) -> int:
        return 0 if self.learner is None else self.learner.updates

    def begin(self, names: tuple[str, ...], champion: Version | None, rules: Rules) -> None:
        """Starts the learner with the champion's weights, if they are for these features."""
        self.feature_names = names
        self.groups = [no_example(len(names)) for _ in self.groups]
        initial = rules.initial_weights
        weights: Numbers = (0.0,) * len(names)
        if champion is not None and champion.feature_names == names:
            weights = champion.weights
        elif len(initial) == len(names):
            weights = initial
        self.learner = rules.learner.start(weights)
        if initial and len(initial) != len(names):
            self._freeze(f"initial_weights are {len(initial)}, features {len(names)}", rules)

    def add(self, query: SettledQuery, rules: Rules) -> None:
        """Adds the training example of a query; ends learning if it cannot be used."""
        example = no_example(len(self.feature_names))
        if query.feature_names:
            try:
                example = example_of(
                    query,
                    self.feature_names,
                    label_mode=rules.learner.label_mode,
                    source_weights=rules.source_weights,
                )
            except UnusableExampleError as error:
                self._freeze(str(error), rules)
        self.groups.append(example)

    def _freeze(self, reason: str, rules: Rules) -> None:
        """Ends learning after the preceding whole batches."""
        self.learn(rules, whole=True)
        if self.learner is not None and not self.learner.frozen:
            self.learner = replace(self.learner, frozen=reason)

    def learn(self, rules: Rules, *, whole: bool) -> None:
        """Learns from the groups, batch by batch; with *whole*, only from full batches."""
        n = len(self.groups)
        if whole:
            n -= n % rules.batch_queries
        groups, self.groups = self.groups[:n], self.groups[n:]
        if self.learner is None or self.learner.frozen:
            return
        for batches in rules.learner.batches(groups, rules.batch_queries):
            self.learner, losses = rules.learner.learn(self.learner, batches)
            for loss in losses:  # the rounding of the built-in sum depends on the version of Python
                self.losses = (self.losses[0] + 1, self.losses[1] + loss)

    def end_interval(self, rules: Rules) -> None:
        """Learns from the rest of the examples."""
        self.learn(rules, whole=False)
        n_losses, total = self.losses
        self.loss = total / n_losses if n_losses else self.loss
        self.losses = (0, 0.0)

    def state(self) -> dict[str, Any]:
        """Everything at the end of an interval, as JSON stores it exactly."""
        return {
            "feature_names": list(self.feature_names),
            "learner": None if self.learner is None else asdict(self.learner),
            "learned_at_snapshot": self.updates_at_snapshot,
            "loss": self.loss,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "Training":
        learner = state["learner"]
        return cls(
            tuple(state["feature_names"]),
            None if learner is None else LearnerState.load(learner),
            state["learned_at_snapshot"],
            state["loss"],
        )
