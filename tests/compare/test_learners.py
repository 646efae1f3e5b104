"""Comparison with LightGBM and scikit-learn on the split of a seeded linear world."""

import pytest

from benchmarks.learning import qualities

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_on_linear_data_the_weights_match_the_truth_and_other_libraries():
    for name in ("lightgbm", "river"):
        pytest.importorskip(name, reason="installed by `make test`, not by `make install`")
    ndcg = {name: value for name, value, _ in qualities(500, seed=3)}
    truth, no_order = ndcg["the truth, without its noise"], ndcg["no order"]
    others = {
        name: value for name, value in ndcg.items() if name.startswith(("Light", "scikit", "River"))
    }
    ours = {name: value for name, value in ndcg.items() if name.startswith("evaluator")}
    assert (len(ours), len(others)) == (7, 5)
    assert no_order < 0.4
    assert truth > 0.8
    for name, value in ours.items():
        below = 0.05 if "pointwise" in name else 0.005  # those have no intercept
        assert value > truth - below, name
        assert value > max(others.values()) - below, name
