"""From a gradient to a step: plain, adagrad or adam; pure functions of moments and gradient."""

from math import sqrt
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.types.records import FloatArray

ADAGRAD_EPSILON: Final = 1e-10
ADAM_EPSILON: Final = 1e-8
ADAM_FIRST: Final = 0.9
ADAM_SECOND: Final = 0.999

Numbers = tuple[float, ...]


class Moments(NamedTuple):
    """The moments of the gradients so far.

    `first` and `second` are `[n_features]`, empty if the optimiser needs none. The decays are the
    powers of adam's two factors, as running products: a power function may differ in its last bit
    from machine to machine.
    """

    first: Numbers = ()
    second: Numbers = ()
    first_decay: float = 1.0
    second_decay: float = 1.0


def no_moments(optimizer: str, n_features: int) -> Moments:
    """Moments before the first update."""
    zeros = (0.0,) * n_features
    return Moments(zeros if optimizer == "adam" else (), () if optimizer == "sgd" else zeros)


def rate_after(updates: int, *, schedule: str, learning_rate: float) -> float:
    """The rate of the update after *updates* updates.

    >>> rate_after(3, schedule="inv_sqrt", learning_rate=0.1)
    0.05
    """
    return learning_rate / sqrt(1 + updates) if schedule == "inv_sqrt" else learning_rate


def clipped(gradient: FloatArray, clip_norm: float | None) -> FloatArray:
    """The gradient, shortened to the norm *clip_norm* if it is longer.

    >>> clipped(np.array([3.0, 4.0]), 1.0)
    array([0.6, 0.8])
    """
    if clip_norm is None:
        return gradient
    largest = float(np.abs(gradient).max(initial=0.0))
    if largest == 0.0:
        return gradient
    squares = 0.0
    for part in (gradient / largest).tolist():  # so that no square overflows
        squares += part * part
    norm = largest * sqrt(squares)
    return gradient * (clip_norm / norm) if norm > clip_norm else gradient


def moved(
    optimizer: str, moments: Moments, gradient: FloatArray, rate: float
) -> tuple[FloatArray, Moments]:
    """The step to subtract from the weights, and the moments after it.

    sgd: rate x g. adagrad (Duchi et al. 2011): rate x g / (sqrt(sum of g^2) + 1e-10). adam (Kingma
    and Ba 2015): rate x m' / (sqrt(v') + 1e-8), factors 0.9 and 0.999, both moments unbiased.
    """
    if optimizer == "sgd":
        return rate * gradient, moments
    squares = gradient * gradient
    if optimizer == "adagrad":
        second = np.array(moments.second) + squares
        step = rate * gradient / (np.sqrt(second) + ADAGRAD_EPSILON)
        return step, moments._replace(second=tuple(second.tolist()))
    first = ADAM_FIRST * np.array(moments.first) + (1.0 - ADAM_FIRST) * gradient
    second = ADAM_SECOND * np.array(moments.second) + (1.0 - ADAM_SECOND) * squares
    first_decay = moments.first_decay * ADAM_FIRST
    second_decay = moments.second_decay * ADAM_SECOND
    mean = first / (1.0 - first_decay)
    spread = np.sqrt(second / (1.0 - second_decay))
    after = Moments(tuple(first.tolist()), tuple(second.tolist()), first_decay, second_decay)
    return rate * mean / (spread + ADAM_EPSILON), after
