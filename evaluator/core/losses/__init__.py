"""Losses of ranked lists with their gradients: pure functions of scores, grades and a mask.

Each takes padded lists, `[n_lists, n_candidates]`, and gives a loss per list and the gradient by
score. No list depends on the lists beside it, and padding changes no bit.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from evaluator.core.losses.lists import BoolArray, Losses
from evaluator.core.losses.pairwise import (
    lambdarank,
    pairwise_exponential,
    pairwise_hinge,
    pairwise_logistic,
)
from evaluator.core.losses.pointwise import pointwise_logistic, pointwise_squared
from evaluator.core.losses.softmax import LABEL_MODES, softmax_cross_entropy
from evaluator.core.types import FloatArray

__all__ = [
    "LABEL_MODES",
    "LOSSES",
    "BoolArray",
    "LossFunction",
    "Losses",
    "lambdarank",
    "loss_function",
    "pairwise_exponential",
    "pairwise_hinge",
    "pairwise_logistic",
    "pointwise_logistic",
    "pointwise_squared",
    "softmax_cross_entropy",
]

LossFunction = Callable[[FloatArray, FloatArray, BoolArray], Losses]

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
