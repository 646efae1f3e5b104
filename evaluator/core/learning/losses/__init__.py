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
from evaluator.core.learning.losses.softmax import LABEL_MODES, softmax_losses, softmax_targets
from evaluator.core.types.records import FloatArray

__all__ = ["LABEL_MODES", "LOSSES", "BoolArray", "Loss", "Losses", "loss_of"]


class Loss(NamedTuple):
    """A loss in two steps: the part that depends on grades alone is computed once for many lists.

    `of_grades` takes grades and a mask and returns arrays with a row per list. `of` takes scores,
    these arrays, and the mask, or None without padding.
    """

    of_grades: Callable[[FloatArray, BoolArray], tuple[FloatArray | BoolArray, ...]]
    of: Callable[[FloatArray, Any, BoolArray | None], Losses]

    def of_lists(self, scores: FloatArray, grades: FloatArray, mask: BoolArray) -> Losses:
        """Both steps."""
        return self.of(scores, self.of_grades(grades, mask), mask)


SOFTMAX: Final = "softmax"
_OTHERS: Final[Mapping[str, Callable[[FloatArray, FloatArray, BoolArray], Losses]]] = {
    "pairwise_logistic": pairwise_logistic,
    "pairwise_hinge": pairwise_hinge,
    "pairwise_exponential": pairwise_exponential,
    "lambdarank": lambdarank,
    "pointwise_squared": pointwise_squared,
    "pointwise_logistic": pointwise_logistic,
}
LOSSES: Final = (SOFTMAX, *_OTHERS)
"""Names of the losses."""


@lru_cache
def loss_of(name: str, *, label_mode: str = LABEL_MODES[0]) -> Loss:
    """The loss of this name; *label_mode* is for `softmax`."""
    if name == SOFTMAX:
        return Loss(partial(softmax_targets, label_mode=label_mode), softmax_losses)
    function = _OTHERS[name]

    def of(scores: FloatArray, grades: tuple[FloatArray], mask: BoolArray | None) -> Losses:
        return function(scores, *grades, np.ones(scores.shape, bool) if mask is None else mask)

    return Loss(lambda grades, _: (grades,), of)
