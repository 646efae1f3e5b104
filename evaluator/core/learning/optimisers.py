"""From a gradient to a step: plain, adagrad or adam; pure functions of moments and gradient."""

from math import sqrt
from typing import Final, NamedTuple

import numpy as np

from evaluator.core.types.records import FloatArray

OPTIMIZERS: Final = ("sgd", "adagrad", "adam")
SCHEDULES: Final = ("constant", "inv_sqrt")
ADAGRAD_EPSILON: Final = 1e-10
ADAM_EPSILON: Final = 1e-8
ADAM_FIRST: Final = 0.9
ADAM_SECOND: Final = 0.999

Numbers = tuple[float, ...]


class Moments(NamedTuple):
    """What an optimiser remembers of the gradients so far; all of it is 0 or 1 at the start.

    `first` and `second` are `[n_features]`, empty where the optimiser needs none. The decays are
    the powers of adam's two factors, kept as running products: a power function may differ in its
    last bit from machine to machine.
    """

    first: Numbers = ()
    second: Numbers = ()
    first_decay: float = 1.0
    second_decay: float = 1.0


class MomentArrays(NamedTuple):
    """The same to calculate with."""

    first: FloatArray
    second: FloatArray
    first_decay: float
    second_decay: float

    @classmethod
    def of(cls, moments: Moments) -> "MomentArrays":
        first, second, *decays = moments
        return cls(np.array(first, np.float64), np.array(second, np.float64), *decays)

    def kept(self) -> Moments:
        """As numbers."""
        first, second, *decays = self
        return Moments(tuple(first.tolist()), tuple(second.tolist()), *decays)


def no_moments(optimizer: str, n_features: int) -> Moments:
    """Moments before the first update."""
    zeros = (0.0,) * n_features
    return Moments(zeros if optimizer == "adam" else (), () if optimizer == "sgd" else zeros)


def rate_after(updates: int, *, schedule: str, learning_rate: float) -> float:
    """The rate of the next update, *updates* having been applied before.

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
    optimizer: str, moments: MomentArrays, gradient: FloatArray, rate: float
) -> tuple[FloatArray, MomentArrays]:
    """What is to be subtracted from the weights, and the moments after it.

    sgd: rate x g. adagrad (Duchi et al. 2011): rate x g / (sqrt(sum of g^2) + 1e-10). adam (Kingma
    and Ba 2015): rate x m' / (sqrt(v') + 1e-8), factors 0.9 and 0.999, both moments unbiased.
    """
    if optimizer == "sgd":
        return rate * gradient, moments
    squares = gradient * gradient
    if optimizer == "adagrad":
        second = moments.second + squares
        step = rate * gradient / (np.sqrt(second) + ADAGRAD_EPSILON)
        return step, moments._replace(second=second)
    first = ADAM_FIRST * moments.first + (1.0 - ADAM_FIRST) * gradient
    second = ADAM_SECOND * moments.second + (1.0 - ADAM_SECOND) * squares
    after = MomentArrays(
        first,
        second,
        moments.first_decay * ADAM_FIRST,
        moments.second_decay * ADAM_SECOND,
    )
    mean = first / (1.0 - after.first_decay)
    spread = np.sqrt(second / (1.0 - after.second_decay))
    return rate * mean / (spread + ADAM_EPSILON), after
