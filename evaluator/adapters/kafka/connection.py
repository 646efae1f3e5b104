"""Where the brokers are and how to be let in; plain requests."""

import asyncio
import contextlib
import hashlib
import random
import ssl
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.conn import create_conn
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from evaluator.adapters.kafka.addresses import parse_addresses
from evaluator.adapters.kafka.damaged import require_skipped
from evaluator.adapters.kafka.metadata import Topic, TopicsRequest
from evaluator.adapters.kafka.refusals import describe, hung_up, raise_for, translated
from evaluator.core.types.records import Log
from evaluator.ports import Committed, SourceUnavailable, SourceUnusable
from evaluator.secret_files import MAX_PEM_BYTES, read_secret, require_readable

log = structlog.get_logger()
T = TypeVar("T")

CLIENT_ID = "evaluator"
CONNECT_TIMEOUT_MS = 5_000
"""How long one broker may take to accept a connection and the login."""
ANSWER_TIMEOUT_MS = 10_000
"""How long offsets, commits and metadata may take, repeats included, before the broker is away."""
RETRY_BACKOFF_MS = 100
HANGUPS = 3
"""A broker that hangs up without a word is asked so often before that counts as its answer."""

READING: Mapping[str, Any] = {
    "enable_auto_commit": False,
    "auto_offset_reset": "none",  # an expired position is told, never skipped
    "isolation_level": "read_committed",
    "fetch_max_wait_ms": 100,
    "max_partition_fetch_bytes": 4 * 1024 * 1024,
}
"""What every consumer of the inputs is told."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The brokers to ask first, and the security settings under their names.

    `bootstrap` is HOST:PORT[,HOST:PORT]. Files are read at every connection, so a renewed
    certificate or password is picked up.
    """

    bootstrap: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = field(default=None, repr=False)
    sasl_password_file: str | None = field(default=None, repr=False)
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None

    def arguments(self) -> dict[str, Any]:
        """What every client of the library takes. Raises SourceUnusable for unusable files."""
        return {
            "bootstrap_servers": self.bootstrap,
            "client_id": CLIENT_ID,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
            **self.security(),
        }

    def security(self) -> dict[str, Any]:
        """The security arguments alone."""
        arguments: dict[str, Any] = {"security_protocol": self.security_protocol}
        if self.security_protocol in {"SSL", "SASL_SSL"}:
            arguments["ssl_context"] = self._ssl_context()
        if self.security_protocol.startswith("SASL_"):
            arguments["sasl_mechanism"] = self.sasl_mechanism or "PLAIN"
            arguments["sasl_plain_username"] = self.sasl_username
            arguments["sasl_plain_password"] = self._password()
        return arguments

    def secrets(self) -> tuple[bytes | None, ...]:
        """What stands in the files just now, to compare with later; None for what is not there."""
        files = (self.sasl_password_file, self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)
        return tuple(_digest(name) for name in files)

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            require_readable(self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)
            context: ssl.SSLContext = create_ssl_context(
                cafile=self.ssl_cafile,
                certfile=self.ssl_certfile,
                keyfile=self.ssl_keyfile,
                password=lambda: b"",  # never asked for: there is nobody at the terminal
            )
            return context
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SourceUnusable(
                f"The TLS files cannot be used ({describe(error)}). Check ssl_cafile, ssl_certfile "
                "and ssl_keyfile: PEM files, the key without a passphrase."
            ) from error

    def _password(self) -> str | None:
        """The password. Its file is not named where it fails: it may be the password itself."""
        if self.sasl_password_file is None:
            return None
        try:
            password = read_secret(self.sasl_password_file).decode("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            # The text of a decoding error has the bytes of the password.
            undecoded = isinstance(error, UnicodeDecodeError)
            reason = "not UTF-8 text" if undecoded else getattr(error, "strerror", None) or error
            raise SourceUnusable(
                f"The file of sasl_password_file cannot be read: {reason}. Point it to a readable "
                "file that holds the password alone."
            ) from None
        if not password:
            raise SourceUnusable(
                "The file of sasl_password_file is empty. Write the password into it, and nothing "
                "else."
            )
        return password


def _digest(name: str | None) -> bytes | None:
    try:
        return (
            None if name is None else hashlib.sha256(read_secret(name, most=MAX_PEM_BYTES)).digest()
        )
    except (OSError, ValueError):
        return None


async def probe(connection: Connection) -> None:
    """Connects and logs in once. Raises SourceUnavailable or SourceUnusable, saying why."""
    failures = []
    security = connection.security()
    addresses = parse_addresses(connection.bootstrap)
    for address in random.sample(addresses, len(addresses)):
        try:
            await _try(f"connecting to {address}", *address, security)
        except SourceUnavailable as away:
            failures.append(str(away))
        else:
            return
    raise SourceUnavailable(f"No broker answers. {' '.join(failures)}")


async def _try(doing: str, host: str, port: int, security: Mapping[str, Any]) -> None:
    """Connects, logs in and asks one question. Raises SourceUnavailable or SourceUnusable."""
    for attempts_left in reversed(range(HANGUPS)):
        try:
            with translated(doing):
                one = await create_conn(
                    host,
                    port,
                    client_id=CLIENT_ID,
                    request_timeout_ms=CONNECT_TIMEOUT_MS,
                    **security,
                )
                try:
                    # A listener that wants a login ends the connection at the first question.
                    await one.send(MetadataRequest([]))
                finally:
                    await one.close()
        except SourceUnavailable as away:
            if not attempts_left or not hung_up(away.__cause__):
                raise
            # The reason, an alert of TLS, may have been lost in the closing.
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
        else:
            return


class Requests:
    """Plain questions to the cluster, outside of any consumer or producer.

    Used as an asynchronous context manager; each method raises SourceUnavailable or SourceUnusable.
    """

    def __init__(self, client: AIOKafkaClient, security: Mapping[str, Any]) -> None:
        self._client = client
        self._security = security

    async def _node(self) -> int:
        """A broker that can be reached where the cluster says that it is."""
        brokers = list(self._client.cluster.brokers())
        random.shuffle(brokers)
        for broker in brokers:
            if await self._client.ready(broker.nodeId):
                return int(broker.nodeId)
        for broker in brokers:
            doing = f"connecting to {broker.host}:{broker.port}, which the broker advertises"
            await _try(doing, broker.host, broker.port, self._security)
        raise SourceUnavailable("The cluster names no broker that can be reached just now.")

    async def partition_counts(self, topics: Sequence[str]) -> dict[str, int | None]:
        """Partition count of each topic, None where it does not exist. Creates nothing."""
        found = await self.topics(topics)
        return {name: None if name not in found else found[name].n_partitions for name in topics}

    async def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """The topics of these that exist. Creates nothing."""
        with translated("reading topic metadata"):
            node = await self._node()
            try:
                response = await self._client.send(node, TopicsRequest(names))
            except NotImplementedError:  # an old broker: its topics have no ids
                request = MetadataRequest(list(names), allow_auto_topic_creation=False)
                response = await self._client.send(node, request)
        found: dict[str, Topic] = {}
        for topic in response.to_object()["topics"]:
            error = kafka_errors.for_code(topic["error_code"])
            if error is kafka_errors.TopicAuthorizationFailedError:
                raise SourceUnusable(
                    f"No right to see topic {topic['topic']}. Grant what `evaluator check` prints "
                    "(ACL)."
                )
            if error is kafka_errors.InvalidTopicError:
                raise SourceUnusable(
                    f"{topic['topic']!r} is no name for a topic. Check topic_prefix."
                )
            if topic["partitions"]:
                found[topic["topic"]] = Topic(len(topic["partitions"]), topic.get("topic_id"))
        return found

    async def cluster_id(self) -> str:
        """What tells this cluster from others; empty where the brokers do not say."""
        with translated("reading the cluster's metadata"):
            node = self._client.get_random_node()
            request = MetadataRequest([], allow_auto_topic_creation=False)
            response = (await self._client.send(node, request)).to_object()
        return str(response.get("cluster_id") or "")

    async def coordinator_of(self, transactional_id: str) -> None:
        """Whether somebody looks after *transactional_id*, and this user may publish under it."""
        with translated(f"publishing as transactional id {transactional_id}"):
            kind = CoordinationType.TRANSACTION
            await self._patiently(lambda: self._client.coordinator_lookup(kind, transactional_id))

    async def committed(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Committed]:
        """What *group_id* has committed; partitions without a commit are missing."""
        with translated(f"reading the offsets of group {group_id}"):
            return await self._patiently(lambda: self._committed_now(group_id, partitions))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, asking again for a while where that may mend it."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_MS / 1000
        while True:
            try:
                return await ask()
            except kafka_errors.KafkaError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    async def _committed_now(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Committed]:
        node = await self._client.coordinator_lookup(CoordinationType.GROUP, group_id)
        request = OffsetFetchRequest(group_id, by_topic(partitions))
        response = await self._client.send(node, request)
        # Requests of version 2 and up report what concerns the whole group here, with no topics.
        raise_for(getattr(response, "error_code", 0))
        found = {}
        for topic, rows in response.topics:
            for partition, offset, metadata, code in rows:
                raise_for(code)
                if offset >= 0:
                    found[TopicPartition(topic, partition)] = Committed(offset, metadata or "")
        return found


@contextlib.asynccontextmanager
async def requests(connection: Connection) -> AsyncIterator[Requests]:
    """A connection for single requests. Raises SourceUnavailable, SourceUnusable."""
    await probe(connection)
    client = AIOKafkaClient(request_timeout_ms=ANSWER_TIMEOUT_MS, **connection.arguments())
    try:
        with translated("connecting"):
            await client.bootstrap()
        yield Requests(client, connection.security())
    finally:
        await client.close()


async def ended(task: "asyncio.Future[Any]") -> None:
    """Ends *task* unless it has ended by itself; does not look at its result."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partitions grouped as requests want them."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return list(grouped.items())


def input_topics(topic_prefix: str) -> dict[Log, str]:
    """The names of the two input topics."""
    return {"rankings": f"{topic_prefix}rankings", "judgments": f"{topic_prefix}judgments"}


async def equal_partitions(connection: Connection, topics: Mapping[Log, str]) -> int:
    """The partition count that both inputs have. Raises SourceUnusable, SourceUnavailable."""
    async with requests(connection) as asking:
        counts = await asking.partition_counts(list(topics.values()))
    missing = [name for name, count in counts.items() if count is None]
    if missing:
        raise SourceUnusable(
            f"Topic {' and topic '.join(missing)} not found. Create what is missing with "
            "`evaluator topics create --partitions N`, or check topic_prefix."
        )
    rankings = counts[topics["rankings"]]
    if rankings is None or rankings != counts[topics["judgments"]]:
        raise SourceUnusable(unequal(topics, counts))
    require_skipped(set(topics.values()), rankings)
    return rankings


def unequal(topics: Mapping[Log, str], counts: Mapping[str, int | None]) -> str:
    """What is wrong with inputs of these partition counts, and what to do."""
    rankings, judgments = topics["rankings"], topics["judgments"]
    return (
        f"Topic {rankings} has {counts[rankings]} partitions and topic {judgments} has "
        f"{counts[judgments]}. A query and its judgments must meet in the same partition. If both "
        "had the same count before, give it to both again (`evaluator check` prints the command); "
        "else recreate one of them with the count of the other, and fill it by the same "
        "partitioner."
    )
