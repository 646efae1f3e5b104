"""The simulated runs of the benchmark against series of the evaluator, event by event."""

import numpy as np
import pytest

from benchmarks.alarms import MOST_FALSE, NO_DROP, Runs, false_alarms
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.series import AlarmSeries
from tests.core.alarms.worlds import FIRST_WEEK

TICK_MS = 900_000
STEP = 1 << 20
WEEKS, TICKS = 5, 5 * 672


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_all_runs_at_once_have_the_events_of_each_series(seed):
    rng = np.random.default_rng(seed)
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
            for unit, step in enumerate(steps.tolist()):
                of.add(unit, step << 20)
            event = of.tick(start_ms + (tick + 1) * TICK_MS)
            if event is not None:
                events.append((run, tick + 1, event.name == "on"))
        if tick % 672 == 0:
            runs.refit(tick // 672)
        runs.tick(tick)
    assert runs.events == events
    assert {run for run, _, on in events if on} == {0, 1, 2}
    assert not all(on for _, _, on in events)


@pytest.mark.slow
def test_a_world_without_a_drop_has_few_false_alarms():
    world = NO_DROP["days walk 0.01, pulled back"]
    assert false_alarms(world, 1.0, n_runs=10, seed=3, weeks=8) <= MOST_FALSE
