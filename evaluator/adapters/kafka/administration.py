"""The topics: their settings, their creation, and commands of Kafka's tools for operators."""

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final

from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from msgspec import Struct, field

from evaluator.adapters.kafka.aiokafka_internals import has_controller
from evaluator.adapters.kafka.clients import (
    ANSWER_TIMEOUT_MS,
    input_topics,
    requests,
    unequal_counts,
)
from evaluator.adapters.kafka.connection import Connection, probe
from evaluator.adapters.kafka.errors import translated
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import SourceUnavailable, SourceUnusable
from evaluator.wire.outputs.sizes import ROOM_BYTES
from evaluator.wire.records import CHECKPOINTS, LEADER_OUTPUTS, SCHEMAS, WRITTEN

CLEANUP: Final[Mapping[str, str]] = {
    "rankings": "delete",
    "judgments": "delete",
    "evaluations": "compact,delete",
    "settled": "delete",
    "windows": "compact,delete",
    "dead-letters": "delete",
    "checkpoints": "compact",
    "weights": "compact",
    "weights-log": "delete",
    "alarms": "compact",
    "alarm-commands": "delete",
    SCHEMAS: "compact",
}
FURTHER_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    # Only closed segments are compacted, and readers read all remaining records. A broker
    # answers a probe of its clock only in a topic with its own timestamps.
    "checkpoints": {
        "segment.bytes": str(16 << 20),
        "segment.ms": str(3_600_000),
        "message.timestamp.type": "LogAppendTime",
    },
    "weights": {"segment.bytes": str(64 << 20)},
    "weights-log": {"retention.ms": "-1", "retention.bytes": "-1"},  # without a limit
    "alarm-commands": {"retention.ms": "-1", "retention.bytes": "-1"},
}
TIMESTAMP_BOUND: Final = "message.timestamp.after.max.ms"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
LARGEST_BATCH: Final = "max.message.bytes"
MAX_BOUND_MS: Final = 2**63 - 1
"""The largest value of `message.timestamp.after.max.ms`: no bound."""
DAY_MS: Final = 86_400_000
COMMAND_CONFIG: Final = "admin.properties"
"""The file with the login of the administrator, for clusters with a login or TLS."""


class TopicPlan(Struct, frozen=True):
    """The planned state of a topic. `exists` is its partition count now, None if it does not exist.

    `kind` is its name without any prefix; `settings` are set at its creation with its policy.
    """

    name: str
    partitions: int
    cleanup_policy: str
    exists: int | None
    kind: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        """Whether `create_topics` would create it."""
        return self.exists is None


def topic_names(topic_prefix: str, connection: Connection | None = None) -> dict[str, str]:
    """The full name of every topic of a worker by its kind: inputs and outputs."""
    names: dict[str, str] = {name: f"{topic_prefix}{name}" for name in WRITTEN}
    return dict(input_topics(topic_prefix, connection)) | names


def leader_topics(topic_prefix: str) -> dict[str, str]:
    """The full name of every topic that the leader writes."""
    return {name: f"{topic_prefix}{name}" for name in LEADER_OUTPUTS}


def schema_topics(topic_prefix: str, connection: Connection) -> dict[str, str]:
    """The full name of the topic with the schemas of records, if there are any."""
    return {SCHEMAS: f"{topic_prefix}{SCHEMAS}"} if connection.has_schemas else {}


def leader_group(group_id: str) -> str:
    """The group of the processes that are eligible as leader."""
    return f"{group_id}-leader"


def transactional_id(topic_prefix: str, group_id: str) -> str:
    """The transactional id by which a new leader fences the former one."""
    return f"{topic_prefix}{group_id}-leader"


async def plan_topics(
    connection: Connection,
    *,
    topic_prefix: str = "",
    partitions: int | None = None,
    timestamp_bound_ms: int | None = None,
) -> list[TopicPlan]:
    """Every topic of this version, inputs first; creates nothing.

    Args:
        connection: the brokers.
        topic_prefix: precedes every name.
        partitions: of inputs that do not exist; not needed if one of them does.
        timestamp_bound_ms: how far ahead of the broker's clock the timestamp of a record of new
            inputs may be; None leaves it to the broker's default.
    Raises:
        SourceUnusable: no count for new inputs, or for a missing topic of a mapping; inputs whose
            counts differ.
        SourceUnavailable: no broker answers.
    """
    names = {
        **topic_names(topic_prefix, connection),
        **leader_topics(topic_prefix),
        **schema_topics(topic_prefix, connection),
    }
    async with requests(connection) as asking:
        counts = await asking.partition_counts(list(names.values()))
    inputs = input_topics(topic_prefix, connection)
    wanted = _input_partitions(inputs, counts, partitions, connection.mapped)
    return [
        TopicPlan(
            full,
            counts[full] or (1 if name in {*LEADER_OUTPUTS, SCHEMAS} else wanted),
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
    elif timestamp_bound_ms is not None:
        values[TIMESTAMP_BOUND] = str(min(timestamp_bound_ms, MAX_BOUND_MS))
    return values


def _input_partitions(
    topics: Mapping[Log, str],
    counts: Mapping[str, int | None],
    partitions: int | None,
    mapped: Collection[Log],
) -> int:
    missing = [topic for log, topic in topics.items() if log in mapped and counts[topic] is None]
    if missing and partitions is None:
        raise SourceUnusable(
            f"The mapping names topics that do not exist: {', '.join(missing)}. Check their names, "
            "or start the programs that fill them; --partitions N creates them."
        )
    existing = {count for topic in topics.values() if (count := counts[topic]) is not None}
    if len(existing) > 1:
        raise SourceUnusable(unequal_counts(topics, counts, is_mapped=bool(mapped)))
    if existing:
        return existing.pop()
    if partitions is None or partitions < 1:
        raise SourceUnusable(
            f"Neither {' nor '.join(topics.values())} exists, so their partition count is needed: "
            "--partitions N, N >= 1 (the largest number of workers that may ever share the work)."
        )
    return partitions


async def create_topics(
    connection: Connection,
    plan: Sequence[TopicPlan],
    *,
    replication_factor: int = -1,
) -> list[str]:
    """Creates the missing topics of *plan*; returns their names.

    Args:
        connection: the brokers.
        plan: of `plan_topics`.
        replication_factor: -1 leaves it to the broker's default.
    Raises:
        SourceUnusable: the broker refuses one of them, with its reason.
        SourceUnavailable: no broker answers.
    """
    missing = [topic for topic in plan if topic.missing]
    if not missing:
        return []
    assignments: dict[int, list[int]] | None = {} if replication_factor == -1 else None
    new = [
        NewTopic(
            topic.name,
            topic.partitions,
            replication_factor,
            replica_assignments=assignments,
            topic_configs={"cleanup.policy": topic.cleanup_policy, **topic.settings},
        )
        for topic in missing
    ]
    async with _administering(connection) as admin:
        response = await admin.create_topics(new, timeout_ms=ANSWER_TIMEOUT_MS)
    refused: dict[str, list[str]] = {}
    for name, code, *message in response.topic_errors:
        error = kafka_errors.for_code(code)
        if error not in {kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError}:
            refused.setdefault((message and message[0]) or error.__name__, []).append(name)
    if refused:
        reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in refused.items())
        raise SourceUnusable(
            f"The broker did not create {reasons.rstrip('.')}. Check --replication-factor, the "
            "rights (Create on the topics) and the broker's policies, or let an administrator "
            "create the topics."
        )
    names = [topic.name for topic in missing]
    await _wait_until_visible(connection, names)
    return names


async def _wait_until_visible(connection: Connection, names: Sequence[str]) -> None:
    """Waits until all brokers have the new topics."""
    async with requests(connection) as asking:
        for _ in range(ANSWER_TIMEOUT_MS // 50):
            counts = await asking.partition_counts(names)
            if None not in counts.values():
                return
            await asyncio.sleep(0.05)
    raise SourceUnavailable(f"The new topics {', '.join(names)} are not visible yet.")


async def described(connection: Connection, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of each topic that this user may describe.

    Raises SourceUnusable, SourceUnavailable.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    async with _administering(connection) as admin:
        responses = await admin.describe_configs(resources)
    return {
        name: {entry[0]: entry[1] for entry in entries if entry[1] is not None}
        for response in responses
        for code, _message, _kind, name, entries in response.resources
        if code == 0
    }


@contextlib.asynccontextmanager
async def _administering(connection: Connection) -> AsyncIterator[AIOKafkaAdminClient]:
    await probe(connection)
    admin = AIOKafkaAdminClient(request_timeout_ms=ANSWER_TIMEOUT_MS, **connection.arguments())
    try:
        with translated("administering topics"):
            await admin.start()
            if not has_controller(admin):  # aiokafka would raise AttributeError
                raise SourceUnavailable(
                    "The brokers have no controller yet; try again in a moment."
                )
            yield admin
    finally:
        await admin.close()


class Right(Struct, frozen=True):
    """An operation on resources; `optional` describes the loss without it."""

    operation: str
    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    optional: str = ""


def rights_to_run(
    connection: Connection, *, topic_prefix: str, group_id: str, heartbeats: bool, leads: bool
) -> list[Right]:
    """The rights that `evaluator run` needs: Read and Write include Describe."""
    names = topic_names(topic_prefix, connection)
    inputs = tuple(names[log] for log in LOGS)
    rights = [
        Right("Read", (*inputs, names[CHECKPOINTS]), (group_id,)),
        Right("Write", tuple(names[output] for output in WRITTEN)),
    ]
    if leads:
        written = leader_topics(topic_prefix)
        rights += [
            Right("Read", (names["settled"], written["weights"]), (leader_group(group_id),)),
            Right(
                "Write",
                tuple(written.values()),
                transactional_ids=(transactional_id(topic_prefix, group_id),),
            ),
        ]
    if heartbeats:
        rights.append(Right("Write", inputs, optional="for heartbeats; without it: heartbeats=off"))
    if schemas := tuple(schema_topics(topic_prefix, connection).values()):
        rights += [Right("Read", schemas), Right("Write", schemas)]
    why = "to watch the retention of the inputs; without it /metrics does not have it"
    return [*rights, Right("DescribeConfigs", inputs, optional=why)]


def acl_commands(connection: Connection, rights: Sequence[Right], *, principal: str) -> list[str]:
    """A command of kafka-acls for each right, and a comment before those that are optional.

    *principal* is inserted unchanged, so the caller quotes it for the shell.
    """
    lines = []
    for right in rights:
        if right.optional:
            lines.append(f"# {right.optional}")
        named = [f"--topic {shlex.quote(name)}" for name in right.topics]
        named += [f"--group {shlex.quote(name)}" for name in right.groups]
        named += [f"--transactional-id {shlex.quote(name)}" for name in right.transactional_ids]
        lines.append(
            f"{_tool(connection, 'kafka-acls.sh')} --add --allow-principal {principal} "
            f"--operation {right.operation} {' '.join(named)}"
        )
    return lines


def configs_command(connection: Connection, topic: str, setting: str) -> str:
    """The command of kafka-configs that sets one setting of a topic."""
    return (
        f"{_tool(connection, 'kafka-configs.sh')} --alter --entity-type topics "
        f"--entity-name {shlex.quote(topic)} --add-config {setting}"
    )


def partitions_command(connection: Connection, topic: str, partitions: int) -> str:
    """The command of kafka-topics that adds partitions to a topic."""
    return (
        f"{_tool(connection, 'kafka-topics.sh')} --alter --topic {shlex.quote(topic)} "
        f"--partitions {partitions}"
    )


def longer_retention_command(connection: Connection, topic: str, needed_ms: int) -> str:
    """The command that sets the retention of a topic to a day more than is needed."""
    return configs_command(connection, topic, f"retention.ms={needed_ms + DAY_MS}")


def _tool(connection: Connection, name: str) -> str:
    tool = f"{name} --bootstrap-server {shlex.quote(connection.bootstrap)}"
    if connection.security_protocol == "PLAINTEXT":
        return tool
    return f"{tool} --command-config {COMMAND_CONFIG}"
