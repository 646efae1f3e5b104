"""Training examples of settled queries, and the learner of one model."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import numpy as np
from msgspec import Struct, convert, field
from msgspec.structs import asdict, replace

from evaluator.core.learning.groups import Group
from evaluator.core.learning.learner import Learner, LearnerState
from evaluator.core.learning.optimisers import Numbers
from evaluator.core.learning.transforms import NO_TRANSFORMS, Transforms, of_features, transformed
from evaluator.core.online.events import Version
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.rules import Rules
from evaluator.core.promotion.source_weights import SourceWeights

MOST_RECENT: Final = 1_000
"""Last queries with features, of which most must be unusable before learning ends."""
MOST_KINDS: Final = 16
"""Kinds of unusable queries that are counted separately; further ones are counted together."""
OTHER_KINDS: Final = "other"
OVERFLOW: Final = "overflow"
PROPENSITIES: Final = "propensities"
INVALID: Final = "invalid"
_NAMED: Final = (PROPENSITIES, OVERFLOW, INVALID)


class UnusableExampleError(ValueError):
    """A query cannot be learned from; the message has the reason.

    Its *kind* is PROPENSITIES, INVALID or a short hash of its features.
    """

    def __init__(self, message: str, kind: str | tuple[str, ...]) -> None:
        super().__init__(message)
        whole = sha256(repr(kind).encode("utf-8", "surrogatepass")).hexdigest()
        self.kind = kind if isinstance(kind, str) else whole[:16]


class Unusable(Struct):
    """The queries that could not be learned from: by kind, and which of the last ones.

    The bits of `recent` are the last MOST_RECENT queries with features, the newest last, and older
    ones while some of them wait for their batch. `n_noted` is the number of all queries.
    """

    recent: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    n_noted: int = 0

    def note(self, kind: str | None) -> None:
        """Counts one more query; None for a usable one."""
        self.recent = self.recent << 1 | (kind is not None)
        self.n_noted += 1
        if kind is not None:
            named = kind in (*self.counts, *_NAMED)
            name = kind if named or len(self.counts) < MOST_KINDS else OTHER_KINDS
            self.counts[name] = self.counts.get(name, 0) + 1

    def note_overflow(self, number: int) -> bool:
        """Counts the query of this number, noted as usable; whether most up to it are unusable."""
        age = self.n_noted - number
        self.recent |= 1 << age
        self.counts[OVERFLOW] = self.counts.get(OVERFLOW, 0) + 1
        return 2 * (self.recent >> age & ((1 << MOST_RECENT) - 1)).bit_count() > MOST_RECENT

    def forget(self, n_waiting: int) -> None:
        """Drops older queries than the last ones before the newest *n_waiting*."""
        self.recent &= (1 << MOST_RECENT + n_waiting) - 1

    @property
    def share(self) -> float:
        """The share of the last queries that could not be learned from."""
        return (self.recent & ((1 << MOST_RECENT) - 1)).bit_count() / MOST_RECENT

    @property
    def most_were_usable(self) -> bool:
        """Whether more than half of MOST_RECENT queries have been usable, in total."""
        return 2 * (self.n_noted - sum(self.counts.values())) > MOST_RECENT

    def by_reason(self) -> dict[str, int]:
        """The numbers of queries with other features, and of each of _NAMED."""
        named = {name: self.counts.get(name, 0) for name in _NAMED}
        return {"features": sum(self.counts.values()) - sum(named.values()), **named}

    def would_be_most(self) -> bool:
        """Whether with one more most of the last queries could not be learned from."""
        left = self.recent & ((1 << MOST_RECENT - 1) - 1)
        return 2 * (left.bit_count() + 1) > MOST_RECENT

    def state(self) -> list[Any]:
        """Everything, as JSON stores it exactly."""
        return [f"{self.recent:x}", dict(sorted(self.counts.items())), self.n_noted]

    @classmethod
    def load(cls, state: Sequence[Any]) -> "Unusable":
        """The same counts. Raises ValueError if `state` has not written this."""
        recent, counts, *n_noted = state
        n_noted = n_noted or [sum(counts.values())]  # an older state has no number
        found = cls(int(recent, 16), dict(counts), *n_noted)
        if found.state()[0] != recent or found.recent >> MOST_RECENT:
            raise ValueError("not the last queries that could not be learned from")
        if len(counts) > MOST_KINDS + 1 + len(_NAMED):
            raise ValueError(f"{len(counts)} kinds of unusable queries")
        return found


def no_example(n_features: int) -> Group:
    """An empty group: learning skips it."""
    return Group(np.zeros((0, n_features)), np.zeros(0))


def has_weight(query: SettledQuery, weights: SourceWeights | None) -> bool:
    """Whether all sources that have judged the query have a weight above 0."""
    return weights is None or all(
        weights.rule(weights.group(source)).weight != 0 for source in query.sources
    )


def example_of(
    query: SettledQuery,
    feature_names: tuple[str, ...],
    *,
    label_mode: str,
    source_weights: SourceWeights | None = None,
    transforms: Transforms = NO_TRANSFORMS,
) -> Group:
    """The group of a query for weights of these features; empty if it has no features or weight.

    The first occurrence of a candidate counts; an unjudged candidate has grade 0. Grades are
    divided by propensities. Features are transformed.

    Raises:
        UnusableExampleError: if the query has other features, invalid training data, or
            propensities without `sum`.
    """
    if query.invalid_training_data:
        raise UnusableExampleError(
            f"the training data of {query.trace_id}, {query.node_id} in `settled` are invalid",
            INVALID,
        )
    if query.feature_names is None:
        return no_example(len(feature_names))
    if query.feature_names != feature_names:
        raise UnusableExampleError(
            f"features are {', '.join(query.feature_names)} from {query.trace_id}, "
            f"{query.node_id} on; they were {', '.join(feature_names)}",
            query.feature_names,
        )
    if not has_weight(query, source_weights):
        return no_example(len(feature_names))
    ids = query.candidate_ids
    labels = np.array([query.grades.get(name, 0.0) for name in ids], np.float64)
    if query.propensities is not None:
        if label_mode != "sum":
            raise UnusableExampleError(
                "rankings have propensities, which need label_mode = sum", PROPENSITIES
            )
        with np.errstate(over="ignore"):  # such a group is not learned from
            labels = labels / np.array(query.propensities[: len(ids)])
    features = transformed(query.features, feature_names, transforms)
    if len(set(ids)) == len(ids):
        return Group(features, labels)
    chosen = sorted({name: i for i, name in reversed(list(enumerate(ids)))}.values())
    return Group(features[chosen], labels[chosen])


def lacks_propensities(query: SettledQuery, rules: Rules) -> bool:
    """Whether labels are biased, while weights are promoted without a person."""
    if rules.mode != "auto" or query.propensities is not None:
        return False
    return not rules.implicit_sources.isdisjoint(query.sources)


def require_propensities(query: SettledQuery, rules: Rules) -> None:
    """Raises UnusableExampleError for biased labels of sources with weight."""
    if lacks_propensities(query, rules) and has_weight(query, rules.source_weights):
        implicit = sorted(rules.implicit_sources & query.sources.keys())
        raise UnusableExampleError(
            f"judgments of {implicit[0]} are implicit, and the ranking of {query.trace_id}, "
            f"{query.node_id} has no propensities: send them, or set learning to propose",
            PROPENSITIES,
        )


class Training(Struct):
    """The state of the learner.

    `loss` is the mean over the groups of the last interval that had any.
    """

    feature_names: tuple[str, ...] = ()
    learner: LearnerState | None = None
    loss: float | None = None
    unusable: Unusable = field(default_factory=Unusable)
    # Of the open interval alone:
    groups: list[Group] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # of their queries in `unusable`
    losses: tuple[int, float] = (0, 0.0)  # number of counted groups, and the sum of their losses

    @property
    def frozen(self) -> str:
        """The reason why learning has ended; empty while it continues."""
        return "" if self.learner is None else self.learner.frozen

    @property
    def updates(self) -> int:
        return 0 if self.learner is None else self.learner.updates

    def begin(self, names: tuple[str, ...], champion: Version | None, rules: Rules) -> None:
        """Starts the learner with the champion's weights, if they are for these features.

        Weights for other transforms are for other features. Ends learning if initial weights are
        for another number of features.
        """
        self.feature_names = names
        self.groups = [no_example(len(names)) for _ in self.groups]
        initial = rules.initial_weights
        weights: Numbers = (0.0,) * len(names)
        if champion is not None and champion.feature_names == names:
            if champion.transforms == of_features(rules.transforms, names):
                weights = champion.weights
        elif len(initial) == len(names):
            weights = initial
        self.learner = rules.learner.start(weights)
        if not rules.may_have(names):
            self._freeze(f"initial_weights are {len(initial)}, features {len(names)}", rules)

    def add(
        self,
        query: SettledQuery,
        rules: Rules,
        champion: Version | None = None,
        *,
        may_begin_anew: bool = False,
    ) -> None:
        """Adds the training example of a query; one that cannot be used is counted.

        Learning ends when most of the last queries cannot be used. With *may_begin_anew*, as long
        as no experiment has begun in this epoch, it restarts with their features instead, because
        the first query alone determined the others. Initial weights that are live for most keep
        their features.
        """
        example = no_example(len(self.feature_names))
        if query.feature_names or query.invalid_training_data:
            kind = None
            try:
                example = example_of(
                    query,
                    self.feature_names,
                    label_mode=rules.learner.label_mode,
                    source_weights=rules.source_weights,
                    transforms=rules.transforms,
                )
                require_propensities(query, rules)
            except UnusableExampleError as error:
                kind = error.kind
                self.learn(rules, whole=True)  # notes the queries before it that overflow
                if self.unusable.would_be_most() and not self.frozen:
                    names = query.feature_names
                    begins_anew = may_begin_anew and not (
                        rules.initial_weights and self.unusable.most_were_usable
                    )
                    if begins_anew and names and names != self.feature_names:
                        self.unusable.recent = 0
                        self.begin(names, champion, rules)
                    else:
                        self._freeze(str(error), rules)
                example = no_example(len(self.feature_names))
            self.unusable.note(kind)
        self.groups.append(example)
        self.numbers.append(self.unusable.n_noted)

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
        numbers, self.numbers = self.numbers[:n], self.numbers[n:]
        first, learns = 0, self.learner is not None and not self.frozen
        for batches in rules.learner.batches(groups if learns else [], rules.batch_queries):
            for batch in batches:
                of_batch = slice(first, first + batch.n_groups)
                first = of_batch.stop
                if self.learner is None or self.learner.frozen:
                    continue
                learner, losses = rules.learner.learn(self.learner, [batch])
                if learner.frozen:
                    learner, losses = self._without_overflow(
                        self.learner, groups[of_batch], numbers[of_batch], rules.learner
                    )
                self.learner = learner
                for loss in losses:  # the rounding of `sum` depends on the version of Python
                    self.losses = (self.losses[0] + 1, self.losses[1] + loss)
        self.unusable.forget(len(self.groups))

    def _without_overflow(
        self, before: LearnerState, groups: Sequence[Group], numbers: Sequence[int], rules: Learner
    ) -> tuple[LearnerState, list[float]]:
        """The state after a batch that overflows, without the groups that overflow alone.

        If the rest still does, none of the batch is learned from. Ends learning when most of the
        last queries could not be learned from.
        """

        def learned(some: Sequence[Group]) -> tuple[LearnerState, list[float]]:
            (batches,) = rules.batches(some, len(some))
            return rules.learn(before, batches)

        alone = [learned([group])[0].frozen for group in groups]
        empty, reason = no_example(groups[0].features.shape[1]), next(filter(None, alone), "")
        after, losses = learned(
            [empty if bad else group for group, bad in zip(groups, alone, strict=True)]
        )
        if after.frozen:
            alone, reason = ["bad" if len(group.grades) else "" for group in groups], after.frozen
            after, losses = before, []
        for bad, number in zip(alone, numbers, strict=True):
            if bad and self.unusable.note_overflow(number):
                return replace(before, frozen=f"{reason}, in most of the last queries"), []
        return after, losses

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
            "loss": self.loss,
            "unusable": self.unusable.state(),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "Training":
        return cls(
            tuple(state["feature_names"]),
            convert(state["learner"], LearnerState | None),
            state["loss"],
            Unusable.load(state["unusable"]),
        )
