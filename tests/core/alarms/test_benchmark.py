"""The simulated runs of the benchmark against series of the evaluator, event by event."""

import numpy as np
import pytest

from benchmarks.alarm_variants import VariantRuns
from benchmarks.alarm_variants import run as run_variants
from benchmarks.alarms import (
    DROPS,
    MOST_FALSE,
    NO_DROP,
    RATES,
    Runs,
    delays,
    false_alarms,
    most_of,
    together,
)
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.series import AlarmSeries
from evaluator.core.alarms.variants import VariantsSeries
from tests.core.alarms.worlds import FIRST_WEEK

TICK_MS = 900_000
STEP = 1 << 20
WEEKS, TICKS = 5, 5 * 672


@pytest.mark.slow
def test_runs_computed_together_have_the_events_of_each_series():
    rng = np.random.default_rng(1)
    rules = AlarmRules(max_series=1)
    n_runs = 3
    runs = Runs(TICKS // 4, n_runs, rules)
    series = [AlarmSeries("own", rules) for _ in range(n_runs)]
    events = []
    start_ms = (FIRST_WEEK * 168 + 96) * 3_600_000
    for tick in range(TICKS):
        is_worse = 2 * 672 + 200 < tick < 3 * 672 + 100
        for run, of in enumerate(series):
            size = (0.04, 0.08, 0.16)[run] if is_worse else 0.0
            values = np.clip(rng.normal(0.55 - size, 0.2, rng.poisson(6)), 0, 1)
            steps = np.round(values * STEP).astype(np.int64)
            hour = tick // 4
            runs.queries[run, hour] += len(steps)
            runs.values[run, hour] += steps.sum()
            runs.squares[run, hour] += (steps * steps).sum()
            runs.products[run, hour] += steps.sum()
            runs.sizes[run, hour] += len(steps)
            of.hourly.open.add(np.arange(len(steps)), np.ones_like(steps), steps << 20)
            event = of.tick(start_ms + (tick + 1) * TICK_MS)
            if event is not None:
                events.append((run, tick + 1, event.name == "on"))
        if tick % 672 == 0:
            runs.refit(tick // 672)
        runs.tick(tick)
    assert runs.events == events
    assert {run for run, _, on in events if on} == {0, 1, 2}
    assert not all(on for _, _, on in events)


@pytest.fixture(scope="module")
def false_alarms_by_world():
    found = false_alarms([*NO_DROP.values()], 0.1, n_runs=10, seed=3, weeks=6)
    return dict(zip(NO_DROP, found, strict=True))


@pytest.fixture(scope="module")
def hours_by_drop():
    return {
        name: hours
        for group in together(DROPS)
        for name, hours in zip(group, delays([*group.values()], 1.0, n_runs=8, seed=1), strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", NO_DROP)
def test_a_world_without_a_drop_has_few_false_alarms(false_alarms_by_world, name):
    assert false_alarms_by_world[name] <= MOST_FALSE


@pytest.mark.slow
@pytest.mark.parametrize("name", DROPS)
def test_a_drop_is_found_in_time(hours_by_drop, name):
    """Medians of few runs; a decay of 0.02 a week is found within ten days in each of them."""
    drop, found = DROPS[name], hours_by_drop[name]
    found = found[~np.isnan(found)]  # an alarm was on before
    assert len(found) > 5
    assert np.median(found) <= most_of(drop.bars[RATES.index(1.0)])
    if drop.per_week:
        assert max(found) <= 10 * 24


@pytest.mark.slow
def test_runs_of_two_variants_computed_together_have_the_events_of_each_series():
    rng = np.random.default_rng(3)
    rules = AlarmRules(max_series=1)
    runs = VariantRuns(336, 3, rules)
    series = [VariantsSeries(rules) for _ in range(3)]
    events = []
    start_ms = (FIRST_WEEK * 168 + 96) * 3_600_000
    for tick in range(4 * 336):
        for run, of in enumerate(series):
            is_worse = 400 <= tick < 600
            is_gone = run == 2 and 500 <= tick < 700
            size = (0.05, 0.1, 0.2)[run] if is_worse else 0.0
            for place, sums in enumerate((of.hourly, of.other)):
                n = rng.poisson((1 + tick // 300, 8)[place]) * (place or not is_gone)
                level = 0.55 + 0.1 * np.sin(tick / 20) - (0 if place else size)
                steps = np.round(np.clip(rng.normal(level, 0.2, n), 0, 1) * STEP).astype(np.int64)
                squares, total = (steps * steps).sum(), steps.sum()
                runs.sums[place, :, run, tick // 4] += (n, total, squares, total, n)
                sums.open.add(np.arange(len(steps)), np.ones_like(steps), steps << 20)
            event = of.tick(start_ms + (tick + 1) * TICK_MS)
            if event is not None:
                events.append((run, tick + 1, event.name == "on"))
        runs.tick(tick)
    assert runs.events == events
    assert {run for run, _, on in events if on} == {0, 1, 2}
    assert not all(on for _, _, on in events)


@pytest.mark.slow
def test_a_rising_share_of_the_canary_does_not_affect_its_alarms():
    more = {"days": 14, "begin": 0, "n_runs": 5, "seed": 3}
    name = "season +-0.05, the share rises from 1 % to a half"
    assert sum(on for *_, on in run_variants(name, 1.0, drop=0.0, **more).events) <= 2
    found = run_variants(name, 1.0, drop=0.1, **more).events
    assert len({run for run, _, on in found if on}) == 5
