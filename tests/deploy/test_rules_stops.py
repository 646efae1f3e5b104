"""A full stop of rankings: an alert within ten minutes if their rate allows it, else none."""

from math import exp, factorial, nan

import pytest

from tests.deploy.rules import World, counter, expected_alert, only, steps, threshold, together

NO_RANKINGS = "EvaluatorNoRankings"
HOUR = 60
DAY = 24 * HOUR
LOOK_BACK = 3 * DAY
"""Of rules that look back a week in `deploy/`."""


def world_of(jobs, n):
    """Jobs that differ in the rankings of each minute, and do nothing else."""
    world = World(step_minutes=1, n=n)
    world.put("evaluator_build_info", [1] * (n + 1), job="some", instance="a")
    for job, growth in jobs.items():
        world.messages(job, "rankings", "started", growth)
    return world


@pytest.mark.promtool
def test_a_stop_of_steady_rankings_on_day_one_fires_within_ten_minutes(tmp_path):
    stop, n = 40, 3 * HOUR
    after = n - stop
    world = world_of(
        {
            "steady": steps((5, stop), (0, after)),
            "fast": steps((5_000, stop), (0, after)),
            "goes-on": [5] * n,
            # Eight minutes without any are usual at these rates, or not unusual:
            "slow": steps((1, stop), (0, after)),
            "every-nine-minutes": steps(*[(1, 1), (0, 8)] * (n // 9)),
            # Batches have pauses between them:
            "batches": steps(*[(0, 20), (500, 10)] * (n // 30)),
            # It ends slowly:
            "fades": steps(*[(40 * 0.8**k, 5) for k in range(20)], (0, n - 100)),
            # A burst, followed by the previous rate:
            "catches-up": steps((9_000, 4), *[(1, 1), (0, 8)] * ((n - 4) // 9), (0, (n - 4) % 9)),
        },
        n,
    )
    gone = [(NO_RANKINGS, job) for job in ("fast", "steady")]
    code, output = world.check(
        tmp_path / "tests.yml",
        firing={"47m": [], f"{stop + 10}m": gone, f"{n}m": gone},
        alert_rule_test=[
            together(
                *(
                    expected_alert(
                        NO_RANKINGS,
                        f"{stop + 10}m",
                        {"job": job, "topic": "rankings"},
                        summary=f"{job} reads no rankings any more; expected are at least {usual}"
                        " in a quarter of an hour.",
                    )
                    for job, usual in (("fast", 75_000), ("steady", 75))
                )
            )
        ],
    )
    assert code == 0, output


@pytest.mark.promtool
def test_a_stop_after_an_outage_fires_within_ten_minutes(tmp_path):
    n = 3 * HOUR
    flows, outage = 60, 30
    again = 15 + 5  # a quarter of an hour of rankings and the five minutes that the counter needs
    stays_away, comes_back = n - flows - outage, n - flows - outage - again
    world = World(step_minutes=1, n=n)
    world.put("evaluator_build_info", [1] * (n + 1), job="some", instance="a")
    where = {"instance": "a", "topic": "rankings", "outcome": "started"}
    begins = [5.0 * minute for minute in range(flows)]
    name = "evaluator_messages_total"
    for job, after in {
        "nothing-comes-back": [0] * (stays_away + 1),
        "comes-back-and-stops": [
            *(5 * minute for minute in range(again)),
            *[5 * again] * (comes_back + 1),
        ],
        "comes-back": [5 * minute for minute in range(stays_away + 1)],
    }.items():
        world.put(name, [*begins, *[nan] * outage, *after], job=job, **where)
    stopped = (NO_RANKINGS, "nothing-comes-back")
    code, output = world.check(
        tmp_path / "tests.yml",
        firing={
            f"{flows + outage - 1}m": [],
            f"{flows + outage + 10}m": [stopped],
            f"{flows + outage + again + 6}m": [stopped],
            f"{flows + outage + again + 10}m": [(NO_RANKINGS, "comes-back-and-stops"), stopped],
        },
    )
    assert code == 0, output


@pytest.mark.promtool
def test_a_pause_that_also_happened_last_week_does_not_fire(tmp_path):
    """From 03:00 to 07:00 on the first two days; then no sample for days, and a week later.

    Without samples of the day before, only the week before can prevent an alert.
    """
    scraped, night, stop, n = (
        DAY + 4 * HOUR,
        LOOK_BACK + 3 * HOUR,
        LOOK_BACK + 2 * HOUR,
        LOOK_BACK + 4 * HOUR,
    )
    days = [(20, 3 * HOUR), (0, 4 * HOUR), (20, 17 * HOUR)] * 3
    world = World(step_minutes=1, n=n)
    for job, flows in (
        ("pauses", 3 * HOUR),
        ("pauses-sooner", 3 * HOUR - 9),
        ("stops-by-day", 2 * HOUR),
    ):
        total = counter(steps(*days, (20, flows), (0, 4 * HOUR - flows)))
        total[scraped + 1 : LOOK_BACK] = [nan] * (LOOK_BACK - scraped - 1)
        where = {"job": job, "instance": "a", "topic": "rankings", "outcome": "started"}
        world.put("evaluator_messages_total", total, **where)
    every = ("pauses", "pauses-sooner", "stops-by-day")
    by_day = (NO_RANKINGS, "stops-by-day")
    code, output = world.check(
        tmp_path / "tests.yml",
        rules=[only(tmp_path / "rules.yml", NO_RANKINGS, look_back_days=LOOK_BACK // DAY)],
        firing={
            f"{3 * HOUR + 10}m": [(NO_RANKINGS, job) for job in every],  # nothing to compare with
            f"{DAY + 3 * HOUR + 10}m": [],  # it paused yesterday
            f"{stop - 1}m": [],
            f"{stop + 10}m": [by_day],
            f"{night - 1}m": [by_day],
            f"{night + 10}m": [by_day],
            f"{night + 60}m": [],
        },
    )
    assert code == 0, output


def at_most(count: float, mean: float) -> float:
    """The probability that a Poisson variable with that mean is at most *count*."""
    return exp(-mean) * sum(mean**k / factorial(k) for k in range(int(count) + 1))


def test_false_alarms_are_rarer_than_one_in_twenty_years_at_any_rate():
    """Independent rankings at the worst rate, evaluated every minute.

    Three times five minutes must have the least number, and eight minutes none: five of the
    window and three of `for`.
    """
    least = threshold("min_steady_messages")
    rates = [tenths / 10 for tenths in range(1, 500)]  # in five minutes
    chances = [(1 - at_most(least - 1, rate)) ** 3 * exp(-rate * 8 / 5) for rate in rates]
    looks_in_a_year = 365 * DAY
    assert max(chances) * looks_in_a_year < 1 / 20


def test_a_stop_nearly_always_fires_at_six_or_more_rankings_per_minute():
    """Three windows apart, and as many between them: by the bound of the sum over all eleven."""
    assert 11 * at_most(threshold("min_steady_messages") - 1, 6 * 5) < 0.01
