"""Losses: their arithmetic, their gradients against finite differences, and their invariants."""

import doctest
from math import exp, log, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.learning import losses
from evaluator.core.learning.losses import loss_of
from evaluator.core.learning.names import LABEL_MODES, LOSSES
from tests.repeats import examples

EVERY = [("softmax", mode) for mode in LABEL_MODES] + [
    (name, "distribution") for name in LOSSES[1:]
]
SOFTMAX = [case for case in EVERY if case[0] == "softmax"]
every_loss = pytest.mark.parametrize(("name", "mode"), EVERY)


def of(name, mode, scores, grades, mask=None):
    scores, grades = np.array(scores, float), np.array(grades, float)
    mask = np.ones(scores.shape, bool) if mask is None else mask
    loss = loss_of(name, label_mode=mode)
    return loss.of(scores, loss.of_grades(grades, mask), mask)


def of_one(name, scores, grades, mode="distribution"):
    """Loss and gradient of one list."""
    found = of(name, mode, [scores], [grades])
    return float(found.values[0]), found.gradients[0].tolist()


def test_docstring_examples_are_correct():
    failed, tried = doctest.testmod(losses)
    assert (failed, tried > 0) == (0, True)


# Arithmetic: scores ln 4, ln 2, 0, so the softmax is 4/7, 2/7, 1/7

SCORES = [log(4), log(2), 0.0]
P = [4 / 7, 2 / 7, 1 / 7]


def test_softmax_with_two_positives():
    """Grades 0, 1, 1: targets 0, 1/2, 1/2."""
    loss, gradient = of_one("softmax", SCORES, [0, 1, 1])
    assert loss == pytest.approx(-(log(2 / 7) + log(1 / 7)) / 2)
    assert gradient == pytest.approx([4 / 7, 2 / 7 - 1 / 2, 1 / 7 - 1 / 2])


def test_softmax_with_grades_0_to_2():
    """Grades 2, 0, 1: targets 2/3, 0, 1/3; by gain (3, 0, 1) 3/4, 0, 1/4."""
    loss, gradient = of_one("softmax", SCORES, [2, 0, 1])
    assert loss == pytest.approx(-(2 / 3 * log(4 / 7) + 1 / 3 * log(1 / 7)))
    assert gradient == pytest.approx([4 / 7 - 2 / 3, 2 / 7, 1 / 7 - 1 / 3])
    loss, gradient = of_one("softmax", SCORES, [2, 0, 1], "gain")
    assert loss == pytest.approx(-(3 / 4 * log(4 / 7) + 1 / 4 * log(1 / 7)))
    assert gradient == pytest.approx([4 / 7 - 3 / 4, 2 / 7, 1 / 7 - 1 / 4])


def test_softmax_with_propensities():
    """Grades 1, 0, 1 seen with propensities 0.5, -, 0.25: targets 2, 0, 4, in all 6."""
    loss, gradient = of_one("softmax", SCORES, [1 / 0.5, 0, 1 / 0.25], "sum")
    assert loss == pytest.approx(-(2 * log(4 / 7) + 4 * log(1 / 7)))
    assert gradient == pytest.approx([6 * 4 / 7 - 2, 6 * 2 / 7, 6 * 1 / 7 - 4])


def test_pairwise_losses():
    """Grades 0, 1, 2: pairs (2, 1), (2, 0), (1, 0) with d = -ln 2, -ln 4, -ln 2."""
    grades = [0, 1, 2]
    loss, gradient = of_one("pairwise_logistic", SCORES, grades)
    assert loss == pytest.approx((log(1 + 2) + log(1 + 4) + log(1 + 2)) / 3)
    slope_2, slope_4 = 2 / 3, 4 / 5  # 1/(1 + e^d)
    expected = [slope_4 + slope_2, slope_2 - slope_2, -slope_2 - slope_4]
    assert gradient == pytest.approx([one / 3 for one in expected])
    loss, gradient = of_one("pairwise_hinge", SCORES, grades)
    assert loss == pytest.approx((3 + log(2) + log(4) + log(2)) / 3)
    assert gradient == pytest.approx([2 / 3, 0, -2 / 3])
    loss, gradient = of_one("pairwise_exponential", SCORES, grades)
    assert loss == pytest.approx((2 + 4 + 2) / 3)
    assert gradient == pytest.approx([(4 + 2) / 3, (2 - 2) / 3, (-2 - 4) / 3])


def test_a_hinge_is_flat_from_one_on():
    assert of_one("pairwise_hinge", [1.0, 0.0], [1, 0]) == (0.0, [0.0, 0.0])


def test_lambdarank_weights_a_pair_by_its_change_in_ndcg():
    """Ranks 1, 2, 3; gains 0, 1, 3; D = 1, 1/log2(3), 1/2; the ideal is 3 + 1/log2(3)."""
    ideal, second = 3 + 1 / log2(3), 1 / log2(3)
    w_21 = (3 - 1) * (second - 1 / 2) / ideal
    w_20 = 3 * (1 - 1 / 2) / ideal
    w_10 = 1 * (1 - second) / ideal
    loss, gradient = of_one("lambdarank", SCORES, [0, 1, 2])
    assert loss == pytest.approx(w_21 * log(3) + w_20 * log(5) + w_10 * log(3))
    of_21, of_20, of_10 = w_21 * 2 / 3, w_20 * 4 / 5, w_10 * 2 / 3
    assert gradient == pytest.approx([of_20 + of_10, of_21 - of_10, -of_21 - of_20])


def test_pointwise_losses():
    """Scores 1, 0 and grades 2, 0: errors -1, 0; relevant yes, no."""
    assert of_one("pointwise_squared", [1.0, 0.0], [2, 0]) == (0.5, [-1.0, 0.0])
    loss, gradient = of_one("pointwise_logistic", [1.0, 0.0], [2, 0])
    assert loss == pytest.approx((log(1 + exp(-1)) + log(2)) / 2)
    assert gradient == pytest.approx([(1 / (1 + exp(-1)) - 1) / 2, (1 / 2) / 2])


# The textbook gradient


def finite_differences(name, mode, scores, grades, mask, step=1e-6):
    """The gradient as central differences, candidate by candidate."""
    gradients = np.zeros(scores.shape)
    for column in range(scores.shape[1]):
        moved = np.zeros(scores.shape)
        moved[:, column] = step
        above = of(name, mode, scores + moved, grades, mask).values
        below = of(name, mode, scores - moved, grades, mask).values
        gradients[:, column] = (above - below) / (2 * step)
    return gradients


@pytest.mark.parametrize(
    ("mode", "grades"),
    [
        ("distribution", [0, 1, 1]),
        ("distribution", [2, 0, 1]),
        ("gain", [2, 0, 1]),
        ("sum", [0, 1, 1]),
        ("sum", [1 / 0.5, 0, 1 / 0.25]),
    ],
)
def test_the_textbook_gradient_is_wrong_where_labels_do_not_sum_to_one(mode, grades):
    """p - y for any definition of y; it does not even sum to zero."""
    scores, grades, mask = np.array([SCORES]), np.array([grades], float), np.ones((1, 3), bool)
    exact = finite_differences("softmax", mode, scores, grades, mask)
    assert of("softmax", mode, scores, grades).gradients == pytest.approx(exact, abs=1e-8)
    textbook = np.array(P) - grades
    assert np.abs(textbook - exact).max() > 0.3
    assert abs(textbook.sum()) >= 1


def test_the_textbook_gradient_is_right_for_a_single_positive_of_grade_1():
    for mode in LABEL_MODES:
        _, gradient = of_one("softmax", SCORES, [0, 1, 0], mode)
        assert gradient == pytest.approx(np.array(P) - [0, 1, 0])


def test_following_the_textbook_gradient_diverges_with_two_positives():
    """Two of three are relevant and separable by features: ours converges, p - y diverges."""
    features, grades = np.array([[1.0, 0.9, 0.0]]), np.array([[1.0, 1.0, 0.0]])
    mask = np.ones((1, 3), bool)
    ours = textbook = 0.0
    for _ in range(300):
        gradient = of("softmax", "sum", ours * features, grades, mask).gradients
        ours -= 0.5 * float((gradient * features).sum())
        p = of("softmax", "distribution", textbook * features, grades, mask).gradients + grades / 2
        textbook -= 0.5 * float(((p - grades) * features).sum())
    assert ours < 10
    assert textbook > 120


# Gradients against finite differences

RNG = np.random.default_rng(3)


def random_lists(n=30, width=9, *, whole=True):
    scores = RNG.normal(size=(n, width)) * 2
    grades = RNG.integers(0, 4, (n, width)).astype(float)
    if not whole:
        grades *= RNG.random((n, width))
    mask = np.arange(width) < RNG.integers(2, width + 1, n)[:, None]
    return scores, grades, mask


@every_loss
@pytest.mark.parametrize("whole", [True, False])
def test_gradients_equal_finite_differences(name, mode, whole):
    scores, grades, mask = random_lists(whole=whole)
    found = of(name, mode, scores, grades, mask)
    expected = finite_differences(name, mode, scores, grades, mask)
    assert np.abs(found.gradients[~mask]).max() == 0
    assert found.gradients == pytest.approx(expected, abs=2e-7, rel=2e-6)
    assert np.abs(found.gradients).max() > 0.05


# Laws


@every_loss
def test_a_list_does_not_depend_on_other_lists_or_padding(name, mode):
    scores, grades, mask = random_lists(40)
    together = of(name, mode, scores, grades, mask)
    for row in range(40):
        n = int(mask[row].sum())
        alone = of(name, mode, scores[row : row + 1, :n], grades[row : row + 1, :n])
        assert alone.values[0] == together.values[row]
        assert alone.gradients[0].tolist() == together.gradients[row, :n].tolist()


@every_loss
def test_values_in_the_padding_do_not_matter(name, mode):
    scores, grades, mask = random_lists()
    expected = of(name, mode, scores, grades, mask)
    scores, grades = np.where(mask, scores, 1e9), np.where(mask, grades, 31.0)
    found = of(name, mode, scores, grades, mask)
    assert found.values.tolist() == expected.values.tolist()
    assert found.gradients.tolist() == expected.gradients.tolist()


@pytest.mark.parametrize("name", ["pairwise_logistic", "lambdarank"])
def test_long_lists_are_processed_in_chunks(name, monkeypatch):
    scores, grades, mask = random_lists(20)
    expected = of(name, "distribution", scores, grades, mask)
    monkeypatch.setattr(losses, "_CELLS", 200)
    found = of(name, "distribution", scores, grades, mask)
    assert found.gradients.tolist() == expected.gradients.tolist()


lists_of_candidates = st.lists(
    st.tuples(st.integers(-40, 40), st.integers(0, 4)),
    min_size=2,
    max_size=9,
    unique_by=lambda c: c[0],
)


@every_loss
@settings(max_examples=examples(60))
@given(candidates=lists_of_candidates, data=st.data())
def test_permuting_candidates_permutes_the_gradient(name, mode, candidates, data):
    order = data.draw(st.permutations(range(len(candidates))))
    scores = [score / 8 for score, _ in candidates]
    grades = [grade for _, grade in candidates]
    loss, gradient = of_one(name, scores, grades, mode)
    permuted, moved = of_one(name, [scores[i] for i in order], [grades[i] for i in order], mode)
    assert permuted == pytest.approx(loss, rel=1e-12, abs=1e-300)
    assert moved == pytest.approx([gradient[i] for i in order], rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(("name", "mode"), [case for case in EVERY if "point" not in case[0]])
@settings(max_examples=examples(60))
@given(candidates=lists_of_candidates)
def test_gradients_of_losses_of_differences_sum_to_zero(name, mode, candidates):
    _, gradient = of_one(name, [s / 8 for s, _ in candidates], [g for _, g in candidates], mode)
    assert abs(sum(gradient)) <= 1e-14 * max(1.0, sum(map(abs, gradient)))


@pytest.mark.parametrize(("name", "mode"), [case for case in EVERY if "point" not in case[0]])
def test_a_list_without_a_training_signal_has_loss_and_gradient_0(name, mode):
    assert of_one(name, [3.0, 1.0], [0, 0], mode) == (0.0, [0.0, 0.0])
    empty = of(name, mode, np.zeros((1, 3)), np.zeros((1, 3)), np.zeros((1, 3), bool))
    assert (empty.values.tolist(), empty.gradients.tolist()) == ([0.0], [[0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("name", "mode"),
    [case for case in EVERY if case[0] not in ("pairwise_exponential", "pointwise_squared")],
)
def test_large_scores_neither_overflow_nor_lose_the_gradient(name, mode):
    loss, gradient = of_one(name, [800.0, -800.0], [0, 1], mode)
    assert 0 < loss <= 1_601
    assert np.isfinite(gradient).all()
    assert max(map(abs, gradient)) > 0.1


def test_loss_of_a_certain_mistake_is_exact_and_not_bounded_by_an_epsilon():
    """-ln p with p = e^-1600 is 1600; ln(p + 1e-10) would be 23."""
    loss, gradient = of_one("softmax", [800.0, -800.0], [0, 1])
    assert (loss, gradient) == (1_600.0, [1.0, -1.0])


def test_a_nearly_perfect_list_has_a_loss_that_is_not_rounded_to_0():
    """-ln(1/(1 + e^-40)) = e^-40, far below the rounding of ln(1)."""
    loss, _ = of_one("pairwise_logistic", [40.0, 0.0], [1, 0])
    assert loss == pytest.approx(exp(-40), rel=1e-12)


def test_tied_scores_are_ranked_in_list_order():
    ranks = losses.descending_ranks(
        np.array([[1.0, 2.0, 1.0, 9.0]]), np.array([[1, 1, 1, 0]], bool)
    )
    assert ranks.tolist() == [[2, 1, 3, 0]]
