"""False alarms and delays of alarms on two variants: a canary compared with prod.

`python -m benchmarks.alarm_variants`: seeded simulations, all runs of a world at once, of the
worlds of `benchmarks.alarms`; the canary gets a share of their queries. It fails under the same
conditions. `tests/core/alarms/test_benchmark.py` compares the runs with the evaluator, event by
event.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.alarms import (
    MOST_FALSE,
    STEP,
    TICKS_PER_DAY,
    World,
    flat,
    hours,
    most_of,
    season,
    skew,
    sums_of,
    walk,
)
from evaluator.core.alarms.rules import (
    CLEAR,
    CONSTANT,
    LEAST_UNITS,
    MAX_VARIANCE_OF_MEAN,
    MIN_CONSTANT_QUERIES,
    MIN_VARIANCE,
    WINDOWS,
    AlarmRules,
)
from evaluator.core.types.records import FloatArray
from evaluator.tables import format_table

RATES = (0.1, 1.0, 10.0)  # judged queries a second, of both variants
DAYS = 28
N_RUNS = 20


class VariantRuns:
    """Sums of both variants by hour `[2, 5, n_runs, n_hours]`, and the latches of all runs."""

    def __init__(self, n_hours: int, n_runs: int, rules: AlarmRules) -> None:
        self.rules = rules
        self.sums = np.zeros((2, 5, n_runs, n_hours))
        self.excluded = np.zeros((n_runs, n_hours), bool)
        self.since = np.full(n_runs, -1)  # tick; -1 while no alarm is on
        self.onset = np.zeros(n_runs, np.int64)
        self.drop = np.zeros(n_runs)
        self.events: list[tuple[int, int, bool]] = []  # run, tick, on

    def tick(self, tick: int) -> None:
        """The looks of all runs at the end of a tick, and their events."""
        hour = tick // 4
        past = slice(max(0, hour - 335), hour + 1)
        kept = ~self.excluded[:, past]
        with np.errstate(invalid="ignore", divide="ignore"):
            sums = self.sums[:, :, :, past] * kept
            first, second = (_variance(of[:, :, -168:].sum(2)) for of in sums)
            n, n_other = sums[:, 0]
            both = (n > 0) & (n_other > 0)
            n, share = np.where(both, (n, n / n_other), 0.0)
            lack = np.where(both, (sums[0, 1] - share * sums[1, 1]) / STEP, 0.0)
            mean = sums[1, 1, :, -168:].sum(1) / sums[1, 0, :, -168:].sum(1) / STEP
            begun = np.maximum.accumulate(both[:, -168:], axis=1)
            changes, errors, limits = np.full((3, len(WINDOWS), len(n)), np.nan)
            for place, length in enumerate(WINDOWS):
                of = n[:, -length:]
                total = of.sum(1)
                chance = (first * total + second * (share[:, -length:] * of).sum(1)) / total**2
                inside = begun[:, -length:]
                sparse = 2 * (inside & ~kept[:, -length:]).sum(1) > inside.sum(1)
                sparse |= 6 * total * total < (of * of).sum(1) * inside.sum(1)
                usable = (total > 0) & (chance <= MAX_VARIANCE_OF_MEAN) & ~sparse
                error = np.sqrt(chance + self.rules.least_spread)
                found = lack[:, -length:].sum(1) / total, error
                changes[place], errors[place] = np.where(usable, found, np.nan)
                limits[place] = self.rules.thresholds[length]
                limits[place] += skew(limits[place], mean, first / total, error)
                lost = LEAST_UNITS * mean * sums[0, 4, :, -length:].sum(1) / total**2
                limits[place] = np.fmax(limits[place], lost / error)
            self._latch(tick, changes, errors, limits, (n, lack))

    def _latch(
        self,
        tick: int,
        changes: FloatArray,
        errors: FloatArray,
        limits: FloatArray,
        past: tuple[FloatArray, ...],
    ) -> None:
        lengths = np.array(WINDOWS)[:, None]
        found = (changes / errors < -limits) & (changes <= -self.rules.tolerance)
        due = (lengths >= 24) & (tick + 1 >= self.since + 4 * lengths)
        over = (due & (changes - CLEAR * errors >= -self.drop / 2)).any(0)
        hour, idle = tick // 4, self.since < 0
        over |= self.sums[0, 0, :, max(0, hour - 23) : hour + 1].sum(1) == 0
        for run in np.flatnonzero(idle & found.any(0)):
            place = np.argmin(np.where(found[:, run], changes[:, run], 0.0))
            self.since[run], self.drop[run] = tick + 1, -changes[place, run]
            n, lack = (of[run, -168 - WINDOWS[place] :][::-1] for of in past)  # newest first
            begun = np.flatnonzero(n)
            sums = np.cumsum((-lack - n * self.drop[run] / 2)[begun])
            self.onset[run] = hour - begun[len(sums) - 1 - np.argmax(sums[::-1])]
            self.events.append((int(run), tick + 1, True))
        for run in np.flatnonzero(~idle & over):
            self.excluded[run, self.onset[run] : hour + 1] = True
            self.since[run] = -1
            self.events.append((int(run), tick + 1, False))


def _variance(week: FloatArray) -> FloatArray:
    """The variance of one query by run, of the sums of a week `[5, n_runs]`."""
    n, values, squares, products, sizes = week
    mean = values / STEP / n
    variance = (squares / STEP / STEP - 2 * mean * products / STEP + mean * mean * sizes) / n
    return np.where(n < MIN_CONSTANT_QUERIES, np.nan, CONSTANT * np.maximum(MIN_VARIANCE, variance))


def tenth(ticks: int) -> FloatArray:
    """A tenth of the queries."""
    return np.full(ticks, 0.1)


def rising(ticks: int) -> FloatArray:
    """From 1 % to a half, in steps of two days."""
    steps = np.array([0.01, 0.05, 0.1, 0.25, 0.5])
    return steps[np.minimum(np.arange(ticks) // (2 * TICKS_PER_DAY), len(steps) - 1)]


WORLDS = {
    "independent queries": (World(flat), tenth),
    "season +-0.05": (World(season(0.05)), tenth),
    "season +-0.05, the share rises from 1 % to a half": (World(season(0.05)), rising),
    "hours differ, sd 0.02": (World(hours(0.02)), tenth),
    "random walk 0.01, the share rises": (World(walk(0.01, 1.0)), rising),
    "traces of 5": (World(flat, trace=5), tenth),
    "99.9 % ones": (World(flat, ones=0.999), tenth),
    "99 % ones, traces of 10": (World(flat, ones=0.99, trace=10), tenth),
}
"""Worlds without a drop, and the share of the canary by tick."""
DROPS = {
    "-0.02 from the first query on": (0.02, 0, None),
    "-0.05 from the first query on": (0.05, 0, (5.8, 1.0, 0.2)),
    "-0.10 from the first query on": (0.1, 0, None),
    "-0.05 after a week": (0.05, 7 * TICKS_PER_DAY, None),
}
"""Drops of a canary with a tenth of the queries, their first tick, and bars of the median delay."""


def run(
    name: str, rate: float, *, days: int, drop: float, begin: int, n_runs: int, seed: int
) -> VariantRuns:
    """All runs of a world; from the tick *begin* on the canary is worse by *drop*."""
    world, share_of = WORLDS[name]
    ticks = days * TICKS_PER_DAY
    columns = np.zeros((n_runs, 2, 5, ticks))
    share = share_of(ticks)
    for number in range(n_runs):
        rng = np.random.default_rng([seed, number])
        level = world.level(rng, ticks)
        lower = np.where(np.arange(ticks) >= begin, level - drop, level)
        for place, (of, values) in enumerate(((share, lower), (1 - share, level))):
            thinned = replace(world, volume=_always(of))
            columns[number, place] = sums_of(thinned, rate, values, rng)
    runs = VariantRuns(ticks // 4, n_runs, AlarmRules(max_series=1))
    for tick in range(ticks):
        runs.sums[..., tick // 4] += columns[..., tick].transpose(1, 2, 0)
        runs.tick(tick)
    return runs


def _always(share: FloatArray) -> Callable[[np.random.Generator, int], FloatArray]:
    return lambda _rng, _ticks: share


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints both tables; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=N_RUNS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    more = {"n_runs": options.runs, "seed": options.seed}
    heads, missed = [f"{rate}/s" for rate in RATES], []
    rows = []
    for name in WORLDS:
        cells = []
        for rate in RATES:
            found = run(name, rate, days=DAYS, drop=0.0, begin=0, **more)
            n = sum(on for *_, on in found.events) * 30 / DAYS / options.runs
            cells.append(f"{n:.2f}")
            missed += [f"{name} at {rate}/s: {n:.2f}"] if n > MOST_FALSE else []
        rows.append([name, *cells])
    print(format_table(["false alarms in 30 days", *heads], rows))
    rows = []
    for name, (drop, begin, bars) in DROPS.items():
        cells = []
        for rate, bar in zip(RATES, bars or [np.inf] * len(RATES), strict=True):
            found = run("season +-0.05", rate, days=14, drop=drop, begin=begin, **more)
            told = np.full(options.runs, np.inf)
            for number, tick, on in reversed(found.events):
                if on and tick > begin:
                    told[number] = (tick - begin) / 4
            median = float(np.median(told))
            cells.append(f"{median:.2f} ({np.isfinite(told).mean():.0%})")
            if median > most_of(bar):
                missed.append(f"{name} at {rate}/s: {median:.2f} h instead of {bar}")
        rows.append([name, *cells])
    print(format_table(["median delay in hours (share found)", *heads], rows))
    for each in missed:
        print(f"missed: {each}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
