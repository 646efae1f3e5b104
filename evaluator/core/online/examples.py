"""The training example of a settled query, for live learning, replays and `fit`."""

import numpy as np

from evaluator.core.learning.groups import Group
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.promotion.source_weights import SourceWeights


class UnusableExampleError(ValueError):
    """A query ends learning; the message has the reason."""


def no_example(n_features: int) -> Group:
    """An empty group: learning skips it."""
    return Group(np.zeros((0, n_features)), np.zeros(0))


def has_weight(query: SettledQuery, weights: SourceWeights | None) -> bool:
    """Whether all sources that have judged the query have a weight above 0."""
    return weights is None or all(
        weights.rule(weights.group(source)).weight != 0 for source in query.sources
    )


def example_of(
    query: SettledQuery,
    feature_names: tuple[str, ...],
    *,
    label_mode: str,
    source_weights: SourceWeights | None = None,
) -> Group:
    """The group of a query for weights of these features; empty if it has no features or weight.

    The first occurrence of a candidate counts; an unjudged candidate has grade 0. Grades are
    divided by propensities.

    Raises:
        UnusableExampleError: if the query has other features, or propensities without `sum`.
    """
    if query.feature_names is None:
        return no_example(len(feature_names))
    if query.feature_names != feature_names:
        raise UnusableExampleError(
            f"features are {', '.join(query.feature_names)} from {query.trace_id}, "
            f"{query.node_id} on; they were {', '.join(feature_names)}"
        )
    if not has_weight(query, source_weights):
        return no_example(len(feature_names))
    ids = query.candidate_ids
    labels = np.array([query.grades.get(name, 0.0) for name in ids], np.float64)
    if query.propensities is not None:
        if label_mode != "sum":
            raise UnusableExampleError("rankings have propensities, which need label_mode = sum")
        with np.errstate(over="ignore"):  # the learner freezes if a label is not finite
            labels = labels / np.array(query.propensities[: len(ids)])
    if len(set(ids)) == len(ids):
        return Group(query.features, labels)
    chosen = sorted({name: i for i, name in reversed(list(enumerate(ids)))}.values())
    return Group(query.features[chosen], labels[chosen])
