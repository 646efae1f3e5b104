"""Hostile records in the inputs of a worker, and hostile clients of its port."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from random import Random

from aiokafka import AIOKafkaProducer

from evaluator.ports import Partition
from tests.kafka.world import World
from tests.oracle.messages import Raw
from tests.oracle.refusals import MAX_FUTURE_SKEW_MS
from tests.worker.bad_input import MALFORMED

HUGE_BYTES = 20 << 20
"""Size of a value that its producer compresses: every broker accepts it, and every consumer unpacks
it."""
N_LONG = 900
LONG_NAME = 240
N_CONNECTIONS = 600
HALF_A_REQUEST = (
    b"",
    b"GET /metrics HT",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-",
    b"\x16\x03\x01",
)


def poison(random: Random, name: str, now_ms: int) -> list[tuple[str, Raw]]:
    """Records of one task, each with its log: malformed messages, and messages at the limits."""
    malformed = [(log, value) for _, log, value, _ in random.sample(MALFORMED, 5)]
    records = malformed + _names(name, now_ms) + _large(name, now_ms)
    random.shuffle(records)
    return [(log, Raw(0, now_ms, value, name.encode())) for log, value in records]


def _names(name: str, now_ms: int) -> list[tuple[str, bytes]]:
    """Names of 256 bytes and one more; grades at the limit, above it, and as large as a float."""
    made = []
    for length in (256, 257):
        for number, of in enumerate(("model", "variant", "trace_id")):
            about = {"trace_id": f"{name}-{length}-{number}", of: "\u00e4" * (length // 2)}
            about[of] += "x" * (length % 2)
            made.append(("rankings", _ranking(now_ms, ["a", "b"], **about)))
    made.append(("rankings", _ranking(now_ms, ["a", "b"], trace_id=f"{name}-grades")))
    return made + [
        ("judgments", _judgment(now_ms, {"a": grade}, trace_id=f"{name}-grades"))
        for grade in (31, 31.000001, 1e308, 5e-324)
    ]


def _large(name: str, now_ms: int) -> list[tuple[str, bytes]]:
    """A ranking and three judgments, nearly as large as accepted, of one query."""
    ids = [f"{n:04}" + "c" * (LONG_NAME - 4) for n in range(3 * N_LONG)]
    made = [("rankings", _ranking(now_ms, ids[:N_LONG], trace_id=f"{name}-large"))]
    for part in range(3):
        grades = dict.fromkeys(ids[part * N_LONG : (part + 1) * N_LONG], 31)
        made.append(("judgments", _judgment(now_ms, grades, trace_id=f"{name}-large")))
    return made


def _ranking(at_ms: int, ids: list[str], **about: str) -> bytes:
    scores = list(range(len(ids), 0, -1))
    return _text(at_ms, about, candidate_ids=ids, scores=scores)


def _judgment(at_ms: int, grades: dict[str, float], **about: str) -> bytes:
    return _text(at_ms, about, grades=grades)


def _text(at_ms: int, about: dict[str, str], **body: object) -> bytes:
    head = {"schema_version": 1, "node_id": "hostile", "timestamp_ms": at_ms}
    return json.dumps({**head, **about, **body}).encode()


def ahead(name: str, now_ms: int, by_ms: int) -> list[tuple[str, Raw]]:
    """Records of a producer whose clock is ahead, and records too far ahead to be accepted."""
    ids, over_ms = ["a", "b"], now_ms + MAX_FUTURE_SKEW_MS + 1
    made = [
        Raw(0, now_ms, _ranking(now_ms + by_ms, ids, trace_id=f"{name}-within"), b"ahead"),
        Raw(0, now_ms, _ranking(over_ms, ids, trace_id=f"{name}-over"), b"ahead"),
        Raw(0, now_ms + by_ms, None, None),
        Raw(0, now_ms, _ranking(now_ms, ids, trace_id=f"{name}-in-order"), b"right"),
    ]
    return [("rankings", raw) for raw in made]


def append_compressed(world: World, partition: Partition, timestamp_ms: int) -> None:
    """A value of 20 MB, compressed to 20 KB."""

    async def append() -> None:
        arguments = world.connection.arguments()
        most = 2 * HUGE_BYTES
        async with AIOKafkaProducer(
            **arguments, acks="all", compression_type="gzip", max_request_size=most
        ) as producer:
            log, task = partition
            topic = f"{world.prefix}{log}"
            value = b"0" * HUGE_BYTES
            await producer.send_and_wait(topic, value, b"huge", task, timestamp_ms)

    asyncio.run(append())


@contextlib.contextmanager
def idle_connections(random: Random, port: int, count: int = N_CONNECTIONS) -> Iterator[None]:
    """This number of connections to *port*, none of which ever sends a complete request."""
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            held.append(one)
            one.connect_ex(("127.0.0.1", port))
        time.sleep(0.1)
        for one in held:
            with contextlib.suppress(OSError):  # not accepted yet, or closed by the worker
                one.send(random.choice(HALF_A_REQUEST))
        yield
    finally:
        for one in held:
            one.close()
