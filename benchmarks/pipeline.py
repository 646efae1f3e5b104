"""The stages of a batch without a broker: decode, receive, encode. CPU microseconds per pair.

`python -m benchmarks.pipeline --pairs 50000 --rounds 5`; `--functions 30` also prints where the
interpreter spends its time (cProfile: its figures are shares, not speeds), `--parts` the time of
the parts of `receive`.
"""

import argparse
import cProfile
import gc
import json
import pstats
import statistics
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.meter import Stages, peak_mb
from benchmarks.stages import charge_core
from benchmarks.world import Message, make_world
from evaluator.cli.live import GC_THRESHOLD
from evaluator.core.engine.engine import Emits, Engine
from evaluator.core.join.changes import DiskTier
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import Log, Outputs
from evaluator.tables import format_table
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.outputs.encoding import (
    encode_dead_letters,
    encode_evaluations,
    encode_settled,
    encode_windows,
)
from evaluator.wire.records import Records

MEASURES = ["top1", "top3", "mrr", "ndcg@10", "map@10"]
SKEW_MS = 300_000
MATURITY_MS = 3_600_000
WINDOW_MS = 60_000


class Stopwatch:
    """CPU seconds per stage; `lap` charges the time since the last lap to a stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._since = time.process_time()

    def start(self) -> None:
        self._since = time.process_time()

    def lap(self, stage: str) -> None:
        now = time.process_time()
        self.seconds[stage] += now - self._since
        self._since = now


def batches(messages: list[Message], log: Log, size: int) -> Iterator[Records]:
    """The log of one partition, cut into poll batches of *size* records."""
    for first in range(0, len(messages), size):
        yield one_batch(messages, log, first, min(first + size, len(messages)))


def one_batch(messages: list[Message], log: Log, first: int, end: int) -> Records:
    """Messages *first* to before *end* of a log, as one poll gives them."""
    part = messages[first:end]
    return Records.of(
        log=log,
        partition=0,
        offsets=list(range(first, end)),
        keys=[message.key for message in part],
        values=[message.value for message in part],
        timestamps_ms=[message.timestamp_ms for message in part],
        next_offset=end,
    )


def in_reading_order(
    rankings: list[Message], judgments: list[Message], size: int
) -> Iterator[Records]:
    """Both logs approximately as the worker reads them: judgments up to the clock of the
    rankings."""
    first = 0
    for batch in batches(rankings, "rankings", size):
        yield batch
        clock_ms = 0 if batch.timestamps_ms is None else int(batch.timestamps_ms[-1])
        last = bisect_right(judgments, clock_ms, key=lambda message: message.timestamp_ms)
        for start in range(first, last, size):
            yield one_batch(judgments, "judgments", start, min(start + size, last))
        first = max(first, last)
    yield one_batch(judgments, "judgments", first, len(judgments))


def make_engine(disk_tier: DiskTier | None = None, *, learns: bool = False) -> Engine:
    """One task with the default settings, learning off or on."""
    rules = JoinRules(
        retention_ms=86_400_000,
        maturity_ms=MATURITY_MS,
        early_ms=60_000,
        remember_ms=3_600_000,
        out_of_orderness_ms=300_000,
        window_ms=WINDOW_MS,
    )
    measures, emits = MeasureSet.parse(MEASURES), Emits(offers=learns)
    return Engine(0, rules, measures, emits=emits, disk_tier=disk_tier)


def encode(outputs: Outputs, measures: MeasureSet) -> int:
    """Encodes all outputs of a live worker; returns the number of records."""
    topics: dict[Log, str] = {"rankings": "rankings", "judgments": "judgments"}
    records = (
        encode_evaluations(outputs.evaluations, measures, emit_query=True),
        encode_settled(outputs.settled, measures, task=0, maturity_ms=MATURITY_MS),
        encode_windows(outputs.windows, measures, window_ms=WINDOW_MS, task=0),
        encode_dead_letters(outputs.dead_letters, topics, partition=0),
    )
    return sum(map(len, records))


def run(reading: list[Records], watch: Stopwatch, *, learns: bool = False) -> tuple[Engine, int]:
    """Runs all stages once, with a new engine; also returns the number of records written."""
    engine = make_engine(learns=learns)
    written = 0
    measures = MeasureSet.parse(MEASURES)
    watch.start()
    for records in reading:
        if records.log == "rankings":
            rankings = decode_rankings(records, max_future_skew_ms=SKEW_MS, features=learns)
            watch.lap("decode rankings")
            outputs = engine.receive(rankings, None)
            watch.lap("receive rankings")
        else:
            judgments = decode_judgments(records, max_future_skew_ms=SKEW_MS)
            watch.lap("decode judgments")
            outputs = engine.receive(None, judgments)
            watch.lap("receive judgments")
        written += encode(outputs, measures)
        watch.lap("encode")
    return engine, written


def report(laps: list[dict[str, float]], n_pairs: int) -> dict[str, tuple[float, float]]:
    """Median and best of the rounds, in microseconds per pair, by stage and altogether."""
    with_sums = [{**lap, "all": sum(lap.values())} for lap in laps]
    per_pair = {stage: [lap[stage] / n_pairs * 1e6 for lap in with_sums] for stage in with_sums[0]}
    return {stage: (statistics.median(costs), min(costs)) for stage, costs in per_pair.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=5_000, help="records per poll batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="profile, N lines")
    parser.add_argument("--parts", action="store_true", help="one more round, by parts of receive")
    parser.add_argument("--learning", action="store_true", help="settled with its features")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    world = make_world(arguments.pairs, seed=arguments.seed)
    reading = list(in_reading_order(world.rankings, world.judgments, arguments.batch))
    gc.set_threshold(*GC_THRESHOLD)
    laps = []
    for _ in range(arguments.rounds):
        gc.collect()
        gc.freeze()
        watch = Stopwatch()
        engine, written = run(reading, watch, learns=arguments.learning)
        laps.append(dict(watch.seconds))
    stages = report(laps, arguments.pairs)
    if arguments.json:
        print(json.dumps(stages))
    else:
        tally = engine.tally()
        print(f"{arguments.pairs} pairs, {written} records out, watermark {engine.watermark_ms}")
        print({path: n for path, n in tally.items() if path[0] in ("judgments", "queries") and n})
        rows = [[stage, f"{cost:.2f}", f"{best:.2f}"] for stage, (cost, best) in stages.items()]
        print(format_table(["us per pair", "median", "best"], rows, numbers=[1, 2]))
        print(
            f"{1e6 / stages['all'][0]:,.0f} pairs/s in the median; peak memory {peak_mb():,.0f} MB"
        )
    if arguments.parts:
        parts = Stages(time.process_time)
        charge_core(parts)
        run(reading, Stopwatch())
        costs = {name: s / arguments.pairs * 1e6 for name, s in parts.seconds.items()}
        rows = [[part, f"{cost:.2f}"] for part, cost in costs.items()]
        print(format_table(["part", "us per pair"], rows, numbers=[1]))
    if arguments.functions:
        profile = cProfile.Profile()
        profile.runcall(run, reading, Stopwatch())
        pstats.Stats(profile).sort_stats("tottime").print_stats(arguments.functions)


if __name__ == "__main__":
    main()
