"""CPU time of `evaluator run` at low rates, on a real Kafka.

Pairs of the benchmark's world are sent with the time of now, in twenty shares of every second, a
ranking and its judgment together. /metrics is read every 15 seconds.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from aiokafka import AIOKafkaProducer

from benchmarks.course import pinned
from benchmarks.topics import INPUTS, make_topics, partition_of
from benchmarks.world import World, make_world
from evaluator.tables import format_table
from tests.kafka.broker import Broker
from tests.kafka.process import Worker

SHARES = 20  # of a second
SCRAPE_SECONDS = 15
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def messages(world: World) -> Iterator[tuple[str, bytes, bytes]]:
    """Topic, key and value of each ranking and its judgment, without end and without times."""
    by_key = {message.key: message.value for message in world.judgments}
    number = 0
    while True:
        for message in world.rankings:
            key = b"%s-%d" % (message.key, number)
            for topic, value in zip(INPUTS, (message.value, by_key[message.key]), strict=True):
                now = b'"timestamp_ms":%d' % (time.time_ns() // 1_000_000)
                renamed = value.replace(b'"%s"' % message.key, b'"%s"' % key)
                yield topic, key, re.sub(rb'"timestamp_ms": ?\d+', now, renamed)
        number += 1


async def feed(
    producer: AIOKafkaProducer, prefix: str, source: Iterator[tuple[str, bytes, bytes]], rate: int
) -> None:
    """Sends *rate* pairs per second until it is cancelled."""
    began, sent = time.monotonic(), 0
    while True:
        elapsed_shares = int((time.monotonic() - began) * SHARES)
        for _ in range(elapsed_shares * rate // SHARES - sent):
            for _ in INPUTS:
                topic, key, value = next(source)
                await producer.send(f"{prefix}{topic}", value, key=key, partition=partition_of(key))
            sent += 1
        await asyncio.sleep(1 / SHARES)


async def scrape(worker: Worker) -> None:
    url = f"http://127.0.0.1:{worker.port}/metrics"
    while True:
        await asyncio.sleep(SCRAPE_SECONDS)
        with await asyncio.to_thread(urllib.request.urlopen, url) as reply:
            reply.read()


def pairs_read(worker: Worker) -> int:
    """Judgments that it has committed, without heartbeats."""
    ledger = worker.totals["ledger"]["judgments"]
    return int(ledger["read"] - ledger["heartbeat"])


async def measure(
    broker: Broker, directory: Path, rates: list[int], seconds: float, settings: dict[str, str]
) -> list[list[str]]:
    await make_topics(broker.bootstrap, "low-")
    python = (*pinned(0), sys.executable, "-m", "evaluator")
    worker = Worker(directory, broker.bootstrap, "low-", python=python, **settings)
    rows = []
    try:
        await asyncio.to_thread(worker.until_ready)
        source = messages(make_world(20_000))
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=5) as producer:
            scraping = asyncio.create_task(scrape(worker))
            for rate in rates:
                feeding = asyncio.create_task(feed(producer, "low-", source, rate))
                await asyncio.sleep(5)
                before, began = cpu_seconds(worker.pid), time.monotonic()
                n_before = await asyncio.to_thread(pairs_read, worker)
                await asyncio.sleep(seconds)
                after, took = cpu_seconds(worker.pid), time.monotonic() - began
                n_read = await asyncio.to_thread(pairs_read, worker) - n_before
                feeding.cancel()
                user, system = ((b - a) / took for a, b in zip(before, after, strict=True))
                load = f"{os.getloadavg()[0]:.1f}"
                figures = (f"{each:.3f}" for each in (user + system, user, system))
                rows.append([f"{rate:,}", f"{n_read / took:,.1f}", *figures, load])
                print(rows[-1], flush=True)
            scraping.cancel()
            await asyncio.to_thread(worker.stop, 30)
            print(worker.events("worker_stopped"))
    finally:
        worker.end()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.low_rates", description=__doc__)
    parser.add_argument("--rates", default="0,1,10,100,1000", help="pairs per second")
    parser.add_argument("--seconds", type=float, default=60, help="for each rate")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    asked = parser.parse_args()
    rates = [int(rate) for rate in asked.rates.split(",")]
    settings = dict(each.split("=", 1) for each in asked.set)
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "broker") as broker:
        (Path(name) / "worker").mkdir()
        rows = asyncio.run(measure(broker, Path(name) / "worker", rates, asked.seconds, settings))
    header = ["asked pairs/s", "read", "cores", "user", "system", "load of the machine"]
    print(format_table(header, rows, numbers=range(6)))


if __name__ == "__main__":
    main()
