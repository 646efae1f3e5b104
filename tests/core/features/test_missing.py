"""Missing features are the mean of the other candidates of the query."""

import numpy as np

from evaluator.core.features import filled


def test_a_column_without_gaps_keeps_its_bits_and_the_argument_is_not_changed():
    features = np.array([[-0.0, np.nan], [1e-308, 2.0]])
    before = features.copy()
    assert repr(filled(features)[:, 0].tolist()) == repr([-0.0, 1e-308])
    assert repr(features.tolist()) == repr(before.tolist())
    assert filled(np.zeros((0, 2))).shape == (0, 2)
