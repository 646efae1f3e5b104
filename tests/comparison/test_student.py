"""The two-sided p of Student's t: closed forms, and scipy's own distribution."""

import math

import pytest

from evaluator.comparison.student import two_sided_p

DEGREES = [1, 2, 3, 4, 5, 7, 10, 29, 30, 98, 99, 100, 101, 500, 10_000, 10**6, 10**7]
DISTANCES = [1e-3, 0.1, 0.5, 0.9, 1.0, 1.5, 1.96, 2.0, 3.0, 5.0, 8.0, 20.0, 35.0]


@pytest.mark.parametrize("t", DISTANCES)
def test_with_one_degree_of_freedom_it_is_cauchy(t):
    assert two_sided_p(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-12)


@pytest.mark.parametrize("t", DISTANCES)
def test_with_two_degrees_of_freedom_it_has_a_closed_form(t):
    # 1 - t / sqrt(2 + t^2), written without the difference of two near-equal numbers
    root = math.sqrt(2 + t * t)
    assert two_sided_p(t, 2) == pytest.approx(2 / (root * (root + t)), rel=1e-12)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("t", DISTANCES)
def test_it_is_that_of_scipy(t, degrees):
    from scipy.special import stdtr  # the tail of scipy.stats.t, which takes long to import

    # the exponent of the power grows with the degrees of freedom, and its rounding with it
    tolerance = max(1e-12, 1e-15 * degrees)
    assert two_sided_p(t, degrees) == pytest.approx(
        2 * stdtr(degrees, -t), rel=tolerance, abs=1e-300
    )


@pytest.mark.parametrize("degrees", [1, 30, 10**6])
def test_the_sign_of_t_does_not_matter_and_0_is_no_evidence(degrees):
    assert two_sided_p(-1.7, degrees) == two_sided_p(1.7, degrees)
    assert two_sided_p(0.0, degrees) == 1.0


@pytest.mark.parametrize("degrees", [1, 30, 10**6])
def test_p_stays_between_0_and_1_and_falls_with_the_distance(degrees):
    distances = [10.0**power for power in range(-12, 13)]
    ps = [two_sided_p(t, degrees) for t in distances]
    assert ps == sorted(ps, reverse=True)
    assert 0 <= ps[-1] <= ps[0] <= 1
