"""Experiments that hostile judgments and repeated events cannot decide."""

import json
from random import Random

import numpy as np
import pytest

from evaluator.core.learning.learner import Learner
from evaluator.core.online.events import Version
from evaluator.core.online.model_learner import ModelLearner
from evaluator.core.online.online_learner import OnlineLearner, view_of
from evaluator.core.online.states import ModelState
from evaluator.core.promotion.source_weights import SourceRule, SourceWeights
from tests.core.learned import (
    N_TASKS,
    NAMES,
    TRUTH,
    interleaved,
    numbered,
    parts,
    releases,
    rules,
    run,
    settled_query,
    world,
)
from tests.repeats import repeated

WORLD = world(1, 700)

# --- hostile judgments --------------------------------------------------------------------------

WORSE = (1.0, -1.8, 0.5)


def attacked(seed):
    """Of twenty queries, only the one most favourable to WORSE is judged."""
    queries = world(seed, 5_000, noise=0.1)
    for first in range(0, len(queries), 20):
        _, place, praised = max(
            (won, place, candidate)
            for place in range(first, first + 20)
            for candidate, won in enumerate(places_won(queries[place]))
        )
        query = queries[place]
        queries[place] = query._replace(
            grades={query.candidate_ids[praised]: 1.0}, sources={"stranger": 1}
        )
    return queries


def places_won(query):
    """By how much WORSE ranks each candidate higher than the truth does."""
    worse, truth = (
        np.argsort(np.argsort(-(query.features @ np.array(weights)))) for weights in (WORSE, TRUTH)
    )
    return (truth - worse).tolist()


def trying_worse_weights(made):
    """A leader that tries WORSE from the start against the truth."""
    leader = OnlineLearner(made, n_tasks=N_TASKS)
    model_learner = leader.model_learners["m"] = ModelLearner("m", version=2)
    model_learner.training.begin(NAMES, None, made)
    model_learner.experiments.champions = [Version(1, 0, TRUTH, NAMES)]
    model_learner.experiments.start(Version(2, 0, WORSE, NAMES), now_ms=0)
    model_learner.current = ModelState.EXPERIMENT
    return leader


def experiment_with_worse_weights(queries, trust):
    """The outcome for WORSE."""
    leader = trying_worse_weights(rules(source_weights=trust, learner=Learner(learning_rate=1e-12)))
    for batch in interleaved(queries, Random(1)):
        for release in releases(leader.receive(batch)):
            if release.of_version == 2:
                return release.status
    ends = [release for release in releases(leader.end()) if release.of_version == 2]
    return ends[0].status if ends else "undecided"


@pytest.mark.parametrize("seed", repeated(2, quick=0))
def test_capped_unlisted_sources_cannot_promote_worse_weights(seed):
    queries = attacked(seed)
    capped = SourceWeights({"human": SourceRule()}, SourceRule(max_share=0.01))
    assert experiment_with_worse_weights(queries, None) == "promoted"
    assert experiment_with_worse_weights(queries, capped) != "promoted"


def test_judgments_of_weight_0_are_not_learned_from():
    queries = [
        query._replace(sources={"stranger": 1}) if i % 2 else query for i, query in enumerate(WORLD)
    ]
    trusting = run(queries, rules(source_weights=SourceWeights({"human": SourceRule()})))
    alone = [query._replace(grades={}) if i % 2 else query for i, query in enumerate(WORLD)]
    for one, other in zip(trusting, run(alone, rules()), strict=True):
        learners = [each.state["models"][0]["learner"] for each in (one, other)]
        assert learners[0] == learners[1]


# --- repeated events count once ------------------------------------------------------------------


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize(
    ("same", "n_counted"),
    [
        ((), 120),
        (("trace_id",), 3),
        (("features", "candidate_ids"), 3),
        (("features",), 120),
        (("candidate_ids",), 120),
    ],
)
def test_a_trace_and_a_query_count_once_in_an_experiment(same, n_counted):
    """Three queries are repeated for two intervals; a successor learns in the second one."""
    random, made, queries = Random(3), rules(), []
    lasting = [settled_query(2 * i, random) for i in range(3)]
    for i in range(120):
        own = {"trace_id": f"trace-{i}", "candidate_ids": [f"c{k}-{i}" for k in range(5)]}
        own |= {name: getattr(lasting[i % 3], name) for name in same}
        grades = {name: random.choice((0.0, 1.0, 2.0)) for name in own["candidate_ids"]}
        queries.append(settled_query(i, random, **{**own, "grades": grades}))
    records = [record for part in parts(numbered(queries)) for record in part]
    first_interval, *_ = trying_worse_weights(made).receive(records)
    state = json.loads(json.dumps(first_interval.state))
    (model,) = state["models"]
    assert view_of(ModelLearner.load(model), made).n_traces == min(n_counted, 60)
    successor = OnlineLearner(made, n_tasks=N_TASKS, state=state)
    successor.receive(records)
    successor.end()
    (view,) = successor.views
    assert (view.n_traces, view.challenger.number) == (n_counted, 2)
