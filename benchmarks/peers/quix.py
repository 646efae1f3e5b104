"""The job on Quix Streams: `python -m benchmarks.peers.quix`, in an environment of its own.

Both inputs are one data frame, and one stateful function joins them by key: raw bytes in and
out, orjson, bytes in the state, the measures of the naive evaluator. State is in RocksDB, with
its changelog.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from quixstreams import Application, State

from benchmarks.meter import Meter
from benchmarks.naive import UNIT, measure


class Job:
    """What the stateful function keeps outside its state: sums, and the meter."""

    def __init__(self, meter: Meter, n_records: int, stop: Callable[[], None]) -> None:
        self._meter = meter
        self._n_left = n_records
        self._stop = stop
        self.queries: dict[tuple[str, ...], int] = defaultdict(int)
        self.sums: dict[tuple[str, ...], int] = defaultdict(int)

    def __call__(self, value: bytes, state: State) -> bytes | None:
        self._meter.begin()
        self._n_left -= 1
        if not self._n_left:
            self._stop()  # after this message; then everything is flushed and committed
        message = orjson.loads(value)
        node = message["node_id"]
        if "grades" in message:
            stored = state.get_bytes("r" + node)
            if stored is None:
                state.set_bytes("j" + node, value)
                return None
            return self._evaluated(orjson.loads(stored), message)
        kept = {name: message[name] for name in message if name not in {"features", "segments"}}
        state.set_bytes("r" + node, orjson.dumps(kept))
        early = state.get_bytes("j" + node)
        if early is None:
            return None
        state.delete("j" + node)
        return self._evaluated(message, orjson.loads(early))

    def _evaluated(self, ranking: dict[str, Any], judgment: dict[str, Any]) -> bytes:
        ids, grades = ranking["candidate_ids"], judgment["grades"]
        rankers = {"served": ranking["scores"], **ranking["scorers"]}
        lists = {name: measure(scores, ids, grades) for name, scores in rankers.items()}
        for name, measured in lists.items():
            for of, value in measured.values.items():
                series = (ranking["model"], ranking["variant"], name, of)
                self.queries[series] += 1
                self.sums[series] += round(value * UNIT)
        result = {
            "trace_id": ranking["trace_id"],
            "node_id": ranking["node_id"],
            "event_time_ms": ranking["timestamp_ms"],
            "model": ranking["model"],
            "variant": ranking["variant"],
            "query": ranking["query"],
            "revision": 1,
            "grades": grades,
            "rank": {name: measured.rank for name, measured in lists.items()},
            "top3": {name: measured.top3 for name, measured in lists.items()},
            "values": {name: measured.values for name, measured in lists.items()},
        }
        return orjson.dumps(result)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.quix")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--state-dir", required=True)
    arguments = parser.parse_args()
    application = Application(
        broker_address=arguments.bootstrap,
        consumer_group=arguments.group,
        auto_offset_reset="earliest",
        state_dir=arguments.state_dir,
        producer_extra_config={"compression.type": "zstd", "linger.ms": 50},
        loglevel="WARNING",
        topic_create_timeout=120,
    )
    rankings, judgments, results = (
        application.topic(
            f"{arguments.prefix}{name}", value_deserializer="bytes", value_serializer="bytes"
        )
        for name in ("rankings", "judgments", "naive")
    )
    meter = Meter(2 * arguments.pairs)
    job = Job(meter, 2 * arguments.pairs, application.stop)
    both = application.dataframe(rankings).concat(application.dataframe(judgments))
    evaluated = both.apply(job, stateful=True)
    evaluated = evaluated[evaluated.apply(lambda value: value is not None)]
    evaluated.to_topic(results)
    application.run(collect=False)
    meter.end()
    totals = [[*series, n, job.sums[series]] for series, n in job.queries.items()]
    meter.write(arguments.report, totals=totals)


if __name__ == "__main__":
    main()
