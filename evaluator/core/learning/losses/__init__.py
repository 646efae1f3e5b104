"""Losses of ranked lists with their gradients: pure functions of scores, grades and a mask.

Each takes padded lists, `[n_lists, n_candidates]`, and gives a loss per list and the gradient by
score. No list depends on the lists beside it, and padding changes no bit.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import numpy as np

from evaluator.core.learning.losses.lists import BoolArray, Losses
from evaluator.core.learning.losses.pairwise import (
    lambdarank,
    pairwise_exponential,
    pairwise_hinge,
    pairwise_logistic,
)
from evaluator.core.learning.losses.pointwise import pointwise_logistic, pointwise_squared
from evaluator.core.learning.losses.softmax import (
    LABEL_MODES,
    softmax_cross_entropy,
    softmax_targets,
    softmax_to_targets,
)
from evaluator.core.types.records import FloatArray

__all__ = [
    "LABEL_MODES",
    "LOSSES",
    "BoolArray",
    "Loss",
    "LossFunction",
    "Losses",
    "lambdarank",
    "loss_function",
    "loss_in_two_steps",
    "pairwise_exponential",
    "pairwise_hinge",
    "pairwise_logistic",
    "pointwise_logistic",
    "pointwise_squared",
    "softmax_cross_entropy",
]

LossFunction = Callable[[FloatArray, FloatArray, BoolArray], Losses]


class Loss(NamedTuple):
    """A loss in two steps, so that what follows from grades alone is made once for many lists.

    `of_grades` takes grades and a mask; what it gives are arrays of a row per list. `of` takes
    scores, that, and the mask, or None where nothing is padding.
    """

    of_grades: Callable[[FloatArray, BoolArray], tuple[FloatArray | BoolArray, ...]]
    of: Callable[[FloatArray, Any, BoolArray | None], Losses]


SOFTMAX: Final = "softmax"
_OTHERS: Final[Mapping[str, LossFunction]] = {
    "pairwise_logistic": pairwise_logistic,
    "pairwise_hinge": pairwise_hinge,
    "pairwise_exponential": pairwise_exponential,
    "lambdarank": lambdarank,
    "pointwise_squared": pointwise_squared,
    "pointwise_logistic": pointwise_logistic,
}
LOSSES: Final = (SOFTMAX, *_OTHERS)
"""Names of the losses."""


def loss_function(name: str, *, label_mode: str = LABEL_MODES[0]) -> LossFunction:
    """The loss of this name; *label_mode* is for `softmax` alone."""
    if name == SOFTMAX:
        return partial(softmax_cross_entropy, label_mode=label_mode)
    return _OTHERS[name]


@lru_cache
def loss_in_two_steps(name: str, *, label_mode: str = LABEL_MODES[0]) -> Loss:
    """The same loss as `loss_function` has, to the last bit."""
    if name == SOFTMAX:
        return Loss(partial(softmax_targets, label_mode=label_mode), softmax_to_targets)
    whole = _OTHERS[name]

    def of(scores: FloatArray, grades: tuple[FloatArray], mask: BoolArray | None) -> Losses:
        return whole(scores, *grades, np.ones(scores.shape, bool) if mask is None else mask)

    return Loss(lambda grades, _: (grades,), of)
