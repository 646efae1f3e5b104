"""The series that alarms watch, from settings: each series once."""

import pytest

from evaluator.cli.leader import watch_rules_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.alarms.sums import HourlySums, Sums, units_of
from evaluator.core.alarms.ticks import TICK_MS
from evaluator.core.online.alarm_watch import AlarmWatch
from evaluator.core.online.watched import SeriesName
from evaluator.core.online.watched_queries import TickSums, WatchedQueries
from evaluator.replay.alarms import sort_ticks, tick_rows
from evaluator.replay.results import ResultDirectory
from tests.core.alarms.settled import settled_world
from tests.core.alarms.worlds import FIRST, feed


def test_an_objective_with_two_spellings_is_one_series():
    made = Settings(
        measures=("top1", "hit@1"),
        alarm_measures=("top1", "hit@1"),
        alarm_objectives=(("top1", 0.3), ("hit@1", 0.4)),
    )
    templates = watch_rules_of(made, measure_set(made)).templates()
    assert len(templates) == len(set(templates)) == 3
    assert [of.kind for of in templates] == ["own", "constant", "own"]


def test_values_of_measures_with_a_series_are_read():
    made = Settings(
        measures=("top1", "hit@1", "mrr", "map@10"),
        alarm_measures=("hit@1",),
        alarm_objectives=(("mrr", 0.3),),
    )
    measures = measure_set(made)
    assert watch_rules_of(made, measures).watched(measures) == {
        **dict.fromkeys(("top1", "hit@1"), "top1"),
        "mrr": "mrr",
    }


@pytest.mark.slow(alone=False)
def test_weighted_clicks_are_not_bounded():
    made = Settings(
        measures=("mrr", "ips_dcg@10"),
        alarm_measures=("mrr", "ips_dcg@10"),
        implicit_sources=("click",),
    )
    rules = watch_rules_of(made, measure_set(made))
    assert rules.unbounded == {"ips_dcg@10"}
    watch = AlarmWatch(rules, n_tasks=1)
    for measure, skewed in (("mrr", True), ("ips_dcg@10", False)):
        series = watch.new_series(SeriesName("m", "", "served", measure, "", "", "own"))
        feed(series, range(FIRST, FIRST + 3 * 168), 0.9)
        limits = [look.threshold > rules.alarms.thresholds[look.hours] for look in series.looks]
        assert limits == [skewed] * 4


def test_sums_of_weighted_clicks_may_exceed_64_bits(tmp_path):
    made = Settings(
        measures=("ips_dcg@10",), alarm_measures=("ips_dcg@10",), implicit_sources=("click",)
    )
    rules = watch_rules_of(made, measure_set(made))
    sums = TickSums(rules)
    heavy = {"served": {"ips_dcg@10": 1 << 60}}
    (query, *_) = settled_world(1, per_hour=1, hours=1)
    for n in (1, 19):
        queries = [query._replace(units=heavy)] * n
        sums.add(WatchedQueries.of_settled(queries, rules.columns()))
    with ResultDirectory(tmp_path / "out", force=False) as results:
        sort_ticks(results, sums)
        found = {labels[-1]: units for _, labels, units in tick_rows(results)}
    (unit,) = units_of([query.trace_id]).tolist()
    assert [of.tolist() for of in found[0].total()] == [[unit], [20], [20 << 60]]
    hourly = HourlySums()
    hourly.open.add_all(found[0])
    hourly.close(0)
    v = 20 << 40
    assert hourly.of(0) == Sums(20, 20 << 60, v * v, v * 20, 400)


def test_each_tick_and_variant_has_its_own_sums_however_far_apart_the_ticks_are():
    made = Settings(measures=("mrr",), alarm_measures=("mrr",))
    rules = watch_rules_of(made, measure_set(made))
    (query, *_) = settled_world(1, per_hour=1, hours=1)
    queries = [
        query._replace(event_time_ms=tick * TICK_MS, variant=f"v{n}", units={"served": {"mrr": n}})
        for tick in (0, 1, (1 << 63) // TICK_MS - 1)
        for n in range(40)
    ]
    sums = TickSums(rules)
    sums.add(WatchedQueries.of_settled(queries, rules.columns()))
    found = {
        (tick_ms, labels[1]): units.total()[2].tolist()
        for tick_ms, _, labels, units in sums.pop()
        if rules.templates()[labels[2]].measure == "mrr"
    }
    assert found == {
        (query.event_time_ms, query.variant): [query.units["served"]["mrr"]] for query in queries
    }
