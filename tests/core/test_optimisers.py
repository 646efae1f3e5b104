"""Optimisers: the arithmetic of their first steps."""

import doctest
from math import sqrt

import numpy as np
import pytest

from evaluator.core.learning import optimisers
from evaluator.core.learning.optimisers import clipped, moved, no_moments, rate_after

GRADIENTS = [np.array([2.0, 0.0]), np.array([-1.0, 0.5]), np.array([0.0, 0.25])]


def steps(optimizer, rate=0.1):
    moments = no_moments(optimizer, 2)
    for gradient in GRADIENTS:
        step, moments = moved(optimizer, moments, gradient, rate)
        yield step.tolist()


def test_docstring_examples_are_correct():
    assert doctest.testmod(optimisers)[:2] == (0, 2)


def test_sgd_is_rate_times_gradient():
    assert list(steps("sgd")) == [[0.1 * 2.0, 0.0], [-0.1, 0.05], [0.0, 0.025]]


def test_adagrad_divides_by_the_root_of_the_sum_of_squares():
    first, second, third = steps("adagrad")
    assert first == pytest.approx([0.1 * 2 / 2, 0.0])
    assert second == pytest.approx([-0.1 / sqrt(4 + 1), 0.1 * 0.5 / 0.5])
    assert third == pytest.approx([0.0, 0.1 * 0.25 / sqrt(0.25 + 0.0625)])


def test_adam_divides_unbiased_moments():
    first, second, _ = steps("adam")
    assert first == pytest.approx([0.1, 0.0])
    m = [(0.9 * 0.1 * 2 + 0.1 * -1) / (1 - 0.81), 0.1 * 0.5 / (1 - 0.81)]
    v = [(0.999 * 0.001 * 4 + 0.001 * 1) / (1 - 0.998001), 0.001 * 0.25 / (1 - 0.998001)]
    assert second == pytest.approx([0.1 * m[0] / sqrt(v[0]), 0.1 * m[1] / sqrt(v[1])])


def test_the_rate_is_divided_by_the_root_of_one_plus_the_updates_before():
    rates = [rate_after(n, schedule="inv_sqrt", learning_rate=0.6) for n in (0, 1, 8)]
    assert rates == pytest.approx([0.6, 0.6 / sqrt(2), 0.6 / 3])
    assert rate_after(8, schedule="constant", learning_rate=0.6) == 0.6


def test_clipping_scales_down_the_whole_gradient_and_never_up():
    gradient = np.array([3.0, -4.0, 12.0])  # 13 long
    assert clipped(gradient, 6.5).tolist() == [1.5, -2.0, 6.0]
    assert clipped(gradient, 13.0).tolist() == gradient.tolist()
    assert clipped(gradient, None).tolist() == gradient.tolist()
    assert clipped(np.zeros(3), 1.0).tolist() == [0.0, 0.0, 0.0]
    assert clipped(gradient * 1e200, 6.5) == pytest.approx([1.5, -2.0, 6.0])
