"""Commands of Kafka's own tools for an administrator: grant a right, keep a topic for longer."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evaluator.adapters.kafka.admin import (
    leader_group,
    leader_topics,
    topic_names,
    transactional_id,
)
from evaluator.adapters.kafka.connection import Connection
from evaluator.core.types.records import LOGS
from evaluator.wire.records import CHECKPOINTS, WRITTEN

DAY_MS: Final = 86_400_000
COMMAND_CONFIG: Final = "admin.properties"
"""Where the login of the administrator stands, wherever a login or TLS is needed at all."""


@dataclass(frozen=True, slots=True)
class Right:
    """An operation on what is named; `optional` says what goes missing without it."""

    operation: str
    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    optional: str = ""


def rights_to_run(
    *, topic_prefix: str, group_id: str, heartbeats: bool, learns: bool
) -> list[Right]:
    """What `evaluator run` needs: Read and Write bring Describe with them."""
    names = topic_names(topic_prefix)
    inputs = tuple(names[log] for log in LOGS)
    written = tuple(names[output] for output in WRITTEN)
    rights = [
        Right("Read", (*inputs, names[CHECKPOINTS]), (group_id,)),
        Right("Write", written),
    ]
    if learns:
        rights += _leader_rights(topic_prefix, group_id)
    if heartbeats:
        rights.append(Right("Write", inputs, optional="for heartbeats; without it: heartbeats=off"))
    why = "to watch the retention of the inputs; without it /metrics does not have it"
    return [*rights, Right("DescribeConfigs", inputs, optional=why)]


def _leader_rights(topic_prefix: str, group_id: str) -> list[Right]:
    said = leader_topics(topic_prefix)
    settled = topic_names(topic_prefix)["settled"]
    return [
        Right("Read", (settled, said["weights"]), (leader_group(group_id),)),
        Right(
            "Write",
            tuple(said.values()),
            transactional_ids=(transactional_id(topic_prefix, group_id),),
        ),
    ]


def acl_commands(connection: Connection, rights: Sequence[Right], *, principal: str) -> list[str]:
    """A command of kafka-acls for each right, and a comment before those that are optional.

    *principal* stands as the shell reads it: quoted where it must be.
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
    """The command that keeps a topic for a day more than is needed."""
    return configs_command(connection, topic, f"retention.ms={needed_ms + DAY_MS}")


def _tool(connection: Connection, name: str) -> str:
    tool = f"{name} --bootstrap-server {shlex.quote(connection.bootstrap)}"
    if connection.security_protocol == "PLAINTEXT":
        return tool
    return f"{tool} --command-config {COMMAND_CONFIG}"
