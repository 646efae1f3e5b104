"""False alarms and delays of alarms, in worlds without a drop and with one.

`make bench-alarms`: seeded simulations, all runs of a world at once. It fails if a world without a
drop has more than 1.4 false alarms in 30 days, or if a delay exceeds its bar. The references are
computed by the evaluator; windows are computed for all runs together, and
`tests/core/alarms/test_benchmark.py` compares them with the evaluator, event by event.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evaluator.core.alarms.reference import Reference, fit, weeks_of_reference
from evaluator.core.alarms.rules import (
    CLEAR,
    LEAST_UNITS,
    MAX_VARIANCE_OF_MEAN,
    MOST_BETTER,
    WINDOWS,
    AlarmRules,
)
from evaluator.core.alarms.sums import Sums
from evaluator.core.types.records import FloatArray, IntArray
from evaluator.tables import format_table

RATES = (0.01, 0.1, 1.0, 10.0)  # judged queries a second
TICKS_PER_DAY, TICK_SECONDS = 96, 900
STEP = 1 << 20
ATOMS = np.array([0, 0.3, 0.5, 0.63, 0.8, 1.0])
SHARES = np.array([0.12, 0.12, 0.16, 0.18, 0.2, 0.22])
MEAN = float(ATOMS @ SHARES)  # 0.61, with a standard deviation of 0.31, as of NDCG@10
WARM_UP_WEEKS, DELAY_WARM_UP_WEEKS, TOLD_DAYS = 2, 8, 21
MOST_FALSE = 1.4
N_RUNS = 40


@dataclass
class Runs:
    """Sums of all runs by hour `[n_runs, n_hours]`, filled tick by tick, and their latches."""

    n_hours: int
    n_runs: int
    rules: AlarmRules
    bounded: bool = True
    events: list[tuple[int, int, bool]] = field(default_factory=list)  # run, tick, on

    def __post_init__(self) -> None:
        shape = self.n_runs, self.n_hours
        self.queries, self.values, self.squares, self.products, self.sizes = np.zeros(
            (5, *shape), np.int64
        )
        self.excluded = np.zeros(shape, bool)
        self.profiles = np.full((self.n_runs, 168), np.nan)
        self.means, self.variances = np.full((2, self.n_runs), np.nan)
        self.betas, self.spreads = np.zeros((2, self.n_runs, len(WINDOWS)))
        self.since = np.full(self.n_runs, -1)  # tick; -1 while no alarm is on
        self.onset = np.zeros(self.n_runs, np.int64)
        self.drop = np.zeros(self.n_runs)

    def refit(self, week: int) -> None:
        """New references of the runs without an alarm; weeks and hours count from 0."""
        for run in np.flatnonzero(self.since < 0):
            weeks = {of: self._week(run, of) for of in range(max(0, week - 8), week)}
            good = [of for of, sums in weeks.items() if _n_days(sums) >= 5]
            if used := weeks_of_reference(good):
                self._use(run, fit({of: weeks[of] for of in used}, self.rules))

    def _use(self, run: int, reference: Reference) -> None:
        self.profiles[run], self.means[run] = reference.profile, reference.mean
        self.variances[run] = reference.variance
        self.betas[run], self.spreads[run] = reference.betas, reference.spreads

    def _week(self, run: int, week: int) -> list[Sums]:
        hours = slice(168 * week, 168 * (week + 1))
        columns = self.queries, self.values, self.squares, self.products, self.sizes
        rows = np.array([column[run, hours] for column in columns]) * ~self.excluded[run, hours]
        found = zip(*rows.tolist(), strict=True)
        return [Sums(n, values << 20, *others) for n, values, *others in found]

    def tick(self, tick: int) -> None:
        """The looks of all runs at the end of a tick, and their events."""
        hour = tick // 4
        first = max(0, hour - 191)
        kept = ~self.excluded[:, first : hour + 1]
        n = self.queries[:, first : hour + 1] * kept
        profile = self.profiles[:, np.arange(first, hour + 1) % 168]
        lack = np.where(kept, self.values[:, first : hour + 1] / STEP - n * profile, 0.0)
        of_window, of_day = _counts(n, kept)
        lengths = np.array(WINDOWS)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            chance = self.variances / of_window[0]
            usable = (of_window[0] > 0) & (chance <= MAX_VARIANCE_OF_MEAN)
            usable &= ~_is_sparse(of_window, lengths)
            lacks = [lack[:, -length:].sum(1) for length in WINDOWS]
            before = [lack[:, -length - 24 : -length].sum(1) for length in WINDOWS]
            known = (of_day[0] > 0) & ~_is_sparse(of_day, 24)
            changes = lacks / of_window[0]
            most = MOST_BETTER * np.sqrt(self.spreads[:, WINDOWS.index(24)])
            changes -= self.betas.T * np.where(known, np.minimum(before / of_day[0], most), 0.0)
            errors = np.sqrt(chance + self.spreads.T)
            limits = self._thresholds(chance, errors)
            sizes = self.sizes[:, first : hour + 1] * kept
            units = np.array([sizes[:, -length:].sum(1) for length in WINDOWS])
            lost = LEAST_UNITS * (self.means if self.bounded else 1.0) * units
            limits = np.fmax(limits, lost / (of_window[0] * of_window[0]) / errors)
            changes, errors = np.where(usable, (changes, errors), np.nan)
            self._latch(tick, hour, changes, errors, limits)

    def _thresholds(self, chance: FloatArray, error: FloatArray) -> FloatArray:
        z = np.array([self.rules.thresholds[length] for length in WINDOWS])[:, None]
        if not self.bounded:
            return np.broadcast_to(z, chance.shape)
        return z + skew(z, self.means, chance, error)

    def _latch(
        self,
        tick: int,
        hour: int,
        changes: FloatArray,
        errors: FloatArray,
        limits: FloatArray,
    ) -> None:
        found = (changes / errors < -limits) & (changes <= -self.rules.tolerance)
        idle = self.since < 0
        for run in np.flatnonzero(idle & found.any(0)):
            place = np.argmin(np.where(found[:, run], changes[:, run], 0.0))
            self.since[run], self.drop[run] = tick + 1, -changes[place, run]
            back = min(168 + WINDOWS[place], hour + 1)
            self.onset[run] = self._onset(run, hour, back)
            self.events.append((int(run), tick + 1, True))
        lengths = np.array(WINDOWS)[:, None]
        due = (lengths >= 24) & (tick + 1 >= self.since + 4 * lengths)
        over = due & (changes - CLEAR * errors >= -self.drop / 2)
        for run in np.flatnonzero(~idle & over.any(0)):
            self.excluded[run, self.onset[run] : hour + 1] = True
            self.since[run] = -1
            self.events.append((int(run), tick + 1, False))

    def _onset(self, run: int, hour: int, back: int) -> int:
        hours = np.arange(hour, hour - back, -1)
        kept = ~self.excluded[run, hours]
        n = self.queries[run, hours] * kept
        lack = self.values[run, hours] / STEP * kept - n * self.profiles[run, hours % 168]
        sums = np.cumsum(-lack - n * self.drop[run] / 2)
        return int(hours[len(sums) - 1 - np.argmax(sums[::-1])])


def skew(z: FloatArray, mean: FloatArray, chance: FloatArray, error: FloatArray) -> FloatArray:
    """As in `evaluator.core.alarms.look`."""
    v = np.maximum(mean * (1 - mean), 1e-3)
    g = np.maximum(0, 2 * mean - 1) / np.sqrt(v) * np.sqrt(chance / v)
    return (z * z - 1) * g * (np.sqrt(chance) / error) ** 3 / 6


def _n_days(sums: Sequence[Sums]) -> int:
    return sum(any(of.queries for of in sums[day : day + 24]) for day in range(0, 168, 24))


def _counts(n: IntArray, kept: FloatArray) -> tuple[IntArray, IntArray]:
    """Queries, the sum of their squares by hour, and excluded hours, `[3, n_windows, n_runs]`.

    Of the windows, and of the days before them.
    """
    sums = np.zeros((3, len(n), n.shape[1] + 1), np.int64)  # of the last hours, by their number
    np.cumsum(np.stack((n, n * n, ~kept))[:, :, ::-1], axis=2, out=sums[:, :, 1:])
    lengths = np.array(WINDOWS)
    ends, of_day = (np.minimum(of, n.shape[1]) for of in (lengths, lengths + 24))
    windows = sums[:, :, ends]
    return windows.swapaxes(1, 2), (sums[:, :, of_day] - windows).swapaxes(1, 2)


def _is_sparse(counts: IntArray, length: IntArray | int) -> FloatArray:
    total, squares, excluded = counts
    return (2 * excluded > length) | (6 * total * total < squares * length)


@dataclass(frozen=True)
class World:
    """A world: its level by tick, and the number of queries by tick; `rng` of one run.

    Args:
        level: mean value by tick, of the number of ticks.
        volume: factor of the number of queries by tick.
        trace: queries of a trace; half of the traces have equal values.
        spread: of the values, as a share of that of NDCG.
        series: series that share the budget.
        ones: the share of ones, if values are 0 and 1 instead of those of NDCG.
    """

    level: Callable[[np.random.Generator, int], FloatArray]
    volume: Callable[[np.random.Generator, int], FloatArray] | None = None
    trace: int = 1
    spread: float = 1.0
    series: int = 1
    share: float = 1.0
    kind: str = "own"
    ones: float | None = None

    @property
    def values(self) -> tuple[FloatArray, FloatArray, float]:
        """The values, the share of each, and their mean."""
        if self.ones is None:
            return ATOMS, SHARES, MEAN
        return np.array([0.0, 1.0]), np.array([1 - self.ones, self.ones]), self.ones


def sums_of(
    world: World, rate: float, level: FloatArray, rng: np.random.Generator
) -> tuple[IntArray, ...]:
    """n, V, Q, X, Y by tick, values in steps of 2^-20."""
    ticks = len(level)
    volume = np.ones(ticks) if world.volume is None else world.volume(rng, ticks)
    if world.kind == "pair":
        queries = rng.poisson(rate * TICK_SECONDS * world.share * volume)
        noise = rng.normal(size=ticks) * np.sqrt(queries) * 0.31 * world.spread
        values = np.round((queries * level + noise) * STEP).astype(np.int64)
        squares = queries * ((0.31 * world.spread) ** 2 + level**2) * STEP * STEP
        return queries, values, squares.astype(np.int64), values, queries
    units = rng.poisson(rate * TICK_SECONDS * world.share * volume / world.trace)
    atoms, usual_shares, usual = world.values
    lower = np.maximum(0.0, 1 - (usual + level) / usual)[:, None]
    higher = np.maximum(0.0, level / (1 - usual))[:, None]
    shares = usual_shares * (1 - lower - higher)
    shares[:, :1] += lower
    shares[:, -1:] += higher
    steps = np.round(atoms * STEP).astype(np.int64)
    equal = units if world.trace == 1 else rng.binomial(units, 0.5)
    counts = rng.multinomial(equal, shares)
    k = world.trace
    values, squares = k * (counts @ steps), k * k * (counts @ (steps * steps))
    if k > 1:
        apart = rng.multinomial(k * (units - equal), shares)
        mean = np.round((usual + level) * STEP).astype(np.int64)
        values = values + apart @ steps
        squares = squares + apart @ (steps * steps) + (units - equal) * (k * (k - 1)) * mean * mean
    return units * k, values, squares, k * values, k * k * units


def run(
    worlds: Sequence[World],
    rate: float,
    weeks: int,
    drops: Sequence[FloatArray] | None,
    *,
    n_runs: int,
    seed: int,
) -> Runs:
    """*n_runs* runs of each world, in the order of the worlds, which have one kind and budget.

    Each of *drops* `[n_runs, n_ticks]` is below the level of its world.
    """
    ticks = weeks * 7 * TICKS_PER_DAY
    ((kind, series),) = {(world.kind, world.series) for world in worlds}
    n_all = len(worlds) * n_runs
    runs = Runs(ticks // 4, n_all, AlarmRules(max_series=series), kind != "pair")
    columns = np.zeros((n_all, 5, ticks), np.int64)
    for place, world in enumerate(worlds):
        for number in range(n_runs):
            rng = np.random.default_rng([seed, number])
            level = world.level(rng, ticks)
            if drops is not None:
                level = level - drops[place][number]
            columns[place * n_runs + number] = sums_of(world, rate, level, rng)
    first = (WARM_UP_WEEKS if drops is None else DELAY_WARM_UP_WEEKS) * 7 * TICKS_PER_DAY
    follow(runs, columns, first)
    return runs


def follow(runs: Runs, columns: IntArray, first: int) -> None:
    """Gives `columns` `[n_runs, 5, n_ticks]` to all runs, which look from tick *first* on."""
    hourly = runs.queries, runs.values, runs.squares, runs.products, runs.sizes
    for tick in range(columns.shape[2]):
        for column, name in zip(hourly, columns.swapaxes(0, 1), strict=True):
            column[:, tick // 4] += name[:, tick]
        if tick >= first:
            if tick % 672 == 0:
                runs.refit(tick // 672)
            runs.tick(tick)


# Levels. A day has 96 ticks.


def flat(_: np.random.Generator, ticks: int) -> FloatArray:
    """The same level at all times."""
    return np.zeros(ticks)


def season(size: float) -> Callable[[np.random.Generator, int], FloatArray]:
    """Waves by the hour of the day and the day of the week."""

    def level(_: np.random.Generator, ticks: int) -> FloatArray:
        days = np.arange(ticks) / TICKS_PER_DAY
        return size / 2 * (np.sin(2 * np.pi * days) + np.sin(2 * np.pi * days / 7))

    return level


def hours(sd: float) -> Callable[[np.random.Generator, int], FloatArray]:
    """Each hour has a level of its own."""
    return lambda rng, ticks: np.repeat(rng.normal(0, sd, ticks // 4), 4)


def walk(step: float, keep: float) -> Callable[[np.random.Generator, int], FloatArray]:
    """The level of a day is *keep* times that of the day before, and a step."""

    def level(rng: np.random.Generator, ticks: int) -> FloatArray:
        days = np.zeros(ticks // TICKS_PER_DAY)
        for day, change in enumerate(rng.normal(0, step, len(days) - 1), 1):
            days[day] = keep * days[day - 1] + change
        return np.repeat(np.clip(days, -0.5, 0.3), TICKS_PER_DAY)

    return level


def holiday(rng: np.random.Generator, ticks: int) -> FloatArray:
    """One day of each 30 is lower by 0.04."""
    days = np.zeros(ticks // TICKS_PER_DAY)
    for first in range(0, len(days), 30):
        days[min(len(days) - 1, first + rng.integers(30))] = -0.04
    return np.repeat(days, TICKS_PER_DAY)


def good_day(rng: np.random.Generator, ticks: int) -> FloatArray:
    return -2.5 * holiday(rng, ticks)


def half_judged(rng: np.random.Generator, ticks: int) -> FloatArray:
    """From the middle on the judged queries are 0.01 lower."""
    del rng
    return np.where(np.arange(ticks) < ticks // 2, 0.0, -0.01)


def half_volume(rng: np.random.Generator, ticks: int) -> FloatArray:
    """From the middle on half as many queries are judged."""
    del rng
    return np.where(np.arange(ticks) < ticks // 2, 1.0, 0.5)


def bursts(rng: np.random.Generator, ticks: int) -> FloatArray:
    """One hour in 20 has ten times as many queries."""
    return np.repeat(np.where(rng.random(ticks // 4) < 0.05, 10.0, 1.0), 4)


NO_DROP = {
    "independent queries": World(flat),
    "season +-0.05": World(season(0.05)),
    "hours differ, sd 0.01": World(hours(0.01)),
    "hours differ, sd 0.02": World(hours(0.02)),
    "random walk 0.01, mean-reverting": World(walk(0.01, 0.8)),
    "random walk 0.01": World(walk(0.01, 1.0)),
    "traces of 5": World(flat, trace=5),
    "99.9 % ones": World(flat, ones=0.999),
    "99.99 % ones": World(flat, ones=0.9999),
    "99 % ones, traces of 10": World(flat, ones=0.99, trace=10),
    "bursts x10": World(flat, volume=bursts),
    "coverage halved, 0.01 lower": World(half_judged, volume=half_volume),
    "a holiday of -0.04 a month": World(holiday),
    "a day of +0.10 a month": World(good_day),
}
"""Worlds without a drop."""


@dataclass(frozen=True)
class Drop:
    """A drop in a world, and its bars: hours of the median delay by rate; NaN has none."""

    world: World
    size: float
    bars: tuple[float, ...]
    per_week: bool = False


NONE = float("nan")
DROPS = {
    "-0.02, season 0.02": Drop(World(season(0.02)), 0.02, (106, 11, 2.6, 0.5)),
    "-0.05, season 0.02": Drop(World(season(0.02)), 0.05, (18, 2.8, 0.5, 0.2)),
    "-0.10, season 0.02": Drop(World(season(0.02)), 0.10, (5, 0.8, 0.2, 0.2)),
    "-0.02 a week": Drop(World(season(0.02)), 0.02, (198, 96, 80, 81), per_week=True),
    "-0.05, hours sd 0.02": Drop(World(hours(0.02)), 0.05, (19, 5, 4.2, 4.2)),
    "-0.05, random walk 0.01, mean-reverting": Drop(
        World(walk(0.01, 0.8)), 0.05, (40, 4.9, 0.8, 0.5)
    ),
    "-0.10 in one of 20 segments": Drop(
        World(season(0.02), series=21, share=0.05), 0.10, (NONE, 18, 3.9, 2.2)
    ),
    "-0.02, pair": Drop(World(flat, kind="pair", spread=0.5), 0.02, (NONE, 8.4, 2.0, 0.5)),
}
"""Worlds with a drop that begins at a random time of the ninth week."""


def false_alarms(
    worlds: Sequence[World], rate: float, *, n_runs: int, seed: int, weeks: int = 12
) -> list[float]:
    """Alarms in 30 days of each world without a drop."""
    runs = run(worlds, rate, weeks, None, n_runs=n_runs, seed=seed)
    days = (weeks - WARM_UP_WEEKS) * 7 * n_runs
    begun = [number // n_runs for number, _, on in runs.events if on]
    return [begun.count(place) * 30 / days for place in range(len(worlds))]


def delays(drops: Sequence[Drop], rate: float, *, n_runs: int, seed: int) -> list[FloatArray]:
    """Hours from the first worse tick to the alarm, by drop and run; infinite beyond 21 days.

    The worlds of the drops have one kind and budget.
    """
    weeks = DELAY_WARM_UP_WEEKS + 1 + TOLD_DAYS // 7
    ticks = weeks * 7 * TICKS_PER_DAY
    begins = np.random.default_rng(seed).integers(0, 672, n_runs) + DELAY_WARM_UP_WEEKS * 672
    after = np.arange(ticks) - begins[:, None]
    sizes = [
        np.where(after >= 0, drop.size * (after / 672 if drop.per_week else 1), 0.0)
        for drop in drops
    ]
    worlds = [drop.world for drop in drops]
    found = run(worlds, rate, weeks, sizes, n_runs=n_runs, seed=seed)
    begins = np.tile(begins, len(drops))
    told = np.full(len(begins), np.inf)
    for number, tick, on in found.events:
        if on and tick > begins[number] and np.isinf(told[number]):
            told[number] = (tick - begins[number]) / 4
    for number, tick, on in found.events:  # an alarm that was on before does not count
        if on and tick <= begins[number]:
            told[number] = np.nan
    return list(np.where(told > TOLD_DAYS * 24, np.inf, told).reshape(len(drops), n_runs))


def together(drops: Mapping[str, Drop]) -> list[dict[str, Drop]]:
    """The drops whose worlds have one kind and budget, which can be computed together."""
    found: dict[tuple[str, int], dict[str, Drop]] = {}
    for name, drop in drops.items():
        found.setdefault((drop.world.kind, drop.world.series), {})[name] = drop
    return list(found.values())


def most_of(bar: float) -> float:
    """The longest median delay that is accepted: 1.2 times the bar, or one tick more."""
    return max(1.2 * bar, bar + TICK_SECONDS / 3600)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints both tables; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=N_RUNS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows that contain this text")
    options = parser.parse_args(arguments)
    more = {"n_runs": options.runs, "seed": options.seed}
    missed = []
    rows = []
    worlds = {name: world for name, world in NO_DROP.items() if options.only in name}
    alarms = [false_alarms([*worlds.values()], rate, **more) for rate in RATES] if worlds else []
    for name, found in zip(worlds, zip(*alarms, strict=True), strict=True):
        rows.append([name, *(f"{of:.2f}" for of in found)])
        print(rows[-1], file=sys.stderr)
        missed += [f"{name}: {of:.2f}" for of in found if of > MOST_FALSE]
    heads = [f"{rate}/s" for rate in RATES]
    print(format_table(["false alarms in 30 days", *heads], rows))
    rows = []
    drops = {name: drop for name, drop in DROPS.items() if options.only in name}
    cells: dict[str, list[str]] = {name: [] for name in drops}
    for place, rate in enumerate(RATES):
        with_bar = {name: drop for name, drop in drops.items() if not np.isnan(drop.bars[place])}
        hours_by_name = {
            name: told
            for group in together(with_bar)
            for name, told in zip(group, delays([*group.values()], rate, **more), strict=True)
        }
        for name, drop in drops.items():
            if name not in hours_by_name:
                cells[name].append("-")
                continue
            told = hours_by_name[name]
            told = told[~np.isnan(told)]
            median = float(np.median(told))
            cells[name].append(f"{median:.2f} ({np.isfinite(told).mean():.0%})")
            if median > most_of(drop.bars[place]):
                missed.append(f"{name} at {rate}/s: {median:.2f} h instead of {drop.bars[place]}")
    rows = [[name, *of] for name, of in cells.items()]
    print(format_table(["median delay in hours (share told)", *heads], rows))
    for each in missed:
        print(f"missed: {each}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
