"""Windows, the latch, the onset and operator commands, on series with known figures."""

import json
from math import sqrt

import numpy as np
import pytest
from msgspec.structs import replace

from evaluator.core.alarms.exclusions import MAX_RANGES
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.series import AlarmSeries, NothingToDoError
from evaluator.core.alarms.sums import KEPT_HOURS
from evaluator.core.alarms.ticks import HOUR_MS, TICK_MS
from evaluator.core.alarms.variants import VariantsSeries
from tests.core.alarms.worlds import FIRST, add, feed, watched


def test_nothing_is_expected_before_two_weeks():
    series = AlarmSeries("own", AlarmRules())
    assert not feed(series, range(FIRST, FIRST + 168), 0.5)
    assert not feed(series, range(FIRST + 168, FIRST + 335), 0.1)
    assert series.reference is None
    assert series.evidence == 0.0


@pytest.mark.parametrize(("day", "weeks"), [(0, 2), (2, 2), (3, 3), (6, 3)])
def test_a_series_without_a_reference_has_the_monday_of_the_first(day, weeks):
    series = AlarmSeries("own", AlarmRules())
    assert series.reference_from_ms is None  # no query yet
    begin = FIRST + 24 * day
    feed(series, range(begin, begin + 1), 0.5)
    expected = series.reference_from_ms
    assert expected == (FIRST + 168 * weeks) * HOUR_MS
    feed(series, range(begin + 1, expected // HOUR_MS), 0.5)
    assert series.reference is None
    feed(series, range(expected // HOUR_MS, expected // HOUR_MS + 1), 0.5)
    assert series.reference is not None
    assert series.reference_from_ms is None
    assert AlarmSeries("constant", AlarmRules(), constant=0.3).reference_from_ms is None


def test_a_drop_is_latched_with_its_figures():
    series, now = watched(value=0.5)
    (event,) = feed(series, range(now, now + 1), 0.4)
    alarm = event.alarm
    assert (event.name, event.time_ms, alarm.since_ms) == ("on", (now + 1) * HOUR_MS, event.time_ms)
    assert alarm.onset_ms == now * HOUR_MS
    assert (alarm.window_hours, alarm.queries) == (1, 100)
    assert (alarm.drop, alarm.observed, alarm.expected) == pytest.approx((0.1, 0.4, 0.5), abs=1e-6)
    # 0.05 on either side of the mean: a variance of 0.0025; the spread is its floor
    assert alarm.se == pytest.approx(sqrt(0.0025 / 100 + 0.003**2), rel=1e-3)
    z = AlarmRules(max_series=1).thresholds[1]
    assert alarm.evidence == pytest.approx(min(0.1 / alarm.se / z, 0.1 / 0.01), rel=1e-6)


def test_a_drop_below_the_tolerance_is_no_alarm():
    series, now = watched()
    assert not feed(series, range(now, now + 48), 0.4905)
    assert 0.9 < series.evidence < 1


def test_the_onset_is_the_hour_in_which_values_fell():
    series, now = watched()
    (event,) = feed(series, range(now, now + 30), lambda hour: 0.5 if hour < now + 9 else 0.487)
    assert event.alarm.onset_ms == (now + 9) * HOUR_MS
    assert event.alarm.window_hours in (6, 24)


def test_hours_without_queries_before_the_fall_belong_to_the_onset():
    series, now = watched()
    assert not feed(series, range(now, now + 5), None)
    (event,) = feed(series, range(now + 5, now + 6), 0.4)
    assert event.alarm.onset_ms == now * HOUR_MS


@pytest.mark.slow
def test_a_drop_of_four_weeks_is_one_alarm_that_ends_within_a_day():
    series, now = watched()
    assert [of.name for of in feed(series, range(now, now + 672), 0.45)] == ["on"]
    events = feed(series, range(now + 672, now + 672 + 168), 0.5)
    assert [event.name for event in events] == ["off"]
    hours = events[0].time_ms // HOUR_MS - now - 672
    assert 12 <= hours <= 18


def test_no_reference_is_made_while_an_alarm_is_on():
    series, now = watched()
    feed(series, range(now, now + 24), 0.45)
    reference = series.reference
    feed(series, range(now + 24, now + 400), 0.45)
    assert series.reference is reference


@pytest.mark.slow
def test_hours_of_an_alarm_are_in_no_reference():
    series, now = watched(weeks=2)
    events = feed(series, range(now, now + 48), 0.3)
    events += feed(series, range(now + 48, now + 5 * 168), 0.5)
    assert [event.name for event in events] == ["on", "off"]
    assert series.reference.mean == pytest.approx(0.5, abs=1e-4)
    assert len(series.reference.weeks) == 4


def test_a_window_of_one_busy_hour_is_not_used():
    series, now = watched()
    assert not feed(series, range(now, now + 12), None)
    feed(series, range(now + 12, now + 13), 0.5)
    # 13 hours of the last 24 have queries, and all 156 others of the week
    assert [look.hours for look in series.looks] == [1, 6, 24, 168]
    feed(series, range(now + 13, now + 36), None)
    feed(series, range(now + 36, now + 37), 0.5, n=400)
    assert [look.hours for look in series.looks] == [1, 6, 168]


def test_a_window_needs_a_standard_error_of_six_hundredths():
    series, now = watched()
    feed(series, range(now, now + 6), None)
    series.hourly.open.add([1], [1], [1 << 39])
    series.tick((now + 7) * HOUR_MS)
    # s2 is 0.0025, so one query is enough; 0.06^2 is more than that
    assert series.looks[0].queries == 1
    wide, now = watched(rules=AlarmRules(max_series=1))
    feed(wide, range(now, now + 2), 0.5)  # the reference of this week is made
    wide.reference = replace(wide.reference, variance=0.0036 * 27)
    feed(wide, range(now + 2, now + 3), 0.5, n=26)
    assert [look.hours for look in wide.looks] == [6, 24, 168]
    feed(wide, range(now + 3, now + 4), 0.5, n=27)
    assert [look.hours for look in wide.looks] == [1, 6, 24, 168]


def test_values_close_to_one_need_more_evidence():
    high, now = watched(value=0.9)
    feed(high, range(now, now + 1), 0.9, n=1_000)
    middle, now = watched(value=0.5)
    feed(middle, range(now, now + 1), 0.5, n=1_000)
    z = AlarmRules(max_series=1).thresholds[1]
    assert middle.looks[0].threshold == z
    chance = high.reference.variance / 1_000
    mean = high.reference.mean
    v = mean * (1 - mean)
    g = (2 * mean - 1) / sqrt(v) * sqrt(chance / v) * (sqrt(chance) / high.looks[0].error) ** 3
    assert high.looks[0].threshold == pytest.approx(z + (z * z - 1) * g / 6)


def test_a_drop_is_as_large_as_three_lost_queries():
    series, now = watched(value=0.9)
    feed(series, range(now, now + 1), 0.9, n=100)
    look, mean = series.looks[0], series.reference.mean
    assert look.threshold == pytest.approx(3 * mean / 100 / look.error)


@pytest.mark.parametrize("n_unjudged", [1, 2, 4])
def test_a_few_unjudged_queries_among_thousands_are_no_alarm(n_unjudged):
    """Three weeks of 20 queries an hour, all judged, then one hour in which some are not."""
    series = AlarmSeries("own", AlarmRules())
    one = 1 << 20
    for hour in range(FIRST, FIRST + 3 * 168 + 1):
        judged = 20 - n_unjudged * (hour == FIRST + 3 * 168)
        values = np.repeat([one, 0], [judged, 20 - judged])
        series.hourly.open.add(np.arange(20), np.ones(20, np.int64), values << 20)
        event = series.tick((hour + 1) * HOUR_MS)
    assert (event is not None) == (n_unjudged == 4)


def test_an_alarm_ends_after_a_week_without_queries():
    series, now = watched()
    assert [event.name for event in feed(series, range(now, now + 3), 0.3)] == ["on"]
    assert not feed(series, range(now + 3, now + 2 + 168), None)
    (event,) = feed(series, range(now + 2 + 168, now + 4 + 168), None)
    assert (event.name, event.time_ms) == ("off", (now + 3 + 168) * HOUR_MS)


def test_differences_have_no_skew():
    series, now = watched(kind="pair", value=0.9)
    feed(series, range(now, now + 1), 0.9, n=1_000)
    assert series.looks[0].threshold == AlarmRules(max_series=1).thresholds[1]


@pytest.mark.slow
def test_an_objective_is_watched_from_its_hundredth_query_and_never_adapts():
    series = AlarmSeries("constant", AlarmRules(max_series=1), constant=0.5)
    assert not feed(series, range(FIRST, FIRST + 1), 0.3, n=99)
    events = feed(series, range(FIRST + 1, FIRST + 9 * 168), 0.3, n=20)
    assert [event.name for event in events] == ["on"]
    assert events[0].time_ms == (FIRST + 2) * HOUR_MS
    # 0.05 on either side: s2 is 0.0025 x 1.2
    assert series.looks[0].error == pytest.approx(sqrt(1.2 * 0.0025 / 20 + 0.003**2), rel=1e-4)
    with pytest.raises(NothingToDoError, match="alarm_objectives"):
        series.accept(0)


def test_an_acknowledged_alarm_stays_on():
    series, now = watched()
    with pytest.raises(NothingToDoError, match="acknowledge"):
        series.acknowledge(now * HOUR_MS)
    feed(series, range(now, now + 1), 0.4)
    event = series.acknowledge((now + 1) * HOUR_MS)
    assert (event.name, event.alarm.acknowledged) == ("acknowledge", True)
    assert not feed(series, range(now + 1, now + 30), 0.4)
    (end,) = feed(series, range(now + 30, now + 60), 0.5)
    assert (end.name, end.alarm.acknowledged) == ("off", True)


@pytest.mark.slow
def test_an_accepted_level_is_the_new_normal():
    series, now = watched()
    feed(series, range(now, now + 12), 0.45)
    error = series.looks[0].error
    event = series.accept((now + 12) * HOUR_MS)
    assert (event.name, series.alarm) == ("accept", None)
    assert series.reference.mean == pytest.approx(0.45, abs=1e-5)
    assert not feed(series, range(now + 12, now + 9 * 168), 0.45)
    assert series.reference.variance == pytest.approx(0.0025, rel=1e-3)
    # the error of the estimate: half a day, 1,200 queries
    moved = 0.003**2 / 0.5 + 0.0025 / 1200
    series, now = watched()
    feed(series, range(now, now + 12), 0.45)
    series.accept((now + 12) * HOUR_MS)
    feed(series, range(now + 12, now + 13), 0.45)
    assert series.looks[0].error == pytest.approx(sqrt(error**2 + moved), rel=1e-3)
    (event,) = feed(series, range(now + 13, now + 16), 0.35)
    assert event.name == "on"


@pytest.mark.slow
def test_the_error_of_an_accepted_level_ends_with_a_reference_after_it():
    series, now = watched(weeks=2)
    feed(series, range(now, now + 24), 0.45)
    series.accept((now + 24) * HOUR_MS)
    wide = []
    for week in range(2, 10):
        feed(
            series,
            range(FIRST + 168 * week + (24 if week == 2 else 0), FIRST + 168 * (week + 1)),
            0.45,
        )
        wide.append(series.looks[0].error > 0.0062)
    # the weeks used are the four before the newest three: week 9 is the first with weeks 2 to 5
    assert wide == [True] * 7 + [False]


def test_no_alarm_begins_in_hours_that_an_operator_excluded():
    series, now = watched()
    series.exclude(now * HOUR_MS, (now + 24) * HOUR_MS, (now + 48) * HOUR_MS - 1)
    assert not feed(series, range(now, now + 24), 0.5)
    assert not feed(series, range(now + 24, now + 48), 0.2)
    assert not feed(series, range(now + 48, now + 336), 0.5)
    (event,) = feed(series, range(now + 336, now + 337), 0.4)
    assert event.alarm.observed == pytest.approx(0.4)


def test_excluded_hours_are_in_no_reference():
    series, now = watched(weeks=1)
    series.exclude(now * HOUR_MS, now * HOUR_MS, (now + 2 * 24) * HOUR_MS)
    feed(series, range(now, now + 48), 0.2)
    feed(series, range(now + 48, now + 169), 0.5)
    assert series.reference.mean == pytest.approx(0.5, abs=1e-4)
    assert len(series.reference.weeks) == 2
    series, now = watched(weeks=1)
    series.exclude(now * HOUR_MS, now * HOUR_MS, (now + 3 * 24) * HOUR_MS)
    feed(series, range(now, now + 169), 0.5)
    assert series.reference is None  # four days are too few


@pytest.mark.slow
def test_a_series_continues_from_its_state_after_any_tick():
    series, now = watched(weeks=2)
    rules = AlarmRules(max_series=1)

    def reload(of):
        fresh = AlarmSeries("own", rules)
        fresh.load(*(json.loads(json.dumps(part)) for part in (of.state(), of.days())))
        assert fresh.state() == of.state()
        return fresh

    other = reload(series)
    for hour in range(now, now + 100):
        value = 0.45 if hour < now + 50 else 0.5
        assert feed(series, [hour], value) == feed(other, [hour], value)
        assert series.evidence == other.evidence
        if hour == now + 3:
            assert series.acknowledge(0) == other.acknowledge(0)
        other = reload(other)


def test_an_operator_excludes_a_limited_number_of_ranges():
    series, now = watched(weeks=1)
    for _ in range(MAX_RANGES):
        series.exclude(now * HOUR_MS, now * HOUR_MS, now * HOUR_MS + 1)
    with pytest.raises(NothingToDoError, match="1000 ranges"):
        series.exclude(now * HOUR_MS, (now + 1) * HOUR_MS, (now + 2) * HOUR_MS)
    assert len(series.exclusions.ranges) == MAX_RANGES
    feed(series, [now + KEPT_HOURS + 1], None)
    series.exclude(now * HOUR_MS, (now + 1) * HOUR_MS, (now + 2) * HOUR_MS)


@pytest.mark.parametrize("kind", ["constant", "variants"])
def test_excluded_hours_are_left_out_from_the_next_tick_of_the_same_hour_on(kind):
    """The sums of the week are kept for the ticks of an hour."""
    series = VariantsSeries(AlarmRules()) if kind == "variants" else AlarmSeries(kind, AlarmRules())
    end_ms = FIRST * HOUR_MS
    for tick in range(30 * 4 + 1):
        for sums in series.sums.values():
            add(sums, 0.3 if tick < 40 else 0.6, 50)
        end_ms += TICK_MS
        series.tick(end_ms)
    before = series.looks
    series.exclude(end_ms, FIRST * HOUR_MS, (FIRST + 10) * HOUR_MS)
    loaded = series.copy()
    for each in (series, loaded):
        each.tick(end_ms + TICK_MS)
    assert series.looks == loaded.looks
    assert [look.error for look in series.looks] != [look.error for look in before]
