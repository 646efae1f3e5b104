"""`check`, `topics` and `schema`."""

import argparse
import asyncio
import json
import shlex
import stat
import sys
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from evaluator.adapters.kafka import (
    Connection,
    TopicPlan,
    acl_commands,
    create_topics,
    group_members,
    inspect,
    inspect_workers,
    plan_topics,
    remove_from_group,
    rights_to_run,
)
from evaluator.adapters.rocksdb.directory import is_in_use
from evaluator.cli.exits import FOUND, INPUT_UNUSABLE, UsageError
from evaluator.cli.wiring import connection_of, group_of, needed_input_ms, topic_names
from evaluator.config import Settings
from evaluator.ports import Finding, SourceUnavailable, SourceUnusable
from evaluator.tables import format_table
from evaluator.wire.outputs.schemas import schemas
from evaluator.wire.state.snapshots import SnapshotFailed
from evaluator.worker.store_snapshots import in_thread

MAX_NAMES: Final = 3
"""Names of members in a finding."""
PROBE_SECONDS: Final = 30.0
"""The time that `check` gives to snapshot_url."""
CHECK_SAMPLE: Final = 1_000
"""Records of each topic that `check` maps."""
MAX_PARTITIONS: Final = 2**31 - 1
MAX_REPLICATION: Final = 2**15 - 1
"""Limits of the protocol of Kafka."""


def check(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator check`: findings, errors last, and rights; exit 5 if a finding is an error."""
    connection = connection_of(options.source, settings)
    findings = asyncio.run(
        inspect(
            connection,
            topic_prefix=settings.written_prefix,
            needed_ms=needed_input_ms(settings),
            group_id=settings.group_id,
            leads=settings.leads,
            max_future_skew_ms=settings.max_future_skew_ms,
        )
    )
    is_reachable = any(finding.severity != "error" for finding in findings)
    if is_reachable:
        findings += _name_findings(connection, settings)
        group = replace(group_of(settings), group_instance_id=None)
        findings += asyncio.run(inspect_workers(connection, group))
        if settings.learns:
            from evaluator.cli.weights import transform_findings  # noqa: PLC0415 - few learn

            findings += transform_findings(connection, settings)
    if settings.mapping is not None:
        findings += asyncio.run(_mapping_findings(options.source, settings))
    findings += _state_findings(Path(settings.state_dir)) + _snapshot_findings(settings)
    print(findings_text(findings))
    if not is_reachable:
        return INPUT_UNUSABLE
    print("\n".join(["", *rights_lines(connection, settings, principal=options.principal)]))
    return FOUND if any(finding.severity == "error" for finding in findings) else 0


async def _mapping_findings(source: str, settings: Settings) -> list[Finding]:
    """Findings of a sample: whether traces meet, and refused records."""
    from evaluator.cli.mapping import sampled  # noqa: PLC0415 - few commands map

    try:
        report = await sampled(source, settings, CHECK_SAMPLE, show=lambda _: None)
    except (SourceUnusable, SourceUnavailable) as error:
        return [Finding("error", f"The inputs cannot be sampled: {error}", "See above.")]
    findings = [report.verdict(), *report.comparisons, *report.faults()]
    for sample in report.logs.values():
        if sample.n_refused or (sample.n_records and not sample.n_messages):
            what = f"Of {sample.n_records} sampled records of {sample.placement.topic} "
            what += f"{sample.n_messages} are messages, {sample.n_left_out} are left out, and "
            what += f"{sample.n_refused} would become dead letters."
            advice = "`evaluator mapping try` shows the reasons."
            findings.append(Finding("warning" if sample.n_messages else "error", what, advice))
    return findings


def _state_findings(state_dir: Path) -> list[Finding]:
    try:
        mode = stat.S_IMODE(state_dir.stat().st_mode)
    except OSError:  # on another machine, or not created yet
        return []
    if not mode & 0o077:
        return []
    return [
        Finding(
            "warning",
            f"state_dir {state_dir} is open to other users (mode {mode:04o}); it contains the "
            "messages of open queries.",
            f"chmod 700 {shlex.quote(str(state_dir))}",
        )
    ]


def _name_findings(connection: Connection, settings: Settings) -> list[Finding]:
    """The names of the members of the group: static membership of some only, or a name twice."""
    group, name = settings.group_id, settings.group_instance_id
    try:
        members = asyncio.run(group_members(connection, group))
    except (SourceUnusable, SourceUnavailable) as error:
        return [Finding("warning", str(error), f"Grant Describe on group {group} to this user.")]
    named = sorted(filter(None, members))
    found = []
    if named and len(named) < len(members):
        what = f"Group {group} has {len(members) - len(named)} members without a name beside "
        what += f"{len(named)} with one ({', '.join(named[:MAX_NAMES])}): a restart of one of the "
        what += "former moves tasks of all."
        found.append(Finding("warning", what, "Give every worker a group_instance_id, or none."))
    if name in named and not is_in_use(Path(settings.state_dir)):
        what = f"Group {group} has a member {name}, and no process of this machine uses state_dir "
        what += f"{settings.state_dir}: of two processes with one name the older one ends."
        advice = "Give this process a group_instance_id of its own. If the other one has ended: "
        advice += f"wait for its session_timeout_ms, or `evaluator group remove {name}`."
        found.append(Finding("warning", what, advice))
    return found


def _snapshot_findings(settings: Settings) -> list[Finding]:
    """Whether snapshots can be written, listed, read and deleted."""
    url = settings.snapshot_url
    if url is None:
        return []
    from evaluator.adapters.files.snapshots import SnapshotFolder  # noqa: PLC0415 - an extra

    advice = "Workers run without snapshots until then. Grant List, Get, Put and Delete below it."
    try:
        in_thread(SnapshotFolder(url).probe).result(PROBE_SECONDS)
    except SourceUnusable as error:
        return [Finding("error", str(error), "A worker with this snapshot_url does not start.")]
    except SnapshotFailed as error:
        return [Finding("error", f"snapshot_url {url} cannot be used: {error}", advice)]
    except TimeoutError:
        what = f"snapshot_url {url} has not answered in {PROBE_SECONDS:.0f} s."
        return [Finding("error", what, f"Check the network and the address. {advice}")]
    return [Finding("ok", f"snapshot_url {url} can be written, listed, read and cleared.")]


def findings_text(findings: list[Finding]) -> str:
    """One line per finding, and a line with the remedy."""
    order = ("ok", "warning", "error")
    lines = []
    for finding in sorted(findings, key=lambda finding: order.index(finding.severity)):
        lines.append(f"{finding.severity:<8}{finding.what}")
        if finding.what_to_do:
            lines.append(f"        -> {finding.what_to_do}")
    return "\n".join(lines)


def rights_lines(
    connection: Connection, settings: Settings, *, principal: str | None = None
) -> list[str]:
    """The rights that `run` needs, as commands; *principal* overrides that of the settings."""
    lines = ["# The rights that `evaluator run` needs, and no others:"]
    if principal is not None:
        name = shlex.quote(principal if ":" in principal else f"User:{principal}")
    elif settings.security_protocol.startswith("SASL_"):
        name = shlex.quote(f"User:{settings.sasl_username}")
    elif settings.ssl_certfile is not None:
        lines.append(
            '# PRINCIPAL="User:..." is the name that the broker derives from the client certificate'
        )
        name = '"$PRINCIPAL"'
    else:
        name = "User:ANONYMOUS"
    rights = rights_to_run(
        connection,
        topic_prefix=settings.written_prefix,
        group_id=settings.group_id,
        heartbeats=settings.heartbeats,
        leads=settings.leads,
    )
    return lines + acl_commands(connection, rights, principal=name)


def plan(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator topics plan`."""
    print(plan_text(asyncio.run(_plan(options, settings))))
    return 0


async def _plan(options: argparse.Namespace, settings: Settings) -> list[TopicPlan]:
    """Raises UsageError for a count that differs from that of the inputs, or exceeds the limit."""
    if options.partitions is not None and options.partitions > MAX_PARTITIONS:
        raise UsageError(f"--partitions exceeds {MAX_PARTITIONS}, the limit of Kafka.")
    topics = await plan_topics(
        connection_of(options.source, settings),
        topic_prefix=settings.written_prefix,
        partitions=options.partitions,
        timestamp_bound_ms=None if options.no_timestamp_bound else settings.max_future_skew_ms,
    )
    inputs = topic_names(settings).values()
    present = [topic.partitions for topic in topics if topic.name in inputs and not topic.missing]
    if present and options.partitions not in {None, *present}:
        raise UsageError(
            f"the inputs have {present[0]} partitions, not {options.partitions}; existing topics "
            "keep their count. Leave --partitions out to keep it."
        )
    return topics


def plan_text(topics: list[TopicPlan]) -> str:
    """A table of the planned topics."""
    rows = [
        [
            topic.name,
            str(topic.partitions),
            topic.cleanup_policy,
            "missing" if topic.missing else f"exists, {topic.exists} partitions",
            ",".join(f"{name}={value}" for name, value in topic.settings.items()),
        ]
        for topic in topics
    ]
    columns = ["topic", "partitions", "cleanup.policy", "now", "further settings"]
    return format_table(columns, rows, numbers=[1])


def create(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator topics create`."""
    replication_factor = options.replication_factor
    if not -1 <= replication_factor <= MAX_REPLICATION:
        raise UsageError(f"--replication-factor is not accepted. Give -1 to {MAX_REPLICATION}.")

    async def plan_and_create() -> list[str]:
        connection, topics = connection_of(options.source, settings), await _plan(options, settings)
        return await create_topics(connection, topics, replication_factor=replication_factor)

    made = asyncio.run(plan_and_create())
    print("\n".join(f"created {name}" for name in made) or "no topic is missing")
    return 0


def remove(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator group remove NAME`."""
    connection = connection_of(options.source, settings)
    asyncio.run(remove_from_group(connection, settings.group_id, options.name))
    print(f"removed {options.name} from group {settings.group_id}")
    return 0


def schema(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator schema [NAME]`."""
    del settings
    known = schemas()
    if options.name is None:
        print("\n".join(known))
        return 0
    if options.name not in known:
        raise UsageError(f"The schema {options.name} does not exist. Schemas: {', '.join(known)}.")
    json.dump(known[options.name], sys.stdout, indent=2)
    print()
    return 0
