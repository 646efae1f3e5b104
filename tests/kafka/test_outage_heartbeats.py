"""An outage of a real broker: no heartbeat overtakes records that a producer has buffered."""

import asyncio
import json
import threading
import time
from dataclasses import replace

import pytest
from aiokafka import AIOKafkaProducer

from evaluator.adapters.kafka import Connection
from tests.kafka.world import World
from tests.waiting import PATIENCE_SECONDS, until
from tests.worker.traffic import SETTINGS

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("brokers")]

DEFAULTS = replace(
    SETTINGS,
    retention_ms=86_400_000,
    maturity_ms=3_600_000,
    early_ms=60_000,
    remember_ms=3_600_000,
    out_of_orderness_ms=300_000,
    window_ms=60_000,
)
AGE_MS = 360_000
"""How old records are when they are produced: as if the outage had been six minutes longer."""
OUTAGE_SECONDS = 30.0
BUFFERED = 20


class Producer:
    """A producer of a recommender, which can pause with all its buffered records."""

    def __init__(self, world):
        self._world = world
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._resumed = threading.Event()
        self._sent = []
        self._client = self._call(self._started())

    def _call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    async def _started(self):
        arguments = self._world.connection.arguments()
        client = AIOKafkaProducer(**arguments, acks="all", request_timeout_ms=600_000)
        await client.start()
        return client

    def send(self, *, age_ms):
        """Sends a record, which may stay in the buffer of the producer."""
        at_ms = time.time_ns() // 1_000_000 - age_ms
        message = {"schema_version": 1, "trace_id": f"t-{len(self._sent)}", "node_id": "n"}
        message |= {"timestamp_ms": at_ms, "candidate_ids": ["a"], "scores": [1]}
        topic, value = f"{self._world.prefix}rankings", json.dumps(message).encode()
        self._sent.append(self._call(self._client.send(topic, value, b"k", 0, timestamp_ms=at_ms)))

    def pause(self):
        self._resumed.clear()
        self._loop.call_soon_threadsafe(self._resumed.wait)

    def resume(self):
        self._resumed.set()

    def flush(self):
        async def flushed():
            await asyncio.gather(*self._sent)

        self._call(flushed())

    def close(self):
        self.resume()
        self._call(self._client.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def world(own_broker, topic_prefix):
    return World(Connection(own_broker.bootstrap), topic_prefix, n_tasks=1, settings=DEFAULTS)


@pytest.fixture
def producer(world):
    producer = Producer(world)
    yield producer
    producer.close()


def heartbeats(world):
    return [raw for log in world.inputs()[0] for raw in log if raw.value is None]


def test_no_heartbeat_overtakes_records_that_a_producer_has_buffered(
    world, own_broker, producer, start
):
    worker = start(world)
    worker.until_ready()
    producer.send(age_ms=AGE_MS)
    producer.flush()
    worker.eventually(lambda: worker.positions["rankings-0"] == 1)
    own_broker.stop()
    worker.until_unavailable()
    away_at = time.monotonic()
    for _ in range(BUFFERED):
        producer.send(age_ms=AGE_MS)
    producer.pause()
    until(lambda: time.monotonic() - away_at > OUTAGE_SECONDS)
    own_broker.start()
    worker.eventually(lambda: worker.events("broker_reached"))
    reached_ms = worker.document("/status")["now_ms"]
    worker.eventually(lambda: worker.document("/status")["last_commit_ms"] > reached_ms + 3_000)
    producer.resume()
    producer.flush()
    assert heartbeats(world) == []
    read = {"rankings-0": 1 + BUFFERED, "judgments-0": 0}
    worker.eventually(lambda: worker.positions["rankings-0"] == read["rankings-0"])
    assert worker.totals["extra"]["out_of_order"] == 0
    worker.eventually(lambda: worker.positions != read)  # it has read its heartbeat
    assert heartbeats(world)
    assert worker.stop() == 0
