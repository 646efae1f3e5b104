"""Linear weights learned online: batches of groups in, a new state out. Pure and deterministic.

A state has plain numbers only, so JSON holds it exactly, and learning on from a stored state
gives the bits that learning on without a stop gives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any, Final, NamedTuple

import numpy as np

from evaluator.core.elementary import column_sum
from evaluator.core.groups import Groups, linear_scores, squares_within, summed
from evaluator.core.losses import Losses, loss_function
from evaluator.core.optimisers import Moments, Numbers, clipped, moved, no_moments, rate_after
from evaluator.core.types import FloatArray

SCALES: Final = ("none", "within_query")
WARM_UP_GROUPS: Final = 50
"""With `within_query` no update comes before so many groups have told how features spread."""


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Everything a learner knows; tuples are `[n_features]`.

    `weights` are for features divided by `scale`; before `within_query` has a scale (None), for
    raw ones. `n_groups`, `n_free` (candidates minus groups) and `squares` (squared distances from
    the mean of the group) are what the next scale is made of. `frozen` says why nothing is learned
    any more; empty while something is.
    """

    weights: Numbers
    scale: Numbers | None
    moments: Moments
    updates: int = 0
    n_groups: int = 0
    n_free: int = 0
    squares: Numbers = ()
    frozen: str = ""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "LearnerState":
        """The very same state, from what `asdict` makes of it and JSON keeps."""
        first, second, *decays = state["moments"]
        return cls(
            **{
                **state,
                "weights": tuple(state["weights"]),
                "scale": None if state["scale"] is None else tuple(state["scale"]),
                "squares": tuple(state["squares"]),
                "moments": Moments(tuple(first), tuple(second), *decays),
            }
        )


class Step(NamedTuple):
    """The state after a batch, and the loss of each group that counted, before the update."""

    state: LearnerState
    losses: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """How is learned; the state stays with the caller.

    Args:
        loss: one of `losses.LOSSES`.
        label_mode: one of `losses.LABEL_MODES`, for `softmax`.
        optimizer: one of `optimisers.OPTIMIZERS`.
        schedule: one of `optimisers.SCHEDULES`.
        learning_rate: > 0.
        l2: >= 0; l2 x |w|^2 is part of the loss of an update, once, whatever the batch.
        scale: "within_query" divides each feature by its standard deviation within groups.
        clip_norm: longest gradient, the part of l2 included; None for any length.
    """

    loss: str = "softmax"
    label_mode: str = "distribution"
    optimizer: str = "sgd"
    schedule: str = "constant"
    learning_rate: float = 0.1
    l2: float = 0.0
    scale: str = "none"
    clip_norm: float | None = None

    def start(self, weights: Sequence[float]) -> LearnerState:
        """The state before anything was seen, with weights for raw features."""
        n_features = len(weights)
        scaled = self.scale != "none"
        return LearnerState(
            weights=tuple(map(float, weights)),
            scale=None if scaled else (1.0,) * n_features,
            moments=no_moments(self.optimizer, n_features),
            squares=(0.0,) * n_features if scaled else (),
        )

    def step(self, state: LearnerState, groups: Groups) -> Step:
        """Learns from a batch: one update by the mean gradient of the groups that count.

        A batch without one changes nothing at all. What is not finite, in the groups or in what
        follows from them, freezes the learner as it was before the batch.
        """
        groups = groups.chosen(groups.counted)
        if not len(groups) or state.frozen:
            return Step(state, [])
        if not groups.finite():
            return Step(replace(state, frozen="a feature or a grade is not a finite number"), [])
        with np.errstate(over="ignore", invalid="ignore"):
            return self._stepped(state, groups)

    def _stepped(self, state: LearnerState, groups: Groups) -> Step:
        if self.scale != "none":
            seen = _with_squares(state, groups)
            if seen.scale is None and seen.n_groups >= WARM_UP_GROUPS:
                seen = _rescaled(seen)
        else:
            seen = state
        losses = self._losses(seen, groups)
        if seen.scale is None:
            after = seen
        else:
            after = self._updated(seen, _mean_gradient(losses, groups), seen.scale)
        values: list[float] = losses.values.tolist()
        numbers = (*values, *self.snapshot(after), *after.moments.second, *after.squares)
        if not all(map(isfinite, numbers)):
            return Step(replace(state, frozen="losses or weights are finite numbers no more"), [])
        return Step(after, values)

    def _losses(self, state: LearnerState, groups: Groups) -> Losses:
        scores = linear_scores(groups.features, self.snapshot(state))
        of = loss_function(self.loss, label_mode=self.label_mode)
        return of(scores, groups.grades, groups.mask)

    def _updated(self, state: LearnerState, raw: FloatArray, scale: Numbers) -> LearnerState:
        weights = np.array(state.weights)
        gradient = clipped(raw / np.array(scale) + (2.0 * self.l2) * weights, self.clip_norm)
        rate = rate_after(state.updates, schedule=self.schedule, learning_rate=self.learning_rate)
        step, moments = moved(self.optimizer, state.moments, gradient, rate)
        return replace(
            state,
            weights=tuple((weights - step).tolist()),
            moments=moments,
            updates=state.updates + 1,
        )

    def snapshot(self, state: LearnerState) -> Numbers:
        """The weights for raw features."""
        if state.scale is None:
            return state.weights
        return tuple(w / sd for w, sd in zip(state.weights, state.scale, strict=True))

    def published(self, state: LearnerState) -> LearnerState:
        """The state to learn on with once the weights are published.

        The scale is taken anew, from all groups so far, and stays until the next time. Weights for
        raw features stay the same up to rounding; moments follow the scale.
        """
        return state if self.scale == "none" or state.scale is None else _rescaled(state)


def _mean_gradient(losses: Losses, groups: Groups) -> FloatArray:
    """By weight of raw features: `[n_features]`."""
    of_groups = column_sum(groups.features * losses.gradients)
    return summed((0.0,) * len(of_groups), of_groups) / len(groups)


def _with_squares(state: LearnerState, groups: Groups) -> LearnerState:
    return replace(
        state,
        n_groups=state.n_groups + len(groups),
        n_free=state.n_free + int(np.count_nonzero(groups.mask)) - len(groups),
        squares=tuple(summed(state.squares, squares_within(groups)).tolist()),
    )


def _rescaled(state: LearnerState) -> LearnerState:
    """With a scale made of what was seen; a feature that never differs within a group keeps 1."""
    scale = tuple(sqrt(square / state.n_free) or 1.0 for square in state.squares)
    before = state.scale or (1.0,) * len(scale)
    ratios = [new / old for new, old in zip(scale, before, strict=True)]
    moments = state.moments
    return replace(
        state,
        weights=tuple(w * ratio for w, ratio in zip(state.weights, ratios, strict=True)),
        scale=scale,
        moments=moments._replace(
            first=tuple(m / r for m, r in zip(moments.first, ratios, strict=bool(moments.first))),
            second=tuple(
                m / (r * r) for m, r in zip(moments.second, ratios, strict=bool(moments.second))
            ),
        ),
    )
