"""Clients of the brokers: consumers, producers, and single requests to the cluster."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka.aiokafka_internals import (
    BrokerClient,
    Client,
    background_tasks,
    client_of,
    fetch_cluster_id,
    fetch_groups,
    fetch_members,
    fetch_offsets,
    fetch_topics,
    find_coordinator,
    prepare,
    remove_member,
)
from evaluator.adapters.kafka.aiokafka_requests import leave_while_joining
from evaluator.adapters.kafka.connection import (
    RETRY_BACKOFF_MS,
    Address,
    Connection,
    connect,
    probe,
)
from evaluator.adapters.kafka.errors import require_skipped, translated
from evaluator.core.types.records import LOGS, Log
from evaluator.mapping.meeting import COPY
from evaluator.ports import Committed, SourceUnavailable, SourceUnusable

ANSWER_TIMEOUT_MS: Final = 10_000
"""The time for offsets, commits and metadata, retries included."""
CLOSE_TIMEOUT_SECONDS: Final = 4.0
SILENCE_MS: Final = 2_000
"""The broker is probed if it has not answered for this time."""
CONSUMER_SETTINGS: Final[Mapping[str, Any]] = {
    "enable_auto_commit": False,
    "auto_offset_reset": "none",  # an expired position is an error, never skipped
    "isolation_level": "read_committed",
    "fetch_max_wait_ms": 100,
    "max_partition_fetch_bytes": 8 * 1024 * 1024,
}

log = structlog.get_logger()
T = TypeVar("T")


async def start_consumer(
    connection: Connection, *, request_timeout_ms: int, **settings: Any
) -> AIOKafkaConsumer:
    """A started consumer. Raises SourceUnavailable, SourceUnusable."""
    settings = {**connection.arguments(), **CONSUMER_SETTINGS, **settings}
    consumer = AIOKafkaConsumer(request_timeout_ms=request_timeout_ms, **settings)
    await _start(consumer, request_timeout_ms, CLOSE_TIMEOUT_SECONDS, "connecting")
    return consumer


async def start_producer(
    connection: Connection,
    *,
    request_timeout_ms: int = ANSWER_TIMEOUT_MS,
    close_timeout_seconds: float = CLOSE_TIMEOUT_SECONDS,
    doing: str = "connecting",
    **settings: Any,
) -> AIOKafkaProducer:
    """A started producer with acks=all. Raises SourceUnavailable, SourceUnusable."""
    settings = {**connection.arguments(), "acks": "all", **settings}
    producer = AIOKafkaProducer(request_timeout_ms=request_timeout_ms, **settings)
    await _start(producer, request_timeout_ms, close_timeout_seconds, doing)
    return producer


async def _start(client: Client, timeout_ms: int, close_timeout_seconds: float, doing: str) -> None:
    prepare(client, pause_seconds=RETRY_BACKOFF_MS / 1000)
    try:
        with translated(doing):
            async with asyncio.timeout(timeout_ms / 1000):
                await client.start()
    except BaseException:
        await close(client, timeout_seconds=close_timeout_seconds)
        raise


async def close(client: Client, *, timeout_seconds: float = CLOSE_TIMEOUT_SECONDS) -> None:
    """Stops a client; without brokers it cancels the client's tasks after the timeout."""
    # In a separate task: aiokafka cancels tasks and may end with their CancelledError.
    stopping = asyncio.ensure_future(client.stop())
    leaving = asyncio.ensure_future(leave_while_joining(client))
    try:
        await asyncio.wait({stopping}, timeout=timeout_seconds)
        if stopping.done() and not stopping.cancelled() and stopping.exception() is None:
            return
    finally:
        await end(leaving)
        await end(stopping)
    log.info("client_torn_down", client=type(client).__name__)
    await client_of(client).close()
    running = background_tasks(client)
    for _ in range(2):  # after the first the sender still waits for its requests
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=1.0)
    await client_of(client).close()  # a task may have opened a connection before it ended


async def end(task: "asyncio.Future[Any]") -> None:
    """Cancels *task* unless it is done, and discards its result."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    discard_result(task)


def discard_result(future: "asyncio.Future[Any]") -> None:
    """Prevents the event loop from logging the exception of a future without an owner."""
    if not future.cancelled():
        future.exception()


async def complete(connection: Connection, doing: str, operation: Awaitable[T]) -> T:
    """The result of an operation that aiokafka would retry without a limit.

    Raises SourceUnavailable, SourceUnusable.
    """
    task = asyncio.ensure_future(operation)
    try:
        await asyncio.wait({task}, timeout=SILENCE_MS / 1000)
        if not task.done():
            await probe(connection)
        with translated(doing):
            async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1000):
                return await task
    finally:
        await end(task)


# Single requests


class Topic(NamedTuple):
    """A topic that exists. `topic_id` is None if the brokers have no ids (before 2.8)."""

    n_partitions: int
    topic_id: str | None


class Requests:
    """Single requests; each method raises SourceUnavailable or SourceUnusable."""

    def __init__(self, client: BrokerClient, security: dict[str, Any]) -> None:
        self._client = client
        self._security = security

    async def _node(self) -> int:
        """A broker that can be reached at the address that it advertises."""
        brokers = list(self._client.cluster.brokers())
        random.shuffle(brokers)
        for broker in brokers:
            if await self._client.ready(broker.nodeId):
                return int(broker.nodeId)
        for broker in brokers:
            doing = f"connecting to {broker.host}:{broker.port}, which the broker advertises"
            await connect(Address(broker.host, broker.port), self._security, doing)
        raise SourceUnavailable("None of the brokers in the cluster's metadata can be reached.")

    async def partition_counts(self, topics: Sequence[str]) -> dict[str, int | None]:
        """The partition count of each topic, None if it does not exist. Creates nothing."""
        found = await self.topics(topics)
        return {name: None if name not in found else found[name].n_partitions for name in topics}

    async def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """The topics of these names that exist. Creates nothing."""
        with translated("reading topic metadata"):
            topics = await fetch_topics(self._client, await self._node(), names)
        found: dict[str, Topic] = {}
        for topic in topics:
            error = kafka_errors.for_code(topic["error_code"])
            if error is kafka_errors.TopicAuthorizationFailedError:
                raise SourceUnusable(
                    f"No right to see topic {topic['topic']}. Grant the rights of `evaluator "
                    "check` (ACL)."
                )
            if error is kafka_errors.InvalidTopicError:
                raise SourceUnusable(
                    f"{topic['topic']!r} is not a valid topic name. Check topic_prefix."
                )
            if topic["partitions"]:
                found[topic["topic"]] = Topic(len(topic["partitions"]), topic.get("topic_id"))
        return found

    async def cluster_id(self) -> str:
        """The id of the cluster; empty if the brokers do not provide one."""
        with translated("reading the cluster's metadata"):
            return await fetch_cluster_id(self._client, await self._node())

    async def require_coordinator(self, transactional_id: str) -> None:
        """Raises unless *transactional_id* has a coordinator and this user may publish under it."""
        with translated(f"publishing as transactional id {transactional_id}"):
            await _retry(lambda: find_coordinator(self._client, "TRANSACTION", transactional_id))

    async def committed(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Committed]:
        """The offsets that *group_id* has committed; partitions without a commit are missing."""

        async def fetch() -> dict[TopicPartition, Committed]:
            node = await find_coordinator(self._client, "GROUP", group_id)
            rows = await fetch_offsets(self._client, node, group_id, partitions)
            return {partition: Committed(offset, metadata) for partition, offset, metadata in rows}

        with translated(f"reading the offsets of group {group_id}"):
            return await _retry(fetch)

    async def members(self, group_id: str) -> list[tuple[str, bytes]]:
        """As `fetch_members`; [] if brokers are too old."""

        async def fetch() -> list[tuple[str, bytes]]:
            node = await find_coordinator(self._client, "GROUP", group_id)
            with contextlib.suppress(NotImplementedError):  # the version of the request
                return await fetch_members(self._client, node, group_id)
            return []

        with translated(f"reading the members of group {group_id}"):
            return await _retry(fetch)

    async def groups(self) -> list[str]:
        """The groups that this user may describe, of the brokers that can be reached."""

        async def fetch() -> list[str]:
            nodes = [broker.nodeId for broker in self._client.cluster.brokers()]
            ready = [node for node in nodes if await self._client.ready(node)]
            return [group for node in ready for group in await fetch_groups(self._client, node)]

        with translated("listing groups"):
            return await _retry(fetch)

    async def remove_member(self, group_id: str, instance_id: str) -> None:
        """Removes a static member from a group. Raises SourceUnusable if that is impossible."""

        async def remove() -> None:
            node = await find_coordinator(self._client, "GROUP", group_id)
            try:
                await remove_member(self._client, node, group_id, instance_id)
            except kafka_errors.UnknownMemberIdError as error:
                raise SourceUnusable(
                    f"Group {group_id} has no member {instance_id}: it was removed, or its session "
                    "has expired. Otherwise check group_id, and the group_instance_id of the "
                    "process in its /status."
                ) from error
            except NotImplementedError as error:  # the version of the request
                raise SourceUnusable(
                    "The brokers are older than 2.4 and cannot remove a member by its name. Stop "
                    f"{instance_id} and wait for its session_timeout_ms instead."
                ) from error

        with translated(f"removing {instance_id} from group {group_id}"):
            await _retry(remove)


async def _retry(request: Callable[[], Awaitable[T]]) -> T:
    """Repeats a request for a limited time while its error is retriable."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_MS / 1000
    while True:
        try:
            return await request()
        except kafka_errors.KafkaError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
        await asyncio.sleep(RETRY_BACKOFF_MS / 1000)


@contextlib.asynccontextmanager
async def requests(connection: Connection) -> AsyncIterator[Requests]:
    """A connection for single requests. Raises SourceUnavailable, SourceUnusable."""
    client = BrokerClient(request_timeout_ms=ANSWER_TIMEOUT_MS, **connection.arguments())
    try:
        await _bootstrap(client, connection)
        yield Requests(client, connection.security())
    finally:
        await client.close()


async def _bootstrap(client: BrokerClient, connection: Connection) -> None:
    """Reads the first metadata. The error of aiokafka has no reason, so a probe finds it."""
    try:
        await complete(connection, "connecting", client.bootstrap())
    except SourceUnavailable as failure:
        if not isinstance(failure.__cause__, kafka_errors.KafkaConnectionError):
            raise
        await probe(connection)
        await complete(connection, "connecting", client.bootstrap())


async def group_members(connection: Connection, group_id: str) -> list[str]:
    """The name of each member, empty for one without. Raises SourceUnavailable, SourceUnusable."""
    async with requests(connection) as asking:
        return [name for name, _ in await asking.members(group_id)]


async def remove_from_group(connection: Connection, group_id: str, instance_id: str) -> None:
    """Removes a static member. Raises SourceUnavailable, SourceUnusable."""
    async with requests(connection) as asking:
        await asking.remove_member(group_id, instance_id)


def input_topics(topic_prefix: str, connection: Connection | None = None) -> dict[Log, str]:
    """The names of the two input topics; those that *connection* names take precedence."""
    named = dict(() if connection is None else connection.inputs)
    return {log: named.get(log, f"{topic_prefix}{log}") for log in LOGS}


async def existing_counts(
    connection: Connection,
    topics: Sequence[str],
    *,
    optional: Sequence[str] = (),
    advice: str | None = None,
) -> dict[str, int]:
    """The partition counts; 0 for *optional* topics that do not exist.

    Raises SourceUnusable if any of *topics* is missing, with *advice* on what creates them, and
    SourceUnavailable.
    """
    async with requests(connection) as asking:
        counts = await asking.partition_counts([*topics, *optional])
        missing = [name for name in topics if counts[name] is None]
        if missing:
            others = [name for name in connection.needed if name not in topics]
            of_others = await asking.partition_counts(others)
            missing += [name for name in others if of_others[name] is None]
    if missing:
        advice = advice or f"{creation(connection, missing)}, or check topic_prefix and mapping"
        names = f"Topic{'s' if missing[1:] else ''} {', '.join(missing)}"
        raise SourceUnusable(f"{names} not found. Create missing topics with {advice}.")
    return {name: count or 0 for name, count in counts.items()}


def creation(connection: Connection, topics: Collection[str]) -> str:
    """The command that creates *topics*; with those of a mapping it needs the mapping."""
    is_mapped = any(log in connection.mapped and name in topics for log, name in connection.inputs)
    return f"`evaluator topics create{' --mapping FILE' * is_mapped}`"


async def equal_partitions(connection: Connection, topics: Mapping[Log, str]) -> int:
    """The partition count that both inputs have. Raises SourceUnusable, SourceUnavailable."""
    counts = await existing_counts(connection, list(topics.values()))
    rankings = counts[topics["rankings"]]
    if rankings != counts[topics["judgments"]]:
        raise SourceUnusable(unequal_counts(topics, counts, is_mapped=bool(connection.mapped)))
    require_skipped(set(topics.values()), rankings)
    return rankings


def unequal_counts(
    topics: Mapping[Log, str], counts: Mapping[str, int | None], *, is_mapped: bool = False
) -> str:
    """The error text for inputs of different partition counts."""
    rankings, judgments = topics["rankings"], topics["judgments"]
    return (
        f"Topic {rankings} has {counts[rankings]} partitions and topic {judgments} has "
        f"{counts[judgments]}. A query and its judgments must meet in the same partition. If both "
        "had the same count before, give it to both again (`evaluator check` prints the command); "
        "else recreate one of them with the count of the other, and fill it by the same "
        f"partitioner{f', or copy both with {COPY}' if is_mapped else ''}."
    )


def require_partitions(output: str, count: int, n_tasks: int) -> None:
    """Raises SourceUnusable if an output topic has fewer partitions than the inputs."""
    if count < n_tasks:
        raise SourceUnusable(
            f"Output topic {output} has {count} partitions, the inputs have {n_tasks}. Each task "
            f"writes to its own partition: give {output} at least {n_tasks} partitions."
        )


async def read_topic_ids(connection: Connection, topic_prefix: str) -> dict[Log, str]:
    """The ids of the inputs that this user may see. Raises SourceUnavailable, SourceUnusable."""
    found: dict[Log, str] = {}
    async with requests(connection) as asking:
        for log, name in input_topics(topic_prefix, connection).items():
            with contextlib.suppress(SourceUnusable):  # no right to see it
                topic = (await asking.topics([name])).get(name)
                if topic is not None and topic.topic_id is not None:
                    found[log] = topic.topic_id
    return found
