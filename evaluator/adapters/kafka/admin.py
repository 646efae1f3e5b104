"""The topics: which there should be, and making what is missing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from evaluator.adapters.kafka.connection import (
    ANSWER_TIMEOUT_MS,
    Connection,
    probe,
    requests,
)
from evaluator.adapters.kafka.refusals import translated
from evaluator.core.types.records import LOGS
from evaluator.ports import SourceUnavailable, SourceUnusable
from evaluator.wire.outputs.sizes import ROOM_BYTES
from evaluator.wire.records import SAID, WRITTEN

CLEANUP: dict[str, str] = {
    "rankings": "delete",
    "judgments": "delete",
    "evaluations": "compact,delete",
    "settled": "delete",
    "windows": "compact,delete",
    "dead-letters": "delete",
    "checkpoints": "compact",
    "weights": "compact",
    "weights-log": "delete",
}
ONE_PARTITION: frozenset[str] = frozenset(SAID)
FURTHER_SETTINGS: dict[str, dict[str, str]] = {
    # Only segments that are not written any more are compacted, and readers read all that is there.
    # Only with its own times the broker answers a probe of its clock.
    "checkpoints": {
        "segment.bytes": str(16 << 20),
        "segment.ms": str(3_600_000),
        "message.timestamp.type": "LogAppendTime",
    },
    "weights": {"segment.bytes": str(64 << 20)},
    "weights-log": {"retention.ms": "-1", "retention.bytes": "-1"},  # kept for ever
}


TIMESTAMP_BOUND: Final = "message.timestamp.after.max.ms"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
LARGEST_BATCH: Final = "max.message.bytes"
MAX_BOUND_MS: Final = 2**63 - 1
"""The largest value of `message.timestamp.after.max.ms`: no bound."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic as it should be. `exists` says how many partitions it has now, None for none.

    `kind` is its name without any prefix; `settings` are made with it beside its policy.
    """

    name: str
    partitions: int
    cleanup_policy: str
    exists: int | None
    kind: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        """Whether `create_topics` would make it."""
        return self.exists is None


async def plan_topics(
    connection: Connection,
    *,
    topic_prefix: str = "",
    partitions: int | None = None,
    timestamp_bound_ms: int | None = None,
) -> list[TopicPlan]:
    """Every topic of this version, inputs first; makes nothing.

    Args:
        connection: where the brokers are.
        topic_prefix: precedes every name.
        partitions: for inputs that do not exist; not needed when one of them does.
        timestamp_bound_ms: how far ahead of the broker's clock a record of new inputs may be
            stamped; None leaves it to the broker's default.
    Raises:
        SourceUnusable: no count for new inputs, or inputs whose counts differ.
        SourceUnavailable: no broker answers.
    """
    names = {**topic_names(topic_prefix), **leader_topics(topic_prefix)}
    async with requests(connection) as asking:
        counts = await asking.partition_counts(list(names.values()))
    wanted = _input_partitions({log: counts[names[log]] for log in LOGS}, names, partitions)
    return [
        TopicPlan(
            full,
            counts[full] or (1 if name in ONE_PARTITION else wanted),
            CLEANUP[name],
            counts[full],
            name,
            _further_settings(name, timestamp_bound_ms),
        )
        for name, full in names.items()
    ]


def _further_settings(name: str, timestamp_bound_ms: int | None) -> dict[str, str]:
    values = dict(FURTHER_SETTINGS.get(name, {}))
    if name not in LOGS:
        values[LARGEST_BATCH] = str(ROOM_BYTES[name])
    if name in LOGS and timestamp_bound_ms is not None:
        values[TIMESTAMP_BOUND] = str(min(timestamp_bound_ms, MAX_BOUND_MS))
    return values


def topic_names(topic_prefix: str) -> dict[str, str]:
    """The full name of every topic of a worker by what it is: inputs and what is written."""
    return {name: f"{topic_prefix}{name}" for name in (*LOGS, *WRITTEN)}


def leader_topics(topic_prefix: str) -> dict[str, str]:
    """The full name of every topic that the leader writes."""
    return {name: f"{topic_prefix}{name}" for name in SAID}


def leader_group(group_id: str) -> str:
    """The group of those who stand for election."""
    return f"{group_id}-leader"


def transactional_id(topic_prefix: str, group_id: str) -> str:
    """Whoever publishes under it fences who did before."""
    return f"{topic_prefix}{group_id}-leader"


def _input_partitions(
    counts: Mapping[str, int | None], names: Mapping[str, str], partitions: int | None
) -> int:
    existing = {count for count in counts.values() if count is not None}
    if len(existing) > 1:
        raise SourceUnusable(
            f"Topic {names['rankings']} has {counts['rankings']} partitions and topic "
            f"{names['judgments']} has {counts['judgments']}. Give both the same count first."
        )
    if existing:
        return existing.pop()
    if partitions is None or partitions < 1:
        raise SourceUnusable(
            f"Neither {names['rankings']} nor {names['judgments']} exists, so their partition "
            "count must be said: --partitions N, N >= 1 (the largest number of workers that "
            "may ever share the work)."
        )
    return partitions


async def create_topics(
    connection: Connection,
    plan: Sequence[TopicPlan],
    *,
    replication_factor: int = -1,
    retention_ms: int | None = None,
) -> list[str]:
    """Makes what is missing in *plan*; returns the names of what was made.

    Args:
        connection: where the brokers are.
        plan: of `plan_topics`.
        replication_factor: -1 leaves it to the broker's default.
        retention_ms: of the new topics but `weights-log`, which is kept for ever; None leaves it
            to the broker's default.
    Raises:
        SourceUnusable: the broker refuses one of them, with its reason.
        SourceUnavailable: no broker answers.
    """
    missing = [topic for topic in plan if topic.missing]
    if not missing:
        return []
    new = [
        NewTopic(
            topic.name,
            topic.partitions,
            replication_factor,
            replica_assignments={} if replication_factor == -1 else None,
            topic_configs=_configuration(topic, retention_ms),
        )
        for topic in missing
    ]
    async with _administering(connection) as admin:
        response = await admin.create_topics(new, timeout_ms=ANSWER_TIMEOUT_MS)
    refused = []
    for name, code, *message in response.topic_errors:
        error = kafka_errors.for_code(code)
        if error not in {kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError}:
            refused.append(f"{name}: {(message and message[0]) or error.__name__}")
    if refused:
        raise SourceUnusable(
            f"The broker did not make {'; '.join(refused)}. Check the rights (Create on the "
            "topics) and the broker's policies, or have the topics made by who may."
        )
    await _wait_until_visible(connection, [topic.name for topic in missing])
    return [topic.name for topic in missing]


def _configuration(topic: TopicPlan, retention_ms: int | None) -> dict[str, str]:
    values = {"cleanup.policy": topic.cleanup_policy}
    if retention_ms is not None:
        values["retention.ms"] = str(retention_ms)
    return {**values, **topic.settings}


async def _wait_until_visible(connection: Connection, names: Sequence[str]) -> None:
    """A new topic is known to all brokers a moment later than to the controller."""
    async with requests(connection) as asking:
        for _ in range(ANSWER_TIMEOUT_MS // 50):
            counts = await asking.partition_counts(names)
            if None not in counts.values():
                return
            await asyncio.sleep(0.05)
    raise SourceUnavailable(f"The new topics {', '.join(names)} are not visible yet.")


async def described(connection: Connection, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Settings per topic; topics that may not be looked at are missing.

    Raises SourceUnusable, SourceUnavailable.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    async with _administering(connection) as admin:
        responses = await admin.describe_configs(resources)
    found = {}
    for response in responses:
        for code, _message, _kind, name, entries in response.resources:
            if code == 0:
                found[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
    return found


@contextlib.asynccontextmanager
async def _administering(connection: Connection) -> AsyncIterator[AIOKafkaAdminClient]:
    await probe(connection)
    admin = AIOKafkaAdminClient(request_timeout_ms=ANSWER_TIMEOUT_MS, **connection.arguments())
    try:
        with translated("administering topics"):
            await admin.start()
            if admin._client.cluster.controller is None:  # the library would trip over it
                raise SourceUnavailable(
                    "The brokers know of no controller yet; try again in a moment."
                )
            yield admin
    finally:
        await admin.close()
