"""The paired difference of two rankers over the same queries. No I/O: arrays to numbers.

Values are multiples of 2^-40, so sums, means and wins are exact; only the bootstrap rounds.
"""

from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evaluator.comparison.question import CONFIDENCE, RESAMPLES, Question
from evaluator.core.measures import UNITS_PER_ONE, InvalidInputError, to_units
from evaluator.core.types.records import FloatArray, IntArray

MAX_RESAMPLED: Final = 10_000
"""More traces than this are divided at random into this number of groups, which are resampled."""

_DRAWS_AT_ONCE: Final = 1 << 18
_ROWS_AT_ONCE: Final = 1 << 16
_BITS_OF_SUMS: Final = 61  # twice the sum of all differences fits into 64 bits


class Interval(Struct, frozen=True, kw_only=True):
    """Confidence interval of the mean difference, from `low` to `high`."""

    low: float
    high: float


class Paired(Struct, frozen=True, kw_only=True):
    """Two rankers side by side; every difference is *other - baseline* of one query.

    `p` is that of the paired randomisation test, two-sided, that the rankers are exchangeable
    within each trace. `interval` and `p` are None with fewer than two traces.
    """

    pairs: int
    traces: int
    baseline_mean: float
    other_mean: float
    difference: float
    interval: Interval | None
    p: float | None
    wins: int
    ties: int
    losses: int


def paired_for(
    question: Question, baseline: FloatArray, other: FloatArray, traces: NDArray[Any]
) -> Paired:
    """`paired`, with the options of a question."""
    resamples, confidence, seed = question.resamples, question.confidence, question.seed
    return paired(baseline, other, traces, resamples=resamples, confidence=confidence, seed=seed)


def paired(
    baseline: FloatArray,
    other: FloatArray,
    traces: NDArray[Any],
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Paired:
    """The mean difference of *other* from *baseline*, its interval and its p.

    Every query has the same weight in the means. The queries of a trace are not independent, so
    the bootstrap draws traces with all of their queries, and the randomisation test flips the sign
    of all differences of a trace together. Both depend on the values, the traces, *resamples* and
    *seed* alone, not on what else is compared.

    Args:
        baseline: `[n_queries]`, values of one measure; rounded to multiples of 2^-40.
        other: `[n_queries]`, values of the same measure and queries.
        traces: `[n_queries]`, the trace of each query, e.g. trace ids or hashes of them.
        resamples: of the bootstrap, and sign flips of the test; >= 1.
        confidence: of the interval, above 0 and below 1.
        seed: >= 0.
    Raises:
        InvalidInputError: for no query at all, arrays of different shapes, values that are not
            finite, or a setting out of its range.
    Source: Efron and Tibshirani 1993, the percentile interval; Field and Welsh 2007, on
    resampling clusters; Fisher 1935 and Smucker, Allan and Carterette 2007, the randomisation test.

    >>> result = paired(np.array([0.5, 0.0]), np.array([1.0, 0.25]), np.array(["a", "b"]))
    >>> result.difference, result.wins, result.interval
    (0.375, 2, Interval(low=0.25, high=0.5))
    """
    _check(baseline, other, traces, resamples=resamples, confidence=confidence, seed=seed)
    baseline_units, other_units = to_units(baseline), to_units(other)
    differences = other_units - baseline_units
    n = len(differences)
    names, trace_of = np.unique(traces, return_inverse=True)
    n_traces, rng, interval, p = len(names), np.random.default_rng(seed), None, None
    if n_traces > MAX_RESAMPLED:
        trace_of = (rng.permutation(n_traces) % MAX_RESAMPLED)[trace_of]
    if n_traces > 1:
        sums, unit = _sums(differences, trace_of)
        counts = np.bincount(trace_of).astype(np.float64)
        means = _resampled_means(sums.astype(np.float64) * unit, counts, resamples, rng)
        interval = middle(means, confidence)
        p = _randomisation_p(sums, resamples, rng)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    return Paired(
        pairs=n,
        traces=n_traces,
        baseline_mean=_mean(_sum(baseline_units), n),
        other_mean=_mean(_sum(other_units), n),
        difference=_mean(_sum(differences), n),
        interval=interval,
        p=p,
        wins=wins,
        ties=n - wins - losses,
        losses=losses,
    )


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """The p of several tests, corrected so that any false rejection has the chosen probability.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    largest, corrected = 0.0, dict.fromkeys(p_values, 1.0)
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return corrected


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
        raise InvalidInputError(
            f"baseline {baseline.shape}, other {other.shape} and traces {traces.shape} must be "
            "one-dimensional, of one length, and not empty."
        )
    if not (np.isfinite(baseline).all() and np.isfinite(other).all()):
        raise InvalidInputError(
            "a value is not finite; leave out queries without a value on one side."
        )
    given: tuple[Any, Any, Any] = (resamples, seed, confidence)
    whole = all(isinstance(number, Integral) for number in given[:2])
    if not (whole and isinstance(given[2], Real) and resamples >= 1 and seed >= 0) or not (
        0 < confidence < 1
    ):
        raise InvalidInputError(
            f"resamples {resamples} must be a whole number >= 1, seed {seed} one >= 0, and "
            f"confidence {confidence} a number above 0 and below 1."
        )


def _mean(sum_units: int, n: int) -> float:
    """The double nearest to the exact mean."""
    return sum_units / (n * UNITS_PER_ONE)


def _in_parts(units: IntArray) -> Iterator[list[int]]:
    """The numbers as Python integers, which never overflow, in lists of bounded length."""
    for start in range(0, len(units), _ROWS_AT_ONCE):
        yield units[start : start + _ROWS_AT_ONCE].tolist()


def _sum(units: IntArray) -> int:
    return sum(map(sum, _in_parts(units)))


def _sums(differences: IntArray, group_of: IntArray) -> tuple[IntArray, float]:
    """The sum of the differences of each group, and its unit.

    The unit is 2^-40, or the least power of two for which no sum overflows.
    """
    coarser = max(0, _sum(np.abs(differences)).bit_length() - _BITS_OF_SUMS)
    sums = np.zeros(int(group_of.max()) + 1, np.int64)
    np.add.at(sums, group_of, differences >> coarser)
    return sums, 2.0**coarser / UNITS_PER_ONE


def _resampled_means(
    sums: FloatArray, counts: FloatArray, resamples: int, rng: np.random.Generator
) -> FloatArray:
    """Bootstrap means, `[resamples]`, over the number of traces, drawn with replacement."""
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


def resampled_moments(
    values: FloatArray, resamples: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """The mean of the values and of their squares in each resample, `[resamples]` each."""
    drawn = [np.empty(resamples), np.empty(resamples)]
    at_once = max(1, _DRAWS_AT_ONCE // len(values))
    for start in range(0, resamples, at_once):
        part = slice(start, min(start + at_once, resamples))
        chosen = values.take(rng.integers(len(values), size=(part.stop - start, len(values))))
        drawn[0][part], drawn[1][part] = chosen.mean(axis=1), (chosen * chosen).mean(axis=1)
    return drawn[0], drawn[1]


def middle(drawn: FloatArray, confidence: float) -> Interval:
    """The percentile interval of resampled figures."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(low=float(low), high=float(high))


def _randomisation_p(sums: IntArray, flips: int, rng: np.random.Generator) -> float:
    """(1 + flips with a sum at least as far from 0) / (1 + flips): integers, so ties are exact."""
    n, observed, at_least = len(sums), int(sums.sum()), 0
    at_once = max(1, _DRAWS_AT_ONCE // n)
    for start in range(0, flips, at_once):
        flipped = rng.integers(2, size=(min(at_once, flips - start), n)) @ sums
        at_least += int((np.abs(observed - 2 * flipped) >= abs(observed)).sum())
    return (1 + at_least) / (1 + flips)
