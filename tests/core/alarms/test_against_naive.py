"""The series equal an implementation that shares no code with them, to the last bit."""

import json
from itertools import islice
from random import Random

import pytest

from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.series import AlarmSeries
from evaluator.core.alarms.sums import units_of
from evaluator.core.alarms.variants import OTHER, VariantsSeries
from tests.core.alarms.naive import Naive, Variants

TICK_MS = 900_000
HOUR_MS = 3_600_000
ONE = 1 << 40
MONDAY_MS = 2_917 * 7 * 24 * HOUR_MS + 4 * 24 * HOUR_MS  # Monday, 24 November 2025, 00:00

SEEDS = (0, 1, 2, 3, 4, 6)
"""Worlds in which alarms begin."""


def stream(seed, kind):
    """Queries by tick of a random world: season, drops, gaps, traces, busy and empty hours."""
    random = Random(seed)
    weeks = random.choice([5, 6, 10])
    rate = random.choice([0.5, 2, 6])
    level = 0.0 if kind == "pair" else random.choice([0.3, 0.6, 0.93])
    drops = [
        (random.randrange(3 * 672, (weeks - 1) * 672), ticks, random.choice([0.05, 0.15, 0.3]))
        for ticks in (30, 200, 600)
    ]
    gaps = [(random.randrange(weeks * 672), random.choice([20, 120, 700])) for _ in range(2)]
    wobble = {}
    first = MONDAY_MS // TICK_MS + random.randrange(672)
    for tick in range(first, first + weeks * 672):
        at = tick - first
        queries = []
        if not any(start <= at < start + length for start, length in gaps):
            day = tick // 96
            shift = wobble.setdefault(day, random.gauss(0, 0.01))
            shift -= sum(size for start, length, size in drops if start <= at < start + length)
            busy = rate * (0.2 if tick % 96 < 24 else 1) * random.choice([0.3, 1, 1, 1, 3])
            for number in range(int(random.expovariate(1 / busy))):
                trace = f"{tick}-{number // 2}"
                noise = random.gauss(0, 0.15)
                value = level + shift + noise
                if kind != "pair":
                    value = min(1.0, max(0.0, value))
                queries.append(
                    (tick * TICK_MS + random.randrange(TICK_MS), trace, round(value * ONE))
                )
        yield (tick + 1) * TICK_MS, queries


def events_of(event):
    alarm = event.alarm
    return (
        event.name,
        event.time_ms,
        {
            "since": alarm.since_ms,
            "onset": alarm.onset_ms // HOUR_MS,
            "w": alarm.window_hours,
            "d": alarm.drop,
            "n": alarm.queries,
            "sd": alarm.se,
            "observed": alarm.observed,
            "evidence": alarm.evidence,
        },
    )


def reloaded(series, fresh):
    """*fresh*, which continues from the stored state, as JSON has it."""
    fresh.load(*(json.loads(json.dumps(of)) for of in (series.state(), series.days())))
    return fresh


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_ticks_events_and_evidence_equal_the_naive_implementation(seed):
    kind = ("own", "pair", "constant")[seed % 3]
    random = Random(seed)
    constant = 0.55
    series_n, budget, tol = random.choice([(1, 30, 0.01), (20, 30, 0.01), (3, 10, 0.02)])
    rules = AlarmRules(tol, budget, series_n)
    series = AlarmSeries(kind, rules, constant=constant)
    naive = Naive(kind, tol, series_n, budget, constant)
    events = []
    for end_ms, queries in stream(seed, kind):
        shuffled = random.sample(queries, len(queries))
        for (time_ms, trace, units), (_, other_trace, other_units) in zip(
            queries, shuffled, strict=True
        ):
            naive.query(time_ms, trace, units)
            series.hourly.open.add(units_of([other_trace]), [1], [other_units])
        naive.tick(end_ms)
        event = series.tick(end_ms)
        if event is not None:
            events.append(events_of(event))
        assert series.evidence == naive.evidence
        if random.random() < 0.002:
            series = reloaded(series, AlarmSeries(kind, rules, constant=constant))
        draw = random.random()
        if series.alarm is not None and draw < 0.002 and kind != "constant":
            series.accept(end_ms)
            naive.accept(end_ms)
        elif draw > 0.9995:
            from_ms = end_ms + random.randrange(-200, 200) * HOUR_MS
            series.exclude(end_ms, from_ms, from_ms + 24 * HOUR_MS)
            hours = range(from_ms // HOUR_MS, -(-(from_ms + 24 * HOUR_MS) // HOUR_MS))
            naive.announced |= set(hours)
    assert events == naive.events
    assert events


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 4])
def test_comparison_of_variants_equals_the_naive_implementation(seed):
    random = Random(seed)
    tol = random.choice([0.01, 0.02])
    rules = AlarmRules(tol)
    series, naive = VariantsSeries(rules), Variants(tol)
    starts = [random.randrange(100, 1_000) for _ in range(2)]
    gone = random.randrange(800, 1_000)
    events = []
    for at, (end_ms, queries) in enumerate(islice(stream(seed, "own"), 1_300)):
        worse = any(start <= at < start + 150 for start in starts)
        share = 0.0 if gone <= at < gone + 150 else min(0.6, 0.05 + at / 1_000)
        for time_ms, trace, value in queries:
            is_first = random.random() < share
            units = value // 2 if is_first and worse else value
            (naive if is_first else naive.second).query(time_ms, trace, units)
            sums = series.hourly if is_first else series.sums[OTHER]
            sums.open.add(units_of([trace]), [1], [units])
        naive.tick(end_ms)
        event = series.tick(end_ms)
        if event is not None:
            events.append(events_of(event))
        assert series.evidence == naive.evidence
        if random.random() < 0.01:
            series = reloaded(series, VariantsSeries(rules))
        if random.random() > 0.999:
            series.exclude(end_ms, end_ms, end_ms + 24 * HOUR_MS)
            naive.announced |= set(range(end_ms // HOUR_MS, -(-end_ms // HOUR_MS) + 24))
    assert events == naive.events
    assert {name for name, *_ in events} == {"on", "off"}
