"""The cost of learning: the parts of the worker and of the leader, without a broker.

`python -m benchmarks.beside`. Interleaved rounds of a worker that does not learn, a worker that
writes training examples, and a leader that reads them. CPU microseconds, medians.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.pipeline import (
    GC_THRESHOLD,
    MATURITY_MS,
    MEASURES,
    SKEW_MS,
    encode,
    in_reading_order,
    make_engine,
)
from benchmarks.world import make_world
from evaluator.cli.leader import rules_of, watch_rules_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.learning.groups import Group, UpdateBatch
from evaluator.core.learning.learner import Learner
from evaluator.core.measures import MeasureSet
from evaluator.core.online.alarm_watch import AlarmWatch, WatchResult
from evaluator.core.online.online_learner import OnlineLearner
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.watched_queries import WatchedQueries
from evaluator.tables import format_table
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.outputs.encoding import encode_settled
from evaluator.wire.outputs.settled import WatchedReader, decode_settled
from evaluator.wire.records import Records

OFF, ON = "a worker, learning off", "a worker, learning on"
WATCH = "a leader with alarms alone"
DECODE, LEADER = "the leader reads", "the leader measures, learns and tries"
READ_RECORDS = 500
"""Records that the leader reads at once."""
LEARNER_GROUPS = 64 * 50


def worker(reading: Sequence[Records], *, learns: bool) -> tuple[float, list[bytes]]:
    """CPU seconds, and the records of `settled`."""
    engine, measures = make_engine(learns=learns), MeasureSet.parse(MEASURES)
    settled: list[bytes] = []
    began = time.process_time()
    for records in reading:
        if records.log == "rankings":
            rankings = decode_rankings(records, max_future_skew_ms=SKEW_MS, features=learns)
            outputs = engine.receive(rankings, None)
        else:
            judgments = decode_judgments(records, max_future_skew_ms=SKEW_MS)
            outputs = engine.receive(None, judgments)
        encode(outputs, measures)
        paused = time.process_time()
        settled += [
            record.value
            for record in encode_settled(outputs.settled, measures, task=0, maturity_ms=MATURITY_MS)
        ]
        began += time.process_time() - paused
    return time.process_time() - began, settled


def leader(settled: Sequence[bytes]) -> tuple[float, float]:
    """CPU seconds to read the records again, and to process them, with default settings."""
    settings = Settings(learning="propose", measures=tuple(MEASURES))
    rules = rules_of(settings, measure_set(settings))
    leadership, reading, all_else = OnlineLearner(rules, n_tasks=1), 0.0, 0.0
    leadership.merge.end()
    for first in range(0, len(settled), READ_RECORDS):
        began = time.process_time()
        records = [
            decode_settled(value, rules.offline_ranking.measures)
            for value in settled[first : first + READ_RECORDS]
        ]
        read = time.process_time()
        leadership.receive(record for record in records if isinstance(record, SettledQuery))
        reading += read - began
        all_else += time.process_time() - read
    return reading, all_else


def watching(settled: Sequence[bytes]) -> float:
    """CPU seconds of a leader with alarms, with default settings."""
    settings = Settings(measures=tuple(MEASURES))
    measures = measure_set(settings)
    rules = watch_rules_of(settings, measures)
    read, watch = (
        WatchedReader(rules.watched(measures), rules.columns()),
        AlarmWatch(rules, n_tasks=1),
    )
    parts = [
        settled[first : first + READ_RECORDS] for first in range(0, len(settled), READ_RECORDS)
    ]
    columns = list(map(ByteStrings.of, parts))  # as they are fetched
    began = time.process_time()
    for values in columns:
        found, _ = read(values, np.arange(len(values)), 0)
        watch.receive(
            0, [each for each in found if isinstance(each, WatchedQueries)], WatchResult()
        )
    return time.process_time() - began


def learner_seconds(n_groups: int, size: int) -> float:
    """CPU seconds to learn from groups of 20 candidates with 4 features."""
    rng = np.random.default_rng(size)
    groups = [
        Group(rng.normal(size=(20, 4)), rng.permutation([2.0, 1.0, 1.0, *(0.0,) * 17]))
        for _ in range(n_groups)
    ]
    learner = Learner(learning_rate=1e-3)
    state = learner.start((0.0,) * 4)
    began = time.process_time()
    batches: list[UpdateBatch]
    for batches in learner.batches(groups, size):
        state, _ = learner.learn(state, batches)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("--pairs", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    world = make_world(arguments.pairs, seed=arguments.seed)
    reading = list(in_reading_order(world.rankings, world.judgments, 5_000))
    gc.set_threshold(*GC_THRESHOLD)
    rounds: list[dict[str, float]] = []
    steps: dict[int, list[float]] = {1: [], 64: []}
    for _ in range(arguments.rounds):
        gc.collect()
        gc.freeze()
        off, plain = worker(reading, learns=False)
        on, settled = worker(reading, learns=True)
        read, all_else = leader(settled)
        pair, query = 1e6 / arguments.pairs, 1e6 / len(settled)
        rounds.append(
            {
                OFF: off * pair,
                ON: on * pair,
                WATCH: watching(plain) * query,
                DECODE: read * query,
                LEADER: all_else * query,
            }
        )
        for size, seconds in steps.items():
            seconds.append(learner_seconds(LEARNER_GROUPS, size))
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    own = statistics.median(one[ON] / one[OFF] for one in rounds)
    whole = statistics.median((one[DECODE] + one[LEADER]) / one[OFF] for one in rounds)
    rows = [[name, f"{cost:.1f}"] for name, cost in medians.items()]
    print(format_table(["CPU us per pair, per settled query", ""], rows, numbers=[1]))
    print(f"\na worker that writes what can be learned from takes {own:.2f} times as long,")
    print(f"the leader of a query {whole:.1f} times what the worker takes for a pair")
    for size, seconds in steps.items():
        updates = LEARNER_GROUPS / size / statistics.median(seconds)
        print(f"{updates:,.0f} updates per second, 20 candidates x 4 features, {size} groups each")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rounds, "steps": steps}, indent=1) + "\n")


if __name__ == "__main__":
    main()
