"""Two variants of a model: their comparison, the end of the alarm, and any order of reading."""

from math import sqrt
from zlib import crc32

import pytest
from msgspec.structs import replace

from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.series import NothingToDoError
from evaluator.core.alarms.ticks import HOUR_MS, TICK_MS
from evaluator.core.alarms.variants import VariantsSeries
from evaluator.core.measures import MeasureSet
from evaluator.core.online.alarm_watch import AlarmWatch, WatchResult
from evaluator.core.online.watched import COVERAGE, AlarmCommand, SeriesName
from evaluator.core.online.watched_queries import WatchedQueries
from evaluator.replay.alarms import AlarmReplay
from evaluator.replay.results import ResultDirectory
from evaluator.wire.alarms.records import event_record
from evaluator.wire.alarms.state import AlarmState
from tests.core.alarms.settled import (
    N_TASKS,
    RULES,
    START_MS,
    batches,
    receive,
    settled_world,
)
from tests.core.alarms.worlds import FIRST, ONE, add
from tests.repeats import sized

WORSE_HOUR, HOURS = 30, 80
WATCHED = replace(RULES, levels=(), pairs=(), objectives=(), variants=(("canary", "prod"),))
NAME = SeriesName("m", "canary-prod", "served", "ndcg@10", "", "", "variants")
ALONE = AlarmRules(max_series=1)


def feed(series, hours, first, second, n=100, n_second=400):
    """Adds queries of both variants to each hour, half of them 0.1 higher; returns the events."""
    events = []
    for hour in hours:
        for sums, value, count in ((series.hourly, first, n), (series.other, second, n_second)):
            of_hour = value(hour) if callable(value) else value
            if of_hour is not None:
                add(sums, of_hour, count)
        event = series.tick((hour + 1) * HOUR_MS)
        events += [] if event is None else [event]
    return events


def test_a_worse_variant_is_found_in_its_first_hours_with_its_figures():
    series = VariantsSeries(ALONE)
    (event,) = feed(series, [FIRST], 0.4, 0.5)
    alarm = event.alarm
    assert (event.name, alarm.window_hours, alarm.queries) == ("on", 1, 100)
    assert alarm.onset_ms == FIRST * HOUR_MS
    assert (alarm.drop, alarm.observed) == pytest.approx((0.1, -0.1))
    assert alarm.expected == 0.0
    # 0.05 on either side of both means: a variance of 0.0025, times 1.2; values are in 2^-20
    se = sqrt(1.2 * 0.0025 * (1 / 100 + 1 / 400) + 0.003**2)
    assert alarm.se == pytest.approx(se, rel=1e-5)
    assert alarm.evidence == pytest.approx(0.1 / (3 * 0.5 / 100), rel=1e-5)  # three lost queries


def test_an_hourly_pattern_is_no_difference_even_if_the_share_changes():
    series = VariantsSeries(ALONE)
    level = {hour: 0.7 - 0.05 * (hour % 9) for hour in range(FIRST, FIRST + 72)}
    for hour in level:
        n = 10 + 4 * (hour - FIRST)
        assert not feed(series, [hour], level.get, level.get, n=n, n_second=400 - n)
        assert all(abs(look.change) < 1e-9 for look in series.looks)
    assert [look.hours for look in series.looks] == [1, 6, 24, 168]


def test_too_few_queries_of_either_variant_are_not_compared():
    for n, n_second in ((99, 400), (400, 99)):
        assert not feed(VariantsSeries(ALONE), [FIRST], 0.1, 0.9, n=n, n_second=n_second)
    assert feed(VariantsSeries(ALONE), [FIRST], 0.1, 0.9, n=100, n_second=100)
    series = VariantsSeries(ALONE)
    feed(series, range(FIRST, FIRST + 9), 0.5, None)
    feed(series, range(FIRST + 9, FIRST + 19), None, 0.5)
    assert series.looks == []  # of no hour there are both


@pytest.mark.slow(alone=False)
def test_an_alarm_ends_after_a_day_without_a_variant_or_when_the_first_recovers():
    for later, second, ends in ((None, 0.5, 24), (0.5, None, 24), (0.5, 0.5, 24 + 15)):
        series = VariantsSeries(ALONE)
        assert feed(series, range(FIRST, FIRST + 24), 0.5, 0.5) == []
        assert len(feed(series, range(FIRST + 24, FIRST + 48), 0.3, 0.5)) == 1
        after = range(FIRST + 48, FIRST + 48 + 30)
        (event,) = feed(series, after, later, second)
        assert event.name == "off"
        hour = event.time_ms // HOUR_MS - 1
        assert hour - (FIRST + 48) < ends
        assert FIRST + 23 not in series.exclusions
        assert all(each in series.exclusions for each in range(FIRST + 24, hour + 1))
        # another first variant is not compared with the hours of the bad one
        assert feed(series, range(after.stop, after.stop + 24), 0.5, 0.5) == []


def test_there_is_no_level_to_accept():
    series = VariantsSeries(ALONE)
    feed(series, [FIRST], 0.4, 0.5)
    with pytest.raises(NothingToDoError, match="not compared with its past"):
        series.accept(FIRST * HOUR_MS)
    assert series.acknowledge(0).alarm.acknowledged


# In the watch


@pytest.fixture(scope="module")
def world():
    """A third of the queries is of the canary, from its hour 3 on; later it is worse."""
    made = []
    for query in settled_world(1, hours=HOURS, per_hour=60, drop_hour=HOURS):
        hour = (query.event_time_ms - START_MS) // HOUR_MS
        if hour < 3 or crc32(query.node_id.encode()) % 3:
            made.append(query)
            continue
        drop = round(0.2 * ONE) if hour >= WORSE_HOUR else 0
        units = {
            ranker: {name: value - drop for name, value in of.items()}
            for ranker, of in query.units.items()
        }
        made.append(query._replace(variant="canary", units=units))
    return made


def watched(stream, rules=WATCHED):
    watch, result = AlarmWatch(rules, n_tasks=N_TASKS), WatchResult()
    for batch in stream:
        receive(watch, batch, result)
    return watch, result.events


@pytest.fixture(scope="module")
def in_order(world):
    """The watch that has read the world, and its events; tests only read them."""
    return watched(batches(world, 0))


@pytest.mark.slow(alone=False)
def test_the_worse_variant_is_named_in_any_order_of_reading(world, in_order):
    watch, events = in_order
    (on,) = [event for event in events if event.name == "on"]
    assert on.series == NAME
    assert on.alarm.onset_ms == START_MS + WORSE_HOUR * HOUR_MS
    assert on.alarm.drop == pytest.approx(0.2, abs=0.05)
    assert {name.kind for name in watch.series} == {"own", "variants"}
    assert len([name for name in watch.series if name.kind == "variants"]) == 1
    one = watch.series[NAME].days()
    for seed in range(1, sized(3, quick=2)):
        again, more = watched(batches(world, seed, most=40))
        assert more == events
        assert again.series[NAME].days() == one


@pytest.mark.slow(alone=False)
def test_a_replay_has_the_same_events(world, in_order, tmp_path):
    _, events = in_order
    replay = AlarmReplay(WATCHED, MeasureSet.parse(["ndcg@10"]))
    with ResultDirectory(tmp_path / "out", force=False) as results:
        for task in range(N_TASKS):
            mine = [query for query in world if query.task == task]
            for first in range(0, len(mine), 300):
                some = mine[first : first + 300]
                replay.add(results, WatchedQueries.of_settled(some, WATCHED.columns()))
            replay.end_task(results, world[-1].settled_time_ms + 1)
        assert list(replay.lines(results, ends=False)) == [event_record(of).value for of in events]


@pytest.mark.slow(alone=False)
def test_a_series_begins_with_the_tick_after_the_first_query_of_its_first_variant(world, in_order):
    prod = [query for query in world if query.variant == "prod"]
    watch, _ = watched(batches(prod, 0))
    assert NAME not in watch.series
    canary = next(query for query in world if query.variant == "canary")
    watch, _ = in_order
    (first, *_) = watch.series[NAME].days().values()
    assert int(min(first, key=int)) == canary.event_time_ms // HOUR_MS % 24
    hour_ms = START_MS + 100 * HOUR_MS
    watch, result = AlarmWatch(WATCHED, n_tasks=N_TASKS), WatchResult()
    at_ms = canary.event_time_ms // TICK_MS * TICK_MS + TICK_MS
    watch.command(AlarmCommand("x", "exclude", {}, hour_ms, hour_ms + HOUR_MS, at_ms))
    for batch in batches(world, 0):
        receive(watch, batch, result)
    assert all(hour_ms // HOUR_MS in of.exclusions for of in watch.series.values())
    rules = replace(WATCHED, alarms=AlarmRules(max_series=2))
    watch, _ = watched(batches(world, 0), rules)
    assert NAME not in watch.series
    assert NAME._asdict() in [SeriesName(*name)._asdict() for name in watch.state()["left_out"]]


@pytest.mark.slow(alone=False)
def test_both_sums_are_stored_and_continued(world, in_order):
    half = [query for query in world if query.event_time_ms < START_MS + 26 * HOUR_MS]
    watch, _ = watched(batches(half, 0))
    state = AlarmState("rules", "workers")
    for record in state.written(watch):
        state.keep(record.key, record.value)
    fresh = AlarmWatch(WATCHED, n_tasks=N_TASKS)
    assert AlarmState("rules", "workers", dict(state.records)).load(fresh) == ""
    assert fresh.series[NAME].days() == watch.series[NAME].days()
    assert {part.rpartition("-")[0] for part in fresh.series[NAME].days()} == {"", "other"}
    result = WatchResult()
    for batch in batches(world, 3):
        receive(fresh, batch, result)
    assert result.events == in_order[1]


@pytest.mark.slow(alone=False)
def test_a_coverage_alarm_of_either_variant_makes_the_comparison_unverifiable(world):
    watch, _ = watched(batches(world, 0))
    share = SeriesName("m", "canary", "", COVERAGE, "", "", "own")
    assert watch._unverifiable(NAME) == ""
    watch.series[share].alarm = watch.series[NAME].alarm
    assert watch._unverifiable(NAME) == COVERAGE
    assert watch._unverifiable(share) == ""


def test_a_lost_query_of_a_canary_whose_values_are_nearly_always_1_is_chance():
    series = VariantsSeries(ALONE)
    for hour in range(FIRST, FIRST + 100):
        values = [0 if hour == FIRST + 50 and not number else ONE for number in range(36)]
        series.hourly.open.add(range(36), [1] * 36, values)
        series.other.open.add(range(325), [1] * 325, [ONE] * 325)
        assert series.tick((hour + 1) * HOUR_MS) is None
