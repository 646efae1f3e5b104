"""The paired difference of two rankers over the same queries. No I/O: arrays to numbers.

Values are multiples of 2^-40, so sums, means, wins and the sums under the t-test are exact; only
the bootstrap and the last steps of the t-test round.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evaluator.comparison.student import two_sided_p
from evaluator.core.measures import UNITS_PER_ONE, to_units
from evaluator.core.types.records import FloatArray, IntArray

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95
MAX_RESAMPLED: Final = 10_000
"""More traces than this are dealt into so many groups at random, and groups are resampled."""

_DRAWS_AT_ONCE: Final = 1 << 18
_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where the mean difference may lie: from `low` to `high`."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TTest:
    """Student's paired test that the mean difference is 0, two-sided."""

    t: float
    degrees_of_freedom: int
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Two rankers side by side; every difference is *other - baseline* of one query.

    `interval` is None with fewer than two traces. `t_test` is None with fewer than two queries,
    and where all differences are equal: they have no spread to test against.
    """

    pairs: int
    traces: int
    baseline_mean: float
    other_mean: float
    difference: float
    interval: Interval | None
    t_test: TTest | None
    wins: int
    ties: int
    losses: int


def paired(
    baseline: FloatArray,
    other: FloatArray,
    traces: NDArray[Any],
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Paired:
    """The mean difference of *other* from *baseline* and how sure it is.

    Every query weighs the same in the means. The interval comes from a bootstrap over traces: the
    queries of a trace are not independent, so a trace is drawn with all of its queries or not at
    all. It depends on the values, the traces and *seed* alone, not on what else is compared.

    Args:
        baseline: `[n_queries]`, values of one measure; rounded to multiples of 2^-40.
        other: `[n_queries]`, values of the same measure and queries.
        traces: `[n_queries]`, which trace a query belongs to, e.g. trace ids or hashes of them.
        resamples: >= 1.
        confidence: of the interval, above 0 and below 1.
        seed: >= 0.
    Raises:
        ValueError: for no query at all, arrays of different shapes, values that are not finite,
            or a setting out of its range.
    Source: Efron and Tibshirani 1993, the percentile interval; Field and Welsh 2007, on
    resampling clusters; Student 1908.

    >>> result = paired(np.array([0.5, 0.0]), np.array([1.0, 0.25]), np.array(["a", "b"]))
    >>> result.difference, result.wins, result.interval
    (0.375, 2, Interval(low=0.25, high=0.5))
    """
    _check(baseline, other, traces, resamples=resamples, confidence=confidence, seed=seed)
    baseline_units, other_units = to_units(baseline), to_units(other)
    differences = other_units - baseline_units
    n = len(differences)
    sums, counts = _per_trace(differences, traces)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    return Paired(
        pairs=n,
        traces=len(counts),
        baseline_mean=_mean(_sum(baseline_units), n),
        other_mean=_mean(_sum(other_units), n),
        difference=_mean(_sum(differences), n),
        interval=_interval(sums, counts, resamples=resamples, confidence=confidence, seed=seed),
        t_test=_t_test(differences),
        wins=wins,
        ties=n - wins - losses,
        losses=losses,
    )


def _check(
    baseline: FloatArray,
    other: FloatArray,
    traces: NDArray[Any],
    *,
    resamples: int,
    confidence: float,
    seed: int,
) -> None:
    if not baseline.shape == other.shape == traces.shape or baseline.ndim != 1 or not baseline.size:
        raise ValueError(
            f"baseline {baseline.shape}, other {other.shape} and traces {traces.shape} must be "
            "one-dimensional, of one length, and not empty."
        )
    if not (np.isfinite(baseline).all() and np.isfinite(other).all()):
        raise ValueError("a value is not finite; leave queries out that lack a value on one side.")
    if resamples < 1 or not 0 < confidence < 1 or seed < 0:
        raise ValueError(
            f"resamples {resamples} must be >= 1, confidence {confidence} above 0 and below 1, "
            f"seed {seed} >= 0."
        )


def _mean(sum_units: int, n: int) -> float:
    """The double nearest to the exact mean."""
    return sum_units / (n * UNITS_PER_ONE)


def _in_parts(units: IntArray) -> Iterator[list[int]]:
    """The same numbers as Python's, which never overflow, a bounded list at a time."""
    for start in range(0, len(units), _ROWS_AT_ONCE):
        yield units[start : start + _ROWS_AT_ONCE].tolist()


def _sum(units: IntArray) -> int:
    return sum(map(sum, _in_parts(units)))


def _sum_of_squares(units: IntArray) -> int:
    return sum(sum(one * one for one in part) for part in _in_parts(units))


def _t_test(differences: IntArray) -> TTest | None:
    """From exact integers: t^2 = S^2 (n - 1) / (n Q - S^2), with S the sum and Q of squares."""
    n, total = len(differences), _sum(differences)
    spread = n * _sum_of_squares(differences) - total * total
    if n < 2 or not spread:
        return None
    t = math.copysign(math.sqrt(total * total * (n - 1) / spread), total)
    return TTest(t=t, degrees_of_freedom=n - 1, p=two_sided_p(t, n - 1))


def _per_trace(differences: IntArray, traces: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """Of each trace: the sum of its differences, as values, and how many they are."""
    _, trace_of, counts = np.unique(traces, return_inverse=True, return_counts=True)
    values = differences / UNITS_PER_ONE
    return _added(trace_of, values), counts.astype(np.float64)


def _added(group_of: NDArray[np.intp], weights: FloatArray) -> FloatArray:
    """The sum of the weights of each group, `[n_groups]`."""
    return np.bincount(group_of, weights=weights).astype(np.float64)


def _interval(
    sums: FloatArray, counts: FloatArray, *, resamples: int, confidence: float, seed: int
) -> Interval | None:
    if len(sums) < 2:
        return None
    rng = np.random.default_rng(seed)
    if len(sums) > MAX_RESAMPLED:
        group_of = rng.permutation(len(sums)) % MAX_RESAMPLED
        sums, counts = _added(group_of, sums), _added(group_of, counts)
    means = _resampled_means(sums, counts, resamples, rng)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(low=float(low), high=float(high))


def _resampled_means(
    sums: FloatArray, counts: FloatArray, resamples: int, rng: np.random.Generator
) -> FloatArray:
    """`[resamples]`: means over as many traces as there are, drawn with replacement."""
    n = len(sums)
    means = np.empty(resamples)
    at_once = max(1, _DRAWS_AT_ONCE // n)
    alike = counts[0] * n if (counts == counts[0]).all() else None
    for start in range(0, resamples, at_once):
        part = means[start : start + at_once]
        drawn = rng.integers(n, size=(len(part), n))
        size = counts.take(drawn).sum(axis=1) if alike is None else alike
        part[:] = sums.take(drawn).sum(axis=1) / size
    return means
