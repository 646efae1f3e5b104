"""Comparison with scipy: the paired randomisation test with `permutation_type="samples"`."""

import numpy as np
import pytest

from evaluator.comparison.paired import paired

pytestmark = pytest.mark.slow  # scipy.stats takes seconds to import


def mean_difference(one, other, axis):
    return (one - other).mean(axis=axis)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("n", [5, 14, 300])
def test_p_is_that_of_scipy(n, shift):
    from scipy.stats import permutation_test

    rng = np.random.default_rng([n, int(shift * 10)])
    baseline = np.rint(rng.random(n) * 2**10) / 2**11
    other = np.rint((rng.random(n) + shift) * 2**10) / 2**11
    ours = paired(baseline, other, np.arange(n), resamples=20_000).p
    theirs = permutation_test(
        (other, baseline),
        mean_difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).pvalue
    # Both are shares of 20,000 flips, theirs of all 2^14 where these are fewer.
    assert ours == pytest.approx(theirs, abs=5 * np.sqrt(theirs / 20_000) + 1e-4)
