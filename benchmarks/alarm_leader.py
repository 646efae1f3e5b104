"""Events of the real leader in the worlds of `benchmarks.alarms`, compared with the computed ones.

`make bench-alarms`: at rates up to 0.1 judged queries a second each query is a record of `settled`
in a broker in memory. Leaders that are killed one after the other read them and publish events,
and the same queries are summed for `Runs`. It fails if an event differs.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from zlib import crc32

import numpy as np

from benchmarks.alarms import (
    DROPS,
    NO_DROP,
    STEP,
    TICK_SECONDS,
    TICKS_PER_DAY,
    WARM_UP_WEEKS,
    Runs,
    World,
    follow,
)
from evaluator.adapters.memory import MemoryLeadership
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.ticks import HOUR_MS, first_hour_of, week_of
from evaluator.core.measures import MeasureSet
from evaluator.core.online.watched import WatchRules
from evaluator.core.types.records import FloatArray, IntArray, WatermarkRecord
from evaluator.leader import Leader
from evaluator.leader.alarms import LeaderAlarms
from evaluator.leader.loop import MAX_READ_RECORDS
from evaluator.tables import format_table
from evaluator.wire.alarms.state import AlarmState
from evaluator.wire.outputs.encoding import encode_watermark
from evaluator.wire.records import FINGERPRINT_HEADER, GENERATION_HEADER, OutputRecord
from evaluator.wire.weights.leader_state import RecordWriter
from tests.core.learned import N_TASKS
from tests.faulty_broker import FaultyBroker
from tests.leader.test_loop import KilledLeadership
from tests.waiting import eventually, finished

RATES = (0.01, 0.1)
WEEKS, DROP_DAY, N_KILLS = 6, 30, 3
START_MS = first_hour_of(week_of(489_792)) * HOUR_MS  # a Monday
TICK_MS, MATURITY_MS, MEASURE = 1_000 * TICK_SECONDS, 3_600_000, "ndcg@10"
HEADERS = ((FINGERPRINT_HEADER, b"workers"), (GENERATION_HEADER, b"g"))


@dataclass(frozen=True)
class Queries:
    """Queries in the order of their traces, with values in steps of 2^-20."""

    n_ticks: int
    ticks: IntArray
    traces: IntArray
    values: IntArray
    times_ms: IntArray


def queries_of(world: World, rate: float, level: FloatArray, rng: np.random.Generator) -> Queries:
    """The queries of one run of a world, whose sums have the distribution of `sums_of`."""
    ticks = len(level)
    volume = np.ones(ticks) if world.volume is None else world.volume(rng, ticks)
    n_traces = rng.poisson(rate * TICK_SECONDS * world.share * volume / world.trace)
    traces = np.repeat(np.arange(n_traces.sum()), world.trace)
    of_tick = np.repeat(np.arange(ticks), n_traces)[traces]
    if world.kind == "pair":
        values = level[of_tick] + rng.normal(0, 0.31 * world.spread, len(traces))
        steps = np.round(np.clip(values, -0.5, 0.5) * STEP).astype(np.int64)
    else:
        atoms, usual_shares, usual = world.values
        lower = np.maximum(0.0, 1 - (usual + level) / usual)[:, None]
        higher = np.maximum(0.0, level / (1 - usual))[:, None]
        shares = usual_shares * (1 - lower - higher)
        shares[:, :1] += lower
        shares[:, -1:] += higher
        of_trace = rng.random(n_traces.sum())
        drawn = np.where(
            rng.random(len(of_trace))[traces] < 0.5, of_trace[traces], rng.random(len(traces))
        )
        places = (drawn[:, None] > np.cumsum(shares, axis=1)[of_tick, :-1]).sum(axis=1)
        steps = np.round(atoms * STEP).astype(np.int64)[places]
    within_ms = rng.integers(0, TICK_MS, n_traces.sum())[traces]
    return Queries(ticks, of_tick, traces, steps, START_MS + of_tick * TICK_MS + within_ms)


def trace_id(number: int) -> str:
    return f"t-{number}"


def sums_of_queries(queries: Queries) -> IntArray:
    """n, V, Q, X, Y by tick, as `sums_of`."""
    n_traces = int(queries.traces[-1]) + 1 if len(queries.traces) else 0
    units = np.array([crc32(trace_id(n).encode()) & 0xFFFF for n in range(n_traces)])
    cells, places = np.unique((queries.ticks << 16) + units[queries.traces], return_inverse=True)
    sizes = np.bincount(places)
    values = np.zeros(len(cells), np.int64)
    np.add.at(values, places, queries.values)
    columns = np.zeros((5, queries.n_ticks), np.int64)
    for column, each in zip(
        columns, (sizes, values, values**2, values * sizes, sizes**2), strict=True
    ):
        np.add.at(column, cells >> 16, each)
    return columns


def rules_of(world: World) -> WatchRules:
    """Watches the series of a world, and further ones up to `max_series`."""
    return WatchRules(
        alarms=AlarmRules(max_series=world.series),
        measures=(MEASURE,),
        rankers=() if world.kind == "pair" else ("served",),
        pairs=(("served", "bm25"),) if world.kind == "pair" else (),
        maturity_ms=MATURITY_MS,
    )


def records_of(queries: Queries, *, is_pair: bool) -> Iterator[tuple[int, OutputRecord]]:
    """The records of `settled` with their tasks, in the merged order."""
    names = [trace_id(number) for number in range(int(queries.traces[-1]) + 1)]
    nodes = np.arange(len(queries.traces)) - np.searchsorted(queries.traces, queries.traces)
    rows = zip(
        *(each.tolist() for each in (queries.times_ms, queries.traces, nodes, queries.values)),
        strict=True,
    )
    ordered = sorted((ms, names[trace], f"n-{node}", value) for ms, trace, node, value in rows)
    ns = [0] * N_TASKS
    for event_ms, trace, node, steps in ordered:
        task = crc32(trace.encode()) % N_TASKS
        served = STEP // 2 + steps // 2 if is_pair else steps
        values = {"served": {MEASURE: served / STEP}}
        if is_pair:
            values["bm25"] = {MEASURE: (served - steps) / STEP}
        document = {
            "n": ns[task],
            "task": task,
            "trace_id": trace,
            "node_id": node,
            "event_time_ms": event_ms,
            "settled_time_ms": event_ms + MATURITY_MS,
            "offset": ns[task],
            "model": "m",
            "variant": "prod",
            "grades": {"a": 1},
            "values": values,
        }
        ns[task] += 1
        yield task, OutputRecord(b"k", json.dumps(document).encode(), HEADERS)
    beyond_ms = START_MS + queries.n_ticks * TICK_MS + MATURITY_MS + TICK_MS
    for task, n in enumerate(ns):
        last = encode_watermark(WatermarkRecord(beyond_ms, n), task=task)
        yield task, OutputRecord(b"k", last.value, HEADERS)


def leader(leadership: MemoryLeadership, rules: WatchRules) -> Leader:
    return Leader(
        leadership,
        measures=MeasureSet.parse([MEASURE]),
        record_writer=RecordWriter("rules", {"loss": "softmax"}, "workers"),
        rules=None,
        alarms=LeaderAlarms(rules, AlarmState("watch", "workers")),
    )


async def published(
    queries: Queries, rules: WatchRules, *, is_pair: bool, most: int = MAX_READ_RECORDS
) -> tuple[list[bytes], int]:
    """The events of leaders of which all but the last are killed, and how many continue a state.

    Each has a further part of the records, and is killed while it closes the ticks of that part:
    it reads task after task, at most *most* records in a call.
    """
    broker, n_continued = FaultyBroker(N_TASKS), 0
    records = list(records_of(queries, is_pair=is_pair))
    ends = [len(records) * (n + 1) // (N_KILLS + 1) for n in range(N_KILLS)]
    for first, end in pairwise([0, *ends, len(records)]):
        for task, record in records[first:end]:
            broker.write(("settled", task), [record])
        n_continued += bool(broker.leader.written["weights"])
        if end < len(records):
            n_reads = ceil((end - first) / (N_TASKS * most))  # of each task
            n_calls = 3 + 4 * n_reads + 4 * ceil(0.8 * n_reads)  # two a read, and two to publish
            with suppress(asyncio.CancelledError):
                await leader(KilledLeadership(broker, n_calls), rules).run()
    last, end_ms = leader(MemoryLeadership(broker), rules), START_MS + queries.n_ticks * TICK_MS
    running = asyncio.create_task(last.run())
    await eventually(lambda: (last.view.alarms.tick_end_ms or 0) >= end_ms, every=0.01)
    last.stop()
    await finished(running)
    return [record.value for record in broker.leader.written["alarms"]], n_continued


def events_of(values: Sequence[bytes]) -> list[tuple[int, int, bool]]:
    """Events as `Runs` has them, of the first series."""
    found = map(json.loads, values)
    return [
        (0, (each["time_ms"] - START_MS) // TICK_MS, each["event"] == "on")
        for each in found
        if each["series"]["ranker"]
    ]


def computed(queries: Queries, rules: WatchRules, *, is_pair: bool) -> list[tuple[int, int, bool]]:
    """Events of the same queries without a leader."""
    runs = Runs(queries.n_ticks // 4, 1, rules.alarms, not is_pair)
    follow(runs, sums_of_queries(queries)[None], WARM_UP_WEEKS * 7 * TICKS_PER_DAY)
    return runs.events


def made(
    name: str, rate: float, seed: int, *, weeks: int = WEEKS, drop_day: int = DROP_DAY
) -> tuple[Queries, WatchRules, bool]:
    """One run of a world of the benchmark by its name, its rules, and whether it is of a pair."""
    drop = DROPS.get(name)
    world = NO_DROP[name] if drop is None else drop.world
    rng = np.random.default_rng(seed)
    ticks = weeks * 7 * TICKS_PER_DAY
    level = world.level(rng, ticks)
    if drop is not None:
        after = np.arange(ticks) - drop_day * TICKS_PER_DAY
        level = level - np.where(after >= 0, drop.size * (after / 672 if drop.per_week else 1), 0.0)
    return queries_of(world, rate, level, rng), rules_of(world), world.kind == "pair"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table; 1 if an event of a leader differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--only", default="", help="worlds that contain this text")
    options = parser.parse_args(arguments)
    rows, n_different = [], 0
    for name in [*NO_DROP, *DROPS]:
        for rate in options.rates if options.only in name else ():
            queries, rules, is_pair = made(name, rate, options.seed)
            values, n_continued = asyncio.run(published(queries, rules, is_pair=is_pair))
            found = events_of(values)
            same = found == computed(queries, rules, is_pair=is_pair) and n_continued == N_KILLS
            n_different += not same
            n_on = sum(on for *_, on in found)
            figures = len(queries.ticks), n_on, len(found) - n_on
            rows.append([name, f"{rate}/s", *map(str, figures), "yes" if same else "no"])
            print(rows[-1], file=sys.stderr)
    head = ["world", "rate", "queries", "alarms begun", "ended", "as computed"]
    print(format_table(head, rows, numbers=range(2, 5)))
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
