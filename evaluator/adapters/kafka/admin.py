"""The topics: which there should be, making what is missing, and what is wrong with them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import collect_hosts

from evaluator.adapters.kafka.connection import (
    ANSWER_TIMEOUT_MS,
    Connection,
    input_topics,
    probe,
    quiet_library,
    requests,
)
from evaluator.adapters.kafka.refusals import translated
from evaluator.core.types import LOGS
from evaluator.ports import SourceAway, SourceUnusable
from evaluator.wire.records import OUTPUTS, Output

CLEANUP: dict[str, str] = {
    "rankings": "delete",
    "judgments": "delete",
    "evaluations": "compact,delete",
    "settled": "delete",
    "windows": "compact,delete",
    "dead-letters": "delete",
}
MAX_MESSAGE_BYTES: dict[Output, int] = dict.fromkeys(("evaluations", "dead-letters"), 4 << 20)
"""Topics whose records may pass the usual limit of 1 MB get this one when they are made."""
Severity = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how bad it is, what it is, what to do (empty when ok)."""

    severity: Severity
    what: str
    what_to_do: str = ""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic as it should be. `exists` says how many partitions it has now, None for none."""

    name: str
    partitions: int
    cleanup_policy: str
    exists: int | None

    @property
    def missing(self) -> bool:
        """Whether `create_topics` would make it."""
        return self.exists is None


async def plan_topics(
    connection: Connection, *, topic_prefix: str = "", partitions: int | None = None
) -> list[TopicPlan]:
    """Every topic of this version, inputs first; makes nothing.

    Args:
        connection: where the brokers are.
        topic_prefix: precedes every name.
        partitions: for inputs that do not exist; not needed when one of them does.
    Raises:
        SourceUnusable: no count for new inputs, or inputs whose counts differ.
        SourceAway: no broker answers.
    """
    quiet_library()
    names = _names(topic_prefix)
    async with requests(connection) as asking:
        counts = await asking.partition_counts(list(names.values()))
    wanted = _input_partitions({log: counts[names[log]] for log in LOGS}, names, partitions)
    return [
        TopicPlan(full, counts[full] or wanted, CLEANUP[name], counts[full])
        for name, full in names.items()
    ]


def _names(topic_prefix: str) -> dict[str, str]:
    return {name: f"{topic_prefix}{name}" for name in (*LOGS, *OUTPUTS)}


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
        retention_ms: of the new topics; None leaves it to the broker's default.
    Raises:
        SourceUnusable: the broker refuses one of them, with its reason.
        SourceAway: no broker answers.
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
    async with _admin(connection) as admin:
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
    for output, limit in MAX_MESSAGE_BYTES.items():
        if topic.name.endswith(output):
            values["max.message.bytes"] = str(limit)
    return values


async def _wait_until_visible(connection: Connection, names: Sequence[str]) -> None:
    """A new topic is known to all brokers a moment later than to the controller."""
    async with requests(connection) as asking:
        for _ in range(ANSWER_TIMEOUT_MS // 50):
            counts = await asking.partition_counts(names)
            if None not in counts.values():
                return
            await asyncio.sleep(0.05)
    raise SourceAway(f"The new topics {', '.join(names)} are not visible yet.")


async def inspect(
    connection: Connection,
    *,
    topic_prefix: str = "",
    needed_ms: int,
    group_id: str | None = None,
) -> list[Finding]:
    """What `evaluator check` can learn from the cluster; says also what is in order.

    Args:
        connection: where the brokers are.
        topic_prefix: precedes every name.
        needed_ms: how far back the inputs must reach so that state can be rebuilt.
        group_id: the group whose offsets this user must be able to read; None: do not look.
    """
    quiet_library()
    findings = await _reachable(connection)
    if all(finding.severity == "error" for finding in findings):
        return findings
    names = _names(topic_prefix)
    try:
        async with requests(connection) as asking:
            counts = await asking.partition_counts(list(names.values()))
    except (SourceAway, SourceUnusable) as error:
        return [*findings, Finding("error", str(error), "See above.")]
    findings += _partition_findings(names, counts)
    there = {name: full for name, full in names.items() if counts[full] is not None}
    findings += await _configuration_findings(connection, there, needed_ms)
    if group_id is not None:
        findings += await _group_findings(connection, topic_prefix, group_id)
    return findings


async def _reachable(connection: Connection) -> list[Finding]:
    findings = []
    for host, port, _ in collect_hosts(connection.bootstrap, randomize=False):
        one = replace(connection, bootstrap=f"{host}:{port}")
        try:
            await probe(one)
        except (SourceAway, SourceUnusable) as error:
            findings.append(
                Finding(
                    "error",
                    f"Broker {host}:{port} cannot be used: {error}",
                    "Check the address in --source, the network, and the security settings.",
                )
            )
        else:
            findings.append(Finding("ok", f"Broker {host}:{port} answers."))
    return findings


def _partition_findings(
    names: Mapping[str, str], counts: Mapping[str, int | None]
) -> list[Finding]:
    findings = [
        Finding(
            "error",
            f"Topic {full} not found, or not to be seen by this user.",
            "Create what is missing with `evaluator topics create`; Describe is the right needed.",
        )
        for full in names.values()
        if counts[full] is None
    ]
    inputs = [counts[names[log]] for log in LOGS]
    if None not in inputs and inputs[0] != inputs[1]:
        findings.append(
            Finding(
                "error",
                f"Topic {names['rankings']} has {inputs[0]} partitions and topic "
                f"{names['judgments']} has {inputs[1]}.",
                "Give both the same partition count and partitioner: a query and its judgments "
                "must meet in the same partition.",
            )
        )
    tasks = max((count or 0) for count in inputs)
    for output in OUTPUTS:
        count = counts[names[output]]
        if count is not None and count < tasks:
            findings.append(
                Finding(
                    "error",
                    f"Output topic {names[output]} has {count} partitions, the inputs {tasks}.",
                    f"Give {names[output]} at least {tasks} partitions: each task writes to its "
                    "own.",
                )
            )
    if not findings:
        findings.append(Finding("ok", f"All {len(names)} topics are there, for {tasks} tasks."))
    return findings


async def _configuration_findings(
    connection: Connection, names: Mapping[str, str], needed_ms: int
) -> list[Finding]:
    findings: list[Finding] = []
    try:
        async with _admin(connection) as admin:
            described = await _described(admin, list(names.values()))
    except (SourceAway, SourceUnusable) as error:
        return [Finding("warning", f"Topic settings cannot be read: {error}", "Grant it to see.")]
    for name, full in names.items():
        values = described.get(full)
        if values is None:
            findings.append(
                Finding(
                    "warning",
                    f"The settings of topic {full} are not to be seen by this user.",
                    "Grant DescribeConfigs, or check cleanup.policy and retention.ms by hand.",
                )
            )
            continue
        findings += _policy_findings(name, full, values)
        if name in LOGS:
            findings += _retention_findings(full, values, needed_ms)
    return findings


def _policy_findings(name: str, full: str, values: Mapping[str, str]) -> list[Finding]:
    policy = set(values.get("cleanup.policy", "delete").split(","))
    wanted = set(CLEANUP[name].split(","))
    if policy == wanted:
        return []
    if "compact" in policy and "compact" not in wanted:
        severity: Severity = "error"  # records would vanish while they are needed
    else:
        severity = "warning"
    return [
        Finding(
            severity,
            f"Topic {full} has cleanup.policy {','.join(sorted(policy))}, "
            f"{CLEANUP[name]} is wanted.",
            f"Set cleanup.policy={CLEANUP[name]} on {full}.",
        )
    ]


def _retention_findings(full: str, values: Mapping[str, str], needed_ms: int) -> list[Finding]:
    findings = []
    retention_ms = int(values.get("retention.ms", "-1"))
    if 0 <= retention_ms < needed_ms:
        findings.append(
            Finding(
                "error",
                f"Topic {full} keeps records for {retention_ms} ms, {needed_ms} ms are needed to "
                "rebuild a task.",
                f"Set retention.ms of {full} to more than {needed_ms}, or lower retention_ms, "
                "remember_ms or early_ms of the evaluator.",
            )
        )
    if int(values.get("retention.bytes", "-1")) >= 0:
        findings.append(
            Finding(
                "warning",
                f"Topic {full} has retention.bytes {values['retention.bytes']}: records may "
                f"expire before {needed_ms} ms.",
                "Set retention.bytes=-1, or make sure that it holds more than the time needed.",
            )
        )
    return findings or [Finding("ok", f"Topic {full} keeps its records long enough.")]


async def _group_findings(
    connection: Connection, topic_prefix: str, group_id: str
) -> list[Finding]:
    named = [TopicPartition(topic, 0) for topic in input_topics(topic_prefix).values()]
    try:
        async with requests(connection) as asking:
            await asking.committed(group_id, named)
    except (SourceAway, SourceUnusable) as error:
        return [Finding("error", str(error), f"Grant Read on group {group_id} to this user.")]
    return [Finding("ok", f"The offsets of group {group_id} can be read.")]


async def _described(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Settings per topic; topics that may not be looked at are missing."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    found = {}
    for response in await admin.describe_configs(resources):
        for code, _message, _kind, name, entries in response.resources:
            if code == 0:
                found[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
    return found


@contextlib.asynccontextmanager
async def _admin(connection: Connection) -> AsyncIterator[AIOKafkaAdminClient]:
    await probe(connection)
    admin = AIOKafkaAdminClient(request_timeout_ms=ANSWER_TIMEOUT_MS, **connection.arguments())
    try:
        with translated("administering topics"):
            await admin.start()
            if admin._client.cluster.controller is None:  # the library would trip over it
                raise SourceAway("The brokers know of no controller yet; try again in a moment.")
            yield admin
    finally:
        await admin.close()
