"""The training example of a settled query."""

import numpy as np

from evaluator.core.learning.groups import Group
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.releases import Rules


def nothing(n_features: int) -> Group:
    """An empty group: learning skips it."""
    return Group(np.zeros((0, n_features)), np.zeros(0))


def has_weight(query: SettledQuery, rules: Rules) -> bool:
    """Whether all sources that have judged the query have a weight above 0."""
    weights = rules.source_weights
    return weights is None or all(weights.rule(weights.group(s)).weight != 0 for s in query.sources)


def example_of(query: SettledQuery, feature_names: tuple[str, ...], rules: Rules) -> Group | str:
    """The group to learn from, for weights of these features; or the reason to stop learning.

    The first occurrence of a candidate counts; one without a grade has grade 0.
    """
    names = query.feature_names or ()
    if names != feature_names:
        return (
            f"features are {', '.join(names)} from {query.trace_id}, {query.node_id} on; "
            f"they were {', '.join(feature_names)}"
        )
    if not has_weight(query, rules):
        return nothing(len(feature_names))
    ids, graded = query.candidate_ids, query.grades.get
    labels = np.array([graded(name, 0.0) for name in ids], np.float64)
    if query.propensities is not None:
        if rules.learner.label_mode != "sum":
            return "rankings have propensities, which need label_mode = sum"
        with np.errstate(over="ignore"):
            labels = labels / np.array(query.propensities[: len(ids)])
    if len(set(ids)) == len(ids):
        return Group(query.features, labels)
    first = {name: i for i, name in reversed(list(enumerate(ids)))}
    chosen = sorted(first.values())
    return Group(query.features[chosen], labels[chosen])
