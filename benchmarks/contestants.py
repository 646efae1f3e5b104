"""The processes that are measured, each `python -m benchmarks.contestants NAME ...` on its own.

A process reports the time from its first poll to its last commit, so neither the start of the
interpreter nor joining the group counts, for any of them.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.meter import Meter
from benchmarks.naive import NaiveEvaluator
from evaluator.adapters.kafka import source as kafka_source
from evaluator.adapters.kafka.clients import CONSUMER_SETTINGS
from evaluator.ports import Committed, Partition

MAX_RECORDS = 5_000


def _consumer(arguments: argparse.Namespace, **more: Any) -> AIOKafkaConsumer:
    """A consumer with the fetch settings of the evaluator's own."""
    return AIOKafkaConsumer(
        f"{arguments.prefix}rankings",
        f"{arguments.prefix}judgments",
        bootstrap_servers=arguments.bootstrap,
        group_id=arguments.group,
        fetch_max_bytes=kafka_source.FETCH_BYTES,
        **{**CONSUMER_SETTINGS, "auto_offset_reset": "earliest", **more},
    )


async def read_bare(arguments: argparse.Namespace) -> None:
    """Reads both topics to their ends and discards the records."""
    consumer = _consumer(arguments)
    await consumer.start()
    meter = Meter(2 * arguments.pairs)
    left = 2 * arguments.pairs
    meter.begin()
    while left:
        batches = await consumer.getmany(timeout_ms=1_000, max_records=MAX_RECORDS)
        left -= sum(map(len, batches.values()))
    await consumer.commit()
    meter.end()
    await consumer.stop()
    meter.write(arguments.report)


async def run_naive(arguments: argparse.Namespace) -> None:
    """Runs the naive evaluator, with a topic for its results."""
    topic = f"{arguments.prefix}naive"
    consumer = _consumer(arguments, enable_auto_commit=True)
    producer = AIOKafkaProducer(bootstrap_servers=arguments.bootstrap, compression_type="zstd")
    await producer.start()
    await consumer.start()

    async def send(key: bytes, value: bytes) -> None:
        await producer.send(topic, key=key, value=value)

    evaluator = NaiveEvaluator(send)
    meter = Meter(2 * arguments.pairs)
    left = 2 * arguments.pairs
    meter.begin()
    async for message in consumer:
        if message.topic.endswith("rankings"):
            await evaluator.on_ranking(message.value)
        else:
            await evaluator.on_judgment(message.value)
        left -= 1
        if not left:
            break
    await producer.flush()
    await consumer.commit()
    meter.end()
    await consumer.stop()
    await producer.stop()
    totals = [[*path, n, evaluator.sums[path]] for path, n in evaluator.queries.items()]
    meter.write(arguments.report, totals=totals)


STORE = "store"
"""The stage that makes state durable."""


def run_evaluator(arguments: argparse.Namespace) -> None:
    """`evaluator run --until-end` as it is, with a watch on its polls and commits."""
    from evaluator import cli  # noqa: PLC0415 - the others do without it

    meter = Meter(2 * arguments.pairs)
    with _watched(meter):
        if arguments.profile:
            from benchmarks.stages import charge_all  # noqa: PLC0415 - touches every module

            charge_all(meter.stages)
        else:
            from evaluator.worker.task_state import TaskState  # noqa: PLC0415 - as above

            meter.stages.wrap(TaskState, "commit", STORE)
        command = ["run", "--source", f"kafka://{arguments.bootstrap}", "--until-end"]
        settings = {
            "state_dir": arguments.state_dir,
            "topic_prefix": arguments.prefix,
            "group_id": arguments.group,
            "http_port": arguments.http_port,
            "max_poll_records": MAX_RECORDS,
            "max_future_skew_ms": arguments.skew_ms,
        }
        for assignment in [*(f"{k}={v}" for k, v in settings.items()), *arguments.set]:
            command += ["--set", assignment]
        code = cli.main(command)
    if code:
        sys.exit(code)
    meter.write(arguments.report)


@contextmanager
def _watched(meter: Meter) -> Iterator[None]:
    """Reports the first poll of an assigned partition, and every commit, to *meter*."""
    source = kafka_source.KafkaSource
    poll, commit = source.poll, source.commit
    offsets: dict[Partition, int] = {}

    async def watched_poll(self: Any, partitions: Any, **kwargs: Any) -> Any:
        if partitions:
            meter.begin()
        return await poll(self, partitions, **kwargs)

    async def watched_commit(self: Any, commits: Mapping[Partition, Committed]) -> bool:
        done = await commit(self, commits)
        offsets.update((each, committed.offset) for each, committed in commits.items())
        meter.committed(sum(offsets.values()))
        return done

    source.poll, source.commit = watched_poll, watched_commit  # type: ignore[method-assign]
    try:
        yield
    finally:
        source.poll, source.commit = poll, commit  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contestants")
    parser.add_argument("name", choices=["getmany", "naive", "evaluator"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--http-port", type=int, default=9464)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--skew-ms", type=int, default=300_000, help="another fingerprint")
    parser.add_argument("--set", action="append", default=[], help="a setting of the evaluator")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.name == "evaluator":
        run_evaluator(arguments)
    else:
        asyncio.run({"getmany": read_bare, "naive": run_naive}[arguments.name](arguments))


if __name__ == "__main__":
    main()
