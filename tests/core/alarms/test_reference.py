"""The sums of a series, and its reference: handmade weeks and their arithmetic."""

from math import sqrt
from random import Random
from statistics import NormalDist

import pytest

from evaluator.core.alarms.reference import columns_of, fit, profile_of, weeks_of_reference
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.sums import EMPTY, HourlySums, Sums, units_of
from evaluator.core.alarms.ticks import first_hour_of, hour_before, hour_of_week, week_of

ONE = 1 << 40
STEP = 1 << 20
Q = NormalDist().inv_cdf(0.9)


def cell(value, n=10):
    """*n* queries of one value, each a unit of its own."""
    v = round(value * STEP)
    return Sums(n, n * (v << 20), n * v * v, n * v, n)


def week(value_of, n=10):
    return [cell(value_of(hour), n) for hour in range(168)]


def test_queries_of_a_trace_in_a_tick_are_one_unit():
    hourly = HourlySums()
    for unit, value in ((7, 0.5), (7, 0.25), (8, 1.0)):
        hourly.open.add([unit], [1], [round(value * ONE)])
    hourly.close(100)
    hourly.open.add([7], [1], [ONE])
    hourly.close(100)
    a, b, c = 3 * STEP // 4, STEP, STEP
    assert hourly.of(100) == Sums(
        queries=4,
        values=round(2.75 * ONE),
        squares=a * a + b * b + c * c,
        products=2 * a + b + c,
        sizes=4 + 1 + 1,
    )


def test_a_unit_is_the_crc_of_the_trace():
    assert units_of(["123456789"]).tolist() == [0xCBF43926 % 65536]


def test_a_negative_sum_is_rounded_down():
    hourly = HourlySums()
    hourly.open.add([1], [1], [-1])
    hourly.close(0)
    assert hourly.of(0) == Sums(1, -1, 1, -1, 1)


def test_the_order_within_a_tick_does_not_matter():
    random = Random(4)
    queries = [(random.randrange(5), random.randrange(ONE)) for _ in range(40)]
    results = []
    for _ in range(3):
        hourly = HourlySums()
        for unit, value in random.sample(queries, len(queries)):
            hourly.open.add([unit], [1], [value])
        hourly.close(3)
        results.append(hourly.of(3))
    assert results[0] == results[1] == results[2]


def test_eight_weeks_and_a_day_are_kept():
    hourly = HourlySums()
    hourly.open.add([0], [1], [ONE])
    hourly.close(1_000)
    hourly.close(1_000 + 1_367)
    assert hourly.of(1_000).queries == 1
    hourly.close(1_000 + 1_368)
    assert hourly.of(1_000) == EMPTY
    assert hourly.is_empty


def test_weeks_begin_on_monday_in_utc():
    monday_ms = 1_763_942_400_000  # Monday, 24 November 2025
    hour = monday_ms // 3_600_000
    assert hour_before(monday_ms) == hour - 1
    assert week_of(hour) == week_of(hour - 1) + 1
    assert [hour_of_week(hour - 1), hour_of_week(hour)] == [167, 0]
    assert first_hour_of(week_of(hour + 100)) == hour


@pytest.mark.parametrize(
    ("good", "used"),
    [
        ([1], []),
        ([1, 2], [1, 2]),
        ([1, 2, 3], [1, 2]),
        ([1, 2, 3, 5], [1, 2, 3]),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4]),
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4]),
        ([1, 2, 3, 4, 5, 6, 8], [1, 2, 3, 4]),
        ([1, 2, 3, 4, 5, 6, 7, 8], [2, 3, 4, 5]),
    ],
)
def test_the_newest_weeks_are_excluded_once_there_are_enough(good, used):
    assert list(weeks_of_reference(good)) == used


@pytest.mark.parametrize(
    ("series", "thresholds"),
    [
        (1, (3.68, 3.20, 2.77, 2.07)),
        (21, (4.40, 3.99, 3.65, 3.11)),
        (200, (4.86, 4.50, 4.19, 3.73)),
    ],
)
def test_the_thresholds_share_one_budget(series, thresholds):
    found = AlarmRules(max_series=series).thresholds
    assert tuple(round(z, 2) for z in found.values()) == thresholds
    assert all(z == round(z, 4) for z in found.values())


def test_days_and_hours_have_separate_effects():
    def value(hour):
        return 0.5 + (0.25 if hour // 24 == 2 else 0) - (0.125 if hour % 24 == 3 else 0)

    profile, mean = profile_of([columns_of(week(value))])
    assert mean == pytest.approx(0.5 + 0.25 / 7 - 0.125 / 24)
    assert profile == pytest.approx([value(hour) for hour in range(168)])


def test_one_week_does_not_show_effects_of_hours_of_the_week():
    profile, _ = profile_of([columns_of(week(lambda hour: 0.6 if hour == 100 else 0.5))])
    # 0.1 more in one of 24 hours of its day, and of 7 days at its hour; of 168 in all
    assert profile[100] == pytest.approx(0.5 + 0.1 / 24 + 0.1 / 7 - 0.1 / 168)


def test_weeks_that_agree_keep_effects_of_hours_of_the_week():
    profile, _ = profile_of([columns_of(week(lambda hour: 0.6 if hour == 100 else 0.5))] * 2)
    assert profile[100] == pytest.approx(0.6)
    assert profile[99] == pytest.approx(0.5)


def test_weeks_that_disagree_drop_effects_of_hours_of_the_week():
    peak, flat = week(lambda hour: 0.6 if hour == 100 else 0.4), week(lambda _: 0.4)
    profile, mean = profile_of([columns_of(peak), columns_of(flat)])
    additive = 0.4 + 0.1 / 24 + 0.1 / 7 - 0.1 / 168
    assert mean == pytest.approx(0.4 + 0.1 / 168)
    assert profile[100] == pytest.approx(additive)


def test_an_empty_cell_has_the_effects_of_its_day_and_hour():
    cells = week(lambda hour: 0.5 + (0.25 if hour // 24 == 2 else 0))
    cells[60] = EMPTY
    assert profile_of([columns_of(cells)])[0][60] == pytest.approx(0.75)


def test_equal_weeks_have_the_least_spread():
    weeks = {number: week(lambda _: 0.5, n=1000) for number in (1, 2, 3, 4)}
    reference = fit(weeks, AlarmRules(tolerance=0.01))
    assert reference.mean == 0.5
    assert reference.variance == 1e-4
    assert reference.betas == (0.0, 0.0, 0.0, 0.0)
    floor = (0.3 * 0.01) ** 2
    # q err for each window of n queries: q sqrt(2/windows) s2/n, all far below the floor
    assert reference.spreads[:3] == pytest.approx((floor, floor, floor))
    # no correlation is seen: rho is q/sqrt(28)
    rho = Q / sqrt(28)

    def of_mean(n):
        return (n + sum(2 * (n - i) * rho**i for i in range(1, n))) / n**2

    expected = floor * (of_mean(7) + of_mean(28)) + 1e-4 / (4 * 168 * 1000)
    assert reference.spreads[3] == pytest.approx(expected)


def test_differing_levels_of_days_widen_windows_and_are_subtracted_from_short_ones():
    """Two weeks whose days are alternately 0.1 above and below, the second the other way round."""

    def value(hour, turned):
        high = (hour // 24 % 2 == 0) != turned
        return 0.5 + (0.1 if high else -0.1)

    weeks = {1: week(lambda hour: value(hour, False), n=1000)}
    weeks[2] = week(lambda hour: value(hour, True), n=1000)
    reference = fit(weeks, AlarmRules())
    assert reference.spreads[2] > 0.1**2
    assert reference.betas[2:] == (0.0, 0.0)
    # every day is the opposite of the one before, but for Sunday to Monday: nothing to take off
    assert reference.betas[:2] == (0.0, 0.0)


def test_the_level_of_the_day_before_is_subtracted_if_it_persists():
    """A week at 0.6 and one at 0.4: each is 0.2 off the other's profile, day after day."""
    weeks = {1: week(lambda _: 0.6, n=1000), 2: week(lambda _: 0.4, n=1000)}
    reference = fit(weeks, AlarmRules())
    # of hours, 144 in each week follow a day like theirs; at the turn the day before goes from
    # 1 to -1 in 24 steps, against -1: sums 1 of the steps, and 8.03 of their squares
    steps = [1 - hour / 12 for hour in range(24)]
    hourly = (288 - sum(steps)) / (288 + sum(step * step for step in steps))
    steps = steps[::6]
    of_six = (48 - sum(steps)) / (48 + sum(step * step for step in steps))
    assert reference.betas[:2] == pytest.approx((hourly, of_six), abs=1e-3)
    days = 14
    factor = (1 - 2 / (9 * days) - Q * sqrt(2 / (9 * days))) ** -3
    assert reference.spreads[2] == pytest.approx(0.04 * factor, rel=1e-3)


def test_the_variance_of_a_query_has_the_correlation_of_its_trace():
    """Traces of two equal queries, half of them 0.6 and half 0.4: 0.01 per query, doubled."""
    one = round(0.6 * STEP) * 2, round(0.4 * STEP) * 2
    n_units = 50
    pair = Sums(
        queries=4 * n_units,
        values=n_units * (sum(one) << 20),
        squares=n_units * sum(v * v for v in one),
        products=n_units * sum(2 * v for v in one),
        sizes=n_units * 8,
    )
    reference = fit({1: [pair] * 168, 2: [pair] * 168}, AlarmRules())
    assert reference.variance == pytest.approx(0.02, rel=1e-4)
