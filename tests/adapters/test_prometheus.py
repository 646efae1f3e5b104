"""The series that Prometheus reads, as functions of a snapshot."""

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from evaluator.adapters.prometheus import (
    EvaluatorCollector,
    exposition,
    families,
    registry_of,
)
from evaluator.adapters.prometheus.quality import QualitySeries
from evaluator.cli.map import MapperViews
from evaluator.config import Settings
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import OTHER, SERVED
from evaluator.core.types.tally import GroupedTally, Tally
from evaluator.exposition.label_limits import MAX_QUALITY_SERIES, LabelLimits
from evaluator.exposition.series import SPECS
from evaluator.exposition.snapshot import Exemplar, Resources, Snapshot
from evaluator.mapping.mapper import Mapper, Reading
from evaluator.ports import InputHealth
from tests.adapters.synthetic import (
    HOSTILE,
    MEASURES,
    NOW_MS,
    learned,
    ledger,
    one_task,
    quality,
    queries,
    task_view,
)
from tests.repeats import examples

PAIR = ("ranker", "prod")
METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
PROMTOOL = shutil.which("promtool")
FULL = one_task(ledger(4000) | queries([PAIR], settled_each=120) | quality(
    PAIR, SERVED, queries=120, value=0.5
))  # fmt: skip


HEALTH = InputHealth(
    180_120_000,
    retention_ms={"rankings": 604_800_000, "judgments": None},
    outside={("judgments", "beyond"): 1},
    lost={"rankings": 12},
)


def scrape(
    snapshot: Snapshot,
    slots: LabelLimits | None = None,
    *,
    histograms: tuple[str, ...] = (),
    health: InputHealth = HEALTH,
    **more: Any,
) -> list[Metric]:
    how = {"ready": True, "version": "1.2.3", "health": health, **more}
    quality_series = QualitySeries(slots or LabelLimits(), histograms=histograms)
    return list(families(snapshot, quality_series, **how))


def samples(metrics: Iterable[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels; a repeated one fails the test."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for metric in metrics:
        for sample in metric.samples:
            path = (sample.name, frozenset(sample.labels.items()))
            assert path not in found, f"{path} is exported twice"
            found[path] = sample.value
    return found


def value_of(metrics: Iterable[Metric], name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def quality_labels(metrics: Iterable[Metric], name: str) -> list[tuple[str, str, str]]:
    """(model, variant, ranker) of the series of *name*, each once, in the order exported."""
    return list(
        dict.fromkeys(
            (s.labels["model"], s.labels["variant"], s.labels["ranker"])
            for metric in metrics
            for s in metric.samples
            if s.name == name
        )
    )


def text_of(snapshot: Snapshot, accept: str = "") -> str:
    collector = EvaluatorCollector(lambda: snapshot, ready=lambda: True, version="1.2.3")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return exposition(registry, accept)[0].decode()


def test_a_worker_without_tasks_exports_zeros_and_no_unknowns() -> None:
    lines = [line for line in text_of(Snapshot()).splitlines() if not line.startswith("#")]
    assert 'evaluator_messages_total{outcome="started",topic="rankings"} 0.0' in lines
    assert 'evaluator_messages_total{outcome="applied",topic="judgments"} 0.0' in lines
    assert 'evaluator_dead_letters_total{reason="late"} 0.0' in lines
    assert "evaluator_tasks_owned 0.0" in lines
    assert 'evaluator_judgment_delay_seconds_bucket{le="+Inf"} 0.0' in lines
    unknown = ("watermark_timestamp", "consumer_lag", "last_commit", "quality_", "running_value")
    assert not [line for line in lines if line.startswith(tuple(f"evaluator_{u}" for u in unknown))]


def test_two_settled_queries_give_exactly_this_text() -> None:
    three_quarters = 3 * UNITS_PER_ONE // 4  # values 0.5 and 0.25; squares 0.25 and 0.0625
    path = ("ranker", "prod", SERVED, "ndcg@10")
    snapshot = one_task(
        {
            ("settled", *path, "queries"): 2,
            ("settled", *path, "sum_units"): three_quarters,
            ("settled", *path, "square_units"): 5 * UNITS_PER_ONE // 16,
            ("running", *path, "queries"): 3,
            ("running", *path, "sum_units"): 3 * three_quarters,
            ("settled_queries", "ranker", "prod", "yes"): 2,
            ("settled_queries", "ranker", "prod", "no"): 1,
        }
    )
    labels = '{measure="ndcg@10",model="ranker",ranker="served",variant="prod"}'
    shown = [
        line
        for line in text_of(snapshot).splitlines()
        if line.startswith(("evaluator_quality", "evaluator_running", "evaluator_queries_settled"))
    ]
    assert shown == [
        f"evaluator_quality_value_total{labels} 0.75",
        f"evaluator_quality_queries_total{labels} 2.0",
        f"evaluator_quality_value_squares_total{labels} 0.3125",
        f"evaluator_running_value_mean{labels} 0.75",
        'evaluator_queries_settled_total{judged="yes",model="ranker",variant="prod"} 2.0',
        'evaluator_queries_settled_total{judged="silent",model="ranker",variant="prod"} 0.0',
        'evaluator_queries_settled_total{judged="no",model="ranker",variant="prod"} 1.0',
    ]


def test_a_pair_has_its_series_at_zero_as_soon_as_its_first_ranking_is_read() -> None:
    metrics = scrape(one_task(quality(PAIR, SERVED, queries=0, value=0.0)))
    labels = {"model": "ranker", "variant": "prod", "ranker": SERVED, "measure": "top1"}
    assert value_of(metrics, "evaluator_quality_value_total", **labels) == 0.0
    assert value_of(metrics, "evaluator_quality_queries_total", **labels) == 0.0
    assert value_of(metrics, "evaluator_quality_value_squares_total", **labels) == 0.0
    judged = {"model": "ranker", "variant": "prod", "judged": "yes"}
    assert value_of(metrics, "evaluator_queries_settled_total", **judged) == 0.0
    assert value_of(metrics, "evaluator_running_value_mean", **labels) is None  # undefined, not 0


def test_a_pair_known_only_from_restored_state_has_its_series_at_zero() -> None:
    view = task_view(0, quality(PAIR, SERVED, queries=8, value=0.5))
    metrics = scrape(Snapshot((view,), counters=GroupedTally()))
    labels = {"model": "ranker", "variant": "prod", "ranker": SERVED, "measure": "top1"}
    assert value_of(metrics, "evaluator_quality_queries_total", **labels) == 0.0
    assert value_of(metrics, "evaluator_running_value_mean", **labels) == pytest.approx(0.4)


def test_started_rankings_are_the_open_and_expired_ones() -> None:
    snapshot = one_task({("rankings", "open"): 3, ("rankings", "expired"): 4})
    path = {"topic": "rankings", "outcome": "started"}
    assert value_of(scrape(snapshot), "evaluator_messages_total", **path) == 3 + 4


def test_records_that_a_mapping_leaves_out_are_an_outcome_of_both_logs() -> None:
    metrics = scrape(one_task({("judgments", "left_out"): 5}))
    for topic, count in (("judgments", 5), ("rankings", 0)):
        path = {"topic": topic, "outcome": "left_out"}
        assert value_of(metrics, "evaluator_messages_total", **path) == count


def test_an_early_judgment_has_no_outcome_yet() -> None:
    metrics = scrape(one_task({("judgments", "early"): 5}))
    early = {"topic": "judgments", "outcome": "early"}
    assert value_of(metrics, "evaluator_messages_total", **early) is None
    assert value_of(metrics, "evaluator_early_judgments") == 5


def test_the_delay_histogram_is_cumulative_and_in_seconds() -> None:
    counts: Tally = {("delay", "0"): 2, ("delay", "1"): 3, ("delay", "12"): 1}
    metrics = scrape(one_task(counts | {("delay_sum_ms",): 90_500}))
    name = "evaluator_judgment_delay_seconds"
    assert value_of(metrics, f"{name}_bucket", le="1.0") == 2
    assert value_of(metrics, f"{name}_bucket", le="5.0") == 2 + 3
    assert value_of(metrics, f"{name}_bucket", le="86400.0") == 2 + 3
    assert value_of(metrics, f"{name}_bucket", le="+Inf") == 2 + 3 + 1
    assert value_of(metrics, f"{name}_count") == 2 + 3 + 1
    assert value_of(metrics, f"{name}_sum") == 90.5


def test_gauges_exist_per_task_and_only_for_known_values() -> None:
    known = task_view(
        0,
        {},
        positions={"rankings": 10, "judgments": 7},
        end_offsets={"rankings": 15, "judgments": None},
        watermark_ms=1_500,
        n_open=2,
    )
    unknown = task_view(3, {}, watermark_ms=None, n_open=5, restoring=True)
    metrics = scrape(Snapshot((known, unknown)))
    assert value_of(metrics, "evaluator_consumer_lag", topic="rankings", partition="0") == 15 - 10
    assert value_of(metrics, "evaluator_consumer_lag", topic="judgments", partition="0") is None
    assert value_of(metrics, "evaluator_input_position", topic="judgments", partition="0") == 7
    assert value_of(metrics, "evaluator_watermark_timestamp_seconds", task="0") == 1.5
    assert value_of(metrics, "evaluator_watermark_timestamp_seconds", task="3") is None
    assert value_of(metrics, "evaluator_open_queries") == 2 + 5
    assert value_of(metrics, "evaluator_tasks_owned") == 2
    assert value_of(metrics, "evaluator_restoring") == 1


def test_running_means_are_over_all_tasks_together() -> None:
    path = ("running", "ranker", "prod", SERVED, "mrr")
    first: Tally = {(*path, "queries"): 1, (*path, "sum_units"): UNITS_PER_ONE}
    second: Tally = {(*path, "queries"): 3, (*path, "sum_units"): 0}
    metrics = scrape(Snapshot((task_view(0, first), task_view(1, second))))
    labels = {"model": "ranker", "variant": "prod", "ranker": SERVED, "measure": "mrr"}
    assert value_of(metrics, "evaluator_running_value_mean", **labels) == (1 + 0) / (1 + 3)


def spread(**counts: int) -> Snapshot:
    """Four settled values of mrr in these buckets, with a trace behind the lowest one."""
    path = ("ranker", "prod", SERVED, "mrr")
    tally: Tally = {("bucket", *path, bucket.strip("b")): n for bucket, n in counts.items()}
    tally |= {("settled", *path, "queries"): 4, ("settled", *path, "sum_units"): UNITS_PER_ONE}
    return one_task(tally)


def test_a_ranker_that_a_rebuilt_task_has_not_met_has_no_running_mean() -> None:
    kept = QualitySeries(LabelLimits())
    labels = {"model": PAIR[0], "variant": PAIR[1], "ranker": "x", "measure": "mrr"}
    for value in (0.9, None, 0.1):
        tally: Tally = {}
        for ranker in (SERVED,) if value is None else (SERVED, "x"):
            path = ("running", *PAIR, ranker, "mrr")
            units = round(10 * (value or 0.0) * UNITS_PER_ONE)
            tally |= {(*path, "queries"): 10, (*path, "sum_units"): units}
        now = families(Snapshot((task_view(0, tally),)), kept, ready=True, version="1")
        assert value_of(now, "evaluator_running_value_mean", **labels) == pytest.approx(value)


def test_values_are_counted_by_bucket_cumulatively() -> None:
    metrics = scrape(spread(b0=1, b2=2, b10=1), histograms=("mrr",))
    labels = {"model": "ranker", "variant": "prod", "ranker": SERVED, "measure": "mrr"}
    shown = {
        sample.labels["le"]: sample.value
        for metric in metrics
        for sample in metric.samples
        if sample.name == "evaluator_quality_values_bucket"
    }
    lower = {"0.0": 1, "0.1": 1, "0.2": 1 + 2}
    assert shown == lower | {f"0.{n}": 3 for n in range(3, 10)} | {"1.0": 3 + 1, "+Inf": 3 + 1}
    assert value_of(metrics, "evaluator_quality_values_count", **labels) == 4
    assert value_of(metrics, "evaluator_quality_values_sum", **labels) == 1.0


def test_exposures_and_clicks_are_counted_by_position() -> None:
    pair = {"model": "ranker", "variant": "prod"}
    tally: Tally = {
        ("position", "ranker", "prod", name, str(rank)): n * (rank == 2)
        for name, n in (("exposures", 8), ("clicks", 3))
        for rank in range(1, 11)
    }
    assert GroupedTally.of(tally).groups.keys() == {("bucket", "ranker", "prod")}
    metrics = scrape(one_task(tally | quality(PAIR, SERVED, queries=8, value=0.5)))
    assert value_of(metrics, "evaluator_exposures_total", **pair, position="2") == 8
    assert value_of(metrics, "evaluator_clicks_total", **pair, position="2") == 3
    assert value_of(metrics, "evaluator_clicks_total", **pair, position="10") == 0
    assert value_of(metrics, "evaluator_clicks_total", **pair, position="11") is None


def test_values_of_other_measures_have_no_buckets() -> None:
    metrics = scrape(spread(b0=1), histograms=("ndcg@10",))
    assert not [path for path in samples(metrics) if path[0].startswith("evaluator_quality_values")]


@pytest.mark.parametrize(("trace_id", "named"), [("t-81", True), ("t" * 121, False)])
def test_a_low_bucket_names_a_trace_in_openmetrics_only(trace_id: str, named: bool) -> None:
    key = ("bucket", "ranker", "prod", SERVED, "mrr", "1")
    snapshot = replace(spread(b1=4), exemplars={key: Exemplar(trace_id, UNITS_PER_ONE // 16)})
    collector = EvaluatorCollector(
        lambda: snapshot, ready=lambda: True, version="1", histograms=("mrr",)
    )
    registry = registry_of(collector)
    body = exposition(registry, "application/openmetrics-text;version=1.0.0")[0].decode()
    found = [
        (sample.labels["le"], sample.exemplar.labels, sample.exemplar.value)
        for metric in parse_openmetrics(body)
        for sample in metric.samples
        if sample.exemplar
    ]
    assert found == ([("0.1", {"trace_id": trace_id}, 1 / 16)] if named else [])
    assert trace_id not in exposition(registry, "text/plain")[0].decode()


def test_histograms_count_towards_the_same_series_limit() -> None:
    rankers = (SERVED, *(f"scorer{i}" for i in range(8)))
    metrics = scrape(one_task(many_pairs(60, rankers)), histograms=MEASURES)
    n_series = sum(
        len(metric.samples)
        for metric in metrics
        if metric.name.startswith(("evaluator_quality_", "evaluator_running_value"))
    )
    # 2,000 // (5 measures x (4 + 14) series) = 22 blocks, 2 of them reserved: 2 pairs of 9 rankers.
    own = {pair[0] for pair in quality_labels(metrics, "evaluator_quality_value_total")}
    assert own == {"m0", "m1", OTHER}
    assert 1000 < n_series <= MAX_QUALITY_SERIES


def many_pairs(n: int, rankers: tuple[str, ...] = (SERVED,), *, each: int = 1) -> Tally:
    tally: Tally = {}
    for i in range(n):
        for ranker in rankers:
            tally |= quality((f"m{i}", "v"), ranker, queries=each, value=0.5)
        tally["settled_queries", f"m{i}", "v", "yes"] = each
    return tally


def test_the_fifty_first_pair_folds_into_other() -> None:
    metrics = scrape(one_task(many_pairs(53, each=2)))
    shown = quality_labels(metrics, "evaluator_quality_queries_total")
    assert shown == [(f"m{i}", "v", SERVED) for i in range(50)] + [(OTHER, OTHER, SERVED)]
    other = {"model": OTHER, "variant": OTHER}
    folded = value_of(
        metrics, "evaluator_quality_queries_total", **other, ranker=SERVED, measure="mrr"
    )
    assert folded == 3 * 2
    assert value_of(metrics, "evaluator_queries_settled_total", **other, judged="yes") == 3 * 2


def test_the_number_of_quality_series_never_exceeds_the_limit() -> None:
    rankers = (SERVED, *(f"scorer{i}" for i in range(8)))
    metrics = scrape(one_task(many_pairs(60, rankers)))
    n_series = sum(
        len(metric.samples)
        for metric in metrics
        if metric.name.startswith(("evaluator_quality_", "evaluator_running_value"))
    )
    assert n_series <= MAX_QUALITY_SERIES
    # 2,000 / (4 series x 5 measures) = 100 blocks, 2 of them reserved: 10 pairs of 9 rankers.
    own = {pair[0] for pair in quality_labels(metrics, "evaluator_quality_value_total")}
    assert own == {f"m{i}" for i in range(10)} | {OTHER}


def test_folding_loses_no_query() -> None:
    rankers = (SERVED, *(f"scorer{i}" for i in range(8)))
    metrics = scrape(one_task(many_pairs(60, rankers, each=7)))
    total = sum(
        sample.value
        for metric in metrics
        for sample in metric.samples
        if sample.name == "evaluator_quality_queries_total"
    )
    assert total == 60 * 9 * len(MEASURES) * 7


def test_series_of_many_scorer_names_are_bounded_too() -> None:
    tally = quality(PAIR, SERVED, queries=1, value=0.5)
    slots = LabelLimits()
    scrape(one_task(tally), slots)
    for i in range(300):
        tally |= quality(PAIR, f"scorer{i}", queries=1, value=0.5)
    metrics = scrape(one_task(tally), slots)
    labels = quality_labels(metrics, "evaluator_quality_value_total")
    assert len(labels) * 4 * len(MEASURES) <= MAX_QUALITY_SERIES
    assert labels[0] == (*PAIR, SERVED)
    assert labels[-1] == (OTHER, OTHER, OTHER)


def test_a_pair_keeps_its_series_when_a_larger_pair_appears_later() -> None:
    slots = LabelLimits(max_pairs=1)
    scrape(one_task(quality(("late", ""), SERVED, queries=1, value=0.5)), slots)
    both = quality(("a-new-one", ""), SERVED, queries=4, value=0.5)
    both |= quality(("late", ""), SERVED, queries=1, value=0.5)
    labels = quality_labels(scrape(one_task(both), slots), "evaluator_quality_queries_total")
    assert set(labels) == {("late", "", SERVED), (OTHER, OTHER, SERVED)}


def test_counters_stay_and_gauges_disappear_when_a_task_is_revoked() -> None:
    slots = LabelLimits()
    before = samples(scrape(FULL, slots))
    gone = Snapshot((), FULL.counters, process_counts=FULL.process_counts)
    after = samples(scrape(gone, slots))
    counters = {path: value for path, value in before.items() if path[0].endswith("_total")}
    assert counters
    assert {path: after.get(path) for path in counters} == counters
    assert not [path for path in after if path[0] == "evaluator_running_value_mean"]


def test_series_of_a_pair_stay_at_zero_if_its_task_is_revoked_before_settling() -> None:
    kept = QualitySeries(LabelLimits(), histograms=("top1",))
    view = task_view(0, quality(PAIR, SERVED, queries=8, value=0.5))
    before, after = (
        samples(families(Snapshot(views, GroupedTally()), kept, ready=True, version="1.2.3"))
        for views in ((view,), ())
    )
    endings = ("_total", "_bucket", "_count", "_sum")
    counters = {path: n for path, n in before.items() if path[0].endswith(endings)}
    assert ("evaluator_queries_settled_total", frozenset(_judged("no"))) in counters
    assert {path: after.get(path) for path in counters} == counters


def _judged(answer: str) -> Iterable[tuple[str, str]]:
    return {"model": PAIR[0], "variant": PAIR[1], "judged": answer}.items()


names = st.sampled_from(["a", "b", "c", OTHER])
growth = st.lists(
    st.tuples(names, names, st.sampled_from([SERVED, "x", "y", OTHER]), st.integers(0, 5)),
    max_size=8,
)


@pytest.mark.slow(alone=False)
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(growth, max_size=6), st.data())
def test_counters_never_decrease_or_change_labels_and_scrapes_add_up(
    steps: list[list[tuple[str, str, str, int]]], data: st.DataObject
) -> None:
    slots = LabelLimits(max_pairs=3, max_series=6 * 4 * 2)  # six blocks of two measures
    kept = QualitySeries(LabelLimits(max_pairs=3, max_series=6 * 4 * 2))
    counters: Tally = {}
    before: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for step in steps:
        for model, variant, ranker, n in step:
            part = quality((model, variant), ranker, queries=n, value=0.5, measures=("mrr", "map"))
            part["settled_queries", model, variant, "yes"] = n
            add_tally(counters, part)
        shown = {key: value for key, value in counters.items() if value or data.draw(st.booleans())}
        view = task_view(0, counters if data.draw(st.booleans()) else {})
        snapshot = Snapshot((view,), GroupedTally.of(shown))
        now = samples(scrape(snapshot, slots))
        same = samples(families(snapshot, kept, ready=True, version="1.2.3", health=HEALTH))
        assert {path: n for path, n in same.items() if n} == {
            path: n for path, n in now.items() if n
        }
        totals = {path: value for path, value in now.items() if path[0].endswith("_total")}
        assert all(totals.get(path, -1.0) >= value for path, value in before.items() if value)
        totals = {path: value for path, value in same.items() if path[0].endswith("_total")}
        assert all(totals.get(path, -1.0) >= value for path, value in before.items())
        before = totals


def test_the_health_of_the_inputs_is_exported_as_far_as_it_is_known() -> None:
    found = scrape(FULL)
    assert value_of(found, "evaluator_input_retention_seconds", topic="rankings") == 604_800
    assert value_of(found, "evaluator_input_retention_seconds", topic="judgments") == math.inf
    assert value_of(found, "evaluator_input_retention_needed_seconds") == 180_120
    outside = "evaluator_input_positions_outside_total"
    assert value_of(found, outside, topic="judgments", side="beyond") == 1
    assert value_of(found, outside, topic="judgments", side="before") == 0
    assert value_of(found, "evaluator_input_records_lost_total", topic="rankings") == 12
    unknown = scrape(FULL, health=InputHealth(1_500))
    assert value_of(unknown, "evaluator_input_retention_seconds", topic="rankings") is None
    assert value_of(unknown, "evaluator_input_retention_needed_seconds") == 1.5
    assert value_of(unknown, "evaluator_input_records_lost_total", topic="rankings") == 0


def test_a_collector_reads_the_health_at_every_scrape() -> None:
    lost = {"rankings": 0}
    collector = EvaluatorCollector(
        lambda: FULL,
        ready=lambda: True,
        version="1",
        health=lambda: InputHealth(1, lost=dict(lost)),
    )
    for lost["rankings"] in (0, 7):
        found = value_of(
            collector.collect(), "evaluator_input_records_lost_total", topic="rankings"
        )
        assert found == lost["rankings"]


def test_hostile_names_survive_a_round_trip_in_both_formats() -> None:
    hostile = (HOSTILE, '\\n{}=",\t\r', "\U0001f600", "")
    tally: Tally = {}
    for name in hostile:
        tally |= quality((name, name), SERVED, queries=1, value=0.5)
    expected = {(name, name, SERVED) for name in hostile}
    for accept, parse in (("", parse_text), ("application/openmetrics-text", parse_openmetrics)):
        parsed = list(parse(text_of(one_task(tally), accept)))
        assert set(quality_labels(parsed, "evaluator_quality_value_total")) == expected


def test_characters_that_scrapers_cannot_read_are_replaced() -> None:
    tally = quality(("nul\0model", "lone\ud800"), SERVED, queries=1, value=0.5)
    labels = quality_labels(scrape(one_task(tally)), "evaluator_quality_value_total")
    assert labels == [("nul\ufffdmodel", "lone?", SERVED)]


def test_openmetrics_is_served_on_request_and_without_created_series() -> None:
    registry = registry_of(EvaluatorCollector(lambda: FULL, ready=lambda: True, version="1"))
    body, content_type = exposition(registry, "application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert b"evaluator_messages_created" not in body
    plain, content_type = exposition(registry, "text/plain;version=0.0.4")
    assert content_type.startswith("text/plain")
    assert b"_created" not in plain
    assert b"process_cpu_seconds_total" in plain
    assert b"python_info" in plain


def promtool(*arguments: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
    """Exit code, output and errors of promtool."""
    assert PROMTOOL is not None, "promtool is missing; `make system` installs it"
    done = subprocess.run(
        [PROMTOOL, *arguments], input=given, capture_output=True, timeout=300, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.promtool
def test_promtool_reports_no_problem() -> None:
    collector = EvaluatorCollector(lambda: FULL, ready=lambda: True, version="1", leader=learned)
    registry = registry_of(collector)
    text = generate_latest(registry)
    # The number of weeks is a count and no duration, and its name must not change.
    counted = text.replace(b"evaluator_alarm_reference_weeks", b"evaluator_alarm_reference_length")
    assert counted != text
    assert promtool("check", "metrics", given=counted) == (0, b"", b"")


@pytest.mark.promtool
def test_every_example_of_the_documentation_is_promql(tmp_path: Path) -> None:
    page = METRICS_PAGE.read_text("utf-8")
    rows = [line.split(" | ")[-1] for line in page.splitlines() if line.startswith("| `evaluator_")]
    examples = [match[1] for row in rows if (match := re.match(r"`(.+?)`", row))]
    examples += re.findall(r"```promql\n(.*?)```", page, re.DOTALL)
    assert len(examples) == len(SPECS)  # one metric points to the block at the end
    rules = [{"record": f"example:{i}", "expr": text} for i, text in enumerate(examples)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "examples", "rules": rules}]}))
    code, output, errors = promtool("check", "rules", str(file))
    assert (code, errors) == (0, b"")
    assert f"{len(examples)} rules found".encode() in output


def mapper_metrics():
    """The metrics that only `evaluator map` has."""
    source, settings_of = SimpleNamespace(known_end=lambda _: 9), SimpleNamespace(topic_names={})
    mapper = Mapper(source, None, {}, settings_of)
    mapper.readings["rankings", 0] = Reading((5, 70_000), (5, 70_000))
    mapper.counts["rankings", "mapped"] = 3
    mapper.n_written["rankings"] = 4
    views = MapperViews(mapper, Settings(), lost={"rankings": 7}, sink=SimpleNamespace(refused=2))
    shown = {metric.name: metric for metric in views.registry.collect()}
    clock = shown["evaluator_map_clock_timestamp_seconds"].samples[0]
    assert (clock.value, clock.labels) == (70.0, {"topic": "rankings", "partition": "0"})
    assert shown["evaluator_map_lag"].samples[0].value == 9 - 5
    assert [each.value for each in shown["evaluator_input_records_lost"].samples] == [7, 0]
    (letters,) = shown["evaluator_dead_letters"].samples
    assert (letters.labels, letters.value) == ({"reason": "oversize_output"}, 2)
    assert {"evaluator_consumer_lag", "evaluator_input_position"}.isdisjoint(shown)  # of tasks
    assert shown["evaluator_ready"].samples[0].value == 0
    return [metric for name, metric in shown.items() if name.startswith("evaluator_map_")]


def test_exported_series_equal_their_specifications() -> None:
    of_level: Tally = {
        ("segment_settled", *PAIR, "locale", "de", SERVED, "mrr", "queries"): 1,
        ("segment_settled_queries", *PAIR, "locale", "de", "yes"): 1,
        ("position", *PAIR, "exposures", "1"): 2,
        ("position", *PAIR, "clicks", "1"): 1,
    }
    full = replace(FULL, counters=GroupedTally.of({**FULL.counters, **of_level}))
    shown = scrape(
        full, histograms=("mrr",), leader=learned(), resources=Resources(1, 2, 3), links=("a", "b")
    )
    exported = {metric.name: metric for metric in (*shown, *mapper_metrics())}
    for spec in SPECS.values():
        metric = exported.pop(spec.name.removesuffix("_total"))
        assert (metric.type, metric.documentation) == (spec.kind, spec.meaning)
        labels = {frozenset(sample.labels) - {"le"} for sample in metric.samples}
        assert labels == {frozenset(spec.labels)}, spec.name
    assert not exported


def test_exactly_the_exported_metrics_are_documented() -> None:
    page = METRICS_PAGE.read_text("utf-8")
    rows = re.findall(r"^\| `(evaluator_\w+)` \| (\w+) \| ([^|]*) \|", page, re.MULTILINE)
    documented = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows
    ]
    assert documented == [(spec.name, spec.kind, spec.labels) for spec in SPECS.values()]


def test_timestamps_in_seconds_are_counted_by_topic():
    counters = {("timestamps_in_seconds", "judgments"): 7}
    shown = scrape(replace(one_task(ledger(40)), counters=GroupedTally.of(counters)))
    name = "evaluator_timestamps_in_seconds_total"
    assert value_of(shown, name, topic="judgments") == 7
    assert value_of(shown, name, topic="rankings") == 0


def test_the_clock_of_a_log_is_compared_with_that_of_the_broker():
    """At the commit the machine had NOW_MS, 90 s ahead, so the broker NOW_MS - 90 s."""
    clocks_ms = {"rankings": NOW_MS + 10_000, "judgments": NOW_MS - 90_001}
    shown = scrape(replace(one_task(ledger(40), clocks_ms=clocks_ms), skew_ms=90_000))
    ahead = "evaluator_input_clock_ahead_seconds"
    assert value_of(shown, "evaluator_clock_skew_seconds") == 90
    assert value_of(shown, ahead, topic="rankings", partition="0") == 10 + 90
    assert value_of(shown, ahead, topic="judgments", partition="0") == 0
    unknown = scrape(replace(one_task(ledger(40), clocks_ms=clocks_ms), skew_ms=None))
    assert value_of(unknown, "evaluator_clock_skew_seconds") is None
    assert value_of(unknown, ahead, topic="rankings", partition="0") == 10


# Durable state


def test_every_owned_task_has_its_series_of_state_from_the_start():
    views = (task_view(0, {}), task_view(3, {}, checkpoint_ms=None, checkpoint_bytes=0))
    counts = {("quarantined_stores", task): 0 for task in ("0", "3")}
    found = scrape(Snapshot(views, process_counts=counts))
    for name, values in {
        "evaluator_state_bytes": (4096, 4096),
        "evaluator_memory_tier_bytes": (1 << 20, 1 << 20),
        "evaluator_checkpoint_bytes": (900, 0),
        "evaluator_restore_left": (0, 0),
        "evaluator_quarantined_stores_total": (0, 0),
    }.items():
        assert tuple(value_of(found, name, task=task) for task in ("0", "3")) == values, name
    at = "evaluator_checkpoint_timestamp_seconds"
    assert value_of(found, at, task="0") == views[0].checkpoint_ms / 1000
    assert value_of(found, at, task="3") is None
    for outcome in ("committed", "refused"):
        assert value_of(found, "evaluator_commits_total", outcome=outcome) == 0
    assert value_of(found, "evaluator_rebalances_total") == 0


def test_events_of_the_process_are_counted():
    counts = {
        ("rebalances",): 3,
        ("commits", "committed"): 20,
        ("commits", "refused"): 1,
        ("quarantined_stores", "0"): 0,
        ("quarantined_stores", "7"): 2,
    }
    found = scrape(Snapshot((task_view(0, {}),), process_counts=counts))
    assert value_of(found, "evaluator_rebalances_total") == 3
    assert value_of(found, "evaluator_commits_total", outcome="committed") == 20
    assert value_of(found, "evaluator_commits_total", outcome="refused") == 1
    assert value_of(found, "evaluator_quarantined_stores_total", task="0") == 0
    assert value_of(found, "evaluator_quarantined_stores_total", task="7") == 2


def test_links_are_exported_if_one_of_them_is_set():
    for links, expected in (
        (("", ""), []),
        (("https://d.example", ""), [{"runbooks": "https://d.example", "dashboards": ""}]),
    ):
        collector = EvaluatorCollector(lambda: FULL, ready=lambda: True, version="1", links=links)
        found = [each for each in collector.collect() if each.name == "evaluator_links_info"]
        assert [sample.labels for each in found for sample in each.samples] == expected


@pytest.mark.parametrize("version", ['"1.0.0"', "abc", "1..0", "9" * 5_000])
def test_a_version_that_is_no_number_is_answered_with_the_text_format(version: str) -> None:
    accept = f"application/openmetrics-text; version={version}"
    assert exposition(CollectorRegistry(), accept)[1].startswith("text/plain; version=0.0.4")
