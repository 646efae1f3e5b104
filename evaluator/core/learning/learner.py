"""Linear weights learned online: batches of groups in, a new state out. Pure and deterministic.

A state has plain numbers only, so JSON holds it exactly, and learning on from a stored state
gives the bits that learning on without a stop gives.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any, Final, NamedTuple

import numpy as np

from evaluator.core.learning.batches import Batch, batches_of, prepared
from evaluator.core.learning.elementary import FEW_CELLS, column_sum
from evaluator.core.learning.groups import Group, Groups, few_scores, linear_scores, summed
from evaluator.core.learning.losses import Loss, loss_in_two_steps
from evaluator.core.learning.optimisers import (
    MomentArrays,
    Moments,
    Numbers,
    clipped,
    moved,
    no_moments,
    rate_after,
)
from evaluator.core.types.records import FloatArray

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
    def load(cls, state: Mapping[str, Any]) -> "LearnerState":
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
    """The state after one batch or more, and the losses of the groups that counted, each before
    the update that it was part of.
    """

    state: LearnerState
    losses: list[float]


class _Working(NamedTuple):
    """A state to calculate with, in arrays that are never changed.

    `raw` is its snapshot, `[n_features, 1, 1]`.
    """

    weights: FloatArray
    raw: FloatArray
    scale: FloatArray | None
    moments: MomentArrays
    updates: int
    n_groups: int
    n_free: int
    squares: FloatArray

    @classmethod
    def of(cls, state: LearnerState) -> "_Working":
        weights = np.array(state.weights, np.float64)
        scale = None if state.scale is None else np.array(state.scale)
        return cls(
            weights,
            (weights if scale is None else weights / scale)[:, None, None],
            scale,
            MomentArrays.of(state.moments),
            state.updates,
            state.n_groups,
            state.n_free,
            np.array(state.squares, np.float64),
        )

    def state(self, frozen: str) -> LearnerState:
        return LearnerState(
            weights=tuple(self.weights.tolist()),
            scale=None if self.scale is None else tuple(self.scale.tolist()),
            moments=self.moments.kept(),
            updates=self.updates,
            n_groups=self.n_groups,
            n_free=self.n_free,
            squares=tuple(self.squares.tolist()),
            frozen=frozen,
        )

    def finite(self) -> bool:
        """Whether all of it is; first moments are if weights are."""
        return (
            all(map(isfinite, self.raw[:, 0, 0].tolist()))
            and all(map(isfinite, self.moments.second.tolist()))
            and all(map(isfinite, self.squares.tolist()))
        )


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

    @property
    def _loss(self) -> Loss:
        return loss_in_two_steps(self.loss, label_mode=self.label_mode)

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

    def batches(self, groups: Sequence[Group], size: int) -> Iterator[list[Batch]]:
        """What `learn` takes, some at a time: batches of *size* groups in their order."""
        if groups:
            n_features = groups[0].features.shape[1]
            yield from batches_of(
                groups, n_features, size, loss=self._loss, scaled=self.scale != "none"
            )

    def step(self, state: LearnerState, groups: Groups) -> Step:
        """Learns from one batch."""
        if not len(groups):
            return Step(state, [])
        scaled = self.scale != "none"
        return self.learn(state, prepared(groups, len(groups), loss=self._loss, scaled=scaled))

    def learn(self, state: LearnerState, batches: Iterable[Batch]) -> Step:
        """Learns batch after batch: from each one update by the mean gradient.

        Groups that do not count are left out; a batch without one that does changes nothing at
        all. What is not finite, in the groups or in what follows from them, freezes the learner as
        it was before that batch.
        """
        frozen, losses = state.frozen, list[float]()
        counting = [batch for batch in batches if batch.n_counted]
        if frozen or not counting:
            return Step(state, losses)
        now = _Working.of(state)
        with np.errstate(over="ignore", invalid="ignore"):
            for batch in counting:
                if not batch.finite:
                    frozen = "a feature or a grade is not a finite number"
                    break
                after, values = self._after(now, batch)
                if not (all(map(isfinite, values)) and after.finite()):
                    frozen = "losses or weights overflowed"
                    break
                now = after
                losses += values
        return Step(now.state(frozen), losses)

    def _after(self, now: _Working, batch: Batch) -> tuple[_Working, list[float]]:
        n_groups, n_free, squares = now.n_groups, now.n_free, now.squares
        if batch.squares is not None:
            n_groups += batch.n_counted
            n_free += batch.n_candidates - batch.n_counted
            squares = summed(squares, batch.squares)
            if now.scale is None:
                now = now._replace(n_groups=n_groups, n_free=n_free, squares=squares)
                if n_groups >= WARM_UP_GROUPS:
                    now = _Working.of(_rescaled(now.state("")))
        few = 0 < batch.features.size <= FEW_CELLS
        scores = (few_scores if few else _scores)(batch.features, now.raw)
        found = self._loss.of(scores, batch.of_grades, batch.mask)
        values: list[float] = found.values.tolist()
        scale = now.scale
        if scale is None:
            return now, values
        of_groups = column_sum(batch.features * found.gradients)
        gradient = summed(np.zeros(len(of_groups)), of_groups) / batch.n_counted
        gradient /= scale
        gradient += (2.0 * self.l2) * now.weights
        gradient = clipped(gradient, self.clip_norm)
        rate = rate_after(now.updates, schedule=self.schedule, learning_rate=self.learning_rate)
        step, moments = moved(self.optimizer, now.moments, gradient, rate)
        weights = now.weights - step
        raw = (weights / scale)[:, None, None]
        updates = now.updates + 1
        return _Working(weights, raw, scale, moments, updates, n_groups, n_free, squares), values

    def snapshot(self, state: LearnerState) -> Numbers:
        """The weights for raw features."""
        if state.scale is None:
            return state.weights
        return tuple(w / sd for w, sd in zip(state.weights, state.scale, strict=True))

    def published(self, state: LearnerState) -> LearnerState:
        """The state to learn on with once the weights are published.

        The scale is computed again from all groups so far, and then kept. Weights for raw
        features stay the same up to rounding; moments follow the scale.
        """
        return state if self.scale == "none" or state.scale is None else _rescaled(state)


def _scores(features: FloatArray, raw: FloatArray) -> FloatArray:
    return linear_scores(features, raw.reshape(-1))


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
