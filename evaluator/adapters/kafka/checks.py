"""What is wrong with brokers, topics and rights, and what to do about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from aiokafka import TopicPartition

from evaluator.adapters.kafka.addresses import parse_addresses
from evaluator.adapters.kafka.admin import (
    CLEANUP,
    FURTHER_SETTINGS,
    LARGEST_BATCH,
    MAX_BOUND_MS,
    ONE_PARTITION,
    TIMESTAMP_BOUND,
    TIMESTAMP_TYPE,
    described,
    leader_group,
    leader_topics,
    topic_names,
    transactional_id,
)
from evaluator.adapters.kafka.commands import (
    configs_command,
    longer_retention_command,
    partitions_command,
)
from evaluator.adapters.kafka.connection import (
    Connection,
    input_topics,
    probe,
    requests,
)
from evaluator.adapters.kafka.retention import retention_ms
from evaluator.core.types.records import LOGS
from evaluator.ports import SourceUnavailable, SourceUnusable
from evaluator.wire.outputs.sizes import OVERSIZE_OUTPUT, ROOM_BYTES
from evaluator.wire.records import CHECKPOINTS, WRITTEN

Severity = Literal["ok", "warning", "error"]

LOG_APPEND_TIME: Final = "LogAppendTime"
LOG_APPEND_TIME_MEANS: Final = (
    "the broker replaces the timestamps of records by its own, so a message without timestamp_ms "
    "gets the time of its arrival, that of an outage included, and one with timestamp_ms is "
    "malformed (`future`) where that is ahead of its arrival by more than max_future_skew_ms."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how bad it is, what it is, what to do (empty when ok)."""

    severity: Severity
    what: str
    what_to_do: str = ""


async def inspect(
    connection: Connection,
    *,
    topic_prefix: str = "",
    needed_ms: int,
    group_id: str | None = None,
    learns: bool = False,
    max_future_skew_ms: int | None = None,
) -> list[Finding]:
    """What `evaluator check` can learn from the cluster; says also what is in order.

    Args:
        connection: where the brokers are.
        topic_prefix: precedes every name.
        needed_ms: how far back the inputs must reach so that state can be rebuilt.
        group_id: the group whose offsets this user must be able to read; None: do not look.
        learns: whether there is a leader, with topics, a group and transactions of its own.
        max_future_skew_ms: how far ahead of the broker's clock records of the inputs may be
            stamped; None: do not look.
    """
    findings = await _reachable(connection)
    if all(finding.severity == "error" for finding in findings):
        return findings
    names = topic_names(topic_prefix)
    if learns:
        names |= leader_topics(topic_prefix)
    try:
        async with requests(connection) as asking:
            counts = await asking.partition_counts(list(names.values()))
    except (SourceUnavailable, SourceUnusable) as error:
        return [*findings, Finding("error", str(error), "See above.")]
    findings += _partition_findings(connection, names, counts)
    there = {name: full for name, full in names.items() if counts[full] is not None}
    findings += await _configuration_findings(connection, there, needed_ms, max_future_skew_ms)
    if group_id is not None:
        inputs = [TopicPartition(topic, 0) for topic in input_topics(topic_prefix).values()]
        findings += await _group_findings(connection, group_id, inputs)
    if group_id is not None and learns:
        weights = [TopicPartition(names["weights"], 0)]
        findings += await _group_findings(connection, leader_group(group_id), weights)
        findings += await _transaction_findings(
            connection, transactional_id(topic_prefix, group_id)
        )
    return findings


async def _reachable(connection: Connection) -> list[Finding]:
    findings = []
    for address in parse_addresses(connection.bootstrap):
        one = replace(connection, bootstrap=str(address))
        try:
            await probe(one)
        except (SourceUnavailable, SourceUnusable) as error:
            findings.append(
                Finding(
                    "error",
                    f"Broker {address} cannot be used: {error}",
                    "Check the address in --source, the network, and the security settings.",
                )
            )
        else:
            findings.append(Finding("ok", f"Broker {address} answers."))
    return findings


def _partition_findings(
    connection: Connection, names: Mapping[str, str], counts: Mapping[str, int | None]
) -> list[Finding]:
    findings = [
        Finding(
            "error",
            f"Topic {full} not found, or this user lacks the Describe right.",
            "Create missing topics with `evaluator topics create`, or grant Describe.",
        )
        for full in names.values()
        if counts[full] is None
    ]
    inputs = [counts[names[log]] for log in LOGS]
    tasks = max((count or 0) for count in inputs)
    if None not in inputs and inputs[0] != inputs[1]:
        smaller = names[min(LOGS, key=lambda log: counts[names[log]] or 0)]
        findings.append(
            Finding(
                "error",
                f"Topic {names['rankings']} has {inputs[0]} partitions and topic "
                f"{names['judgments']} has {inputs[1]}: a query and its judgments must meet in "
                "the same partition.",
                f"{partitions_command(connection, smaller, tasks)} (if both had the same count "
                f"before; else recreate {smaller}, and fill it again by the same partitioner).",
            )
        )
    for output in WRITTEN:
        count = counts[names[output]]
        if count is not None and count < tasks:
            findings.append(
                Finding(
                    "error",
                    f"Output topic {names[output]} has {count} partitions, the inputs {tasks}: "
                    "each task writes to its own.",
                    partitions_command(connection, names[output], tasks),
                )
            )
    findings += [
        Finding(
            "error",
            f"Topic {full} has {counts[full]} partitions; it needs one.",
            f"Delete {full}, and make it again with `evaluator topics create`.",
        )
        for name, full in names.items()
        if name in ONE_PARTITION and counts[full] not in {1, None}
    ]
    if not findings:
        findings.append(Finding("ok", f"All {len(names)} topics are there, for {tasks} tasks."))
    return findings


async def _configuration_findings(
    connection: Connection,
    names: Mapping[str, str],
    needed_ms: int,
    max_future_skew_ms: int | None,
) -> list[Finding]:
    findings: list[Finding] = []
    try:
        settings = await described(connection, list(names.values()))
    except (SourceUnavailable, SourceUnusable) as error:
        return [Finding("warning", f"Topic settings cannot be read: {error}", "Grant it to see.")]
    for name, full in names.items():
        values = settings.get(full)
        if values is None:
            findings.append(
                Finding(
                    "warning",
                    f"The settings of topic {full} cannot be read by this user.",
                    "Grant DescribeConfigs, or check cleanup.policy and retention.ms by hand.",
                )
            )
            continue
        findings += _policy_findings(name, full, values)
        findings += _segment_findings(connection, name, full, values)
        findings += _room_findings(connection, name, full, values)
        if name in LOGS:
            findings += _retention_findings(connection, full, values, needed_ms)
        if max_future_skew_ms is not None:
            findings += _timestamp_findings(connection, name, full, values, max_future_skew_ms)
    return findings


def _policy_findings(name: str, full: str, values: Mapping[str, str]) -> list[Finding]:
    policy = set(values.get("cleanup.policy", "delete").split(","))
    wanted = set(CLEANUP[name].split(","))
    if policy == wanted:
        return []
    return [
        Finding(
            "error" if policy - wanted else "warning",  # would remove what is needed, or too little
            f"Topic {full} has cleanup.policy {','.join(sorted(policy))}, "
            f"{CLEANUP[name]} is wanted.",
            f"Set cleanup.policy={CLEANUP[name]} on {full}.",
        )
    ]


def _segment_findings(
    connection: Connection, name: str, full: str, values: Mapping[str, str]
) -> list[Finding]:
    larger = {
        setting: wanted
        for setting, wanted in FURTHER_SETTINGS.get(name, {}).items()
        if setting.startswith("segment.") and int(values.get(setting, wanted)) > int(wanted)
    }
    if not larger:
        return []
    has = " and ".join(f"{setting} {values[setting]}" for setting in larger)
    wanted = ",".join(f"{setting}={value}" for setting, value in larger.items())
    return [
        Finding(
            "warning",
            f"Topic {full} has {has}, so it is compacted late: whoever reads it reads more.",
            configs_command(connection, full, wanted),
        )
    ]


def _room_findings(
    connection: Connection, name: str, full: str, values: Mapping[str, str]
) -> list[Finding]:
    room, needed = int(values.get(LARGEST_BATCH, 1 << 62)), ROOM_BYTES.get(name, 0)
    if room >= needed:
        return []
    return [
        Finding(
            "warning",
            f"Topic {full} has {LARGEST_BATCH} {room}, and a record can need {needed}: one that "
            f"is refused becomes a dead letter ({OVERSIZE_OUTPUT}) with its key alone.",
            configs_command(connection, full, f"{LARGEST_BATCH}={needed}"),
        )
    ]


def _retention_findings(
    connection: Connection, full: str, values: Mapping[str, str], needed_ms: int
) -> list[Finding]:
    findings = []
    kept_ms = retention_ms(values)
    if kept_ms is not None and kept_ms <= needed_ms:
        findings.append(
            Finding(
                "error",
                f"Topic {full} keeps records for {kept_ms} ms, more than {needed_ms} ms are needed "
                "to rebuild a task.",
                f"{longer_retention_command(connection, full, needed_ms)} (a day more than is "
                "needed), or lower retention_ms, remember_ms, early_ms or window_ms of the "
                "evaluator.",
            )
        )
    if int(values.get("retention.bytes", "-1")) >= 0:
        findings.append(
            Finding(
                "warning",
                f"Topic {full} has retention.bytes {values['retention.bytes']}: records may "
                f"expire before {needed_ms} ms.",
                f"{configs_command(connection, full, 'retention.bytes=-1')}, or make sure that it "
                "holds more than the time needed.",
            )
        )
    return findings or [Finding("ok", f"Topic {full} keeps its records long enough.")]


def _timestamp_findings(
    connection: Connection, name: str, full: str, values: Mapping[str, str], wanted_ms: int
) -> list[Finding]:
    def warning(what: str, setting: str, further: str = "") -> list[Finding]:
        advice = f"{configs_command(connection, full, setting)}{further}"
        return [Finding("warning", f"Topic {full} has {what}", advice)]

    kind = values.get(TIMESTAMP_TYPE, "CreateTime")
    bound_ms = int(values.get(TIMESTAMP_BOUND, MAX_BOUND_MS))
    if name in LOGS and kind == LOG_APPEND_TIME:
        return warning(
            f"{TIMESTAMP_TYPE} {kind}: {LOG_APPEND_TIME_MEANS}", f"{TIMESTAMP_TYPE}=CreateTime"
        )
    if name in LOGS and bound_ms > wanted_ms:
        bound = "none" if bound_ms == MAX_BOUND_MS else str(bound_ms)
        return warning(
            f"{TIMESTAMP_BOUND} {bound}, max_future_skew_ms is {wanted_ms}: one producer whose "
            "clock is further ahead stops settling for all queries of its partitions.",
            f"{TIMESTAMP_BOUND}={wanted_ms}",
            f" (Kafka 3.6 or later). {TIMESTAMP_TYPE}={LOG_APPEND_TIME} is something else: "
            + LOG_APPEND_TIME_MEANS,
        )
    if name == CHECKPOINTS and kind != LOG_APPEND_TIME:
        return warning(
            f"{TIMESTAMP_TYPE} {kind}: workers cannot measure their clock against the broker's, "
            "and stamp heartbeats by their own.",
            f"{TIMESTAMP_TYPE}={LOG_APPEND_TIME}",
        )
    return []


async def _group_findings(
    connection: Connection, group_id: str, partitions: Sequence[TopicPartition]
) -> list[Finding]:
    try:
        async with requests(connection) as asking:
            await asking.committed(group_id, partitions)
    except (SourceUnavailable, SourceUnusable) as error:
        return [Finding("error", str(error), f"Grant Read on group {group_id} to this user.")]
    return [Finding("ok", f"The offsets of group {group_id} can be read.")]


async def _transaction_findings(connection: Connection, name: str) -> list[Finding]:
    try:
        async with requests(connection) as asking:
            await asking.coordinator_of(name)
    except SourceUnusable as error:
        return [Finding("error", str(error), f"Grant Write on transactional id {name}.")]
    except SourceUnavailable as error:
        return [
            Finding(
                "error",
                str(error),
                "On fewer than three brokers transaction.state.log.replication.factor and "
                "transaction.state.log.min.isr must not be more than there are.",
            )
        ]
    return [Finding("ok", f"The brokers look after transactional id {name}.")]
