"""Time from the produce of a judgment to its effect in /metrics, on a real Kafka.

A worker, alone on its core, first reads a backlog: its full speed. Then half of that rate is sent,
and probes between it: judgments of models of their own, one for each task, whose running mean
changes with every judgment. As many queries settle and expire as start, before and meanwhile.

The time begins before the probe is passed to its producer, and ends when a scrape shows it. While a
probe is not visible, scrapes follow each other after a pause: a time is too long by half of a pause
and a scrape, and the scrapes take time of the worker that those of a Prometheus do not take.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiokafka import AIOKafkaProducer

from benchmarks.course import PATIENT_SESSIONS, environment, pinned, say
from benchmarks.low_rates import cpu_seconds, pairs_read
from benchmarks.topics import INPUTS, N_PARTITIONS, load, make_topics
from benchmarks.world import Message, World, make_world
from evaluator.tables import format_table
from tests.kafka.broker import Broker
from tests.kafka.process import Worker

PREFIX = "visible-"
N_TEMPLATES = 20_000
LAG_MS = {"rankings": 0, "judgments": 1_000}
SETTINGS = {  # of event time, so that a run of a minute has queries at every age
    "maturity_ms": 10_000,
    "retention_ms": 20_000,
    "out_of_orderness_ms": 2_000,
    "early_ms": 5_000,
    "remember_ms": 5_000,
    "window_ms": 10_000,
}
SHARES = 50  # of a second
BATCH_BYTES = 900_000
WARM_UP_SECONDS = 10
SCRAPE_PAUSE_SECONDS = 0.02
PROBE_SECONDS = (0.3, 0.9)
PATIENCE_SECONDS = 60
SERIES = "evaluator_running_value_mean{"
PROBED = re.compile(r'model="probe-(\d+)"')
BARS = {"p50": 0.25, "p99": 0.6}


class Traffic:
    """Pairs without end: those of a world again and again, with keys and times of their own.

    Pair *first* has a ranking at `began_ms`, which is now; *rate* pairs have one each second.
    """

    def __init__(self, first: int, rate: int) -> None:
        world = make_world(N_TEMPLATES)
        judgments = {message.key: message for message in world.judgments}
        self._templates = {
            "rankings": world.rankings,
            "judgments": [judgments[message.key] for message in world.rankings],
        }
        self._first, self._rate = first, rate
        self.began_ms = now_ms()  # after the seconds that the world takes

    def messages(self, log: str, first: int, end: int) -> list[Message]:
        """Those of the pairs from *first* to before *end*."""
        found = []
        began_ms = self.began_ms + LAG_MS[log]
        for number in range(first, end):
            timestamp_ms, key, value = self._templates[log][number % N_TEMPLATES]
            renamed = b"%s-%d" % (key, number // N_TEMPLATES)
            at_ms = began_ms + (number - self._first) * 1000 // self._rate
            value = value.replace(b'"%s"' % key, b'"%s"' % renamed)
            value = value.replace(b'_ms":%d' % timestamp_ms, b'_ms":%d' % at_ms)
            found.append(Message(at_ms, renamed, value))
        return found


def backlog(n: int, rate: int) -> World:
    """*n* pairs up to now, at *rate* in event time."""
    traffic = Traffic(0, rate)
    traffic.began_ms -= n * 1000 // rate
    return World(*(traffic.messages(log, 0, n) for log in INPUTS))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def feed(bootstrap: str, first: int, rate: int) -> None:
    """Sends *rate* pairs per second, numbered from *first* on, until it is stopped."""
    traffic = Traffic(first, rate)
    began = time.monotonic()
    sent = dict.fromkeys(INPUTS, first)
    settings: dict[str, Any] = {"max_batch_size": BATCH_BYTES}
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
        while True:
            elapsed_ms = (time.monotonic() - began) * 1000
            for log, begin in sent.items():
                end = first + max(0, int((elapsed_ms - LAG_MS[log]) * rate / 1000))
                messages = traffic.messages(log, begin, end)
                await send(producer, f"{PREFIX}{log}", begin, messages)
                sent[log] = end
            await asyncio.sleep(1 / SHARES)


async def send(producer: AIOKafkaProducer, topic: str, first: int, messages: list[Message]) -> None:
    """Sends messages in batches as large as they come, by number to the partitions in turn."""
    for partition in range(N_PARTITIONS):
        batch = producer.create_batch()
        for timestamp_ms, key, value in messages[
            (partition - first) % N_PARTITIONS :: N_PARTITIONS
        ]:
            if batch.append(timestamp=timestamp_ms, key=key, value=value) is None:
                await producer.send_batch(batch, topic, partition=partition)
                batch = producer.create_batch()
                batch.append(timestamp=timestamp_ms, key=key, value=value)
        if batch.record_count():
            await producer.send_batch(batch, topic, partition=partition)


@contextmanager
def feeding(bootstrap: str, first: int, rate: int) -> Iterator[None]:
    """A separate process that sends, so that it delays no probe and no scrape."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_feed, args=(bootstrap, first, rate), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _feed(bootstrap: str, first: int, rate: int) -> None:
    asyncio.run(feed(bootstrap, first, rate))


class Probe(NamedTuple):
    """A query whose ranking was sent; its judgment gives the model a new running mean."""

    task: int
    number: int  # in its task

    def message(self, **members: object) -> bytes:
        trace_id = f"probe-{self.task}-{self.number}"
        about = {"schema_version": 1, "trace_id": trace_id, "node_id": "n"}
        return json.dumps({**about, "timestamp_ms": now_ms(), **members}).encode()

    def ranking(self) -> bytes:
        model = f"probe-{self.task}"
        return self.message(model=model, variant="v", candidate_ids=["a"], scores=[1.0])

    def judgment(self) -> bytes:
        """Only the first one is relevant: after n probes the mean is 1/n."""
        return self.message(grades={"a": int(self.number == 0)})


class Probes:
    """Sends probes and waits for them; `seconds` from produce to /metrics, in any order."""

    def __init__(self, producer: AIOKafkaProducer, port: int) -> None:
        self.seconds: list[float] = []
        self.scrape_seconds: list[float] = []
        self._producer = producer
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._sent: list[list[float]] = [[] for _ in range(N_PARTITIONS)]
        self._n_seen = [0] * N_PARTITIONS
        self._awaited = asyncio.Event()  # set while a probe is not visible

    async def run(self, n: int) -> None:
        """*n* probes, each ranking long before its judgment."""
        scraping = asyncio.create_task(self._scrape(n))
        rng = random.Random(1)
        probes = [Probe(i % N_PARTITIONS, i // N_PARTITIONS) for i in range(n)]
        for first in range(0, n, N_PARTITIONS * 5):
            some = probes[first : first + N_PARTITIONS * 5]
            for probe in some:
                await self._producer.send(
                    f"{PREFIX}rankings", probe.ranking(), partition=probe.task
                )
            await asyncio.sleep(LAG_MS["judgments"] / 1000)
            for probe in some:
                await asyncio.sleep(rng.uniform(*PROBE_SECONDS))
                self._sent[probe.task].append(time.monotonic())
                self._awaited.set()
                await self._producer.send(
                    f"{PREFIX}judgments", probe.judgment(), partition=probe.task
                )
        done, _ = await asyncio.wait({scraping}, timeout=PATIENCE_SECONDS)
        if not done:
            sys.exit(f"{len(self.seconds)} of {n} probes were seen in /metrics")
        scraping.result()

    async def _scrape(self, n: int) -> None:
        async with aiohttp.ClientSession() as session:
            while len(self.seconds) < n:
                await self._awaited.wait()
                began = time.monotonic()
                async with session.get(self._url) as reply:
                    text = await reply.text()
                self.scrape_seconds.append(time.monotonic() - began)
                self._look(text.splitlines(), time.monotonic())
                await asyncio.sleep(SCRAPE_PAUSE_SECONDS)

    def _look(self, lines: list[str], now: float) -> None:
        for line in lines:
            if line.startswith(SERIES) and 'measure="top1"' in line and (of := PROBED.search(line)):
                task, n = int(of[1]), round(1 / float(line.rpartition(" ")[2]))
                self.seconds += [now - at for at in self._sent[task][self._n_seen[task] : n]]
                self._n_seen[task] = n
        if self._n_seen == [len(times) for times in self._sent]:
            self._awaited.clear()


async def full_speed(worker: Worker, n_pairs: int) -> float:
    """Pairs per second over what the worker commits of a backlog after its first commit."""
    seen: list[tuple[float, int]] = []
    while not seen or seen[-1][1] < n_pairs:
        await asyncio.sleep(0.02)
        n = await asyncio.to_thread(pairs_read, worker)
        if n and (not seen or n > seen[-1][1]):
            seen.append((time.monotonic(), n))
    (began, n_before), (ended, n_after) = seen[0], seen[-1]
    return (n_after - n_before) / (ended - began)


async def measure(broker: Broker, directory: Path, asked: argparse.Namespace) -> dict[str, Any]:
    await make_topics(broker.bootstrap, PREFIX)
    await load(broker.bootstrap, PREFIX, backlog(asked.pairs, asked.density))
    say(f"{asked.pairs:,} pairs are written")
    python = (*pinned(0), sys.executable, "-m", "evaluator")
    settings = {**SETTINGS, **dict(each.split("=", 1) for each in asked.set)}
    worker = Worker(directory, broker.bootstrap, PREFIX, python=python, **settings)
    try:
        await asyncio.to_thread(worker.until_ready)
        speed = await full_speed(worker, asked.pairs)
        rate = int(speed * asked.share)
        say(f"full speed {speed:,.0f} pairs/s; {rate:,} pairs/s are sent now")
        with feeding(broker.bootstrap, asked.pairs, rate):
            await asyncio.sleep(WARM_UP_SECONDS)
            async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
                probes = Probes(producer, worker.port)
                before, began = sum(cpu_seconds(worker.pid)), time.monotonic()
                n_before = await asyncio.to_thread(pairs_read, worker)
                await probes.run(asked.probes)
                took = time.monotonic() - began
                used = sum(cpu_seconds(worker.pid)) - before
                n_read = await asyncio.to_thread(pairs_read, worker) - n_before
        await asyncio.to_thread(worker.stop, 30)
    finally:
        worker.end()
    percentiles = statistics.quantiles(probes.seconds, n=100, method="inclusive")
    return {
        "full_speed": speed,
        "pairs_per_second": n_read / took,
        "cores": used / took,
        "p50": percentiles[49],
        "p90": percentiles[89],
        "p99": percentiles[98],
        "most": max(probes.seconds),
        "scrapes_per_second": len(probes.scrape_seconds) / took,
        "scrape_seconds": statistics.median(probes.scrape_seconds),
        "seconds": probes.seconds,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.visibility", description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000, help="of the backlog")
    parser.add_argument(
        "--density", type=int, default=5_000, help="its pairs per second of event time"
    )
    parser.add_argument("--share", type=float, default=0.5, help="of the full speed that is sent")
    parser.add_argument("--probes", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    asked = parser.parse_args()
    cores = os.cpu_count() or 1
    if cores > 1:
        os.sched_setaffinity(0, {1})  # the worker has core 0 to itself
    with tempfile.TemporaryDirectory(prefix="visibility-") as name:
        directory = Path(name) / "worker"
        directory.mkdir()
        broker = Broker(
            Path(name) / "broker",
            cpu=1 if cores > 1 else None,
            heap_mb=1024,
            properties=PATIENT_SESSIONS,
        )
        with broker:
            found = asyncio.run(measure(broker, directory, asked))
    units = {"full_speed": 0, "pairs_per_second": 0, "load": 1}
    rows = [[each, f"{found[each]:,.{units.get(each, 3)}f}"] for each in found if each != "seconds"]
    say("\n" + format_table(["", ""], rows, numbers=[1]))
    for each, bar in BARS.items():
        verdict = "reached" if found[each] <= bar else "MISSED"
        say(f"{each} {found[each]:.2f} s (bar {bar}: {verdict})")
    if asked.json:
        asked.json.write_text(json.dumps({**found, "environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
