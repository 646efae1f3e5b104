"""Exponentials and logarithms against decimals, and sums in a fixed order."""

import doctest
from decimal import Context, Decimal

import numpy as np
import pytest

from evaluator.core.learning import elementary
from evaluator.core.learning.elementary import exp, log
from evaluator.core.learning.elementary import softplus as softplus_with_slope
from evaluator.core.measures.lists import column_sum

PRECISE = Context(prec=50)
RNG = np.random.default_rng(11)


def softplus(x):
    return softplus_with_slope(x)[0]


def sigmoid(x):
    return softplus_with_slope(x)[1]


def units_off(found, exact):
    """How far doubles are from decimals, in units in the last place; the farthest."""
    return max(
        float(abs(Decimal(one) - true) / Decimal(float(np.spacing(abs(float(true))))))
        for one, true in zip(found.tolist(), exact, strict=True)
    )


def decimals(numbers):
    return [Decimal(number) for number in numbers.tolist()]


def test_docstring_examples_are_correct():
    assert doctest.testmod(elementary)[:2] == (0, 4)


@pytest.mark.parametrize("width", [1e-9, 1.0, 30.0, 700.0])
def test_exp_is_within_three_units_in_the_last_place(width):
    x = RNG.uniform(-width, width, 300)
    assert units_off(exp(x), [PRECISE.exp(one) for one in decimals(x)]) < 3


def test_exp_at_its_limits():
    x = np.array([0.0, -0.0, 709.782712893384, 709.783, np.inf, -745.1, -746.0, -np.inf])
    found = exp(x).tolist()
    assert found[:2] == [1.0, 1.0]
    assert found[2] == pytest.approx(1.7976931348e308)
    assert found[3:5] == [np.inf, np.inf]
    assert found[5:] == [5e-324, 0.0, 0.0]
    assert np.isnan(exp(np.array([np.nan]))).all()


def test_log_is_within_three_units_in_the_last_place():
    x = np.concatenate((RNG.uniform(0.5, 2, 300), RNG.uniform(1, 1_000, 300), [1e-300, 1e300]))
    assert units_off(log(x), [PRECISE.ln(one) for one in decimals(x)]) < 3
    assert log(np.array([1.0])) == [0.0]


def test_softplus_is_within_four_units_in_the_last_place():
    x = np.concatenate((RNG.uniform(-40, 40, 300), RNG.uniform(-1, 1, 100)))
    exact = [PRECISE.ln(PRECISE.add(1, PRECISE.exp(one))) for one in decimals(x)]
    assert units_off(softplus(x), exact) < 4


def test_softplus_and_sigmoid_do_not_overflow():
    assert softplus(np.array([-1e6, 1e6])).tolist() == [0.0, 1e6]
    assert sigmoid(np.array([-1e6, 1e6])).tolist() == [0.0, 1.0]
    assert sigmoid(np.array([-30.0])) == pytest.approx([9.357622968839299e-14], rel=1e-15)


@pytest.mark.parametrize("function", [exp, softplus, sigmoid])
def test_a_value_does_not_depend_on_its_position(function):
    x = RNG.uniform(-30, 30, 1_000)
    whole = function(x)
    assert [function(x[i : i + 1])[0] for i in range(1_000)] == whole.tolist()
    assert function(x[::-1].reshape(10, 100).T).T.reshape(-1)[::-1].tolist() == whole.tolist()


def test_results_have_the_pinned_bits():
    """The bits are the same on every machine; otherwise learned weights would differ."""
    x = np.array([-3.7, 0.1, 1.0, 10.25])
    assert [value.hex() for value in exp(x).tolist()] == [
        "0x1.9511fc6871044p-6",
        "0x1.1aec7b35a00d4p+0",
        "0x1.5bf0a8b14576ap+1",
        "0x1.b9ea2aed2a0f1p+14",
    ]
    assert [value.hex() for value in softplus(x).tolist()] == [
        "0x1.9024d723e49b5p-6",
        "0x1.7d218f1c89050p-1",
        "0x1.5031eafefb049p+0",
        "0x1.48004a261401ap+3",
    ]


def test_column_sum_adds_column_by_column():
    rows = np.array([[1e16, 1.0, -1e16, 1.0]])
    assert column_sum(rows).tolist() == [((1e16 + 1.0) - 1e16) + 1.0] == [1.0]
    many = RNG.normal(size=(5, 300)) * 10.0 ** RNG.integers(-9, 9, (5, 300))
    many[0], many[1, 1:] = -0.0, -0.0
    padded = np.hstack((many, np.zeros((5, 41))))
    expected = [0.0] * 5
    for column in many.T.tolist():
        expected = [total + term for total, term in zip(expected, column, strict=True)]
    for terms in (many, padded, np.asfortranarray(many), np.repeat(many, 40, axis=0)[::40]):
        assert repr(column_sum(terms).tolist()) == repr(expected)
    assert repr(column_sum(np.repeat(many, 40, axis=0))[::40].tolist()) == repr(expected)
    assert column_sum(np.zeros((2, 0))).tolist() == [0.0, 0.0]


def test_log_does_not_depend_on_array_size():
    numbers = np.concatenate(
        [[1.0, 2.0, 0.5, 5e-300], np.random.default_rng(4).exponential(3, 500)]
    )
    assert [float(log(numbers[i : i + 1])[0]) for i in range(len(numbers))] == log(numbers).tolist()
    assert log(numbers[:6].reshape(3, 2)).tolist() == log(numbers).reshape(-1, 2)[:3].tolist()
