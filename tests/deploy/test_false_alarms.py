"""How often the alert of a quality drop fires by chance, and how soon it fires on a drop.

Weeks without any change are drawn at random and looked at every minute by the formula of the
rules. Values are 0 or 1, which have the largest spread that values in [0, 1] can have, and the
two nodes of a trace succeed and fail together.
"""

import numpy as np
import pytest

from tests.deploy.rules import mean_and_stderr, rules_of, threshold

MINUTES = 7 * 24 * 60
NODES = 2
BUDGET = 0.05
"""Of all weeks, for one series."""


def windows(growth: np.ndarray, minutes: int = 60) -> np.ndarray:
    """Sums over the last hour at each minute: `[n_weeks, n_minutes]`."""
    total = np.concatenate((np.zeros((len(growth), 1)), np.cumsum(growth, axis=1)), axis=1)
    return total[:, minutes:] - total[:, :-minutes]


def drawn(
    random: np.random.Generator, n_weeks: int, n_minutes: int, *, per_hour: float, mean: float
) -> tuple[np.ndarray, np.ndarray]:
    """Queries and sums of their values minute by minute."""
    traces = random.poisson(per_hour / 60 / NODES, (n_weeks, n_minutes))
    return NODES * traces, NODES * random.binomial(traces, mean)


def fires(
    queries: np.ndarray, score: np.ndarray, *, bound_z: float, design_effect: float
) -> np.ndarray:
    """Whether the alert fires at each minute of the second week: `[n_weeks, n_minutes]`."""
    hold = int(rules_of("alert")["EvaluatorQualityDrop"]["for"].removesuffix("m"))
    n, total = windows(queries), windows(score)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, stderr = mean_and_stderr(n, total, total, design_effect=design_effect)
    change = mean[:, MINUTES:] - mean[:, :-MINUTES]
    upper = change + bound_z * np.hypot(stderr[:, MINUTES:], stderr[:, :-MINUTES])
    enough = n >= threshold("min_queries")
    active = (upper < -threshold("quality_tolerance")) & enough[:, MINUTES:] & enough[:, :-MINUTES]
    return windows(active, hold + 1) == hold + 1


def share_of_weeks(
    *, per_hour: float, mean: float, n_weeks: int = 100, z: float | None = None,
    design_effect: float | None = None,
) -> float:  # fmt: skip
    """The share of weeks without a change in which the alert fires at least once."""
    random = np.random.default_rng(20_26)
    queries, score = drawn(random, n_weeks, 2 * MINUTES, per_hour=per_hour, mean=mean)
    alarms = fires(
        queries,
        score,
        bound_z=threshold("bound_z") if z is None else z,
        design_effect=threshold("design_effect") if design_effect is None else design_effect,
    )
    return float(alarms.any(axis=1).mean())


@pytest.mark.parametrize(
    ("per_hour", "mean"),
    [(per_hour, mean) for per_hour in (250, 1000, 10_000) for mean in (0.1, 0.5, 0.9)],
)
@pytest.mark.slow
def test_a_week_without_change_is_silent_within_the_budget(per_hour, mean):
    assert share_of_weeks(per_hour=per_hour, mean=mean) <= BUDGET


@pytest.mark.slow
def test_a_bound_for_one_look_would_fire_in_most_weeks():
    assert share_of_weeks(per_hour=250, mean=0.5, z=1.96) > 0.5


@pytest.mark.slow
def test_queries_of_a_trace_taken_for_independent_would_break_the_budget():
    assert share_of_weeks(per_hour=250, mean=0.5, design_effect=1) > BUDGET


@pytest.mark.parametrize(
    ("per_hour", "drop"), [(1000, 0.25), pytest.param(10_000, 0.08, marks=pytest.mark.slow)]
)
def test_a_drop_is_told_within_an_hour_and_a_quarter(per_hour, drop):
    random = np.random.default_rng(7)
    before = drawn(random, 100, MINUTES + 60, per_hour=per_hour, mean=0.6)
    after = drawn(random, 100, 75, per_hour=per_hour, mean=0.6 - drop)
    queries, score = (np.concatenate(parts, axis=1) for parts in zip(before, after, strict=True))
    alarms = fires(
        queries, score, bound_z=threshold("bound_z"), design_effect=threshold("design_effect")
    )
    assert alarms[:, -1].mean() >= 0.95
