"""Linear weights learned online: batches of groups in, a new state out. Pure and deterministic.

A state has plain numbers only, so JSON stores it exactly, and learning from a stored state gives
the same bits as uninterrupted learning.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, sqrt
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from evaluator.core.learning.elementary import linear_scores, summed
from evaluator.core.learning.groups import LARGE_FEATURE, Group, UpdateBatch, batches_of
from evaluator.core.learning.losses import Loss, loss_of
from evaluator.core.learning.optimisers import (
    Moments,
    Numbers,
    clipped,
    moved,
    no_moments,
    rate_after,
)
from evaluator.core.measures.lists import column_sum

WARM_UP_GROUPS: Final = 50
"""With `within_query`, groups before the first update: they give the scale."""
MOST_SPREAD: Final = 1e6
"""Largest root of a group's squares, in units of the spread so far, of features beyond 1e9."""
EXTREME: Final = "a feature differs by more than a million times its spread so far"


class LearnerState(Struct, frozen=True):
    """The state of a learner; tuples are `[n_features]`.

    `weights` are for features divided by `scale`, or for raw features while `within_query` has no
    scale (None). `n_groups`, `n_free` (candidates minus groups) and `squares` (squared distances
    from the mean of the group) give the next scale. `frozen` is the reason why learning has ended;
    empty while it continues.
    """

    weights: Numbers
    scale: Numbers | None
    moments: Moments
    updates: int = 0
    n_groups: int = 0
    n_free: int = 0
    squares: Numbers = ()
    frozen: str = ""


class Learner(Struct, frozen=True, kw_only=True):
    """The rules of learning; the caller keeps the state.

    Args:
        loss: one of `names.LOSSES`.
        label_mode: one of `names.LABEL_MODES`, for `softmax`.
        optimizer: one of `names.OPTIMIZERS`.
        schedule: one of `names.SCHEDULES`.
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

    @property
    def _loss(self) -> Loss:
        return loss_of(self.loss, label_mode=self.label_mode)

    def start(self, weights: Sequence[float]) -> LearnerState:
        """The state before the first group, with weights for raw features."""
        n_features = len(weights)
        scaled = self.scale != "none"
        return LearnerState(
            weights=tuple(map(float, weights)),
            scale=None if scaled else (1.0,) * n_features,
            moments=no_moments(self.optimizer, n_features),
            squares=(0.0,) * n_features if scaled else (),
        )

    def batches(self, groups: Sequence[Group], size: int) -> Iterator[list[UpdateBatch]]:
        """The input of `learn`, several batches at a time: *size* groups each, in their order."""
        return batches_of(groups, size, loss=self._loss, scaled=self.scale != "none")

    def learn(
        self, state: LearnerState, batches: Iterable[UpdateBatch]
    ) -> tuple[LearnerState, list[float]]:
        """Learns from the batches in order: one update each, by the mean gradient.

        Returns the state after them, and the loss of each counted group before its update.
        A batch without a group that counts changes nothing. Numbers that are not finite, in the
        groups or computed from them, and extreme features freeze the learner as it was before that
        batch.
        """
        losses: list[float] = []
        with np.errstate(over="ignore", invalid="ignore"):
            for batch in batches:
                if state.frozen or not batch.n_counted:
                    continue
                if not batch.finite:
                    state = replace(state, frozen="a feature or a grade is not a finite number")
                    continue
                if batch.large and _is_extreme(state, batch):
                    state = replace(state, frozen=EXTREME)
                    continue
                after, values = self._after(state, batch)
                if all(map(isfinite, values)) and self._is_finite(after):
                    state = after
                    losses += values
                else:
                    state = replace(state, frozen="losses or weights overflowed")
        return state, losses

    def _is_finite(self, state: LearnerState) -> bool:
        """Whether all numbers are finite; first moments are if weights are."""
        numbers = (*self.snapshot(state), *state.moments.second, *state.squares)
        return all(map(isfinite, numbers))

    def _after(self, state: LearnerState, batch: UpdateBatch) -> tuple[LearnerState, list[float]]:
        if batch.squares is not None:
            state = replace(
                state,
                n_groups=state.n_groups + batch.n_counted,
                n_free=state.n_free + batch.n_candidates - batch.n_counted,
                squares=tuple(summed(state.squares, batch.squares).tolist()),
            )
            if state.scale is None and state.n_groups >= WARM_UP_GROUPS:
                state = _rescaled(state)
        scores = linear_scores(batch.features, self.snapshot(state))
        found = self._loss.of(scores, batch.of_grades, batch.mask)
        values: list[float] = found.values.tolist()
        if state.scale is None:
            return state, values
        of_groups = column_sum(batch.features * found.gradients)
        gradient = summed((0.0,) * len(of_groups), of_groups) / batch.n_counted
        gradient /= np.array(state.scale)
        weights = np.array(state.weights)
        gradient += (2.0 * self.l2) * weights
        gradient = clipped(gradient, self.clip_norm)
        rate = rate_after(state.updates, schedule=self.schedule, learning_rate=self.learning_rate)
        step, moments = moved(self.optimizer, state.moments, gradient, rate)
        learned = tuple((weights - step).tolist())
        return replace(state, weights=learned, moments=moments, updates=state.updates + 1), values

    def losses(self, state: LearnerState, batches: Iterable[UpdateBatch]) -> list[float]:
        """The loss of each counted group with the weights of a state."""
        weights = self.snapshot(state)
        found: list[float] = []
        with np.errstate(over="ignore", invalid="ignore"):
            for batch in batches:
                if batch.n_counted:
                    scores = linear_scores(batch.features, weights)
                    found += self._loss.of(scores, batch.of_grades, batch.mask).values.tolist()
        return found

    def snapshot(self, state: LearnerState) -> Numbers:
        """The weights for raw features."""
        if state.scale is None:
            return state.weights
        return tuple(w / sd for w, sd in zip(state.weights, state.scale, strict=True))

    def published(self, state: LearnerState) -> LearnerState:
        """The state to continue from once the weights are published.

        The scale is computed again from all groups so far, and then kept. Weights for raw
        features stay the same up to rounding; moments follow the scale.
        """
        return state if self.scale == "none" or state.scale is None else _rescaled(state)


def _is_extreme(state: LearnerState, batch: UpdateBatch) -> bool:
    """Whether one group would decide alone on the scale of a feature, once there is a scale.

    For a feature that has not differed within a group so far, LARGE_FEATURE is the spread.
    """
    if batch.squares is None or state.scale is None:
        return False
    usual = [square / state.n_free or LARGE_FEATURE**2 for square in state.squares]
    beyond = np.abs(batch.features).max(axis=2) > LARGE_FEATURE
    return bool((beyond & (batch.squares > MOST_SPREAD**2 * np.array(usual)[:, None])).any())


def _rescaled(state: LearnerState) -> LearnerState:
    """The state with a new scale; a feature that never differs within a group keeps 1."""
    scale = tuple(sqrt(square / state.n_free) or 1.0 for square in state.squares)
    before = state.scale or (1.0,) * len(scale)
    ratios = [new / old for new, old in zip(scale, before, strict=True)]
    moments = state.moments
    return replace(
        state,
        weights=tuple(w * ratio for w, ratio in zip(state.weights, ratios, strict=True)),
        scale=scale,
        moments=moments._replace(
            first=tuple(m / r for m, r in zip(moments.first, ratios, strict=False)),
            second=tuple(m / (r * r) for m, r in zip(moments.second, ratios, strict=False)),
        ),
    )
