"""Checks of brokers, topics and rights; a worker's watch on the retention of the inputs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final

import structlog
from aiokafka import TopicPartition
from msgspec.structs import replace

from evaluator.adapters.kafka.administration import (
    CLEANUP,
    FURTHER_SETTINGS,
    LARGEST_BATCH,
    MAX_BOUND_MS,
    TIMESTAMP_BOUND,
    TIMESTAMP_TYPE,
    configs_command,
    described,
    leader_group,
    leader_topics,
    longer_retention_command,
    partitions_command,
    schema_topics,
    topic_names,
    transactional_id,
)
from evaluator.adapters.kafka.clients import creation, input_topics, requests
from evaluator.adapters.kafka.connection import Connection, parse_addresses, probe
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import Finding, SourceUnavailable, SourceUnusable
from evaluator.waiting import is_set_within
from evaluator.wire.outputs.sizes import OVERSIZE_OUTPUT, ROOM_BYTES
from evaluator.wire.records import CHECKPOINTS, LEADER_OUTPUTS, WRITTEN

RETENTION_INTERVAL_SECONDS: Final = 600.0
RETENTION_RETRY_SECONDS: Final = 5.0
UNKNOWN: Final = -1

log = structlog.get_logger()
Settings = Mapping[str, str]

LOG_APPEND_TIME: Final = "LogAppendTime"
LOG_APPEND_TIME_MEANS: Final = (
    "the broker replaces the timestamps of records by its own, so a message without timestamp_ms "
    "gets the time of its arrival, that of an outage included, and one with timestamp_ms is "
    "malformed (`future`) where that is ahead of its arrival by more than max_future_skew_ms."
)


async def inspect(
    connection: Connection,
    *,
    topic_prefix: str = "",
    needed_ms: int,
    group_id: str | None = None,
    leads: bool = False,
    max_future_skew_ms: int | None = None,
) -> list[Finding]:
    """The findings of `evaluator check` about the cluster, those without a defect included.

    Args:
        connection: the brokers.
        topic_prefix: precedes every name.
        needed_ms: how far back the inputs must reach so that state can be rebuilt.
        group_id: the group whose offsets this user must be able to read; None: no check.
        leads: whether there is a leader, with its own topics, group and transactions.
        max_future_skew_ms: how far ahead of the broker's clock the timestamps of the inputs may
            be; None: no check.
    """
    findings = await _reachable(connection)
    if all(finding.severity == "error" for finding in findings):
        return findings
    names = topic_names(topic_prefix, connection)
    names |= schema_topics(topic_prefix, connection)
    if leads:
        names |= leader_topics(topic_prefix)
    try:
        async with requests(connection) as asking:
            counts = await asking.partition_counts(list(names.values()))
    except (SourceUnavailable, SourceUnusable) as error:
        return [*findings, Finding("error", str(error), "See above.")]
    findings += list(_partition_errors(connection, names, counts)) or [
        Finding("ok", f"All {len(names)} topics exist, for {_n_tasks(names, counts)} tasks.")
    ]
    existing = {name: full for name, full in names.items() if counts[full] is not None}
    findings += await _configuration(connection, existing, needed_ms, max_future_skew_ms)
    if group_id is not None:
        inputs = [TopicPartition(topic, 0) for topic in (names[log] for log in LOGS)]
        findings.append(await _group(connection, group_id, inputs))
    if group_id is not None and leads:
        weights = [TopicPartition(names["weights"], 0)]
        findings.append(await _group(connection, leader_group(group_id), weights))
        findings.append(await _transactions(connection, transactional_id(topic_prefix, group_id)))
    return findings


async def _reachable(connection: Connection) -> list[Finding]:
    findings = []
    for address in parse_addresses(connection.bootstrap):
        try:
            await probe(replace(connection, bootstrap=str(address)))
        except (SourceUnavailable, SourceUnusable) as error:
            what = f"Broker {address} cannot be used: {error}"
            advice = "Check the address in --source, the network, and the security settings."
            findings.append(Finding("error", what, advice))
        else:
            findings.append(Finding("ok", f"Broker {address} answers."))
    return findings


def _n_tasks(names: Mapping[str, str], counts: Mapping[str, int | None]) -> int:
    return max((counts[names[log]] or 0) for log in LOGS)


def _partition_errors(
    connection: Connection, names: Mapping[str, str], counts: Mapping[str, int | None]
) -> Iterator[Finding]:
    for full in names.values():
        if counts[full] is None:
            yield Finding(
                "error",
                f"Topic {full} not found, or this user lacks the Describe right.",
                f"Create missing topics with {creation(connection, [full])}, or grant Describe.",
            )
    inputs = [counts[names[log]] for log in LOGS]
    tasks = _n_tasks(names, counts)
    if None not in inputs and inputs[0] != inputs[1] and not connection.mapped:  # a sample shows it
        smaller = names[min(LOGS, key=lambda log: counts[names[log]] or 0)]
        yield Finding(
            "error",
            f"Topic {names['rankings']} has {inputs[0]} partitions and topic "
            f"{names['judgments']} has {inputs[1]}: a query and its judgments must meet in "
            "the same partition.",
            f"{partitions_command(connection, smaller, tasks)} (if both had the same count "
            f"before; else recreate {smaller}, and fill it again by the same partitioner).",
        )
    for full in (names[output] for output in WRITTEN):
        count = counts[full]
        if count is not None and count < tasks:
            yield Finding(
                "error",
                f"Output topic {full} has {count} partitions, the inputs {tasks}: each task "
                "writes to its own.",
                partitions_command(connection, full, tasks),
            )
    for name, full in names.items():
        if name in LEADER_OUTPUTS and counts[full] not in {1, None}:
            yield Finding(
                "error",
                f"Topic {full} has {counts[full]} partitions; it needs one.",
                f"Delete {full}, and create it again with `evaluator topics create`.",
            )


async def _configuration(
    connection: Connection,
    names: Mapping[str, str],
    needed_ms: int,
    max_future_skew_ms: int | None,
) -> list[Finding]:
    findings: list[Finding] = []
    try:
        settings = await described(connection, list(names.values()))
    except (SourceUnavailable, SourceUnusable) as error:
        advice = "Grant DescribeConfigs."
        return [Finding("warning", f"Topic settings cannot be read: {error}", advice)]
    for name, full in names.items():
        values = settings.get(full)
        if values is None:
            what = f"The settings of topic {full} cannot be read by this user."
            advice = "Grant DescribeConfigs, or check cleanup.policy and retention.ms by hand."
            findings.append(Finding("warning", what, advice))
            continue
        findings += _policy(name, full, values)
        findings += _segments(connection, name, full, values)
        findings += _room(connection, name, full, values)
        if name in LOGS:
            findings += list(_retention(connection, full, values, needed_ms)) or [
                Finding("ok", f"Topic {full} keeps its records long enough.")
            ]
        if max_future_skew_ms is not None:
            findings += _timestamps(connection, name, full, values, max_future_skew_ms)
    return findings


def _policy(name: str, full: str, values: Settings) -> Iterator[Finding]:
    policy = set(values.get("cleanup.policy", "delete").split(","))
    wanted = set(CLEANUP[name].split(","))
    if policy != wanted:
        yield Finding(
            "error" if policy - wanted else "warning",  # removes too much, or too little
            f"Topic {full} has cleanup.policy {','.join(sorted(policy))}, not {CLEANUP[name]}.",
            f"Set cleanup.policy={CLEANUP[name]} on {full}.",
        )


def _segments(connection: Connection, name: str, full: str, values: Settings) -> Iterator[Finding]:
    larger = {
        setting: wanted
        for setting, wanted in FURTHER_SETTINGS.get(name, {}).items()
        if setting.startswith("segment.") and int(values.get(setting, wanted)) > int(wanted)
    }
    if larger:
        has = " and ".join(f"{setting} {values[setting]}" for setting in larger)
        wanted = ",".join(f"{setting}={value}" for setting, value in larger.items())
        yield Finding(
            "warning",
            f"Topic {full} has {has}, so it is compacted late: every reader reads more.",
            configs_command(connection, full, wanted),
        )


def _room(connection: Connection, name: str, full: str, values: Settings) -> Iterator[Finding]:
    room, needed = int(values.get(LARGEST_BATCH, 1 << 62)), ROOM_BYTES.get(name, 0)
    if room < needed:
        yield Finding(
            "warning",
            f"Topic {full} has {LARGEST_BATCH} {room}, and a record can need {needed}: one that "
            f"is refused becomes a dead letter ({OVERSIZE_OUTPUT}) with its key alone.",
            configs_command(connection, full, f"{LARGEST_BATCH}={needed}"),
        )


def _retention(
    connection: Connection, full: str, values: Settings, needed_ms: int
) -> Iterator[Finding]:
    kept_ms = retention_ms(values)
    if kept_ms is not None and kept_ms <= needed_ms:
        yield Finding(
            "error",
            f"Topic {full} keeps records for {kept_ms} ms, more than {needed_ms} ms are needed "
            "to rebuild a task.",
            f"{longer_retention_command(connection, full, needed_ms)} (a day more than is "
            "needed), or lower retention_ms, remember_ms, early_ms or window_ms of the "
            "evaluator.",
        )
    if int(values.get("retention.bytes", "-1")) >= 0:
        yield Finding(
            "warning",
            f"Topic {full} has retention.bytes {values['retention.bytes']}: records may "
            f"expire before {needed_ms} ms.",
            f"{configs_command(connection, full, 'retention.bytes=-1')}, or make sure that it "
            "holds more than the time needed.",
        )


def _timestamps(
    connection: Connection, name: str, full: str, values: Settings, wanted_ms: int
) -> Iterator[Finding]:
    kind = values.get(TIMESTAMP_TYPE, "CreateTime")
    bound_ms = int(values.get(TIMESTAMP_BOUND, MAX_BOUND_MS))
    further = ""
    if name in LOGS and kind == LOG_APPEND_TIME:
        setting = f"{TIMESTAMP_TYPE}=CreateTime"
        has = f"{TIMESTAMP_TYPE} {kind}: {LOG_APPEND_TIME_MEANS}"
    elif name in LOGS and bound_ms > wanted_ms:
        setting = f"{TIMESTAMP_BOUND}={wanted_ms}"
        bound = "none" if bound_ms == MAX_BOUND_MS else str(bound_ms)
        has = (
            f"{TIMESTAMP_BOUND} {bound}, max_future_skew_ms is {wanted_ms}: one producer whose "
            "clock is further ahead stops settling for all queries of its partitions."
        )
        further = (
            f" (Kafka 3.6 or later). {TIMESTAMP_TYPE}={LOG_APPEND_TIME} is a different setting: "
            f"{LOG_APPEND_TIME_MEANS}"
        )
    elif name == CHECKPOINTS and kind != LOG_APPEND_TIME:
        setting = f"{TIMESTAMP_TYPE}={LOG_APPEND_TIME}"
        has = (
            f"{TIMESTAMP_TYPE} {kind}: workers cannot measure their clock against the broker's, "
            "and stamp heartbeats by their own."
        )
    else:
        return
    advice = configs_command(connection, full, setting) + further
    yield Finding("warning", f"Topic {full} has {has}", advice)


async def _group(
    connection: Connection, group_id: str, partitions: Sequence[TopicPartition]
) -> Finding:
    try:
        async with requests(connection) as asking:
            await asking.committed(group_id, partitions)
    except (SourceUnavailable, SourceUnusable) as error:
        return Finding("error", str(error), f"Grant Read on group {group_id} to this user.")
    return Finding("ok", f"The offsets of group {group_id} can be read.")


async def _transactions(connection: Connection, name: str) -> Finding:
    try:
        async with requests(connection) as asking:
            await asking.require_coordinator(name)
    except SourceUnusable as error:
        return Finding("error", str(error), f"Grant Write on transactional id {name}.")
    except SourceUnavailable as error:
        return Finding(
            "error",
            str(error),
            "On fewer than three brokers transaction.state.log.replication.factor and "
            "transaction.state.log.min.isr must not be more than there are.",
        )
    return Finding("ok", f"Transactional id {name} has a coordinator.")


def retention_ms(values: Mapping[str, str]) -> int | None:
    """The retention of a topic with these settings; None for no limit."""
    kept_ms = int(values.get("retention.ms", "-1"))
    return None if kept_ms < 0 else kept_ms


class InputRetention:
    """Watches the retention of both inputs. `known` lacks a topic that cannot be described.

    Args:
        needed_ms: how far back the inputs must reach; retention must exceed it.
    """

    def __init__(self, connection: Connection, *, topic_prefix: str = "", needed_ms: int) -> None:
        self.known: Mapping[Log, int | None] = {}
        self.needed_ms = needed_ms
        self._connection = connection
        self._topics = input_topics(topic_prefix, connection)
        self._logged: dict[Log, int | None] = {}

    @contextlib.asynccontextmanager
    async def watching(self, polled: asyncio.Event) -> AsyncIterator[None]:
        """Describes the inputs at intervals in the background, after the first poll."""
        ending = asyncio.Event()
        task = asyncio.create_task(self._watch(polled, ending))
        try:
            yield
        finally:
            ending.set()  # aiokafka may swallow the cancellation
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    async def _watch(self, polled: asyncio.Event, ending: asyncio.Event) -> None:
        await polled.wait()
        while not ending.is_set():
            seconds = RETENTION_INTERVAL_SECONDS if await self.look() else RETENTION_RETRY_SECONDS
            await is_set_within(ending, seconds)

    async def look(self) -> bool:
        """Describes the inputs once, and logs changes; False if the brokers did not answer."""
        try:
            found = await described(self._connection, list(self._topics.values()))
        except (SourceUnavailable, SourceUnusable):
            return False  # the worker reports it
        self.known = {
            name: retention_ms(found[topic])
            for name, topic in self._topics.items()
            if topic in found
        }
        for name, topic in self._topics.items():
            now = self.known.get(name, UNKNOWN)
            if name not in self._logged or self._logged[name] != now:
                self._logged[name] = now
                self._log(topic, now)
        return True

    def _log(self, topic: str, now: int | None) -> None:
        if now == UNKNOWN:
            log.info("input_retention_unknown", topic=topic)
        elif now is not None and now <= self.needed_ms:
            log.warning(
                "input_retention_short",
                topic=topic,
                retention_ms=now,
                needed_ms=self.needed_ms,
                command=longer_retention_command(self._connection, topic, self.needed_ms),
            )
