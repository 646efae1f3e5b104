"""Described queries in the leader: their features, none of which uses its own judgment."""

import json
from functools import cache
from random import Random

import numpy as np
import pytest
from msgspec import field
from msgspec.structs import replace

from evaluator.core.features import (
    FEATURE_NAMES,
    HashedNgrams,
    Success,
    SuccessTable,
    features_of,
    learned,
    shortened,
)
from evaluator.core.measures import MeasureSet, Terms
from evaluator.core.online import online_learner as leader_module
from evaluator.core.online import training
from evaluator.core.online.events import Command, Version
from evaluator.core.online.offline_ranking import OfflineRanking
from evaluator.core.online.online_learner import OnlineLearner
from evaluator.core.online.success_rates import SuccessRates, featured, with_rates
from evaluator.core.online.training import example_of
from evaluator.core.promotion.source_weights import SourceRule, SourceWeights
from evaluator.core.types.candidates import Described, Graph
from tests.core.described import described_world, graphs, oracle, tools
from tests.core.learned import MEASURES, N_TASKS, interleaved, releases, rules, run, units_of

HIST = FEATURE_NAMES.index("phi_hist")
TOOLS = described_world(tools)
ONE = 1 << 40


@cache
def all_intervals():
    return run(TOOLS, rules())


class RecordingRanking(OfflineRanking, frozen=True, kw_only=True):
    """Remembers the features that each query was measured with."""

    seen: dict = field(default_factory=dict)

    def units_of(self, queries, ranked):
        for each in ranked:
            for place, features in zip(each.places, each.features, strict=True):
                query = queries[place]
                self.seen.setdefault((query.trace_id, query.node_id), []).append(features)
        return super().units_of(queries, ranked)


def ndcg_of(queries, weights):
    units = units_of(rules().offline_ranking, queries, weights)[:, 0]
    return units.sum() / ONE / len(units)


def judged(queries):
    return [(query.described, query.grades) for query in queries]


# --- features -------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [tools, graphs, oracle])
def test_features_equal_those_computed_with_the_table(made):
    queries = described_world(made, n_queries=40)
    table = learned(SuccessTable(), judged(queries[:30]))
    for query in queries:
        seen = with_rates(featured(query, HashedNgrams()), table)
        expected = features_of(query.described, embedder=HashedNgrams(), history=table)
        assert seen.feature_names == FEATURE_NAMES
        np.testing.assert_array_equal(seen.features, expected)


def test_features_of_a_ranking_are_kept():
    query = TOOLS[0]._replace(described=None, feature_names=("x",), features=np.ones((5, 1)))
    assert with_rates(featured(query, HashedNgrams()), SuccessTable()) is query


def test_a_query_without_candidates_has_no_rows():
    query = TOOLS[0]._replace(described=Described("tool", "q", ()), candidate_ids=[])
    seen = with_rates(featured(query, HashedNgrams()), SuccessTable())
    assert seen.features.shape == (0, 4)
    assert len(run([query._replace(n=0, task=0)], rules())) == 1


@pytest.mark.slow(alone=False)
def test_the_best_grade_is_that_of_the_measures():
    offline_ranking = OfflineRanking(
        MeasureSet.parse(MEASURES, scales=Terms(map_graded_max_grade=1))
    )
    tables = {
        made.max_grade: run(TOOLS, made)[-1].state["models"][0]["success_rates"]
        for made in (rules(), rules(offline_ranking=offline_ranking))
    }
    assert sorted(tables) == [1, 2]
    for max_grade, table in tables.items():
        expected = learned(SuccessTable(), judged(TOOLS), max_grade=max_grade)
        assert SuccessRates.load(table).now == expected
    assert tables[1] != tables[2]


# --- no query sees its own judgment ---------------------------------------------------------------


@pytest.mark.slow
def test_a_feature_of_the_querys_own_judgment_gives_no_advantage():
    queries = described_world(oracle)
    table = learned(SuccessTable(), judged(queries))
    leaked = [with_rates(featured(query, HashedNgrams()), table) for query in queries]
    assert ndcg_of(leaked, (0.0, 1.0, 0.0, 0.0)) == 1.0

    recording = RecordingRanking(MeasureSet.parse(MEASURES))
    made = rules(offline_ranking=recording, initial_weights=(0.0, 1.0, 0.0, 0.0))
    intervals = run(queries, made)
    assert len(made.offline_ranking.seen) > 600
    for features in made.offline_ranking.seen.values():
        for each in features:
            assert (each == each[0]).all()
    assert [each.status for each in releases(intervals)] == ["initial"]
    for release in releases(intervals):
        assert release.weights == pytest.approx((0.0, 1.0, 0.0, 0.0), abs=1e-12)


def features_seen(queries, monkeypatch):
    """All features that queries are measured with and learned from, by query."""
    offline_ranking = RecordingRanking(MeasureSet.parse(MEASURES))

    def watched(query, feature_names, **how):
        offline_ranking.seen.setdefault((query.trace_id, query.node_id), []).append(query.features)
        return example_of(query, feature_names, **how)

    monkeypatch.setattr(training, "example_of", watched)
    run(queries, rules(offline_ranking=offline_ranking, initial_weights=(1.0,) * 4))
    assert len(offline_ranking.seen) == len(queries)
    return offline_ranking.seen


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize("place", [150, 300])
def test_no_feature_depends_on_a_judgment_that_had_not_settled(monkeypatch, place):
    changed = TOOLS[place]
    upside_down = {name: 1.0 - grade for name, grade in changed.grades.items()}
    queries = [q._replace(grades=upside_down) if q is changed else q for q in TOOLS]
    one, other = (features_seen(each, monkeypatch) for each in (TOOLS, queries))
    differ_ms = [
        query.event_time_ms
        for query in TOOLS
        for key in [(query.trace_id, query.node_id)]
        if not np.array_equal(one[key], other[key])
    ]
    assert differ_ms
    assert min(differ_ms) >= changed.settled_time_ms


@pytest.mark.slow(alone=False)
def test_a_version_has_the_table_of_the_queries_settled_when_it_was_frozen():
    candidates = [
        release for release in releases(all_intervals()) if release.status == "challenger"
    ]
    assert len(candidates) >= 2
    for release in candidates:
        until = [query for query in TOOLS if query.n < release.ranges[query.task][1]]
        assert max(query.settled_time_ms for query in until) == release.from_ms
        assert release.history == learned(SuccessTable(), judged(until))


def test_a_promoted_version_keeps_the_table_that_it_was_tried_with():
    by_version = {release.version: release for release in releases(all_intervals())}
    promoted = [release for release in by_version.values() if release.status == "promoted"]
    assert promoted
    for release in promoted:
        assert release.history == by_version[release.of_version].history


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_success_rates_are_learned_and_weighted():
    published = releases(run(described_world(graphs), rules()))
    assert [each.status for each in published][:2] == ["challenger", "promoted"]
    last = [release for release in published if release.status == "challenger"][-1]
    assert last.feature_names == FEATURE_NAMES
    others = [abs(weight) for place, weight in enumerate(last.weights) if place != HIST]
    assert last.weights[HIST] > 4 * max(others)
    unseen = [
        with_rates(featured(query, HashedNgrams()), last.history)
        for query in described_world(graphs, seed=77, n_queries=300)
    ]
    best = sum(any(query.grades.values()) for query in unseen) / len(unseen)
    assert ndcg_of(unseen, last.weights) == pytest.approx(best)
    assert ndcg_of(unseen, (1.0, 0.0, 1.0, 1.0)) < best - 0.1


@pytest.mark.slow
def test_judgments_of_weight_0_do_not_change_the_table():
    mixed = [q._replace(sources={"stranger": 1}) if i % 2 else q for i, q in enumerate(TOOLS)]
    alone = [q._replace(grades={}) if i % 2 else q for i, q in enumerate(TOOLS)]
    trusting = run(mixed, rules(source_weights=SourceWeights({"human": SourceRule()})))
    tables = [
        each[-1].state["models"][0]["success_rates"] for each in (trusting, run(alone, rules()))
    ]
    assert tables[0] == tables[1]
    assert tables[0] != all_intervals()[-1].state["models"][0]["success_rates"]


def no_names(state):
    """A state without the hashes of the queries that have counted: candidate ids are in them."""
    if isinstance(state, dict):
        experiment = {"queries"} if "traces" in state else set()
        return {name: no_names(of) for name, of in state.items() if name not in experiment}
    return [no_names(of) for of in state] if isinstance(state, list) else state


@pytest.mark.slow
def test_names_of_graphs_do_not_change_results():
    queries = described_world(graphs)
    renamed = []
    for query in queries:
        ids = {name: f"other-{name}" for name in query.candidate_ids}  # ties stay: same order
        renamed.append(
            query._replace(
                candidate_ids=list(ids.values()),
                grades={ids[name]: grade for name, grade in query.grades.items()},
                described=replace(query.described, candidate_ids=list(ids.values())),
            )
        )
    intervals = run(queries, rules())
    of_renamed = run(renamed, rules())
    assert [each.releases for each in of_renamed] == [each.releases for each in intervals]
    assert [no_names(each.state) for each in of_renamed] == [
        no_names(each.state) for each in intervals
    ]
    promoted = [release for release in releases(intervals) if release.status == "promoted"]
    assert promoted[-1].weights[HIST] > 0


# --- tables and intervals -------------------------------------------------------------------------


def table_of(n):
    return SuccessTable({("tool", "a"): Success(0, n)})


def test_a_table_is_used_from_the_end_of_its_interval_to_the_next():
    tables = SuccessRates(table_of(1))
    tables.end_interval(100, max_bytes=1_000)
    tables.now = table_of(2)
    tables.end_interval(200, max_bytes=1_000)
    assert [tables.at(ms) for ms in (99, 100, 199, 200, 10_000)] == [
        None, table_of(1), table_of(1), table_of(2), table_of(2),
    ]  # fmt: skip
    tables.drop_before(199)
    assert tables.at(199) == table_of(1)
    tables.drop_before(200)
    assert [tables.at(199), tables.at(200)] == [None, table_of(2)]


def test_no_further_table_is_begun_while_there_are_three():
    tables = SuccessRates()
    for n in range(1, 6):
        tables.now = table_of(n)
        tables.end_interval(100 * n, max_bytes=1_000)
    assert [from_ms for from_ms, _ in tables.tables] == [100, 200, 300]
    tables.drop_before(250)
    tables.end_interval(600, max_bytes=1_000)
    assert tables.tables == [(200, table_of(2)), (300, table_of(3)), (600, table_of(5))]


def test_an_interval_without_new_rates_begins_no_table():
    tables = SuccessRates(table_of(1))
    tables.end_interval(100, max_bytes=1_000)
    tables.end_interval(200, max_bytes=1_000)
    assert [from_ms for from_ms, _ in tables.tables] == [100]


@pytest.mark.parametrize(
    ("learning_interval_ms", "max_bytes"), [(9_000, 1_500), (60_000, 512 << 10)]
)
@pytest.mark.slow
def test_a_successor_continues_with_equal_results_from_any_state(
    monkeypatch, learning_interval_ms, max_bytes
):
    monkeypatch.setattr(leader_module, "MAX_TABLES_BYTES", max_bytes)
    made = rules(learning_interval_ms=learning_interval_ms)
    whole = run(TOOLS, made)
    assert any(each.status == "promoted" for each in releases(whole))
    for place in range(0, len(whole) - 1, len(whole) // 3):
        state = json.loads(json.dumps(whole[place].state))
        successor = OnlineLearner(made, n_tasks=N_TASKS, state=state)
        assert json.dumps(successor.state()) == json.dumps(whole[place].state)
        results = [
            each for batch in interleaved(TOOLS, Random(place)) for each in successor.receive(batch)
        ]
        assert [*results, *successor.end()] == whole[place + 1 :]


@pytest.mark.slow(alone=False)
def test_chunk_size_does_not_change_results(monkeypatch):
    monkeypatch.setattr(leader_module, "_CHUNK", 3)
    assert run(TOOLS, rules()) == all_intervals()


def test_changed_rules_keep_the_table_of_live_weights_and_reset_the_others():
    intervals = next(each for each in all_intervals() if each.state["models"][0]["champions"])
    state = json.loads(json.dumps(intervals.state))
    model_learner = OnlineLearner(
        rules(), n_tasks=N_TASKS, state=state, new_epoch=True
    ).model_learners["m"]
    [champion] = model_learner.experiments.champions
    assert champion.history.successes
    assert model_learner.success_rates == SuccessRates()


def test_a_rollback_restores_its_table():
    leader = OnlineLearner(rules(), n_tasks=N_TASKS)
    batches = list(interleaved(TOOLS, Random(2)))
    for batch in batches[: len(batches) // 2]:
        leader.receive(batch)
    command = Command(1, "roll_back", "as before", (0.0, 1.0, 0.0, 0.0), FEATURE_NAMES, table_of(3))
    leader.accept_command("m", command)
    [back] = [each for each in releases(leader.end()) if each.status == "rolled_back"]
    assert back.history == table_of(3)
    assert leader.model_learners["m"].experiments.champion == Version(
        back.version, back.from_ms, command.weights, FEATURE_NAMES, table_of(3)
    )


# --- limits ---------------------------------------------------------------------------------------


def n_bytes(table):
    text = json.dumps(table.state()["successes"], ensure_ascii=False, separators=(",", ":"))
    return len(text.encode())


def test_a_shortened_table_has_the_names_with_the_most_queries():
    table = SuccessTable(
        {("tool", f"\u00e4{i:03}"): Success(i, 1 + i % 50) for i in range(200)}, over_limit=3
    )
    for most in (0, 100, 1_000, 5_000):
        short = shortened(table, most)
        assert n_bytes(short) <= most + 2  # the brackets
        left = table.successes.keys() - short.successes.keys()
        fewest = min((credit.queries for credit in short.successes.values()), default=50)
        assert all(table.successes[key].queries <= fewest for key in left)
        assert short.over_limit == 3 + sum(table.successes[key].queries for key in left)
    assert len(shortened(table, 1_000).successes) > 20
    assert shortened(table, 1 << 20) is table


def tables_of(state):
    """All tables of a state, in their order."""
    for model in state["models"]:
        kept = model["success_rates"]
        yield from (table for _, table in kept["tables"])
        versions = [*model["champions"], model["challenger"]]
        yield from (version[-1] for version in versions if version is not None)
        yield kept["now"]


@pytest.mark.slow
def test_all_tables_of_a_state_share_one_size_limit(monkeypatch):
    """Three models, each with far more long names than there is room for."""
    most = 40_000
    monkeypatch.setattr(leader_module, "MAX_TABLES_BYTES", most)
    random, queries = Random(5), []
    for query in described_world(graphs, n_queries=700):
        made = [
            replace(graph, type=graph.type + f"{random.randrange(500):03}" + "\u00e4" * 50)
            for graph in query.described.graphs
        ]
        described = replace(query.described, graphs=made)
        queries.append(query._replace(model=f"m-{random.randrange(3)}", described=described))
    intervals = run(queries, rules(learning_interval_ms=20_000, batch_queries=1))
    sizes = [
        sum(n_bytes(SuccessTable.load(table)) for table in tables_of(each.state) if table)
        for each in intervals
    ]
    assert most / 2 < max(sizes) <= most
    assert "challenger" in {release.status for release in releases(intervals)}
    assert intervals[-1].state["models"][0]["success_rates"]["tables"][-1][1]["over_limit"] > 0


def test_graphs_without_a_type_share_one_row_of_the_table():
    query = TOOLS[0]._replace(
        described=Described("graph", "", ("x", "y"), graphs=(Graph(), Graph())),
        candidate_ids=["x", "y"],
        grades={"x": 1.0},
    )
    tables = SuccessRates()
    tables.learn([query], max_grade=2)
    assert tables.now.successes == {("graph", ""): Success(ONE // 2, 1)}
