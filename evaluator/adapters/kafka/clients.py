"""Starting and ending the library's consumers and producers, and what they must not do."""

import asyncio
import functools
import importlib
from collections.abc import Iterable
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.metadata import MetadataRequest

from evaluator.adapters.kafka.connection import RETRY_BACKOFF_MS, ended
from evaluator.adapters.kafka.damaged import name_broken_batches
from evaluator.adapters.kafka.refusals import translated

CLOSE_TIMEOUT_SECONDS = 4.0

log = structlog.get_logger()


def patient(client: AIOKafkaConsumer | AIOKafkaProducer) -> AIOKafkaConsumer | AIOKafkaProducer:
    """Makes a client pause between its attempts to find the leaders of its partitions.

    The library asks again at once when nobody answers or a partition has no leader, so a
    broker that ends keeps one core of every client busy until it is back. Without effect
    should a later version of the library look different inside.
    """
    make_no_topics()
    name_broken_batches()
    inner = _inner(client)
    update = getattr(inner, "_metadata_update", None)
    if update is None:
        return client

    async def update_and_pause(cluster: ClusterMetadata, topics: Iterable[str] | None) -> bool:
        updated: bool = await update(cluster, topics)
        if not updated or any(
            cluster.available_partitions_for_topic(topic) != cluster.partitions_for_topic(topic)
            for topic in cluster.topics()
        ):
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
        return updated

    inner._metadata_update = update_and_pause
    return client


def make_no_topics() -> None:
    """Makes clients ask for topics as they are; by default asking for one that is gone makes it.

    A topic that a broker makes by itself has its default partition count and cleanup, not ours.
    Holds for the whole process; tests/adapters/test_kafka_client.py fails where the library looks
    different inside.
    """
    library: Any = importlib.import_module("aiokafka.client")
    library.MetadataRequest = functools.partial(MetadataRequest, allow_auto_topic_creation=False)


def _inner(client: AIOKafkaConsumer | AIOKafkaProducer) -> Any:
    return client.client if isinstance(client, AIOKafkaProducer) else client._client


async def started(
    client: AIOKafkaConsumer | AIOKafkaProducer,
    *,
    timeout_seconds: float | None = None,
    close_timeout_seconds: float = CLOSE_TIMEOUT_SECONDS,
    doing: str = "connecting",
) -> None:
    """Starts a client, or closes it and raises SourceUnavailable or SourceUnusable."""
    try:
        with translated(doing):
            await asyncio.wait_for(patient(client).start(), timeout_seconds)
    except BaseException:
        await closed(client, timeout_seconds=close_timeout_seconds)
        raise


async def closed(
    client: AIOKafkaConsumer | AIOKafkaProducer, *, timeout_seconds: float = CLOSE_TIMEOUT_SECONDS
) -> None:
    """Stops a client of the library; a broker that is away does not hold it up for longer."""
    # A task of its own: the library cancels tasks and may end with their CancelledError.
    stopping = asyncio.ensure_future(client.stop())
    try:
        await asyncio.wait({stopping}, timeout=timeout_seconds)
        if stopping.done() and not stopping.cancelled() and stopping.exception() is None:
            return
    finally:
        await ended(stopping)
    log.info("client_torn_down", client=type(client).__name__)
    await _tear_down(client)


async def _tear_down(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    """Ends what `stop` of the library left running: it knows no limit of time of its own."""
    await _inner(client).close()
    if isinstance(client, AIOKafkaProducer):
        tasks = [client._sender.sender_task]
    else:
        coordinator, fetcher = client._coordinator, client._fetcher
        tasks = [
            getattr(coordinator, name, None)
            for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task")
        ]
        tasks += [getattr(fetcher, "_fetch_task", None), *getattr(fetcher, "_pending_tasks", ())]
    running = [task for task in tasks if task is not None and not task.done()]
    for _ in range(2):  # the sender answers the first one by waiting for its requests
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=1.0)
