"""`check`, `topics` and `schema`."""

import argparse
import asyncio
import json
import shlex
import stat
import sys
from pathlib import Path
from typing import Final

from evaluator.adapters.kafka import (
    Connection,
    Finding,
    TopicPlan,
    acl_commands,
    create_topics,
    inspect,
    plan_topics,
    rights_to_run,
)
from evaluator.cli.wiring import UsageError, connection_of, needed_input_ms, topic_names
from evaluator.config import Settings
from evaluator.tables import format_table
from evaluator.wire.outputs.schemas import schemas

FOUND: Final = 5
UNREACHABLE: Final = 3
MAX_PARTITIONS: Final = 2**31 - 1
MAX_REPLICATION: Final = 2**15 - 1
"""Both are what a request to Kafka has room for."""


def check(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator check`: findings, worst last, and rights; exit 5 if any finding is an error."""
    connection = connection_of(asked.source, settings)
    findings = asyncio.run(
        inspect(
            connection,
            topic_prefix=settings.topic_prefix,
            needed_ms=needed_input_ms(settings),
            group_id=settings.group_id,
            learns=settings.learns,
            max_future_skew_ms=settings.max_future_skew_ms,
        )
    )
    print(findings_text([*findings, *_state_findings(Path(settings.state_dir))]))
    if all(finding.severity == "error" for finding in findings):
        return UNREACHABLE
    print("\n".join(["", *rights_lines(connection, settings, principal=asked.principal)]))
    return FOUND if any(finding.severity == "error" for finding in findings) else 0


def _state_findings(state_dir: Path) -> list[Finding]:
    try:
        mode = stat.S_IMODE(state_dir.stat().st_mode)
    except OSError:  # not on this machine, or not made yet
        return []
    if not mode & 0o077:
        return []
    return [
        Finding(
            "warning",
            f"state_dir {state_dir} is open to other users (mode {mode:04o}); it has the messages "
            "of open queries.",
            f"chmod 700 {shlex.quote(str(state_dir))}",
        )
    ]


def findings_text(findings: list[Finding]) -> str:
    """One line per finding, with what to do below it."""
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
    """The rights that `run` needs, as commands for an administrator; *principal* wins."""
    lines = ["# The rights that `evaluator run` needs, and no others:"]
    if principal is not None:
        name = shlex.quote(principal if ":" in principal else f"User:{principal}")
    elif settings.security_protocol.startswith("SASL_"):
        name = shlex.quote(f"User:{settings.sasl_username}")
    elif settings.ssl_certfile is not None:
        lines.append('# PRINCIPAL="User:..." is what the broker makes of the client certificate')
        name = '"$PRINCIPAL"'
    else:
        name = "User:ANONYMOUS"
    rights = rights_to_run(
        topic_prefix=settings.topic_prefix,
        group_id=settings.group_id,
        heartbeats=settings.heartbeats,
        learns=settings.learns,
    )
    return lines + acl_commands(connection, rights, principal=name)


def plan(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator topics plan`."""
    print(plan_text(asyncio.run(_plan(asked, settings))))
    return 0


async def _plan(asked: argparse.Namespace, settings: Settings) -> list[TopicPlan]:
    """Raises UsageError if another count is asked for than the inputs have, or may have."""
    if asked.partitions is not None and asked.partitions > MAX_PARTITIONS:
        raise UsageError(f"--partitions is more than {MAX_PARTITIONS}, which no topic has.")
    topics = await plan_topics(
        connection_of(asked.source, settings),
        topic_prefix=settings.topic_prefix,
        partitions=asked.partitions,
        timestamp_bound_ms=None if asked.no_timestamp_bound else settings.max_future_skew_ms,
    )
    inputs = topic_names(settings).values()
    there = [topic.partitions for topic in topics if topic.name in inputs and not topic.missing]
    if there and asked.partitions not in {None, *there}:
        raise UsageError(
            f"there are {there[0]} partitions, not {asked.partitions}; existing topics keep "
            "their count. Leave --partitions out to go on with it."
        )
    return topics


def plan_text(topics: list[TopicPlan]) -> str:
    """A table of the topics that there should be."""
    rows = [
        [
            topic.name,
            str(topic.partitions),
            topic.cleanup_policy,
            "missing" if topic.missing else f"there, {topic.exists} partitions",
            ",".join(f"{name}={value}" for name, value in topic.settings.items()),
        ]
        for topic in topics
    ]
    columns = ["topic", "partitions", "cleanup.policy", "now", "further settings"]
    return format_table(columns, rows, numbers=[1])


def create(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator topics create`."""
    if not -1 <= asked.replication_factor <= MAX_REPLICATION:
        raise UsageError(f"--replication-factor is not accepted. Give -1 to {MAX_REPLICATION}.")
    made = asyncio.run(_create(asked, settings))
    print("\n".join(f"created {name}" for name in made) or "nothing is missing")
    return 0


async def _create(asked: argparse.Namespace, settings: Settings) -> list[str]:
    return await create_topics(
        connection_of(asked.source, settings),
        await _plan(asked, settings),
        replication_factor=asked.replication_factor,
    )


def schema(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator schema [NAME]`."""
    del settings
    known = schemas()
    if asked.name is None:
        print("\n".join(known))
        return 0
    if asked.name not in known:
        raise UsageError(f"There is no schema {asked.name}. Known are: {', '.join(known)}.")
    json.dump(known[asked.name], sys.stdout, indent=2)
    print()
    return 0
